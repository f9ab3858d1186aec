// RUN: pw-opt %s --split-input-file --verify-diagnostics -p 'pw-schedule{policy=progam}'

// A misspelt policy names the nearest one.

!x = tensor<4xf32>
module @unknown_policy attributes {pw.form = "placed"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  // expected-error@+1 {{unknown policy 'progam'; did you mean 'program'?}}
  func.func @main(%x: !x {pw.slice = @s0}) -> (!x {pw.slice = @s0}) {
    return %x : !x
  }
}
