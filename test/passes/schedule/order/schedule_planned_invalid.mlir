// RUN: pw-opt %s --verify-diagnostics -p 'pw-schedule'

// Buffers end where the plan of memory says, in the order that it was computed for.
!x = tensor<4xf32>
module @planned attributes {pw.form = "ordered"} {
  sdy.mesh @mesh = <["x"=1]>
  // expected-error@+1 {{has a memory plan, which is for the order that is there; run pw-schedule before it}}
  "pw.slice"() {sym_name = "s0", mesh = @mesh, peak_bytes = 16 : i64} : () -> ()
  func.func @main(%x: !x {pw.slice = @s0}) -> (!x {pw.slice = @s0}) {
    return %x : !x
  }
}
