// RUN: pw-opt %s --split-input-file -p 'pw-split-backward{policy=zb-h1}' | filecheck %s
// RUN: pw-opt %s --split-input-file -p 'pw-split-backward{policy=zb-h1}' --verify-diagnostics
// RUN: pw-opt %s --split-input-file -p 'pw-split-backward{policy=1f1b}' | filecheck %s --check-prefix=WHOLE
// RUN: pw-opt %s --split-input-file -p 'pw-split-backward{policy=zb-h1 recompute=true}' | filecheck %s --check-prefix=AGAIN

// Policies without halves leave every backward whole.
// WHOLE-NOT: part =

// y = tanh(x w). The gradient of x leaves the slice, that of w is only summed up: one product each. The
// gradient of tanh, which both read, is handed over; it is worked out once. With `recompute` it is worked out
// again, and nothing is handed over.

!x = tensor<8x4xf32>
!b = tensor<2x4xf32>
!w = tensor<4x4xf32>
// CHECK-LABEL: module @halves
module @halves attributes {pw.form = "placed"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  "pw.slice"() {sym_name = "s1", mesh = @mesh} : () -> ()
  "pw.loop"() {sym_name = "l", count = 4} : () -> ()
  func.func @main(%x: !x {pw.slice = @s0}, %w: !w {pw.slice = @s1}) -> (!x {pw.slice = @s0}, !w {pw.slice = @s1}) {
    %b = "pw.split"(%x) {loop = @l, slice = @s0} : (!x) -> !b
    %t = "pw.transfer"(%b) {loop = @l, slice = @s1} : (!b) -> !b
    %y = "pw.launch"(%w, %t) {callee = @f, loop = @l, origins = [{kind = "fwd", stage = 1}], slice = @s1} : (!w, !b) -> !b
    // CHECK: %[[I:.*]]:2 = "pw.launch"(%arg1, %{{.*}}) {callee = @b_input, loop = @l, origins = [{kind = "bwd", part = "input", stage = 1 : i64}], slice = @s1}
    // CHECK-NEXT: %[[W:.*]] = "pw.launch"(%{{.*}}, %[[I]]#1) {callee = @b_weight, loop = @l, origins = [{kind = "bwd", part = "weight", stage = 1 : i64}], slice = @s1}
    // CHECK-NEXT: "pw.transfer"(%[[I]]#0)
    %dw, %dx = "pw.launch"(%w, %t, %y) {callee = @b, loop = @l, origins = [{kind = "bwd", stage = 1}], slice = @s1} : (!w, !b, !b) -> (!w, !b)
    %u = "pw.transfer"(%dx) {loop = @l, slice = @s0} : (!b) -> !b
    %rx = "pw.reduce"(%u) {kind = "concat", loop = @l, slice = @s0} : (!b) -> !x
    // CHECK: "pw.reduce"(%[[W]]) {kind = "sum"
    %rw = "pw.reduce"(%dw) {kind = "sum", loop = @l, slice = @s1} : (!w) -> !w
    return %rx, %rw : !x, !w
  }
  func.func private @f(%w: !w, %x: !b) -> !b {
    %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (!b, !w) -> !b
    %1 = stablehlo.tanh %0 : !b
    return %1 : !b
  }
  // AGAIN-LABEL: func.func private @b_input(
  // AGAIN-SAME: -> tensor<2x4xf32>
  // AGAIN-LABEL: func.func private @b_weight(
  // AGAIN: stablehlo.subtract
  // AGAIN-NEXT: stablehlo.dot_general
  // CHECK-LABEL: func.func private @b_input(
  // CHECK: %[[D:.*]] = stablehlo.subtract
  // CHECK: %[[DX:.*]] = stablehlo.dot_general %[[D]], %arg0
  // CHECK: return %[[DX]], %[[D]]
  // CHECK-LABEL: func.func private @b_weight(%arg0: tensor<2x4xf32>, %arg1: tensor<2x4xf32>) -> tensor<4x4xf32>
  // CHECK-NEXT: stablehlo.dot_general %arg0, %arg1, contracting_dims = [0] x [0]
  // CHECK-NEXT: return
  func.func private @b(%w: !w, %x: !b, %y: !b) -> (!w, !b) {
    %0 = stablehlo.multiply %y, %y : !b
    %1 = stablehlo.subtract %y, %0 : !b
    %2 = stablehlo.dot_general %x, %1, contracting_dims = [0] x [0] : (!b, !b) -> !w
    %3 = stablehlo.dot_general %1, %w, contracting_dims = [1] x [1] : (!b, !w) -> !b
    return %2, %3 : !w, !b
  }
}

