// RUN: pw-opt %s --verify-diagnostics --pw-outline

// What is not placed cannot be outlined.

module attributes {pw.form = "imported"} {
  func.func @main(%x: tensor<f32>) -> tensor<f32> {
    // expected-error@+1 {{is not placed; run pw-infer-placement before pw-outline}}
    %y = stablehlo.negate %x : tensor<f32>
    return %y : tensor<f32>
  }
}
