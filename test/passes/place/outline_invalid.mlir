// RUN: pw-opt %s --split-input-file --verify-diagnostics --pw-outline

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

// -----

// A result is returned where it is made; transfers come later.
module attributes {pw.form = "located"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  "pw.slice"() {sym_name = "s1", mesh = @mesh} : () -> ()
  func.func @main(%x: tensor<f32> {pw.slice = @s1}) -> (tensor<f32> {pw.slice = @s0}) {
    %y = stablehlo.negate %x {pw.slice = @s1} : tensor<f32>
    // expected-error@+1 {{returns result #0 on @s0, but it is made on @s1}}
    return %y : tensor<f32>
  }
}
