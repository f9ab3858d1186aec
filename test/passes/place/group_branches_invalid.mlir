// RUN: pw-opt %s --split-input-file --verify-diagnostics --pw-group-branches

// A branch is one of a condition that is there.

module @no_condition attributes {pw.form = "located"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  func.func @main(%x: tensor<4xf32> {pw.slice = @s0}) -> (tensor<4xf32> {pw.slice = @s0}) {
    // expected-error@+1 {{is of the branch 'cond', but no operation is its `pw.condition`}}
    %0 = stablehlo.tanh %x {pw.branch = "cond", pw.slice = @s0} : tensor<4xf32>
    return %0 : tensor<4xf32>
  }
}
