// RUN: pw-opt %s --split-input-file --verify-diagnostics --pw-unroll-microbatches

// A number in a file must not ask for any amount of memory.

!x = tensor<16384xf32>
!b = tensor<1xf32>
module @too_many attributes {pw.form = "sharded"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  // expected-error@+1 {{is unrolled to 16384 x 34 operations; a program has at most 131072 of its loops}}
  "pw.loop"() {sym_name = "batch", count = 16384} : () -> ()
  func.func @main(%x: !x {pw.slice = @s0}) -> (!b {pw.slice = @s0}) {
    %v0 = "pw.split"(%x) {loop = @batch, slice = @s0} : (!x) -> !b
    %v1 = "pw.launch"(%v0) {callee = @f, loop = @batch, slice = @s0} : (!b) -> !b
    %v2 = "pw.launch"(%v1) {callee = @f, loop = @batch, slice = @s0} : (!b) -> !b
    %v3 = "pw.launch"(%v2) {callee = @f, loop = @batch, slice = @s0} : (!b) -> !b
    %v4 = "pw.launch"(%v3) {callee = @f, loop = @batch, slice = @s0} : (!b) -> !b
    %v5 = "pw.launch"(%v4) {callee = @f, loop = @batch, slice = @s0} : (!b) -> !b
    %v6 = "pw.launch"(%v5) {callee = @f, loop = @batch, slice = @s0} : (!b) -> !b
    %v7 = "pw.launch"(%v6) {callee = @f, loop = @batch, slice = @s0} : (!b) -> !b
    %v8 = "pw.launch"(%v7) {callee = @f, loop = @batch, slice = @s0} : (!b) -> !b
    %v9 = "pw.launch"(%v8) {callee = @f, loop = @batch, slice = @s0} : (!b) -> !b
    %v10 = "pw.launch"(%v9) {callee = @f, loop = @batch, slice = @s0} : (!b) -> !b
    %v11 = "pw.launch"(%v10) {callee = @f, loop = @batch, slice = @s0} : (!b) -> !b
    %v12 = "pw.launch"(%v11) {callee = @f, loop = @batch, slice = @s0} : (!b) -> !b
    %v13 = "pw.launch"(%v12) {callee = @f, loop = @batch, slice = @s0} : (!b) -> !b
    %v14 = "pw.launch"(%v13) {callee = @f, loop = @batch, slice = @s0} : (!b) -> !b
    %v15 = "pw.launch"(%v14) {callee = @f, loop = @batch, slice = @s0} : (!b) -> !b
    %v16 = "pw.launch"(%v15) {callee = @f, loop = @batch, slice = @s0} : (!b) -> !b
    %v17 = "pw.launch"(%v16) {callee = @f, loop = @batch, slice = @s0} : (!b) -> !b
    %v18 = "pw.launch"(%v17) {callee = @f, loop = @batch, slice = @s0} : (!b) -> !b
    %v19 = "pw.launch"(%v18) {callee = @f, loop = @batch, slice = @s0} : (!b) -> !b
    %v20 = "pw.launch"(%v19) {callee = @f, loop = @batch, slice = @s0} : (!b) -> !b
    %v21 = "pw.launch"(%v20) {callee = @f, loop = @batch, slice = @s0} : (!b) -> !b
    %v22 = "pw.launch"(%v21) {callee = @f, loop = @batch, slice = @s0} : (!b) -> !b
    %v23 = "pw.launch"(%v22) {callee = @f, loop = @batch, slice = @s0} : (!b) -> !b
    %v24 = "pw.launch"(%v23) {callee = @f, loop = @batch, slice = @s0} : (!b) -> !b
    %v25 = "pw.launch"(%v24) {callee = @f, loop = @batch, slice = @s0} : (!b) -> !b
    %v26 = "pw.launch"(%v25) {callee = @f, loop = @batch, slice = @s0} : (!b) -> !b
    %v27 = "pw.launch"(%v26) {callee = @f, loop = @batch, slice = @s0} : (!b) -> !b
    %v28 = "pw.launch"(%v27) {callee = @f, loop = @batch, slice = @s0} : (!b) -> !b
    %v29 = "pw.launch"(%v28) {callee = @f, loop = @batch, slice = @s0} : (!b) -> !b
    %v30 = "pw.launch"(%v29) {callee = @f, loop = @batch, slice = @s0} : (!b) -> !b
    %v31 = "pw.launch"(%v30) {callee = @f, loop = @batch, slice = @s0} : (!b) -> !b
    %v32 = "pw.launch"(%v31) {callee = @f, loop = @batch, slice = @s0} : (!b) -> !b
    %v33 = "pw.launch"(%v32) {callee = @f, loop = @batch, slice = @s0} : (!b) -> !b
    %r = "pw.reduce"(%v33) {kind = "sum", loop = @batch, slice = @s0} : (!b) -> !b
    return %r : !b
  }
  func.func private @f(%b: !b) -> !b {
    return %b : !b
  }
}
