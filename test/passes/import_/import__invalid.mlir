// RUN: pw-opt %s --split-input-file --verify-diagnostics --pw-import

// A placed function cannot call a function of another slice.

!x = tensor<4xf32>
module @nested_on_another_slice {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  "pw.slice"() {sym_name = "s1", mesh = @mesh} : () -> ()
  func.func public @main(%x: !x) -> !x {
    %a = call @outer(%x) {mhlo.frontend_attributes = {pw.slice = "s0", pw.name = "outer"}} : (!x) -> !x
    return %a : !x
  }
  func.func private @outer(%x: !x) -> !x {
    // expected-error@+1 {{is placed on @s1 but called inside 'outer', which is placed on @s0}}
    %a = call @inner(%x) {mhlo.frontend_attributes = {pw.slice = "s1", pw.name = "inner"}} : (!x) -> !x
    return %a : !x
  }
  func.func private @inner(%x: !x) -> !x {
    return %x : !x
  }
}

// -----

// What calls functions for each element, such as a reduction, runs on one slice.

!x = tensor<4xf32>
!e = tensor<f32>
module @slices_inside_reduction {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  "pw.slice"() {sym_name = "s1", mesh = @mesh} : () -> ()
  func.func public @main(%x: !x, %zero: !e) -> !e {
    %sum = "stablehlo.reduce"(%x, %zero) <{dimensions = array<i64: 0>}> ({
    ^bb0(%a: !e, %b: !e):
      %half = call @f(%a) {mhlo.frontend_attributes = {pw.slice = "s0", pw.name = "half"}} : (!e) -> !e
      // expected-error@+1 {{'double' is placed on @s1, and 'half' on @s0, but both are called inside one stablehlo.reduce, which runs on one slice}}
      %double = call @f(%b) {mhlo.frontend_attributes = {pw.slice = "s1", pw.name = "double"}} : (!e) -> !e
      %c = stablehlo.add %half, %double : !e
      stablehlo.return %c : !e
    }) : (!x, !e) -> !e
    return %sum : !e
  }
  func.func private @f(%x: !e) -> !e {
    return %x : !e
  }
}

// -----

// Metadata that names no slice of the module.

!x = tensor<4xf32>
module @unknown_slice {
  func.func public @main(%x: !x) -> !x {
    // expected-error@+1 {{is placed on @nowhere, but the module has no pw.slice of that name}}
    %a = call @f(%x) {mhlo.frontend_attributes = {pw.slice = "nowhere", pw.name = "f"}} : (!x) -> !x
    return %a : !x
  }
  func.func private @f(%x: !x) -> !x {
    return %x : !x
  }
}

// -----

// Ordered side effects thread a token through the program.

module @ordered_effect {
  func.func public @main(%t: !stablehlo.token) -> !stablehlo.token {
    // expected-error@+1 {{'stablehlo.after_all' op has ordered side effects (ordered=True), which cannot be kept in order over several slices}}
    %u = stablehlo.after_all %t : !stablehlo.token
    return %u : !stablehlo.token
  }
}

// -----

module @no_array {
  // expected-error@+1 {{argument #0 is a tuple<tensor<f32>>, which is no array}}
  func.func public @main(%t: tuple<tensor<f32>>) -> tuple<tensor<f32>> {
    return %t : tuple<tensor<f32>>
  }
}

// -----

// expected-error@+1 {{has no function @main, the program}}
module @no_main {
}

// -----

// Under jax.vmap the leading dimension is another than that of the batch.

!x = tensor<4x2xf32>
!many = tensor<3x4x2xf32>
module @vmap {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  "pw.loop"() {sym_name = "loss", count = 2} : () -> ()
  func.func public @main(%x: !many) -> tensor<3x2x2xf32> {
    // expected-error@+1 {{is under jax.vmap: apply jax.vmap inside the function 'loss'}}
    %b = call @split(%x) {mhlo.frontend_attributes = {pw.loop = "loss", pw.name = "loss", pw.count = "2", pw.mark = "split"}} : (!many) -> tensor<3x2x2xf32>
    return %b : tensor<3x2x2xf32>
  }
  func.func private @split(%x: !many) -> tensor<3x2x2xf32> {
    %b = stablehlo.slice %x [0:3, 0:2, 0:2] : (!many) -> tensor<3x2x2xf32>
    return %b : tensor<3x2x2xf32>
  }
}

