// RUN: pw-opt %s --cse --symbol-dce --mlir-print-ir-after-all 2>&1 >/dev/null | filecheck %s --check-prefix=AFTER
// RUN: pw-opt %s --cse --symbol-dce --mlir-print-ir-before-all 2>&1 >/dev/null | filecheck %s --check-prefix=BEFORE
// RUN: pw-opt %s --cse --symbol-dce --mlir-print-ir-after-change 2>&1 >/dev/null | filecheck %s --check-prefix=CHANGE
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
