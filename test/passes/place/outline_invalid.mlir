// RUN: pw-opt %s --verify-diagnostics --pw-outline

// What is not placed cannot be outlined.

module attributes {pw.form = "located"} {
  // expected-error@+2 {{argument #0 is not placed: it has no `pw.slice`}}
  // expected-error@+1 {{result #0 is not placed: it has no `pw.slice`}}
  func.func @main(%x: tensor<f32>) -> tensor<f32> {
    // expected-error@+1 {{'stablehlo.negate' op is not placed: it has no `pw.slice`}}
    %y = stablehlo.negate %x : tensor<f32>
    return %y : tensor<f32>
  }
}
