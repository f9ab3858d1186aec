// RUN: pw-opt %s --split-input-file --verify-diagnostics --pw-verify-placed

// A well-formed program gets the form `placed`; see also test/pipeline.

!x = tensor<4xf32>
module @fine attributes {pw.form = "outlined"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  func.func @main(%x: !x {pw.slice = @s0}) -> (!x {pw.slice = @s0}) {
    return %x : !x
  }
}

// -----

// Every argument and result lives somewhere.

!x = tensor<4xf32>
module @unplaced_argument attributes {pw.form = "outlined"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  // expected-error@+1 {{argument #0 is not placed}}
  func.func @main(%x: !x) -> (!x {pw.slice = @s0}) {
    return %x : !x
  }
}

// -----

// Code between launches belongs in a computation.

!x = tensor<4xf32>
module @glue attributes {pw.form = "outlined"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  func.func @main(%x: !x {pw.slice = @s0}) -> (!x {pw.slice = @s0}) {
    // expected-error@+1 {{is outside a computation, which is not legal in form 'outlined'}}
    %y = stablehlo.negate %x {pw.slice = @s0} : !x
    return %y : !x
  }
}

// -----

// The form promises that moves are explicit, so the verifier of the dialect now insists.

!x = tensor<4xf32>
module @missing_transfer attributes {pw.form = "outlined"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  "pw.slice"() {sym_name = "s1", mesh = @mesh} : () -> ()
  func.func @main(%x: !x {pw.slice = @s0}) -> (!x {pw.slice = @s1}) {
    // expected-error@+1 {{a pw.transfer of it to @s1 is missing}}
    %y = "pw.launch"(%x) {callee = @f, slice = @s1} : (!x) -> !x
    return %y : !x
  }
  func.func private @f(%x: !x) -> !x {
    return %x : !x
  }
}

// -----

// A value moves to a slice once.

!x = tensor<4xf32>
module @moved_twice attributes {pw.form = "placed"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  "pw.slice"() {sym_name = "s1", mesh = @mesh} : () -> ()
  func.func @main(%x: !x {pw.slice = @s0}) -> (!x {pw.slice = @s1}, !x {pw.slice = @s1}) {
    %a = "pw.transfer"(%x) {slice = @s1} : (!x) -> !x
    // expected-error@+1 {{moves a value to @s1 that was already moved there}}
    %b = "pw.transfer"(%x) {slice = @s1} : (!x) -> !x
    return %a, %b : !x, !x
  }
}

// -----

// Computations are plain StableHLO.

!x = tensor<4xf32>
module @nested_launch attributes {pw.form = "outlined"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  func.func @main(%x: !x {pw.slice = @s0}) -> (!x {pw.slice = @s0}) {
    %y = "pw.launch"(%x) {callee = @f, slice = @s0} : (!x) -> !x
    return %y : !x
  }
  func.func private @f(%x: !x) -> !x {
    // expected-error@+1 {{is inside a computation; computations hold no pw operation}}
    %y = "pw.launch"(%x) {callee = @g, slice = @s0} : (!x) -> !x
    return %y : !x
  }
  func.func private @g(%x: !x) -> !x {
    return %x : !x
  }
}
