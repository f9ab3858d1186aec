// RUN: pw-opt %s --canonicalize | filecheck %s

// IR without any `pw` operation is ordinary MLIR.

// CHECK-LABEL: func.func @sum
func.func @sum(%x: tensor<2xf32>) -> tensor<f32> {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  // CHECK: stablehlo.reduce
  %0 = stablehlo.reduce(%x init: %zero) applies stablehlo.add across dimensions = [0] : (tensor<2xf32>, tensor<f32>) -> tensor<f32>
  return %0 : tensor<f32>
}

// CHECK-LABEL: func.func @branches
func.func @branches(%c: i1) -> i1 {
  cf.cond_br %c, ^then, ^else
^then:
  return %c : i1
^else:
  %true = arith.constant true
  return %true : i1
}
