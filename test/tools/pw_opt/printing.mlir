// RUN: pw-opt %s --cse --symbol-dce --mlir-print-ir-after-all 2>&1 >/dev/null | filecheck %s --check-prefix=AFTER
// RUN: pw-opt %s --cse --symbol-dce --mlir-print-ir-before-all 2>&1 >/dev/null | filecheck %s --check-prefix=BEFORE
// RUN: pw-opt %s --cse --symbol-dce --mlir-print-ir-after-change 2>&1 >/dev/null | filecheck %s --check-prefix=CHANGE
// RUN: pw-opt %s --cse --symbol-dce --mlir-print-ir-after=cse,canonicalize 2>&1 >/dev/null | filecheck %s --check-prefix=NAMED
// RUN: pw-opt %s -p 'cse,func.func(canonicalize{max-iterations=1},cse)' --mlir-print-ir-before=canonicalize 2>&1 >/dev/null | filecheck %s --check-prefix=NESTED
// RUN: rm -rf %t && pw-opt %s --cse --symbol-dce --mlir-print-ir-after-all --mlir-print-ir-before=cse --mlir-print-ir-tree-dir=%t
// RUN: ls %t %t/builtin_module_no-symbol-name | filecheck %s --check-prefix=TREE
// RUN: filecheck %s --check-prefix=FILE --input-file=%t/builtin_module_no-symbol-name/2_symbol-dce.mlir
// RUN: pw-opt %s --cse -p 'func.func(cse),symbol-dce' --dump-pass-pipeline 2>&1 | filecheck %s --check-prefix=PIPELINE
// RUN: pw-opt %s --mlir-print-op-generic | filecheck %s --check-prefix=GENERIC
// RUN: pw-opt %s --mlir-print-debuginfo | filecheck %s --check-prefix=DEBUG
// RUN: pw-opt %s --mlir-elide-elementsattrs-if-larger=2 | filecheck %s --check-prefix=ELIDE
// RUN: pw-opt %s --cse --mlir-timing 2>&1 >/dev/null | filecheck %s --check-prefix=TIMING

// AFTER: // -----// IR Dump After cse //----- //
// AFTER: func.func private @unused
// AFTER: // -----// IR Dump After symbol-dce //----- //
// AFTER-NOT: @unused

// BEFORE: // -----// IR Dump Before cse //----- //
// BEFORE: // -----// IR Dump Before symbol-dce //----- //
// BEFORE: func.func private @unused

// CHANGE-NOT: After cse
// CHANGE: // -----// IR Dump After symbol-dce //----- //

// NAMED-NOT: Before
// NAMED: // -----// IR Dump After cse //----- //
// NAMED-NOT: IR Dump

// NESTED-NOT: cse //
// NESTED: // -----// IR Dump Before func.func(canonicalize{max-iterations=1},cse) //----- //

// A file for each dump, named and numbered as mlir-opt does.
// TREE: builtin_module_no-symbol-name
// TREE: 0_cse.mlir
// TREE-NEXT: 1_cse.mlir
// TREE-NEXT: 2_symbol-dce.mlir
// FILE: // -----// IR Dump After symbol-dce //----- //
// FILE-NOT: @unused
// FILE: func.func @main

// PIPELINE: Pass Manager with 3 passes:
// PIPELINE-NEXT: builtin.module(
// PIPELINE-NEXT:   cse,
// PIPELINE-NEXT:   func.func(cse),
// PIPELINE-NEXT:   symbol-dce
// PIPELINE-NEXT: )

// GENERIC: "func.func"()
// DEBUG: loc("{{.*}}printing.mlir":
// ELIDE: dense_resource<__elided__> : tensor<3xf32>

// TIMING: ... Execution time report ...
// TIMING: Total Execution Time: {{.*}} seconds
// TIMING: ----Wall Time----  ----Name----
// TIMING-NEXT: Parser
// TIMING-NEXT: cse
// TIMING: Total

func.func private @unused()
func.func @main() -> tensor<3xf32> {
  %0 = stablehlo.constant dense<[1.0, 2.0, 3.0]> : tensor<3xf32>
  return %0 : tensor<3xf32>
}
