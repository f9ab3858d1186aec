// RUN: pw-opt %s --split-input-file --pw-import | filecheck %s

// A gradient penalty: the loss reads the gradient that @g_grad and @f_grad make, and its backward goes back through
// all four calls. Their stages are a V. JAX says in `pw.lineage` which call each one is the backward of.

!x = tensor<4xf32>
module @gradient_penalty {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  "pw.slice"() {sym_name = "s1", mesh = @mesh} : () -> ()
  "pw.loop"() {sym_name = "loss", count = 2 : i64} : () -> ()
  // CHECK-LABEL: func.func public @main
  func.func public @main(%batch: tensor<8xf32>) -> !x {
    %x = call @split(%batch) {mhlo.frontend_attributes = {pw.mark = "split", pw.loop = "loss"}} : (tensor<8xf32>) -> !x
    // CHECK: callee = @f, {{.*}}origins = [{kind = "fwd", stage = 0 : i64}], slice = @s0
    %f = call @f(%x) {mhlo.frontend_attributes = {pw.slice = "s0", pw.name = "f", pw.call = "0", pw.lineage = "00"}} : (!x) -> !x
    // CHECK: callee = @g, {{.*}}origins = [{kind = "fwd", stage = 1 : i64}], slice = @s1
    %g = call @g(%f) {mhlo.frontend_attributes = {pw.slice = "s1", pw.name = "g", pw.call = "1", pw.lineage = "00"}} : (!x) -> !x
    // CHECK: callee = @g_grad, {{.*}}origins = [{kind = "grad", stage = 2 : i64}], slice = @s1
    %dg = call @g1(%g) {mhlo.frontend_attributes = {pw.slice = "s1", pw.name = "g", pw.call = "1", pw.kind = "grad", pw.lineage = "10"}} : (!x) -> !x
    // CHECK: callee = @f_grad, {{.*}}origins = [{kind = "grad", stage = 3 : i64}], slice = @s0
    %df = call @f1(%dg) {mhlo.frontend_attributes = {pw.slice = "s0", pw.name = "f", pw.call = "0", pw.kind = "grad", pw.lineage = "10"}} : (!x) -> !x
    %penalty = stablehlo.multiply %df, %df : !x
    // CHECK: callee = @f_bwd, {{.*}}origins = [{kind = "bwd", stage = 3 : i64}], slice = @s0
    %ddf = call @f2(%penalty) {mhlo.frontend_attributes = {pw.slice = "s0", pw.name = "f", pw.call = "0", pw.kind = "bwd", pw.lineage = "11"}} : (!x) -> !x
    // CHECK: callee = @g_bwd, {{.*}}origins = [{kind = "bwd", stage = 2 : i64}], slice = @s1
    %ddg = call @g2(%ddf) {mhlo.frontend_attributes = {pw.slice = "s1", pw.name = "g", pw.call = "1", pw.kind = "bwd", pw.lineage = "11"}} : (!x) -> !x
    // CHECK: callee = @g_bwd_1, {{.*}}origins = [{kind = "bwd", stage = 1 : i64}], slice = @s1
    %bg = call @g3(%ddg) {mhlo.frontend_attributes = {pw.slice = "s1", pw.name = "g", pw.call = "1", pw.kind = "bwd", pw.lineage = "01"}} : (!x) -> !x
    // CHECK: callee = @f_bwd_1, {{.*}}origins = [{kind = "bwd", stage = 0 : i64}], slice = @s0
    %bf = call @f3(%bg) {mhlo.frontend_attributes = {pw.slice = "s0", pw.name = "f", pw.call = "0", pw.kind = "bwd", pw.lineage = "01"}} : (!x) -> !x
    %sum = call @sum(%bf) {mhlo.frontend_attributes = {pw.mark = "sum", pw.loop = "loss"}} : (!x) -> !x
    return %sum : !x
  }
  func.func private @split(tensor<8xf32>) -> !x
  func.func private @sum(!x) -> !x
  func.func private @f(%x: !x) -> !x { return %x : !x }
  func.func private @g(%x: !x) -> !x { return %x : !x }
  func.func private @g1(%x: !x) -> !x { return %x : !x }
  func.func private @f1(%x: !x) -> !x { return %x : !x }
  func.func private @f2(%x: !x) -> !x { return %x : !x }
  func.func private @g2(%x: !x) -> !x { return %x : !x }
  func.func private @g3(%x: !x) -> !x { return %x : !x }
  func.func private @f3(%x: !x) -> !x { return %x : !x }
}

