// RUN: pw-opt %s --split-input-file --verify-diagnostics --pw-accumulate

// Sums follow the order of the launches, so that there must be one.

!x = tensor<4xf32>
module @not_scheduled attributes {pw.form = "ordered"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  "pw.loop"() {sym_name = "batch", count = 2} : () -> ()
  func.func @main(%x: !x {pw.slice = @s0}) -> (!x {pw.slice = @s0}) {
    // expected-error@+1 {{'pw.launch' op has no `order`, which form 'ordered' requires}}
    %a = "pw.launch"(%x) {callee = @f, loop = @batch, microbatch = 0, slice = @s0} : (!x) -> !x
    // expected-error@+1 {{'pw.launch' op has no `order`, which form 'ordered' requires}}
    %b = "pw.launch"(%x) {callee = @f, loop = @batch, microbatch = 1, slice = @s0} : (!x) -> !x
    %s = "pw.reduce"(%a, %b) {kind = "sum", loop = @batch, slice = @s0} : (!x, !x) -> !x
    return %s : !x
  }
  func.func private @f(%x: !x) -> !x {
    return %x : !x
  }
}

// -----

// A loop that still stands for all of its microbatches.

!x = tensor<4xf32>
!b = tensor<2xf32>
module @not_unrolled attributes {pw.form = "ordered"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  "pw.loop"() {sym_name = "batch", count = 2} : () -> ()
  func.func @main(%x: !x {pw.slice = @s0}) -> (!b {pw.slice = @s0}) {
    // expected-error@+1 {{'pw.split' op is not legal in form 'ordered'; run pw-unroll-microbatches}}
    %b = "pw.split"(%x) {loop = @batch, slice = @s0} : (!x) -> !b
    %s = "pw.reduce"(%b) {kind = "sum", loop = @batch, slice = @s0} : (!b) -> !b
    return %s : !b
  }
}

// -----

// A computation without a body cannot add to a sum.

!x = tensor<4xf32>
module @declared attributes {pw.form = "ordered"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  "pw.loop"() {sym_name = "batch", count = 2} : () -> ()
  func.func @main(%x: !x {pw.slice = @s0}) -> (!x {pw.slice = @s0}) {
    %a = "pw.launch"(%x) {callee = @f, loop = @batch, microbatch = 0, order = 0, slice = @s0} : (!x) -> !x
    %b = "pw.launch"(%x) {callee = @f, loop = @batch, microbatch = 1, order = 1, slice = @s0} : (!x) -> !x
    %s = "pw.reduce"(%a, %b) {kind = "sum", loop = @batch, slice = @s0} : (!x, !x) -> !x
    return %s : !x
  }
  // expected-error@+1 {{is only declared, but its body is needed here}}
  func.func private @f(%x: !x) -> !x
}
