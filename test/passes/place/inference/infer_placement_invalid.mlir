// RUN: pw-opt %s --verify-diagnostics --pw-infer-placement

// Without a placed call, and without an argument on a slice, there is no slice to run on.

module attributes {pw.form = "imported"} {
  // expected-error@+1 {{has no slice to run on: the program calls no placed function, and no argument lives on a slice; place a function}}
  func.func @main(%x: tensor<f32>) -> tensor<f32> {
    return %x : tensor<f32>
  }
}