// -----

// The same of a concatenation, here of what all microbatches share.

!w = tensor<3x4xf32>
module @vmap_of_a_concatenation {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  "pw.loop"() {sym_name = "loss", count = 2} : () -> ()
  func.func public @main(%w: !w) -> tensor<3x8xf32> {
    // expected-error@+1 {{is under jax.vmap: apply jax.vmap inside the function 'loss'}}
    %r = call @concat(%w) {mhlo.frontend_attributes = {pw.loop = "loss", pw.name = "loss", pw.count = "2", pw.mark = "concat"}} : (!w) -> tensor<3x8xf32>
    return %r : tensor<3x8xf32>
  }
  func.func private @concat(%w: !w) -> tensor<3x8xf32> {
    %r = stablehlo.concatenate %w, %w, dim = 1 : (!w, !w) -> tensor<3x8xf32>
    return %r : tensor<3x8xf32>
  }
}

// -----

// A loop takes no more iterations than it can be unrolled to.

!x = tensor<4xf32>
module @too_many_turns {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  "pw.slice"() {sym_name = "s1", mesh = @mesh} : () -> ()
  func.func public @main(%x: !x) -> !x {
    %zero = stablehlo.constant dense<0> : tensor<i32>
    %0:2 = stablehlo.while(%i = %zero, %a = %x) : tensor<i32>, !x
      cond {
        %n = stablehlo.constant dense<20000> : tensor<i32>
        %c = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
        stablehlo.return %c : tensor<i1>
      } do {
        %b = func.call @f(%a) {mhlo.frontend_attributes = {pw.slice = "s0", pw.name = "f"}} : (!x) -> !x
        // expected-error@+1 {{is in a loop over several slices that takes 20000 iterations; loops are unrolled and takes at most 16384}}
        %c = func.call @f(%b) {mhlo.frontend_attributes = {pw.slice = "s1", pw.name = "f"}} : (!x) -> !x
        %one = stablehlo.constant dense<1> : tensor<i32>
        %next = stablehlo.add %i, %one : tensor<i32>
        stablehlo.return %next, %c : tensor<i32>, !x
      }
    return %0#1 : !x
  }
  func.func private @f(%x: !x) -> !x {
    return %x : !x
  }
}

// -----

// Microbatches stand in no loop whose iterations cannot be counted.

!x = tensor<4xf32>
module @inside_a_loop {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  "pw.loop"() {sym_name = "loss", count = 1} : () -> ()
  func.func public @main(%x: !x, %n: tensor<i32>) -> !x {
    %zero = stablehlo.constant dense<0> : tensor<i32>
    %0:2 = stablehlo.while(%i = %zero, %a = %x) : tensor<i32>, !x
      cond {
        %c = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
        stablehlo.return %c : tensor<i1>
      } do {
        // expected-error@+1 {{is in a loop over several slices whose trip count is not known while tracing, with a pw.accumulate in it: write that loop in Python, around calls of the program, or use jax.lax.scan or fori_loop with a known number of iterations; see 'Loops inside loops' of docs/pipelining.md}}
        %b = func.call @split(%a) {mhlo.frontend_attributes = {pw.loop = "loss", pw.name = "loss", pw.count = "1", pw.mark = "split"}} : (!x) -> !x
        stablehlo.return %i, %b : tensor<i32>, !x
      }
    return %0#1 : !x
  }
  func.func private @split(%x: !x) -> !x {
    return %x : !x
  }
}

// -----

// A value of a microbatch is used together with the result of its loop.