// -----

// The gradient of a scale needs both what arrives and the residual: 32 bytes are kept or handed over for a
// sum of 4 numbers. So the sum is part of the half that others wait for. The first stage makes only gradients
// of weights: it is the half of the weights as a whole.

!x = tensor<8x4xf32>
!b = tensor<2x4xf32>
!w = tensor<4x4xf32>
!v = tensor<4xf32>
// CHECK-LABEL: module @sums
module @sums attributes {pw.form = "placed"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  "pw.slice"() {sym_name = "s1", mesh = @mesh} : () -> ()
  "pw.loop"() {sym_name = "l", count = 4, schedule = "zb-h1"} : () -> ()
  func.func @main(%x: !x {pw.slice = @s0}, %y: !x {pw.slice = @s1}, %w: !w {pw.slice = @s1})
      -> (!w {pw.slice = @s0}, !w {pw.slice = @s1}, !v {pw.slice = @s1}) {
    %b = "pw.split"(%x) {loop = @l, slice = @s0} : (!x) -> !b
    %d = "pw.split"(%y) {loop = @l, slice = @s1} : (!x) -> !b
    %n = "pw.launch"(%d) {callee = @norm, loop = @l, slice = @s1} : (!b) -> !b
    // CHECK: "pw.launch"{{.*}} {callee = @b_input, {{.*}} -> (tensor<4xf32>, tensor<2x4xf32>)
    // CHECK: "pw.launch"{{.*}} {callee = @b_weight, {{.*}} -> tensor<4x4xf32>
    %dw, %ds, %dx = "pw.launch"(%w, %n, %d) {callee = @b, loop = @l, origins = [{kind = "bwd", stage = 1}], slice = @s1} : (!w, !b, !b) -> (!w, !v, !b)
    %u = "pw.transfer"(%dx) {loop = @l, slice = @s0} : (!b) -> !b
    // CHECK: callee = @first, loop = @l, origins = [{kind = "bwd", part = "weight", stage = 0 : i64}]
    %dv = "pw.launch"(%b, %u) {callee = @first, loop = @l, origins = [{kind = "bwd", stage = 0}], slice = @s0} : (!b, !b) -> !w
    %r0 = "pw.reduce"(%dv) {kind = "sum", loop = @l, slice = @s0} : (!w) -> !w
    %r1 = "pw.reduce"(%dw) {kind = "sum", loop = @l, slice = @s1} : (!w) -> !w
    %r2 = "pw.reduce"(%ds) {kind = "sum", loop = @l, slice = @s1} : (!v) -> !v
    return %r0, %r1, %r2 : !w, !w, !v
  }
  func.func private @norm(%x: !b) -> !b {
    %0 = stablehlo.tanh %x : !b
    return %0 : !b
  }
  func.func private @b(%w: !w, %n: !b, %d: !b) -> (!w, !v, !b) {
    %zero = stablehlo.constant dense<0.0> : tensor<f32>
    %0 = stablehlo.multiply %d, %n : !b
    %1 = stablehlo.reduce(%0 init: %zero) applies stablehlo.add across dimensions = [0] : (!b, tensor<f32>) -> !v
    %2 = stablehlo.dot_general %d, %d, contracting_dims = [0] x [0] : (!b, !b) -> !w
    %3 = stablehlo.dot_general %d, %w, contracting_dims = [1] x [1] : (!b, !w) -> !b
    return %2, %1, %3 : !w, !v, !b
  }
  func.func private @first(%x: !b, %d: !b) -> !w {
    %0 = stablehlo.dot_general %x, %d, contracting_dims = [0] x [0] : (!b, !b) -> !w
    return %0 : !w
  }
}

