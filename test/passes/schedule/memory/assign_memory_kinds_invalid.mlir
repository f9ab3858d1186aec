// RUN: pw-opt %s --split-input-file --verify-diagnostics --pw-assign-memory-kinds

// Nothing computes a result that is an argument, so nothing could put it into another memory.

!x = tensor<4xf32>
module @passed_on attributes {pw.form = "ordered"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  func.func @main(%x: !x {pw.slice = @s0}) -> (!x {jax.result_info = "result['mu']", mhlo.memory_kind = "pinned_host", pw.slice = @s0}) {
    // expected-error@+1 {{returns result['mu'] in pinned_host memory, but it is passed on in device memory}}
    return %x : !x
  }
}