// -----

// Behind a step of gradient descent the same functions are called again: these calls have stages of their own too,
// even if the user gave each function one. That tells @f and @f_again apart, which are neighbours on a slice.

!x = tensor<4xf32>
module @descent_in_the_forward {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  "pw.slice"() {sym_name = "s1", mesh = @mesh} : () -> ()
  "pw.loop"() {sym_name = "loss", count = 2 : i64} : () -> ()
  // CHECK-LABEL: func.func public @main
  func.func public @main(%batch: tensor<8xf32>) -> !x {
    %x = call @split(%batch) {mhlo.frontend_attributes = {pw.mark = "split", pw.loop = "loss"}} : (tensor<8xf32>) -> !x
    // CHECK: callee = @f, {{.*}}origins = [{kind = "fwd", stage = 0 : i64}], slice = @s0
    %f = call @f(%x) {mhlo.frontend_attributes = {pw.slice = "s0", pw.name = "f", pw.call = "0", pw.stage = "5", pw.lineage = "00"}} : (!x) -> !x
    // CHECK: callee = @f_again, {{.*}}origins = [{kind = "fwd", stage = 1 : i64}], slice = @s0
    %g = call @g(%f) {mhlo.frontend_attributes = {pw.slice = "s0", pw.name = "f_again", pw.call = "1", pw.stage = "6", pw.lineage = "00"}} : (!x) -> !x
    // CHECK: callee = @f_again_grad, {{.*}}origins = [{kind = "grad", stage = 2 : i64}], slice = @s0
    %dg = call @g1(%g) {mhlo.frontend_attributes = {pw.slice = "s0", pw.name = "f_again", pw.call = "1", pw.stage = "6", pw.kind = "grad", pw.lineage = "10"}} : (!x) -> !x
    // CHECK: callee = @f_grad, {{.*}}origins = [{kind = "grad", stage = 3 : i64}], slice = @s0
    %df = call @f1(%dg) {mhlo.frontend_attributes = {pw.slice = "s0", pw.name = "f", pw.call = "0", pw.stage = "5", pw.kind = "grad", pw.lineage = "10"}} : (!x) -> !x
    // CHECK: callee = @f_1, {{.*}}origins = [{kind = "fwd", stage = 4 : i64}], slice = @s0
    %q = call @f2(%df) {mhlo.frontend_attributes = {pw.slice = "s0", pw.name = "f", pw.call = "2", pw.stage = "5", pw.lineage = "0"}} : (!x) -> !x
    // CHECK: callee = @f_bwd, {{.*}}origins = [{kind = "bwd", stage = 4 : i64}], slice = @s0
    %bq = call @g2(%q) {mhlo.frontend_attributes = {pw.slice = "s0", pw.name = "f", pw.call = "2", pw.stage = "5", pw.kind = "bwd", pw.lineage = "1"}} : (!x) -> !x
    %sum = call @sum(%bq) {mhlo.frontend_attributes = {pw.mark = "sum", pw.loop = "loss"}} : (!x) -> !x
    return %sum : !x
  }
  func.func private @split(tensor<8xf32>) -> !x
  func.func private @sum(!x) -> !x
  func.func private @f(%x: !x) -> !x { return %x : !x }
  func.func private @g(%x: !x) -> !x { return %x : !x }
  func.func private @g1(%x: !x) -> !x { return %x : !x }
  func.func private @f1(%x: !x) -> !x { return %x : !x }
  func.func private @f2(%x: !x) -> !x { return %x : !x }
  func.func private @g2(%x: !x) -> !x { return %x : !x }
}

