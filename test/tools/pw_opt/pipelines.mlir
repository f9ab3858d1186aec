// RUN: pw-opt %s --cse --symbol-dce | filecheck %s
// RUN: pw-opt %s -cse -symbol-dce | filecheck %s
// RUN: pw-opt %s -p cse,symbol-dce | filecheck %s
// RUN: pw-opt %s '--pass-pipeline=builtin.module(func.func(cse),symbol-dce)' | filecheck %s
// RUN: pw-opt %s | filecheck %s --check-prefix=NONE

// Passes are given as flags, as a list or as a pipeline; without any the input is printed.

// CHECK-NOT: @unused
// NONE: func.func private @unused
func.func private @unused() {
  return
}

// CHECK-LABEL: func.func @main
// CHECK: stablehlo.add
// CHECK-NOT: stablehlo.add
// NONE-LABEL: func.func @main
// NONE-COUNT-2: stablehlo.add
func.func @main(%x: tensor<2xf32>) -> (tensor<2xf32>, tensor<2xf32>) {
  %0 = stablehlo.add %x, %x : tensor<2xf32>
  %1 = stablehlo.add %x, %x : tensor<2xf32>
  return %0, %1 : tensor<2xf32>, tensor<2xf32>
}
