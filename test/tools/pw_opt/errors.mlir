// RUN: not pw-opt %s 2>&1 | filecheck %s

// An error names file, line and column, and shows the line with a caret.

func.func @main(%x: tensor<2xf32>) {
  // CHECK: errors.mlir:10:8: error: 'stablehlo.add' op requires the same shape
  // CHECK-NEXT: %0 = "stablehlo.add"(%x, %x)
  // CHECK-NEXT: {{^       \^}}
  // CHECK: note: see current operation
  %0 = "stablehlo.add"(%x, %x) : (tensor<2xf32>, tensor<2xf32>) -> tensor<3xf32>
  return
}
