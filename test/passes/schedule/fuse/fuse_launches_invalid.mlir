// RUN: pw-opt %s --split-input-file --verify-diagnostics --pw-fuse-launches

// Launches have no order yet.

!x = tensor<4xf32>
module @not_scheduled attributes {pw.form = "ordered"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  func.func @main(%x: !x {pw.slice = @s0}) -> (!x {pw.slice = @s0}) {
    // expected-error@+1 {{'pw.launch' op has no `order`, which form 'ordered' requires}}
    %a = "pw.launch"(%x) {callee = @f, slice = @s0} : (!x) -> !x
    return %a : !x
  }
  func.func private @f(!x) -> !x
}

// -----

// A computation without a body cannot become part of another one.

!x = tensor<4xf32>
module @declared attributes {pw.form = "ordered"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  func.func @main(%x: !x {pw.slice = @s0}) -> (!x {pw.slice = @s0}) {
    %a = "pw.launch"(%x) {callee = @f, order = 0, slice = @s0} : (!x) -> !x
    %b = "pw.launch"(%a) {callee = @f, order = 1, slice = @s0} : (!x) -> !x
    return %b : !x
  }
  // expected-error@+1 {{is only declared, but its body is needed here}}
  func.func private @f(!x) -> !x
}