// -----

// A gradient that is not differentiated, as by `jax.lax.stop_gradient`, is one as well if what is differentiated
// reads it (@g_bwd, for @q), or the backward of a later stage does (@q_bwd, for @r_bwd).

!x = tensor<4xf32>
module @stopped {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  "pw.slice"() {sym_name = "s1", mesh = @mesh} : () -> ()
  "pw.loop"() {sym_name = "loss", count = 2 : i64} : () -> ()
  // CHECK-LABEL: func.func public @main
  func.func public @main(%batch: tensor<8xf32>) -> !x {
    %x = call @split(%batch) {mhlo.frontend_attributes = {pw.mark = "split", pw.loop = "loss"}} : (tensor<8xf32>) -> !x
    %g = call @g(%x) {mhlo.frontend_attributes = {pw.slice = "s1", pw.name = "g", pw.call = "0", pw.lineage = "0"}} : (!x) -> !x
    // CHECK: callee = @g_bwd, {{.*}}origins = [{kind = "grad", stage = 1 : i64}], slice = @s1
    %dg = call @g1(%g) {mhlo.frontend_attributes = {pw.slice = "s1", pw.name = "g", pw.call = "0", pw.kind = "bwd", pw.lineage = "1"}} : (!x) -> !x
    // CHECK: callee = @q, {{.*}}origins = [{kind = "fwd", stage = 2 : i64}], slice = @s0
    %q = call @q(%dg) {mhlo.frontend_attributes = {pw.slice = "s0", pw.name = "q", pw.call = "1", pw.lineage = "0"}} : (!x) -> !x
    // CHECK: callee = @r, {{.*}}origins = [{kind = "fwd", stage = 3 : i64}], slice = @s1
    %r = call @r(%q) {mhlo.frontend_attributes = {pw.slice = "s1", pw.name = "r", pw.call = "2", pw.lineage = "0"}} : (!x) -> !x
    // CHECK: callee = @q_bwd, {{.*}}origins = [{kind = "grad", stage = 4 : i64}], slice = @s0
    %dq = call @q1(%q) {mhlo.frontend_attributes = {pw.slice = "s0", pw.name = "q", pw.call = "1", pw.kind = "bwd", pw.lineage = "1"}} : (!x) -> !x
    // CHECK: callee = @r_bwd, {{.*}}origins = [{kind = "bwd", stage = 3 : i64}], slice = @s1
    %dr = call @r1(%r, %dq) {mhlo.frontend_attributes = {pw.slice = "s1", pw.name = "r", pw.call = "2", pw.kind = "bwd", pw.lineage = "1"}} : (!x, !x) -> !x
    %sum = call @sum(%dr) {mhlo.frontend_attributes = {pw.mark = "sum", pw.loop = "loss"}} : (!x) -> !x
    return %sum : !x
  }
  func.func private @split(tensor<8xf32>) -> !x
  func.func private @sum(!x) -> !x
  func.func private @g(%x: !x) -> !x { return %x : !x }
  func.func private @g1(%x: !x) -> !x { return %x : !x }
  func.func private @q(%x: !x) -> !x { return %x : !x }
  func.func private @r(%x: !x) -> !x { return %x : !x }
  func.func private @q1(%x: !x) -> !x { return %x : !x }
  func.func private @r1(%x: !x, %y: !x) -> !x { return %y : !x }
}

// -----

// What reads gradients and is not differentiated, such as a placed function that clips them, makes no forward of a
// backward.