!w = tensor<2xf32>
!x = tensor<4xf32>
module @leaked {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  "pw.loop"() {sym_name = "loss", count = 2} : () -> ()
  func.func public @main(%w: !w, %x: !x) -> !w {
    %b = call @split(%x) {mhlo.frontend_attributes = {pw.loop = "loss", pw.name = "loss", pw.count = "2", pw.mark = "split"}} : (!x) -> !w
    %g = call @f(%w, %b) {mhlo.frontend_attributes = {pw.slice = "s0", pw.name = "f", pw.call = "0"}} : (!w, !w) -> !w
    %s = call @sum(%g) {mhlo.frontend_attributes = {pw.loop = "loss", pw.name = "loss", pw.count = "2", pw.mark = "sum"}} : (!w) -> !w
    // expected-error@+1 {{reads a result of pw.accumulate of 'loss' and a value of one of its microbatches: let the function return what is used outside of it}}
    %u = call @f(%s, %b) {mhlo.frontend_attributes = {pw.slice = "s0", pw.name = "f", pw.call = "1"}} : (!w, !w) -> !w
    return %u : !w
  }
  func.func private @split(%x: !x) -> !w {
    %b = stablehlo.slice %x [0:2] : (!x) -> !w
    return %b : !w
  }
  func.func private @f(%w: !w, %b: !w) -> !w {
    return %b : !w
  }
  func.func private @sum(%b: !w) -> !w {
    return %b : !w
  }
}

// -----

// A value that the function did not return, but Python kept.

!b = tensor<2xf32>
!x = tensor<4xf32>
module @leaked {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  "pw.loop"() {sym_name = "loss", count = 2} : () -> ()
  func.func public @main(%x: !x) -> !b {
    %b = call @split(%x) {mhlo.frontend_attributes = {pw.loop = "loss", pw.name = "loss", pw.count = "2", pw.mark = "split"}} : (!x) -> !b
    %y = stablehlo.tanh %b : !b
    // expected-error@+1 {{uses a value of a microbatch outside of the function 'loss' that was given to pw.accumulate: let the function return it}}
    return %y : !b
  }
  func.func private @split(%x: !x) -> !b {
    %b = stablehlo.slice %x [0:2] : (!x) -> !b
    return %b : !b
  }
}

// -----

// Such a value reaches another loop.

!b = tensor<2xf32>
!x = tensor<4xf32>
module @leaked_into_another_loop {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  "pw.loop"() {sym_name = "first", count = 2} : () -> ()
  "pw.loop"() {sym_name = "second", count = 2} : () -> ()
  func.func public @main(%x: !x) -> !b {
    %a = call @split_first(%x) {mhlo.frontend_attributes = {pw.loop = "first", pw.name = "first", pw.count = "2", pw.mark = "split"}} : (!x) -> !b
    %b = call @split_second(%x) {mhlo.frontend_attributes = {pw.loop = "second", pw.name = "second", pw.count = "2", pw.mark = "split"}} : (!x) -> !b
    // expected-error@+1 {{uses a value of a microbatch outside of the function 'first' that was given to pw.accumulate}}
    %y = stablehlo.add %b, %a : !b
    %s = call @sum(%y) {mhlo.frontend_attributes = {pw.loop = "second", pw.name = "second", pw.count = "2", pw.mark = "sum"}} : (!b) -> !b
    return %s : !b
  }
  func.func private @split_first(%x: !x) -> !b {
    %b = stablehlo.slice %x [0:2] : (!x) -> !b
    return %b : !b
  }
  func.func private @split_second(%x: !x) -> !b {
    %b = stablehlo.slice %x [0:2] : (!x) -> !b
    return %b : !b
  }
  func.func private @sum(%b: !b) -> !b {
    return %b : !b
  }
}

// -----

// What @main calls without placement becomes part of it, and has to be there.

!x = tensor<4xf32>
module @declared {
  func.func public @main(%x: !x) -> !x {
    %y = call @f(%x) : (!x) -> !x
    return %y : !x
  }
  // expected-error@+1 {{is only declared, but its body is needed here}}
  func.func private @f(!x) -> !x
}

// -----

// What the bindings cannot hand out is no metadata.

module @location_for_metadata {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  func.func public @main(%x: tensor<4xf32>) -> tensor<4xf32> {
    // expected-error@+1 {{`mhlo.frontend_attributes` must be a dictionary, got a location}}
    %0 = func.call @f(%x) {mhlo.frontend_attributes = loc(unknown)} : (tensor<4xf32>) -> tensor<4xf32>
    return %0 : tensor<4xf32>
  }
  func.func private @f(%x: tensor<4xf32>) -> tensor<4xf32> {
    return %x : tensor<4xf32>
  }
}