// -----

// The backward of a scan over three layers becomes two: the first one carries the gradient of x and stacks what
// the second one needs, whose iterations do not wait for each other: it is one product with the layers as a batch.
// Elementwise operations, as Shardy's rules know them, get the layers as one more dimension.

!x = tensor<8x4xf32>
!b = tensor<2x4xf32>
!w = tensor<3x4x4xf32>
!h = tensor<3x2x4xf32>
// CHECK-LABEL: module @scan
module @scan attributes {pw.form = "placed"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  "pw.slice"() {sym_name = "s1", mesh = @mesh} : () -> ()
  "pw.loop"() {sym_name = "l", count = 4} : () -> ()
  func.func @main(%x: !x {pw.slice = @s1}, %w: !w {pw.slice = @s1}) -> (!x {pw.slice = @s0}, !w {pw.slice = @s1}) {
    %b = "pw.split"(%x) {loop = @l, slice = @s1} : (!x) -> !b
    %h = "pw.launch"(%b) {callee = @f, loop = @l, origins = [{kind = "fwd", stage = 1}], slice = @s1} : (!b) -> !h
    // CHECK: %[[I:.*]]:2 = "pw.launch"(%arg1, %{{.*}}) {callee = @b_input, {{.*}} -> (tensor<2x4xf32>, tensor<3x2x4xf32>)
    // CHECK: "pw.launch"(%{{.*}}, %[[I]]#1) {callee = @b_weight, {{.*}} -> tensor<3x4x4xf32>
    %dw, %dx = "pw.launch"(%w, %h, %b) {callee = @b, loop = @l, origins = [{kind = "bwd", stage = 1}], slice = @s1} : (!w, !h, !b) -> (!w, !b)
    %u = "pw.transfer"(%dx) {loop = @l, slice = @s0} : (!b) -> !b
    %rx = "pw.reduce"(%u) {kind = "concat", loop = @l, slice = @s0} : (!b) -> !x
    %rw = "pw.reduce"(%dw) {kind = "sum", loop = @l, slice = @s1} : (!w) -> !w
    return %rx, %rw : !x, !w
  }
  func.func private @f(%b: !b) -> !h {
    %0 = stablehlo.broadcast_in_dim %b, dims = [1, 2] : (!b) -> !h
    return %0 : !h
  }
  // CHECK-LABEL: func.func private @b_input
  // CHECK: stablehlo.while
  // CHECK-SAME: : tensor<i32>, tensor<2x4xf32>, tensor<3x4x4xf32>, tensor<3x2x4xf32>
  // CHECK: stablehlo.dot_general {{.*}}contracting_dims = [1] x [1]
  // CHECK-NOT: stablehlo.dot_general
  // CHECK: stablehlo.dynamic_update_slice
  // CHECK-LABEL: func.func private @b_weight(%arg0: tensor<3x2x4xf32>, %arg1: tensor<3x2x4xf32>)
  // CHECK-NOT: stablehlo.while
  // CHECK: stablehlo.dot_general {{.*}}batching_dims = [0] x [0], contracting_dims = [1] x [1]
  // CHECK-NEXT: stablehlo.reduce_precision {{.*}} : tensor<3x4x4xf32>
  // CHECK-NOT: stablehlo.dot_general
  func.func private @b(%w: !w, %h: !h, %d: !b) -> (!w, !b) {
    %c0 = stablehlo.constant dense<0> : tensor<i32>
    %zeros = stablehlo.constant dense<0.0> : !w
    %r:5 = stablehlo.while(%ws = %w, %hs = %h, %i = %c0, %ct = %d, %dws = %zeros) : !w, !h, tensor<i32>, !b, !w
    cond {
      %c3 = stablehlo.constant dense<3> : tensor<i32>
      %0 = stablehlo.compare LT, %i, %c3, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %0 : tensor<i1>
    } do {
      %c1 = stablehlo.constant dense<1> : tensor<i32>
      %z = stablehlo.constant dense<0> : tensor<i32>
      %0 = stablehlo.dynamic_slice %ws, %i, %z, %z, sizes = [1, 4, 4] : (!w, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x4x4xf32>
      %1 = stablehlo.reshape %0 : (tensor<1x4x4xf32>) -> tensor<4x4xf32>
      %2 = stablehlo.dynamic_slice %hs, %i, %z, %z, sizes = [1, 2, 4] : (!h, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x2x4xf32>
      %3 = stablehlo.reshape %2 : (tensor<1x2x4xf32>) -> !b
      %4 = func.call @times(%ct, %3) : (!b, !b) -> !b
      %5 = stablehlo.dot_general %3, %4, contracting_dims = [0] x [0] : (!b, !b) -> tensor<4x4xf32>
      %rounded = stablehlo.reduce_precision %5, format = e8m10 : tensor<4x4xf32>
      %6 = stablehlo.reshape %rounded : (tensor<4x4xf32>) -> tensor<1x4x4xf32>
      %7 = stablehlo.dynamic_update_slice %dws, %6, %i, %z, %z : (!w, tensor<1x4x4xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> !w
      %8 = stablehlo.dot_general %4, %1, contracting_dims = [1] x [1] : (!b, tensor<4x4xf32>) -> !b
      %9 = stablehlo.add %i, %c1 : tensor<i32>
      stablehlo.return %ws, %hs, %9, %8, %7 : !w, !h, tensor<i32>, !b, !w
    }
    return %r#4, %r#3 : !w, !b
  }
  func.func private @times(%a: !b, %b: !b) -> !b {
    %0 = stablehlo.multiply %a, %b : !b
    return %0 : !b
  }
}

// -----

// Iterations from the last layer to the first: the first loop stacks in the order of the layers, so that nothing has to be
// turned round. What iterations add up becomes one product that is contracted over the layers too.

!x = tensor<8x4xf32>
!b = tensor<2x4xf32>
!v = tensor<4x4xf32>
!w = tensor<3x4x4xf32>
!h = tensor<3x2x4xf32>
// CHECK-LABEL: module @backwards
module @backwards attributes {pw.form = "placed"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  "pw.slice"() {sym_name = "s1", mesh = @mesh} : () -> ()
  "pw.loop"() {sym_name = "l", count = 4} : () -> ()
  func.func @main(%x: !x {pw.slice = @s1}, %w: !w {pw.slice = @s1})
      -> (!x {pw.slice = @s0}, !w {pw.slice = @s1}, !v {pw.slice = @s1}) {
    %b = "pw.split"(%x) {loop = @l, slice = @s1} : (!x) -> !b
    %h = "pw.launch"(%b) {callee = @f, loop = @l, origins = [{kind = "fwd", stage = 1}], slice = @s1} : (!b) -> !h
    %dw, %dv, %dx = "pw.launch"(%w, %h, %b) {callee = @b, loop = @l, origins = [{kind = "bwd", stage = 1}], slice = @s1}
        : (!w, !h, !b) -> (!w, !v, !b)
    %u = "pw.transfer"(%dx) {loop = @l, slice = @s0} : (!b) -> !b
    %rx = "pw.reduce"(%u) {kind = "concat", loop = @l, slice = @s0} : (!b) -> !x
    %rw = "pw.reduce"(%dw) {kind = "sum", loop = @l, slice = @s1} : (!w) -> !w
    %rv = "pw.reduce"(%dv) {kind = "sum", loop = @l, slice = @s1} : (!v) -> !v
    return %rx, %rw, %rv : !x, !w, !v
  }
  func.func private @f(%b: !b) -> !h {
    %0 = stablehlo.broadcast_in_dim %b, dims = [1, 2] : (!b) -> !h
    return %0 : !h
  }
  // CHECK-LABEL: func.func private @b_input
  // CHECK: stablehlo.while(%[[ITERATION:iterArg]] =
  // CHECK: stablehlo.dot_general
  // CHECK: %[[PLACE:.*]] = stablehlo.subtract %{{.*}}, %[[ITERATION]] : tensor<i32>
  // CHECK: stablehlo.dynamic_update_slice %{{.*}}, %{{.*}}, %[[PLACE]],
  // CHECK-LABEL: func.func private @b_weight
  // CHECK-NOT: stablehlo.while
  // CHECK-NOT: stablehlo.reverse
  // CHECK: stablehlo.dot_general {{.*}}batching_dims = [0] x [0], contracting_dims = [1] x [1] : {{.*}} -> tensor<3x4x4xf32>
  // CHECK: stablehlo.dot_general {{.*}}, contracting_dims = [0, 1] x [0, 1] : {{.*}} -> tensor<4x4xf32>
  // CHECK-NEXT: stablehlo.transpose
  // CHECK-NEXT: stablehlo.add
  func.func private @b(%w: !w, %h: !h, %d: !b) -> (!w, !v, !b) {
    %c0 = stablehlo.constant dense<0> : tensor<i32>
    %zeros = stablehlo.constant dense<0.0> : !w
    %zero = stablehlo.constant dense<0.0> : !v
    %r:6 = stablehlo.while(%ws = %w, %hs = %h, %i = %c0, %ct = %d, %dws = %zeros, %dvs = %zero)
        : !w, !h, tensor<i32>, !b, !w, !v
    cond {
      %c3 = stablehlo.constant dense<3> : tensor<i32>
      %0 = stablehlo.compare LT, %i, %c3, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %0 : tensor<i1>
    } do {
      %c1 = stablehlo.constant dense<1> : tensor<i32>
      %c2 = stablehlo.constant dense<2> : tensor<i32>
      %z = stablehlo.constant dense<0> : tensor<i32>
      %l = stablehlo.subtract %c2, %i : tensor<i32>
      %0 = stablehlo.dynamic_slice %ws, %l, %z, %z, sizes = [1, 4, 4] : (!w, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x4x4xf32>
      %1 = stablehlo.reshape %0 : (tensor<1x4x4xf32>) -> !v
      %2 = stablehlo.dynamic_slice %hs, %l, %z, %z, sizes = [1, 2, 4] : (!h, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x2x4xf32>
      %3 = stablehlo.reshape %2 : (tensor<1x2x4xf32>) -> !b
      %4 = stablehlo.multiply %ct, %3 : !b
      %5 = stablehlo.dot_general %3, %4, contracting_dims = [0] x [0] : (!b, !b) -> !v
      %6 = stablehlo.reshape %5 : (!v) -> tensor<1x4x4xf32>
      %7 = stablehlo.dynamic_update_slice %dws, %6, %l, %z, %z : (!w, tensor<1x4x4xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> !w
      %8 = stablehlo.dot_general %4, %ct, contracting_dims = [0] x [0] : (!b, !b) -> !v
      %9 = stablehlo.transpose %8, dims = [1, 0] : (!v) -> !v
      %10 = stablehlo.add %dvs, %9 : !v
      %11 = stablehlo.dot_general %4, %1, contracting_dims = [1] x [1] : (!b, !v) -> !b
      %12 = stablehlo.add %i, %c1 : tensor<i32>
      stablehlo.return %ws, %hs, %12, %11, %7, %10 : !w, !h, tensor<i32>, !b, !w, !v
    }
    return %r#4, %r#5, %r#3 : !w, !v, !b
  }
}

// -----

// A loop that ends when its values say so: how many iterations it takes, and so how much it would have to stack, is
// not known. It stays in the half that others wait for, and a remark says so.

!x = tensor<8x4xf32>
!b = tensor<2x4xf32>
!w = tensor<4x4xf32>
// CHECK-LABEL: module @while
module @while attributes {pw.form = "placed"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  "pw.slice"() {sym_name = "s1", mesh = @mesh} : () -> ()
  "pw.loop"() {sym_name = "l", count = 4} : () -> ()
  func.func @main(%x: !x {pw.slice = @s1}, %w: !w {pw.slice = @s1}) -> (!x {pw.slice = @s0}, !w {pw.slice = @s1}) {
    %b = "pw.split"(%x) {loop = @l, slice = @s1} : (!x) -> !b
    // CHECK: "pw.launch"{{.*}} {callee = @b, {{.*}}part = "input"
    // expected-remark@below {{keeps a loop with an unknown trip count in the half that others wait for}}
    %dw, %dx = "pw.launch"(%w, %b) {callee = @b, loop = @l, origins = [{kind = "bwd", stage = 1}], slice = @s1} : (!w, !b) -> (!w, !b)
    %u = "pw.transfer"(%dx) {loop = @l, slice = @s0} : (!b) -> !b
    %rx = "pw.reduce"(%u) {kind = "concat", loop = @l, slice = @s0} : (!b) -> !x
    %rw = "pw.reduce"(%dw) {kind = "sum", loop = @l, slice = @s1} : (!w) -> !w
    return %rx, %rw : !x, !w
  }
  func.func private @b(%w: !w, %d: !b) -> (!w, !b) {
    %bound = stablehlo.constant dense<1.0> : tensor<f32>
    %zeros = stablehlo.constant dense<0.0> : !w
    %r:3 = stablehlo.while(%size = %bound, %ct = %d, %dw = %zeros) : tensor<f32>, !b, !w
    cond {
      %0 = stablehlo.compare LT, %size, %bound : (tensor<f32>, tensor<f32>) -> tensor<i1>
      stablehlo.return %0 : tensor<i1>
    } do {
      %0 = stablehlo.dot_general %ct, %ct, contracting_dims = [0] x [0] : (!b, !b) -> !w
      %1 = stablehlo.add %dw, %0 : !w
      %2 = stablehlo.dot_general %ct, %w, contracting_dims = [1] x [1] : (!b, !w) -> !b
      %3 = stablehlo.slice %2 [0:1, 0:1] : (!b) -> tensor<1x1xf32>
      %4 = stablehlo.reshape %3 : (tensor<1x1xf32>) -> tensor<f32>
      stablehlo.return %4, %2, %1 : tensor<f32>, !b, !w
    }
    return %r#2, %r#1 : !w, !b
  }
}

// -----

// The first two stages are neighbours on a slice. The gradient that the second one hands to the first is for
// another stage, and so part of its I, although it stays on the slice; the first stage is W as a whole.

!x = tensor<8x4xf32>
!b = tensor<2x4xf32>
!w = tensor<4x4xf32>
// CHECK-LABEL: module @neighbours
module @neighbours attributes {pw.form = "placed"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  "pw.loop"() {sym_name = "l", count = 4} : () -> ()
  func.func @main(%x: !x {pw.slice = @s0}, %w: !w {pw.slice = @s0}) -> (!w {pw.slice = @s0}, !w {pw.slice = @s0}) {
    %b = "pw.split"(%x) {loop = @l, slice = @s0} : (!x) -> !b
    // CHECK: %[[I:.*]] = "pw.launch"(%arg1, %{{.*}}) {callee = @b_input, {{.*}}part = "input", stage = 1
    // CHECK: "pw.launch"(%{{.*}}) {callee = @b_weight, {{.*}}part = "weight", stage = 1
    %dw1, %dx = "pw.launch"(%w, %b) {callee = @b, loop = @l, origins = [{kind = "bwd", stage = 1}], slice = @s0} : (!w, !b) -> (!w, !b)
    // CHECK: "pw.launch"(%{{.*}}, %[[I]]) {callee = @first, {{.*}}part = "weight", stage = 0
    %dw0 = "pw.launch"(%b, %dx) {callee = @first, loop = @l, origins = [{kind = "bwd", stage = 0}], slice = @s0} : (!b, !b) -> !w
    %r0 = "pw.reduce"(%dw0) {kind = "sum", loop = @l, slice = @s0} : (!w) -> !w
    %r1 = "pw.reduce"(%dw1) {kind = "sum", loop = @l, slice = @s0} : (!w) -> !w
    return %r0, %r1 : !w, !w
  }
  func.func private @b(%w: !w, %d: !b) -> (!w, !b) {
    %0 = stablehlo.dot_general %d, %d, contracting_dims = [0] x [0] : (!b, !b) -> !w
    %1 = stablehlo.dot_general %d, %w, contracting_dims = [1] x [1] : (!b, !w) -> !b
    return %0, %1 : !w, !b
  }
  func.func private @first(%x: !b, %d: !b) -> !w {
    %0 = stablehlo.dot_general %x, %d, contracting_dims = [0] x [0] : (!b, !b) -> !w
    return %0 : !w
  }
}