!x = tensor<4xf32>
module @clipped {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  "pw.loop"() {sym_name = "loss", count = 2 : i64} : () -> ()
  // CHECK-LABEL: func.func public @main
  func.func public @main(%batch: tensor<8xf32>) -> !x {
    %x = call @split(%batch) {mhlo.frontend_attributes = {pw.mark = "split", pw.loop = "loss"}} : (tensor<8xf32>) -> !x
    %g = call @g(%x) {mhlo.frontend_attributes = {pw.slice = "s0", pw.name = "g", pw.call = "0", pw.lineage = "0"}} : (!x) -> !x
    // CHECK: callee = @g_bwd, {{.*}}origins = [{kind = "bwd", stage = 0 : i64}], slice = @s0
    %dg = call @g1(%g) {mhlo.frontend_attributes = {pw.slice = "s0", pw.name = "g", pw.call = "0", pw.kind = "bwd", pw.lineage = "1"}} : (!x) -> !x
    // CHECK: callee = @clip, {{.*}}origins = [{kind = "fwd"}], slice = @s0
    %clip = call @clip(%dg) {mhlo.frontend_attributes = {pw.slice = "s0", pw.name = "clip", pw.call = "1"}} : (!x) -> !x
    %sum = call @sum(%clip) {mhlo.frontend_attributes = {pw.mark = "sum", pw.loop = "loss"}} : (!x) -> !x
    return %sum : !x
  }
  func.func private @split(tensor<8xf32>) -> !x
  func.func private @sum(!x) -> !x
  func.func private @g(%x: !x) -> !x { return %x : !x }
  func.func private @g1(%x: !x) -> !x { return %x : !x }
  func.func private @clip(%x: !x) -> !x { return %x : !x }
}

// -----

// `jax.checkpoint` around a loss with a gradient in it: that is made once, where nothing differentiates it, and again
// behind barriers for the backward. Both are of one stage.

!x = tensor<4xf32>
module @repeated {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  "pw.loop"() {sym_name = "loss", count = 2 : i64} : () -> ()
  // CHECK-LABEL: func.func public @main
  func.func public @main(%batch: tensor<8xf32>) -> (!x, !x) {
    %x = call @split(%batch) {mhlo.frontend_attributes = {pw.mark = "split", pw.loop = "loss"}} : (tensor<8xf32>) -> !x
    // CHECK: callee = @g, {{.*}}origins = [{kind = "fwd", stage = 0 : i64}], slice = @s0
    %g = call @g(%x) {mhlo.frontend_attributes = {pw.slice = "s0", pw.name = "g", pw.call = "0", pw.lineage = "0"}} : (!x) -> !x
    // CHECK: callee = @g_bwd, {{.*}}origins = [{kind = "grad", stage = 1 : i64}], slice = @s0
    %dg = call @g1(%g) {mhlo.frontend_attributes = {pw.slice = "s0", pw.name = "g", pw.call = "0", pw.kind = "bwd", pw.lineage = "1"}} : (!x) -> !x
    %again = stablehlo.optimization_barrier %x : !x
    // CHECK: callee = @g, {{.*}}origins = [{kind = "recompute", stage = 0 : i64}], slice = @s0
    %h = call @g(%again) {mhlo.frontend_attributes = {pw.slice = "s0", pw.name = "g", pw.call = "0", pw.lineage = "00"}} : (!x) -> !x
    // CHECK: callee = @g_bwd, {{.*}}origins = [{kind = "recompute", stage = 1 : i64}], slice = @s0
    %dh = call @g1(%h) {mhlo.frontend_attributes = {pw.slice = "s0", pw.name = "g", pw.call = "0", pw.kind = "grad", pw.lineage = "10"}} : (!x) -> !x
    // CHECK: callee = @g_bwd_1, {{.*}}origins = [{kind = "bwd", stage = 1 : i64}], slice = @s0
    %b1 = call @g2(%dh) {mhlo.frontend_attributes = {pw.slice = "s0", pw.name = "g", pw.call = "0", pw.kind = "bwd", pw.lineage = "11"}} : (!x) -> !x
    // CHECK: callee = @g_bwd_2, {{.*}}origins = [{kind = "bwd", stage = 0 : i64}], slice = @s0
    %b0 = call @g3(%b1) {mhlo.frontend_attributes = {pw.slice = "s0", pw.name = "g", pw.call = "0", pw.kind = "bwd", pw.lineage = "01"}} : (!x) -> !x
    %value = call @sum(%dg) {mhlo.frontend_attributes = {pw.mark = "sum", pw.loop = "loss"}} : (!x) -> !x
    %sum = call @sum(%b0) {mhlo.frontend_attributes = {pw.mark = "sum", pw.loop = "loss"}} : (!x) -> !x
    return %value, %sum : !x, !x
  }
  func.func private @split(tensor<8xf32>) -> !x
  func.func private @sum(!x) -> !x
  func.func private @g(%x: !x) -> !x { return %x : !x }
  func.func private @g1(%x: !x) -> !x { return %x : !x }
  func.func private @g2(%x: !x) -> !x { return %x : !x }
  func.func private @g3(%x: !x) -> !x { return %x : !x }
}

