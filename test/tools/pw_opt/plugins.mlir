// RUN: pw-opt %s --load-pass-plugin %S/Inputs/plugins.py:RemarkWord --demo-remark=word=welcome --verify-diagnostics | filecheck %s
// RUN: pw-opt %s --load-pass-plugin=%S/Inputs/plugins.py:RemarkWord -p 'cse,demo-remark{word=welcome}' --verify-diagnostics | filecheck %s
// RUN: pw-opt --load-pass-plugin %S/Inputs/plugins.py:RemarkWord --help | filecheck %s --check-prefix=HELP
// RUN: pw-opt --load-pass-plugin %S/Inputs/plugins.py:RemarkWord --list-passes | filecheck %s --check-prefix=LIST

// A pass from outside of the package runs as ours do, as a flag and in a pipeline.

// HELP: --demo-remark
// HELP-NEXT: Remark at the program.
// HELP-NEXT: word=hello
// HELP-NEXT: the word

// LIST: {{^demo-remark +Remark at the program\.$}}

// CHECK-LABEL: module @plugged
module @plugged attributes {pw.form = "placed"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {mesh = @mesh, sym_name = "s0"} : () -> ()
  // expected-remark @+1 {{welcome}}
  func.func public @main(%x: tensor<2xf32> {pw.slice = @s0}) -> (tensor<2xf32> {pw.slice = @s0}) {
    return %x : tensor<2xf32>
  }
}

// Two examples of the repository.
// RUN: not pw-opt %S/../../../examples/two_slices.mlir --load-pass-plugin %S/../../../examples/limit_transfers.py:LimitTransfers --pw-insert-transfers --demo-limit-transfers=max-bytes=4 2>&1 | filecheck %s --check-prefix=LIMIT
// LIMIT: two_slices.mlir:10:10: error: 'pw.transfer' op moves 8 bytes, more than 4

// Each mistake is one sentence.
// RUN: not pw-opt %s --load-pass-plugin 2>&1 | filecheck %s --check-prefix=NONE
// NONE: pw-opt: error: argument --load-pass-plugin: expected one argument
// RUN: not pw-opt %s --load-pass-plugin %S/Inputs/plugins.py 2>&1 | filecheck %s --check-prefix=CLASS
// CLASS: pw-opt: error: '{{.*}}plugins.py' names no Class; write {{.*}}plugins.py:Class
// RUN: not pw-opt %s --load-pass-plugin %S/Inputs/nothing.py:RemarkWord 2>&1 | filecheck %s --check-prefix=FILE
// FILE: pw-opt: error: cannot import {{.*}}nothing.py: no such file
// RUN: not pw-opt %s --load-pass-plugin no_package.here:RemarkWord 2>&1 | filecheck %s --check-prefix=MODULE
// MODULE: pw-opt: error: cannot import no_package.here: ModuleNotFoundError: No module named 'no_package'
// RUN: not pw-opt %s --load-pass-plugin %S/Inputs/plugins.py:RemarkWords 2>&1 | filecheck %s --check-prefix=NAME
// NAME: pw-opt: error: there is no 'RemarkWords' in {{.*}}plugins.py; did you mean 'RemarkWord'?
// RUN: not pw-opt %s --load-pass-plugin %S/Inputs/plugins.py:option 2>&1 | filecheck %s --check-prefix=FUNCTION
// FUNCTION: plugins.py:option' is not a pass: expected a subclass of pathways.extending.Pass, got a function
// RUN: not pw-opt %s --load-pass-plugin %S/Inputs/plugins.py:Ours 2>&1 | filecheck %s --check-prefix=OURS
// OURS: pw-opt: error: --load-pass-plugin: '{{.*}}plugins.py:Ours' has the name of another pass: 'pw-dce'
// RUN: not pw-opt %s --load-pass-plugin %S/Inputs/plugins.py:RemarkWord --load-pass-plugin %S/Inputs/plugins.py:RemarkWord 2>&1 | filecheck %s --check-prefix=TWICE
// TWICE: plugins.py:RemarkWord' has the name of another pass: 'demo-remark'
// RUN: not pw-opt %s --load-pass-plugin %S/Inputs/plugins.py:Capital 2>&1 | filecheck %s --check-prefix=CAPITAL
// CAPITAL: plugins.py:Capital' is not a pass: its name must be words in lower case joined by '-', got 'RemarkWord'
// RUN: not pw-opt %s --load-pass-plugin %S/Inputs/plugins.py:Formless 2>&1 | filecheck %s --check-prefix=FORMLESS
// FORMLESS: plugins.py:Formless' is not a pass: its input_forms must be forms of pathways.extending.FORMS
// RUN: not pw-opt %s --load-pass-plugin %S/Inputs/plugins.py:Listed 2>&1 | filecheck %s --check-prefix=LISTED
// LISTED: plugins.py:Listed' is not a pass: option 'words' needs a text or number as its default
// RUN: not pw-opt %s --load-pass-plugin %S/Inputs/plugins.py:Bare 2>&1 | filecheck %s --check-prefix=BARE
// BARE: plugins.py:Bare' is not a pass: it needs @dataclasses.dataclass(frozen=True) and a method 'run'
// RUN: not pw-opt %s --load-pass-plugin %S/Inputs/plugins.py:RemarkWord --demo-remerk 2>&1 | filecheck %s --check-prefix=NEAR
// NEAR: pw-opt: error: unknown flag '--demo-remerk'; did you mean '--demo-remark'?
