// RUN: pw-opt %s --split-input-file --verify-diagnostics --pw-infer-placement

// A condition with a callback is on one slice. The donated arguments that it reads have their home there, and those
// who read them elsewhere get them from there: %v crosses to @s0, and what it makes to @s2.

!x = tensor<16x64xf32>
module @moved attributes {pw.form = "imported"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  "pw.slice"() {sym_name = "s1", mesh = @mesh} : () -> ()
  "pw.slice"() {sym_name = "s2", mesh = @mesh} : () -> ()
  func.func @main(%v: !x {pw.donated}, %w: !x {pw.donated}, %x: !x, %p: tensor<i32>) -> (!x, !x, !x) {
    %a = "pw.launch"(%v, %x) {callee = @f, slice = @s0} : (!x, !x) -> !x
    %b = "pw.launch"(%w, %a) {callee = @f, slice = @s1} : (!x, !x) -> !x
    // expected-remark@below {{'stablehlo.case' op stays whole on @s1, which moves 8192 bytes: it has side effects}}
    %c:2 = "stablehlo.case"(%p) ({
      stablehlo.return %v, %w : !x, !x
    }, {
      stablehlo.custom_call @print(%v) {has_side_effect = true} : (!x) -> ()
      %d = stablehlo.add %v, %b : !x
      stablehlo.return %d, %w : !x, !x
    }) : (tensor<i32>) -> (!x, !x)
    %e = "pw.launch"(%c#1, %c#1) {callee = @f, slice = @s2} : (!x, !x) -> !x
    return %c#0, %c#1, %e : !x, !x, !x
  }
  func.func private @f(%w: !x, %x: !x) -> !x {
    %0 = stablehlo.add %w, %x : !x
    return %0 : !x
  }
}

// -----

// An argument that the caller keeps is brought to each slice that reads it: nothing crosses, and one slice has more.

!x = tensor<16x64xf32>
module @kept attributes {pw.form = "imported"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  "pw.slice"() {sym_name = "s1", mesh = @mesh} : () -> ()
  // expected-remark@below {{'func.func' op moves 4096 bytes of argument #1 to @s1 in each call that is passed the results of the last: these are on @s0}}
  func.func @main(%v: !x, %w: !x, %x: !x, %p: tensor<i32>) -> (!x, !x, !x) {
    %a = "pw.launch"(%v, %x) {callee = @f, slice = @s0} : (!x, !x) -> !x
    %b = "pw.launch"(%w, %a) {callee = @f, slice = @s1} : (!x, !x) -> !x
    // expected-remark@below {{'stablehlo.case' op stays whole on @s0, which keeps 4096 bytes more there: it has side effects}}
    %c:2 = "stablehlo.case"(%p) ({
      stablehlo.return %v, %w : !x, !x
    }, {
      stablehlo.custom_call @print(%v) {has_side_effect = true} : (!x) -> ()
      stablehlo.return %w, %v : !x, !x
    }) : (tensor<i32>) -> (!x, !x)
    return %b, %c#0, %c#1 : !x, !x, !x
  }
  func.func private @f(%w: !x, %x: !x) -> !x {
    %0 = stablehlo.add %w, %x : !x
    return %0 : !x
  }
}

// -----

// A condition with placed calls of one slice is a part of a computation there, with all else that it does. What the
// calls read and make crosses anyhow.

!x = tensor<16x64xf32>
module @placed attributes {pw.form = "imported"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  "pw.slice"() {sym_name = "s1", mesh = @mesh} : () -> ()
  func.func @main(%v: !x {pw.donated}, %w: !x, %x: !x, %p: tensor<i32>) -> (!x, !x) {
    %a = "pw.launch"(%v, %x) {callee = @f, slice = @s0} : (!x, !x) -> !x
    // expected-remark@below {{'stablehlo.case' op stays whole on @s1, which moves 4096 bytes: all its placed calls are there}}
    %c:2 = "stablehlo.case"(%p) ({
      stablehlo.return %v, %a : !x, !x
    }, {
      %b = func.call @f(%w, %a) : (!x, !x) -> !x
      %d = stablehlo.negate %v : !x
      stablehlo.return %d, %b : !x, !x
    }) {pw.slice = @s1} : (tensor<i32>) -> (!x, !x)
    %g = "pw.launch"(%x, %c#1) {callee = @f, slice = @s0} : (!x, !x) -> !x
    return %c#0, %g : !x, !x
  }
  func.func private @f(%w: !x, %x: !x) -> !x {
    %0 = stablehlo.add %w, %x : !x
    return %0 : !x
  }
}

// -----

// A loop is not cut by slice, in a branch or not.

!x = tensor<16x64xf32>
module @loop attributes {pw.form = "imported"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  "pw.slice"() {sym_name = "s1", mesh = @mesh} : () -> ()
  func.func @main(%x: !x, %n: tensor<i32>) -> (!x, !x) {
    %a = "pw.launch"(%x) {callee = @f, slice = @s0} : (!x) -> !x
    %b = "pw.launch"(%a) {callee = @f, slice = @s1} : (!x) -> !x
    // expected-remark@below {{'stablehlo.while' op stays whole on @s0, which moves 4096 bytes: it is a loop without placed calls}}
    %c:3 = stablehlo.while(%k = %n, %y = %a, %z = %b) : tensor<i32>, !x, !x
      cond {
        %p = stablehlo.compare LT, %k, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
        stablehlo.return %p : tensor<i1>
      } do {
        %j = stablehlo.add %k, %n : tensor<i32>
        stablehlo.return %j, %z, %y : tensor<i32>, !x, !x
      }
    %d = "pw.launch"(%c#1) {callee = @f, slice = @s0} : (!x) -> !x
    %e = "pw.launch"(%c#2) {callee = @f, slice = @s0} : (!x) -> !x
    return %d, %e : !x, !x
  }
  func.func private @f(%x: !x) -> !x {
    return %x : !x
  }
}

// -----

// A condition that is cut, and one that reads what is there or small, leave nothing to remark.

!x = tensor<16x64xf32>
module @nothing attributes {pw.form = "imported"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  "pw.slice"() {sym_name = "s1", mesh = @mesh} : () -> ()
  func.func @main(%w: !x {pw.donated}, %x: !x, %p: tensor<i32>) -> (!x, !x) {
    %a = "pw.launch"(%w) {callee = @f, slice = @s0} : (!x) -> !x
    %b = "pw.launch"(%x) {callee = @f, slice = @s1} : (!x) -> !x
    %c = "stablehlo.case"(%p) ({
      stablehlo.return %w : !x
    }, {
      stablehlo.custom_call @print(%w) {has_side_effect = true} : (!x) -> ()
      stablehlo.return %a : !x
    }) : (tensor<i32>) -> !x
    return %b, %c : !x, !x
  }
  func.func private @f(%x: !x) -> !x {
    return %x : !x
  }
}

// -----

// What a loop carries stays on one slice: what iterations make elsewhere is sent back in each of them.

!x = tensor<16x64xf32>
module @carried attributes {pw.form = "imported"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  "pw.slice"() {sym_name = "s1", mesh = @mesh} : () -> ()
  "pw.loop"() {sym_name = "steps", count = 3, sequential} : () -> ()
  func.func @main(%x: !x) -> !x {
    %h = "pw.carry"(%x) {loop = @steps} : (!x) -> !x
    %a = "pw.launch"(%h) {callee = @f, loop = @steps, slice = @s0} : (!x) -> !x
    %b = "pw.launch"(%a) {callee = @f, loop = @steps, slice = @s1} : (!x) -> !x
    // expected-remark@below {{'pw.next' op moves 4096 bytes from @s1 to @s0 in each iteration: a carried value stays on one slice}}
    %end = "pw.next"(%h, %b) {loop = @steps} : (!x, !x) -> !x
    return %end : !x
  }
  func.func private @f(%x: !x) -> !x {
    return %x : !x
  }
}

// -----

// The caller passes what a call returns to the next one. Of a state that is read on one slice and returned on another,
// that moves all of it; of a table that is not donated, it fills the copy of the other slice.

!x = tensor<16x64xf32>
module @replaced_from_elsewhere attributes {pw.form = "imported"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  "pw.slice"() {sym_name = "s1", mesh = @mesh} : () -> ()
  // expected-remark@below {{'func.func' op moves 8192 bytes of arguments state, table to @s0 in each call that is passed the results of the last: these are on @s1}}
  func.func @main(%state: !x {jax.arg_info = "state", pw.donated}, %table: !x {jax.arg_info = "table"}, %same: !x {pw.donated}) -> (!x, !x, !x) {
    %h = "pw.launch"(%state, %table) {callee = @f, slice = @s0} : (!x, !x) -> !x
    %y = "pw.launch"(%h, %table) {callee = @f, slice = @s1} : (!x, !x) -> !x
    %g:2 = "pw.launch"(%y, %table) {callee = @g, slice = @s1} : (!x, !x) -> (!x, !x)
    %z = stablehlo.multiply %g#0, %g#1 : !x
    %new = stablehlo.subtract %table, %z : !x
    return %y, %new, %same : !x, !x, !x
  }
  func.func private @f(%x: !x, %y: !x) -> !x {
    return %x : !x
  }
  func.func private @g(%x: !x, %y: !x) -> (!x, !x) {
    return %x, %y : !x, !x
  }
}

// -----

// A layer that is not placed is on the slice of a neighbour: a remark at what costs most of it. The update after the
// last placed call is elementwise, and meant to be there.

!x = tensor<16x64xf32>
!w = tensor<64x64xf32>
module @layer_between_placed_calls attributes {pw.form = "imported"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  "pw.slice"() {sym_name = "s1", mesh = @mesh} : () -> ()
  "pw.loop"() {sym_name = "batch", count = 2} : () -> ()
  func.func @main(%w: !w {pw.donated}, %x: tensor<32x64xf32>) -> !w {
    %0 = "pw.split"(%x) {loop = @batch} : (tensor<32x64xf32>) -> !x
    %1 = "pw.launch"(%0, %w) {callee = @layer, loop = @batch, slice = @s0} : (!x, !w) -> !x
    // expected-remark@below {{'stablehlo.dot_general' op is in code that is not placed, 25 % of the program's work, on @s0, where the fewest bytes cross: place its function with pw.jit to choose the slice}}
    %2 = stablehlo.dot_general %1, %w, contracting_dims = [1] x [0] {pw.loop = @batch} : (!x, !w) -> !x
    %3 = stablehlo.tanh %2 {pw.loop = @batch} : !x
    %4 = "pw.launch"(%3, %w) {callee = @layer, loop = @batch, slice = @s1} : (!x, !w) -> !x
    %5 = "pw.launch"(%4) {callee = @grad, loop = @batch, slice = @s1} : (!x) -> !w
    %6 = "pw.reduce"(%5) {kind = "sum", loop = @batch} : (!w) -> !w
    %7 = stablehlo.subtract %w, %6 : !w
    return %7 : !w
  }
  func.func private @grad(%x: !x) -> !w {
    %0 = stablehlo.dot_general %x, %x, contracting_dims = [0] x [0] : (!x, !x) -> !w
    return %0 : !w
  }
  func.func private @layer(%x: !x, %w: !w) -> !x {
    %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (!x, !w) -> !x
    return %0 : !x
  }
}