// -----

// The same around a call that is itself under `jax.checkpoint`: gradients read only what is done again of it, and yet
// come behind it. The second one is done again too, and nothing differentiated it; that the backward of the first
// one's stage reads it tells that it is no backward of stage 0.

!x = tensor<4xf32>
module @repeated_twice {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  "pw.loop"() {sym_name = "loss", count = 2 : i64} : () -> ()
  // CHECK-LABEL: func.func public @main
  func.func public @main(%batch: tensor<8xf32>) -> (!x, !x) {
    %x = call @split(%batch) {mhlo.frontend_attributes = {pw.mark = "split", pw.loop = "loss"}} : (tensor<8xf32>) -> !x
    // CHECK: callee = @g, {{.*}}origins = [{kind = "fwd", stage = 0 : i64}], slice = @s0
    %g = call @g(%x) {mhlo.frontend_attributes = {pw.slice = "s0", pw.name = "g", pw.call = "0"}} : (!x) -> !x
    %0 = stablehlo.optimization_barrier %x : !x
    %r0 = call @g(%0) {mhlo.frontend_attributes = {pw.slice = "s0", pw.name = "g", pw.call = "0", pw.lineage = "0"}} : (!x) -> !x
    // CHECK: callee = @g_bwd, {{.*}}origins = [{kind = "grad", stage = 1 : i64}], slice = @s0
    %d0 = call @g1(%r0) {mhlo.frontend_attributes = {pw.slice = "s0", pw.name = "g", pw.call = "0", pw.kind = "bwd", pw.lineage = "1"}} : (!x) -> !x
    %1 = stablehlo.optimization_barrier %x : !x
    %r1 = call @g(%1) {mhlo.frontend_attributes = {pw.slice = "s0", pw.name = "g", pw.call = "0", pw.lineage = "0"}} : (!x) -> !x
    // CHECK: callee = @g_bwd, {{.*}}origins = [{kind = "grad", stage = 1 : i64}], slice = @s0
    %d1 = call @g1(%r1) {mhlo.frontend_attributes = {pw.slice = "s0", pw.name = "g", pw.call = "0", pw.kind = "bwd", pw.lineage = "1"}} : (!x) -> !x
    // CHECK: callee = @g_bwd, {{.*}}origins = [{kind = "recompute", stage = 1 : i64}], slice = @s0
    %d2 = call @g1(%r1) {mhlo.frontend_attributes = {pw.slice = "s0", pw.name = "g", pw.call = "0", pw.kind = "grad", pw.lineage = "10"}} : (!x) -> !x
    // CHECK: callee = @g_bwd_1, {{.*}}origins = [{kind = "bwd", stage = 1 : i64}], slice = @s0
    %b1 = call @g2(%d1, %d2) {mhlo.frontend_attributes = {pw.slice = "s0", pw.name = "g", pw.call = "0", pw.kind = "bwd", pw.lineage = "11"}} : (!x, !x) -> !x
    // CHECK: callee = @g_bwd_2, {{.*}}origins = [{kind = "bwd", stage = 0 : i64}], slice = @s0
    %b0 = call @g3(%b1) {mhlo.frontend_attributes = {pw.slice = "s0", pw.name = "g", pw.call = "0", pw.kind = "bwd", pw.lineage = "01"}} : (!x) -> !x
    %value = call @sum(%d0) {mhlo.frontend_attributes = {pw.mark = "sum", pw.loop = "loss"}} : (!x) -> !x
    %sum = call @sum(%b0) {mhlo.frontend_attributes = {pw.mark = "sum", pw.loop = "loss"}} : (!x) -> !x
    return %value, %sum : !x, !x
  }
  func.func private @split(tensor<8xf32>) -> !x
  func.func private @sum(!x) -> !x
  func.func private @g(%x: !x) -> !x { return %x : !x }
  func.func private @g1(%x: !x) -> !x { return %x : !x }
  func.func private @g2(%x: !x, %y: !x) -> !x { return %x : !x }
  func.func private @g3(%x: !x) -> !x { return %x : !x }
}

