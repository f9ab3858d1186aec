// RUN: not pw-sim %s 2>&1 | filecheck %s --check-prefix=FORM
// RUN: not pw-sim %t.missing 2>&1 | filecheck %s --check-prefix=MISSING
// RUN: pw-opt %s --pw-schedule --pw-plan-memory --pw-verify-schedule -o %t.mlir
// RUN: not pw-sim %t.mlir --times %S/Inputs/unknown.json 2>&1 | filecheck %s --check-prefix=UNKNOWN
// RUN: not pw-sim %t.mlir --times %S/Inputs/malformed.json 2>&1 | filecheck %s --check-prefix=MALFORMED
// RUN: not pw-sim %t.mlir --times %t.mlir 2>&1 | filecheck %s --check-prefix=NO-JSON
// RUN: not pw-sim %t.mlir --latency=-1 2>&1 | filecheck %s --check-prefix=NEGATIVE
// RUN: not pw-sim %t.mlir --bandwidth fast 2>&1 | filecheck %s --check-prefix=RATE
// RUN: not pw-sim %t.mlir --trace /nowhere/t.json 2>&1 | filecheck %s --check-prefix=OUTPUT
// RUN: not pw-sim %t.mlir --tmies x 2>&1 | filecheck %s --check-prefix=FLAG
// RUN: pw-opt %s --pw-schedule --pw-verify-schedule | sed 's/order = 1/order = 0/' | not pw-sim 2>&1 | filecheck %s --check-prefix=ORDER
// RUN: pw-opt %s --pw-schedule --pw-verify-schedule | sed 's/order = 0/order = 5/' | not pw-sim 2>&1 | filecheck %s --check-prefix=SORTED
// RUN: echo 'module attributes {pw.form = "scheduled"} {}' | not pw-sim 2>&1 | filecheck %s --check-prefix=MAIN
// RUN: pw-opt %s --pw-schedule --pw-verify-schedule --mlir-print-op-generic | sed 's/"func.return"(%arg0)/& {mesh = @gone}/' | not pw-sim 2>&1 | filecheck %s --check-prefix=SYMBOL
// RUN: printf 'module {} // \377' > %t.latin.mlir && not pw-sim %t.latin.mlir --compare 2>&1 | filecheck %s --check-prefix=LATIN
// RUN: sed 's/unrolled/imported/; s/, mesh = @mesh//' %s > %t.invalid.mlir
// RUN: not pw-sim %t.invalid.mlir --compare 2>&1 | filecheck %s --check-prefix=INVALID
// RUN: not pw-viz %t.invalid.mlir --compare 2>&1 | filecheck %s --check-prefix=INVALID

// Each mistake is told in one line that names the thing.

// FORM: pw-sim: error: '{{.*}}errors.mlir' is in the form 'unrolled', not 'scheduled'; compile it with pw-compile
// MISSING: pw-sim: error: cannot open input file '{{.*}}': No such file or directory
// UNKNOWN: pw-sim: error: '{{.*}}unknown.json': computations: there is no computation 'fnish'; did you mean 'finish'?
// MALFORMED: pw-sim: error: '{{.*}}malformed.json': not JSON:
// NO-JSON: pw-sim: error: '{{.*}}.mlir': not JSON:
// NEGATIVE: pw-sim: error: --latency: must be a number from 0 up, got -1
// RATE: pw-sim: error: --bandwidth: expected a number or a string such as "10GB/s", got 'fast'
// OUTPUT: pw-sim: error: cannot write output file '/nowhere/t.json': No such file or directory
// FLAG: pw-sim: error: unexpected argument '--tmies'; did you mean '--times'?
// ORDER: <stdin>:{{.*}}: error: 'pw.launch' op has order 0 on @s0
// SORTED: <stdin>:{{.*}}: error: 'pw.launch' op comes before the launch of @finish on @s0 (order 1), but waits for it; run pw-plan-memory
// SYMBOL: error: 'func.func' op refers to @gone, which is not in the module
// MAIN: <stdin>:1:1: error: 'builtin.module' op has no function @main, the program
// LATIN: {{.*}}:1:14: error: input is neither UTF-8 text nor MLIR bytecode
// LATIN-NOT: {{.}}
// INVALID: {{.*}}.mlir:{{.*}}: error: 'pw.slice' op requires attribute `mesh`
// INVALID-NOT: Traceback

!x = tensor<4xf32>
module @two attributes {pw.form = "unrolled"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  func.func @main(%x: !x {pw.slice = @s0}) -> (!x {pw.slice = @s0}) {
    %a = "pw.launch"(%x) {callee = @finish, origins = [{kind = "fwd"}], slice = @s0} : (!x) -> !x
    %b = "pw.launch"(%x) {callee = @finish, origins = [{kind = "fwd"}], slice = @s0} : (!x) -> !x
    return %b : !x
  }
  func.func private @finish(%x: !x) -> !x {
    return %x : !x
  }
}