// -----

// What a call of the loop does that reads nothing of a microbatch is done in front of the loop. It is of the stage of
// that call, and so is the backward, although nothing leads to it.

!x = tensor<4xf32>
module @part_in_front {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  "pw.slice"() {sym_name = "s1", mesh = @mesh} : () -> ()
  "pw.loop"() {sym_name = "loss", count = 2 : i64} : () -> ()
  // CHECK-LABEL: func.func public @main
  func.func public @main(%batch: tensor<8xf32>) -> !x {
    %x = call @split(%batch) {mhlo.frontend_attributes = {pw.mark = "split", pw.loop = "loss"}} : (tensor<8xf32>) -> !x
    // CHECK: callee = @f, loop = @loss, origins = [{kind = "fwd", stage = 0 : i64}], slice = @s0
    %f = call @f(%x) {mhlo.frontend_attributes = {pw.slice = "s0", pw.name = "f", pw.call = "0"}} : (!x) -> !x
    // CHECK: callee = @g, loop = @loss, origins = [{kind = "fwd", stage = 1 : i64}], slice = @s1
    %g = call @g(%f) {mhlo.frontend_attributes = {pw.slice = "s1", pw.name = "g", pw.call = "1"}} : (!x) -> !x
    // CHECK: callee = @h, loop = @loss, origins = [{kind = "fwd", stage = 2 : i64}], slice = @s0
    %h = call @h(%g) {mhlo.frontend_attributes = {pw.slice = "s0", pw.name = "h", pw.call = "2"}} : (!x) -> !x
    // CHECK: callee = @h_1, origins = [{kind = "fwd", stage = 2 : i64}], slice = @s0
    %mask = call @h1() {mhlo.frontend_attributes = {pw.slice = "s0", pw.name = "h", pw.call = "2"}} : () -> !x
    // CHECK: callee = @h_bwd, loop = @loss, origins = [{kind = "bwd", stage = 2 : i64}], slice = @s0
    %dh = call @h2(%h, %mask) {mhlo.frontend_attributes = {pw.slice = "s0", pw.name = "h", pw.call = "2", pw.kind = "bwd"}} : (!x, !x) -> !x
    %sum = call @sum(%dh) {mhlo.frontend_attributes = {pw.mark = "sum", pw.loop = "loss"}} : (!x) -> !x
    return %sum : !x
  }
  func.func private @split(tensor<8xf32>) -> !x
  func.func private @sum(!x) -> !x
  func.func private @f(%x: !x) -> !x { return %x : !x }
  func.func private @g(%x: !x) -> !x { return %x : !x }
  func.func private @h(%x: !x) -> !x { return %x : !x }
  func.func private @h1() -> !x {
    %mask = stablehlo.constant dense<1.0> : !x
    return %mask : !x
  }
  func.func private @h2(%x: !x, %mask: !x) -> !x { return %x : !x }
}
