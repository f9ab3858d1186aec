// RUN: pw-opt %s --split-input-file --pw-import | filecheck %s

// A call with our metadata becomes a launch; the computation gets the name of the user's function, and
// its derivative that name with `_bwd`.

!x = tensor<4xf32>
// CHECK-LABEL: module @placed_calls attributes {pw.form = "imported"}
module @placed_calls {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  // CHECK: func.func public @main
  func.func public @main(%x: !x) -> (!x, !x) {
    // CHECK: %[[Y:.*]] = "pw.launch"(%{{.*}}) {callee = @square, origins = [{kind = "fwd", stage = 0 : i64}], slice = @s0}
    %y = call @xla_metadata_call(%x) {mhlo.frontend_attributes = {pw.slice = "s0", pw.name = "square", pw.kind = "fwd", pw.call = "0"}} : (!x) -> !x
    // CHECK: "pw.launch"(%{{.*}}, %[[Y]]) {callee = @square_bwd, origins = [{kind = "bwd", stage = 0 : i64}], slice = @s0}
    %g = call @xla_metadata_call_0(%x, %y) {mhlo.frontend_attributes = {pw.slice = "s0", pw.name = "square", pw.kind = "bwd", pw.call = "0"}} : (!x, !x) -> !x
    return %y, %g : !x, !x
  }
  // CHECK: func.func private @square(
  func.func private @xla_metadata_call(%x: !x) -> !x {
    %y = stablehlo.multiply %x, %x : !x
    return %y : !x
  }
  // CHECK: func.func private @square_bwd(
  func.func private @xla_metadata_call_0(%x: !x, %y: !x) -> !x {
    %g = stablehlo.multiply %x, %y : !x
    return %g : !x
  }
}

// -----

// Calls without placement are inlined, also those that contain placed calls; a function that is then
// called no more goes.

!x = tensor<4xf32>
// CHECK-LABEL: module @inlining attributes {pw.form = "imported"}
module @inlining {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  // CHECK: func.func public @main
  // CHECK-NEXT: "pw.launch"
  // CHECK-NEXT: stablehlo.negate
  // CHECK-NEXT: return
  // CHECK-NOT: @user_jit
  func.func public @main(%x: !x) -> !x {
    %y = call @user_jit(%x) : (!x) -> !x
    return %y : !x
  }
  func.func private @user_jit(%x: !x) -> !x {
    %y = call @placed(%x) {mhlo.frontend_attributes = {pw.slice = "s0", pw.name = "f"}} : (!x) -> !x
    %z = call @helper(%y) : (!x) -> !x
    return %z : !x
  }
  func.func private @helper(%x: !x) -> !x {
    %y = stablehlo.negate %x : !x
    return %y : !x
  }
  func.func private @placed(%x: !x) -> !x {
    return %x : !x
  }
}

// -----

// Stages are runs of forward calls on one slice. A backward call has the stage of its forward call; the
// second of two calls that share a trace meets the first backward call.

!x = tensor<4xf32>
// CHECK-LABEL: module @stages attributes {pw.form = "imported"}
module @stages {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  "pw.slice"() {sym_name = "s1", mesh = @mesh} : () -> ()
  // CHECK: func.func public @main
  func.func public @main(%x: !x) -> !x {
    // CHECK: origins = [{kind = "fwd", stage = 0 : i64}], slice = @s0
    %a = call @f(%x) {mhlo.frontend_attributes = {pw.slice = "s0", pw.name = "f", pw.call = "0"}} : (!x) -> !x
    // CHECK: origins = [{kind = "fwd", stage = 0 : i64}], slice = @s0
    %b = call @f(%a) {mhlo.frontend_attributes = {pw.slice = "s0", pw.name = "f", pw.call = "1"}} : (!x) -> !x
    // CHECK: origins = [{kind = "fwd", stage = 1 : i64}], slice = @s1
    %c = call @f(%b) {mhlo.frontend_attributes = {pw.slice = "s1", pw.name = "f", pw.call = "2"}} : (!x) -> !x
    // CHECK: origins = [{kind = "fwd", stage = 2 : i64}], slice = @s0
    %d = call @f(%c) {mhlo.frontend_attributes = {pw.slice = "s0", pw.name = "f", pw.call = "1"}} : (!x) -> !x
    // CHECK: origins = [{kind = "bwd", stage = 2 : i64}], slice = @s0
    %e = call @g(%d) {mhlo.frontend_attributes = {pw.slice = "s0", pw.name = "f", pw.kind = "bwd", pw.call = "1"}} : (!x) -> !x
    // CHECK: origins = [{kind = "bwd", stage = 1 : i64}], slice = @s1
    %h = call @g(%e) {mhlo.frontend_attributes = {pw.slice = "s1", pw.name = "f", pw.kind = "bwd", pw.call = "2"}} : (!x) -> !x
    // CHECK: origins = [{kind = "bwd", stage = 0 : i64}], slice = @s0
    %i = call @g(%h) {mhlo.frontend_attributes = {pw.slice = "s0", pw.name = "f", pw.kind = "bwd", pw.call = "1"}} : (!x) -> !x
    return %i : !x
  }
  func.func private @f(%x: !x) -> !x {
    return %x : !x
  }
  func.func private @g(%x: !x) -> !x {
    return %x : !x
  }
}

// -----

// The stage that the user gives wins.

!x = tensor<4xf32>
// CHECK-LABEL: module @given_stage attributes {pw.form = "imported"}
module @given_stage {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  func.func public @main(%x: !x) -> !x {
    // CHECK: origins = [{kind = "fwd", stage = 7 : i64}], slice = @s0
    %a = call @f(%x) {mhlo.frontend_attributes = {pw.slice = "s0", pw.name = "f", pw.stage = "7"}} : (!x) -> !x
    return %a : !x
  }
  func.func private @f(%x: !x) -> !x {
    return %x : !x
  }
}

// -----

// jax.checkpoint ties the inputs of what it repeats together with one barrier. It is split per value;
// launches read past it and are marked, code between them keeps its own part.

!x = tensor<4xf32>
// CHECK-LABEL: module @checkpoint attributes {pw.form = "imported"}
module @checkpoint {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  "pw.slice"() {sym_name = "s1", mesh = @mesh} : () -> ()
  // CHECK: func.func public @main
  // CHECK-SAME: (%[[W:.*]]: tensor<4xf32>, %[[X:.*]]: tensor<4xf32>)
  func.func public @main(%w: !x, %x: !x) -> !x {
    // CHECK: "pw.launch"(%[[X]]) {callee = @f, origins = [{kind = "fwd"
    %a = call @f(%x) {mhlo.frontend_attributes = {pw.slice = "s0", pw.name = "f", pw.call = "0"}} : (!x) -> !x
    // CHECK: %[[BARRIER:.*]] = stablehlo.optimization_barrier %[[W]] : tensor<4xf32>
    // CHECK-NOT: stablehlo.optimization_barrier
    %0:2 = stablehlo.optimization_barrier %w, %x : !x, !x
    // CHECK: "pw.launch"(%[[X]]) {callee = @f, origins = [{kind = "recompute", stage = 0 : i64}], slice = @s0
    %b = call @f(%0#1) {mhlo.frontend_attributes = {pw.slice = "s0", pw.name = "f", pw.call = "0"}} : (!x) -> !x
    // CHECK: stablehlo.add %{{.*}}, %[[BARRIER]]
    %c = stablehlo.add %b, %0#0 : !x
    // CHECK: callee = @g_bwd, origins = [{kind = "bwd"{{.*}}}], slice = @s1
    %d = call @g(%c) {mhlo.frontend_attributes = {pw.slice = "s1", pw.name = "g", pw.kind = "bwd", pw.call = "1"}} : (!x) -> !x
    return %d : !x
  }
  func.func private @f(%x: !x) -> !x {
    return %x : !x
  }
  func.func private @g(%x: !x) -> !x {
    return %x : !x
  }
}

// -----

// An array that the program closes over becomes a hidden argument, wherever it stands; equal arrays are
// one. A splat, however large, stays: it costs nothing.

!k = tensor<300xf32>
// CHECK-LABEL: module @closed_over attributes {pw.form = "imported"}
module @closed_over {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  // CHECK: "pw.constant"() {sym_name = "k0", value = dense<"0x{{.*}}"> : tensor<300xf32>}
  // CHECK-NOT: "pw.constant"
  // CHECK: func.func public @main(%[[X:.*]]: tensor<300xf32>, %[[K:.*]]: tensor<300xf32> {pw.constant = @k0})
  func.func public @main(%x: !k) -> !k {
    %k = stablehlo.constant dense<"0x0000803F0000004000004040000080400000A0400000C0400000E040000000410000104100002041000030410000404100005041000060410000704100008041000088410000803F0000004000004040000080400000A0400000C0400000E040000000410000104100002041000030410000404100005041000060410000704100008041000088410000803F0000004000004040000080400000A0400000C0400000E040000000410000104100002041000030410000404100005041000060410000704100008041000088410000803F0000004000004040000080400000A0400000C0400000E040000000410000104100002041000030410000404100005041000060410000704100008041000088410000803F0000004000004040000080400000A0400000C0400000E040000000410000104100002041000030410000404100005041000060410000704100008041000088410000803F0000004000004040000080400000A0400000C0400000E040000000410000104100002041000030410000404100005041000060410000704100008041000088410000803F0000004000004040000080400000A0400000C0400000E040000000410000104100002041000030410000404100005041000060410000704100008041000088410000803F0000004000004040000080400000A0400000C0400000E040000000410000104100002041000030410000404100005041000060410000704100008041000088410000803F0000004000004040000080400000A0400000C0400000E040000000410000104100002041000030410000404100005041000060410000704100008041000088410000803F0000004000004040000080400000A0400000C0400000E040000000410000104100002041000030410000404100005041000060410000704100008041000088410000803F0000004000004040000080400000A0400000C0400000E040000000410000104100002041000030410000404100005041000060410000704100008041000088410000803F0000004000004040000080400000A0400000C0400000E040000000410000104100002041000030410000404100005041000060410000704100008041000088410000803F0000004000004040000080400000A0400000C0400000E040000000410000104100002041000030410000404100005041000060410000704100008041000088410000803F0000004000004040000080400000A0400000C0400000E040000000410000104100002041000030410000404100005041000060410000704100008041000088410000803F0000004000004040000080400000A0400000C0400000E040000000410000104100002041000030410000404100005041000060410000704100008041000088410000803F0000004000004040000080400000A0400000C0400000E040000000410000104100002041000030410000404100005041000060410000704100008041000088410000803F0000004000004040000080400000A0400000C0400000E040000000410000104100002041000030410000404100005041000060410000704100008041000088410000803F0000004000004040000080400000A0400000C0400000E04000000041000010410000204100003041"> : !k
    // CHECK: %[[SPLAT:.*]] = stablehlo.constant dense<2.000000e+00> : tensor<300xf32>
    %splat = stablehlo.constant dense<2.0> : !k
    // CHECK: stablehlo.add %[[SPLAT]], %[[K]]
    %y = stablehlo.add %splat, %k : !k
    // CHECK: "pw.launch"(%{{.*}}, %[[K]]) {callee = @f
    %z = call @f(%y) {mhlo.frontend_attributes = {pw.slice = "s0", pw.name = "f"}} : (!k) -> !k
    return %z : !k
  }
  // CHECK: func.func private @f(%[[A:.*]]: tensor<300xf32>, %[[HIDDEN:.*]]: tensor<300xf32>)
  // CHECK-NEXT: stablehlo.add %[[A]], %[[HIDDEN]]
  func.func private @f(%x: !k) -> !k {
    %k = stablehlo.constant dense<"0x0000803F0000004000004040000080400000A0400000C0400000E040000000410000104100002041000030410000404100005041000060410000704100008041000088410000803F0000004000004040000080400000A0400000C0400000E040000000410000104100002041000030410000404100005041000060410000704100008041000088410000803F0000004000004040000080400000A0400000C0400000E040000000410000104100002041000030410000404100005041000060410000704100008041000088410000803F0000004000004040000080400000A0400000C0400000E040000000410000104100002041000030410000404100005041000060410000704100008041000088410000803F0000004000004040000080400000A0400000C0400000E040000000410000104100002041000030410000404100005041000060410000704100008041000088410000803F0000004000004040000080400000A0400000C0400000E040000000410000104100002041000030410000404100005041000060410000704100008041000088410000803F0000004000004040000080400000A0400000C0400000E040000000410000104100002041000030410000404100005041000060410000704100008041000088410000803F0000004000004040000080400000A0400000C0400000E040000000410000104100002041000030410000404100005041000060410000704100008041000088410000803F0000004000004040000080400000A0400000C0400000E040000000410000104100002041000030410000404100005041000060410000704100008041000088410000803F0000004000004040000080400000A0400000C0400000E040000000410000104100002041000030410000404100005041000060410000704100008041000088410000803F0000004000004040000080400000A0400000C0400000E040000000410000104100002041000030410000404100005041000060410000704100008041000088410000803F0000004000004040000080400000A0400000C0400000E040000000410000104100002041000030410000404100005041000060410000704100008041000088410000803F0000004000004040000080400000A0400000C0400000E040000000410000104100002041000030410000404100005041000060410000704100008041000088410000803F0000004000004040000080400000A0400000C0400000E040000000410000104100002041000030410000404100005041000060410000704100008041000088410000803F0000004000004040000080400000A0400000C0400000E040000000410000104100002041000030410000404100005041000060410000704100008041000088410000803F0000004000004040000080400000A0400000C0400000E040000000410000104100002041000030410000404100005041000060410000704100008041000088410000803F0000004000004040000080400000A0400000C0400000E040000000410000104100002041000030410000404100005041000060410000704100008041000088410000803F0000004000004040000080400000A0400000C0400000E04000000041000010410000204100003041"> : !k
    %y = stablehlo.add %x, %k : !k
    return %y : !k
  }
}

// -----

// What jax.jit says of donation is kept as the program's own. A loop over calls of one slice is placed
// there as a whole.

!x = tensor<4xf32>
// CHECK-LABEL: module @donation_and_loops attributes {pw.form = "imported"}
module @donation_and_loops {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  // CHECK: func.func public @main(%{{.*}}: tensor<4xf32> {pw.donated}, %{{.*}}: tensor<4xf32> {pw.donated})
  func.func public @main(%x: !x {tf.aliasing_output = 0 : i32}, %y: !x {jax.buffer_donor = true}) -> (!x, !x) {
    %zero = stablehlo.constant dense<0> : tensor<i32>
    %ten = stablehlo.constant dense<10> : tensor<i32>
    // CHECK: stablehlo.while
    // CHECK-SAME: attributes {pw.slice = @s0}
    // CHECK: func.call @f(%{{.*}}) : (tensor<4xf32>) -> tensor<4xf32>
    %0:2 = stablehlo.while(%i = %zero, %a = %x) : tensor<i32>, !x
      cond {
        %c = stablehlo.compare LT, %i, %ten : (tensor<i32>, tensor<i32>) -> tensor<i1>
        stablehlo.return %c : tensor<i1>
      } do {
        %b = func.call @f(%a) {mhlo.frontend_attributes = {pw.slice = "s0", pw.name = "f"}} : (!x) -> !x
        stablehlo.return %i, %b : tensor<i32>, !x
      }
    return %0#1, %y : !x, !x
  }
  func.func private @f(%x: !x) -> !x {
    return %x : !x
  }
}

// -----

// The calls with which pw.accumulate marks a microbatch become splits and reductions, and launches that depend
// on one name its loop. What all microbatches share is done once, in front; a reduction of it is ordinary code.

!w = tensor<4xf32>
!x = tensor<6x4xf32>
!b = tensor<2x4xf32>
// CHECK-LABEL: module @microbatches attributes {pw.form = "imported"}
module @microbatches {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  "pw.slice"() {sym_name = "s1", mesh = @mesh} : () -> ()
  "pw.loop"() {sym_name = "loss", count = 3} : () -> ()
  // CHECK: func.func public @main(%[[W:.*]]: tensor<4xf32>, %[[X:.*]]: tensor<6x4xf32>)
  func.func public @main(%w: !w, %x: !x) -> (!b, !x, !w, tensor<12xf32>) {
    // CHECK-NEXT: %[[B:.*]] = "pw.split"(%[[X]]) {loop = @loss} : (tensor<6x4xf32>) -> tensor<2x4xf32>
    %b = call @split(%x) {mhlo.frontend_attributes = {pw.loop = "loss", pw.name = "loss", pw.count = "3", pw.mark = "split"}} : (!x) -> !b
    // CHECK-NEXT: %[[V:.*]] = "pw.launch"(%[[W]]) {callee = @prepare, origins = [{kind = "fwd", stage = 0 : i64}], slice = @s0}
    %v = call @prepare(%w) {mhlo.frontend_attributes = {pw.slice = "s0", pw.name = "prepare", pw.call = "0"}} : (!w) -> !w
    // CHECK-NEXT: %[[H:.*]] = "pw.launch"(%[[V]], %[[B]]) {callee = @front, loop = @loss, origins = [{kind = "fwd", stage = 0 : i64}], slice = @s0}
    %h = call @front(%v, %b) {mhlo.frontend_attributes = {pw.slice = "s0", pw.name = "front", pw.call = "1"}} : (!w, !b) -> !b
    // CHECK-NEXT: %[[T:.*]] = stablehlo.tanh %[[H]]
    %t = stablehlo.tanh %h : !b
    // CHECK-NEXT: %[[Y:.*]] = "pw.launch"(%[[T]]) {callee = @back, loop = @loss, origins = [{kind = "fwd", stage = 1 : i64}], slice = @s1}
    %y = call @back(%t) {mhlo.frontend_attributes = {pw.slice = "s1", pw.name = "back", pw.call = "2"}} : (!b) -> !b
    // CHECK-NEXT: %[[SUM:.*]] = "pw.reduce"(%[[Y]]) {kind = "sum", loop = @loss}
    %s = call @sum(%y) {mhlo.frontend_attributes = {pw.loop = "loss", pw.name = "loss", pw.count = "3", pw.mark = "sum"}} : (!b) -> !b
    // CHECK-NEXT: %[[ROWS:.*]] = "pw.reduce"(%[[T]]) {kind = "concat", loop = @loss}
    %r = call @concat(%t) {mhlo.frontend_attributes = {pw.loop = "loss", pw.name = "loss", pw.count = "3", pw.mark = "concat"}} : (!b) -> !x
    // CHECK-NEXT: %[[TWO:.*]] = stablehlo.add %[[V]], %[[V]]
    // CHECK-NEXT: %[[THREE:.*]] = stablehlo.add %[[TWO]], %[[V]]
    %k = call @sum_of_shared(%v) {mhlo.frontend_attributes = {pw.loop = "loss", pw.name = "loss", pw.count = "3", pw.mark = "sum"}} : (!w) -> !w
    // CHECK-NEXT: %[[ROWS_OF_W:.*]] = stablehlo.broadcast_in_dim %[[W]], dims = [1] : (tensor<4xf32>) -> tensor<3x4xf32>
    // CHECK-NEXT: %[[TIMES:.*]] = stablehlo.reshape %[[ROWS_OF_W]] : (tensor<3x4xf32>) -> tensor<12xf32>
    %c = call @concat_of_shared(%w) {mhlo.frontend_attributes = {pw.loop = "loss", pw.name = "loss", pw.count = "3", pw.mark = "concat"}} : (!w) -> tensor<12xf32>
    // CHECK-NEXT: return %[[SUM]], %[[ROWS]], %[[THREE]], %[[TIMES]]
    return %s, %r, %k, %c : !b, !x, !w, tensor<12xf32>
  }
  func.func private @split(%x: !x) -> !b {
    %b = stablehlo.slice %x [0:2, 0:4] : (!x) -> !b
    return %b : !b
  }
  func.func private @prepare(%w: !w) -> !w {
    return %w : !w
  }
  func.func private @front(%w: !w, %b: !b) -> !b {
    return %b : !b
  }
  func.func private @back(%b: !b) -> !b {
    return %b : !b
  }
  func.func private @sum(%b: !b) -> !b {
    return %b : !b
  }
  func.func private @concat(%b: !b) -> !x {
    %x = stablehlo.concatenate %b, %b, %b, dim = 0 : (!b, !b, !b) -> !x
    return %x : !x
  }
  func.func private @sum_of_shared(%w: !w) -> !w {
    return %w : !w
  }
  func.func private @concat_of_shared(%w: !w) -> tensor<12xf32> {
    %x = stablehlo.concatenate %w, %w, %w, dim = 0 : (!w, !w, !w) -> tensor<12xf32>
    return %x : tensor<12xf32>
  }
}

// -----

// A function with a loop that is called twice is two loops. What it is called through does not matter.

!x = tensor<6xf32>
!b = tensor<2xf32>
// CHECK-LABEL: module @loop_called_twice attributes {pw.form = "imported"}
module @loop_called_twice {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  // CHECK: "pw.loop"() {count = 3 : i64, schedule = "1f1b", sym_name = "loss"}
  // CHECK-NEXT: "pw.loop"() {count = 3 : i64, schedule = "1f1b", sym_name = "loss_1"}
  // CHECK-NEXT: "pw.loop"() {count = 3 : i64, schedule = "1f1b", sym_name = "loss_2"}
  "pw.loop"() {sym_name = "loss", count = 3, schedule = "1f1b"} : () -> ()
  // CHECK: func.func public @main(%[[X:.*]]: tensor<6xf32>)
  func.func public @main(%x: !x) -> !x {
    // CHECK-NEXT: %[[B0:.*]] = "pw.split"(%[[X]]) {loop = @loss}
    // CHECK-NEXT: %[[F0:.*]] = "pw.launch"(%[[B0]]) {callee = @front, loop = @loss, origins = [{kind = "fwd", stage = 0 : i64}], slice = @s0
    // CHECK-NEXT: %[[Y0:.*]] = "pw.reduce"(%[[F0]]) {kind = "concat", loop = @loss}
    // CHECK-NEXT: %[[B1:.*]] = "pw.split"(%[[Y0]]) {loop = @loss_1}
    // CHECK-NEXT: %[[F1:.*]] = "pw.launch"(%[[B1]]) {callee = @front, loop = @loss_1, origins = [{kind = "fwd", stage = 0 : i64}], slice = @s0
    // CHECK-NEXT: %[[Y1:.*]] = "pw.reduce"(%[[F1]]) {kind = "concat", loop = @loss_1}
    %y = call @twice(%x) : (!x) -> !x
    // CHECK-NEXT: %[[B2:.*]] = "pw.split"(%[[Y1]]) {loop = @loss_2}
    // CHECK-NEXT: %[[F2:.*]] = "pw.launch"(%[[B2]]) {callee = @front, loop = @loss_2, origins = [{kind = "fwd", stage = 0 : i64}], slice = @s0
    // CHECK-NEXT: %[[Y2:.*]] = "pw.reduce"(%[[F2]]) {kind = "concat", loop = @loss_2}
    // CHECK-NEXT: return %[[Y2]]
    %z = call @step(%y) : (!x) -> !x
    return %z : !x
  }
  func.func private @twice(%x: !x) -> !x {
    %y = call @step(%x) : (!x) -> !x
    %z = call @step(%y) : (!x) -> !x
    return %z : !x
  }
  func.func private @step(%x: !x) -> !x {
    %b = call @split(%x) {mhlo.frontend_attributes = {pw.loop = "loss", pw.name = "loss", pw.count = "3", pw.mark = "split"}} : (!x) -> !b
    %h = call @front(%b) {mhlo.frontend_attributes = {pw.slice = "s0", pw.name = "front", pw.call = "0"}} : (!b) -> !b
    %y = call @concat(%h) {mhlo.frontend_attributes = {pw.loop = "loss", pw.name = "loss", pw.count = "3", pw.mark = "concat"}} : (!b) -> !x
    return %y : !x
  }
  func.func private @split(%x: !x) -> !b {
    %b = stablehlo.slice %x [0:2] : (!x) -> !b
    return %b : !b
  }
  func.func private @front(%b: !b) -> !b {
    return %b : !b
  }
  func.func private @concat(%b: !b) -> !x {
    %x = stablehlo.concatenate %b, %b, %b, dim = 0 : (!b, !b, !b) -> !x
    return %x : !x
  }
}

// -----

// JAX makes several functions of one, such as one for each choice of results that are needed: what one of them
// does is a loop of its own.

!x = tensor<6xf32>
!b = tensor<2xf32>
// CHECK-LABEL: module @loop_of_two_functions attributes {pw.form = "imported"}
module @loop_of_two_functions {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  "pw.loop"() {sym_name = "loss", count = 3} : () -> ()
  // CHECK: func.func public @main(%[[X:.*]]: tensor<6xf32>)
  func.func public @main(%x: !x) -> (!x, !b) {
    // CHECK-NEXT: %[[B0:.*]] = "pw.split"(%[[X]]) {loop = @loss}
    // CHECK-NEXT: %[[F0:.*]] = "pw.launch"(%[[B0]]) {callee = @front, loop = @loss
    // CHECK-NEXT: %[[Y0:.*]] = "pw.reduce"(%[[F0]]) {kind = "concat", loop = @loss}
    %y = call @rows(%x) : (!x) -> !x
    // CHECK-NEXT: %[[B1:.*]] = "pw.split"(%[[Y0]]) {loop = @loss_1}
    // CHECK-NEXT: %[[F1:.*]] = "pw.launch"(%[[B1]]) {callee = @front, loop = @loss_1
    // CHECK-NEXT: %[[S1:.*]] = "pw.reduce"(%[[F1]]) {kind = "sum", loop = @loss_1}
    %s = call @total(%y) : (!x) -> !b
    // CHECK-NEXT: return %[[Y0]], %[[S1]]
    return %y, %s : !x, !b
  }
  func.func private @rows(%x: !x) -> !x {
    %b = call @split(%x) {mhlo.frontend_attributes = {pw.loop = "loss", pw.name = "loss", pw.count = "3", pw.mark = "split"}} : (!x) -> !b
    %h = call @front(%b) {mhlo.frontend_attributes = {pw.slice = "s0", pw.name = "front", pw.call = "0"}} : (!b) -> !b
    %y = call @concat(%h) {mhlo.frontend_attributes = {pw.loop = "loss", pw.name = "loss", pw.count = "3", pw.mark = "concat"}} : (!b) -> !x
    return %y : !x
  }
  func.func private @total(%x: !x) -> !b {
    %b = call @split(%x) {mhlo.frontend_attributes = {pw.loop = "loss", pw.name = "loss", pw.count = "3", pw.mark = "split"}} : (!x) -> !b
    %h = call @front(%b) {mhlo.frontend_attributes = {pw.slice = "s0", pw.name = "front", pw.call = "0"}} : (!b) -> !b
    %s = call @sum(%h) {mhlo.frontend_attributes = {pw.loop = "loss", pw.name = "loss", pw.count = "3", pw.mark = "sum"}} : (!b) -> !b
    return %s : !b
  }
  func.func private @split(%x: !x) -> !b {
    %b = stablehlo.slice %x [0:2] : (!x) -> !b
    return %b : !b
  }
  func.func private @front(%b: !b) -> !b {
    return %b : !b
  }
  func.func private @sum(%b: !b) -> !b {
    return %b : !b
  }
  func.func private @concat(%b: !b) -> !x {
    %x = stablehlo.concatenate %b, %b, %b, dim = 0 : (!b, !b, !b) -> !x
    return %x : !x
  }
}

// -----

// A call that prepares, in front of the loop, what a stage reads is part of that stage, though nothing comes
// before it; its backward is done for each microbatch, as one with the backward of the stage.

!w = tensor<2xf32>
!x = tensor<4xf32>
// CHECK-LABEL: module @preparing attributes {pw.form = "imported"}
module @preparing {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  "pw.slice"() {sym_name = "s1", mesh = @mesh} : () -> ()
  "pw.loop"() {sym_name = "loss", count = 2} : () -> ()
  func.func public @main(%w: !w, %x: !x) -> !w {
    // CHECK: callee = @prepare, origins = [{kind = "fwd", stage = 1 : i64}], slice = @s1
    %v = call @prepare(%w) {mhlo.frontend_attributes = {pw.slice = "s1", pw.name = "prepare", pw.call = "0"}} : (!w) -> !w
    %b = call @split(%x) {mhlo.frontend_attributes = {pw.loop = "loss", pw.name = "loss", pw.count = "2", pw.mark = "split"}} : (!x) -> !w
    // CHECK: callee = @front, loop = @loss, origins = [{kind = "fwd", stage = 0 : i64}], slice = @s0
    %h = call @front(%b) {mhlo.frontend_attributes = {pw.slice = "s0", pw.name = "front", pw.call = "1"}} : (!w) -> !w
    %u = stablehlo.negate %v : !w
    // CHECK: callee = @back, loop = @loss, origins = [{kind = "fwd", stage = 1 : i64}], slice = @s1
    %y = call @back(%u, %h) {mhlo.frontend_attributes = {pw.slice = "s1", pw.name = "back", pw.call = "2"}} : (!w, !w) -> !w
    // CHECK: callee = @back_bwd, loop = @loss, origins = [{kind = "bwd", stage = 1 : i64}], slice = @s1
    %dy = call @back_bwd(%y) {mhlo.frontend_attributes = {pw.slice = "s1", pw.name = "back", pw.kind = "bwd", pw.call = "2"}} : (!w) -> !w
    // CHECK: callee = @prepare_bwd, loop = @loss, origins = [{kind = "bwd", stage = 1 : i64}], slice = @s1
    %dw = call @prepare_bwd(%dy) {mhlo.frontend_attributes = {pw.slice = "s1", pw.name = "prepare", pw.kind = "bwd", pw.call = "0"}} : (!w) -> !w
    %s = call @sum(%dw) {mhlo.frontend_attributes = {pw.loop = "loss", pw.name = "loss", pw.count = "2", pw.mark = "sum"}} : (!w) -> !w
    return %s : !w
  }
  func.func private @split(%x: !x) -> !w {
    %b = stablehlo.slice %x [0:2] : (!x) -> !w
    return %b : !w
  }
  func.func private @prepare(%w: !w) -> !w {
    return %w : !w
  }
  func.func private @front(%b: !w) -> !w {
    return %b : !w
  }
  func.func private @back(%w: !w, %b: !w) -> !w {
    return %b : !w
  }
  func.func private @back_bwd(%b: !w) -> !w {
    return %b : !w
  }
  func.func private @prepare_bwd(%b: !w) -> !w {
    return %b : !w
  }
  func.func private @sum(%b: !w) -> !w {
    return %b : !w
  }
}

// -----

// What is called inside of loops and branches that stay on one slice may be called beside them too, and by
// several of them through one function: all have its new name, and each region its slice.

!x = tensor<4xf32>
// CHECK-LABEL: module @inside_and_beside attributes {pw.form = "imported"}
module @inside_and_beside {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  // CHECK: func.func public @main
  func.func public @main(%x: !x, %p: tensor<i32>) -> (!x, !x) {
    // CHECK: "stablehlo.case"
    // CHECK-NEXT: func.call @f(%{{.*}}) : (tensor<4xf32>) -> tensor<4xf32>
    // CHECK: {pw.slice = @s0}
    %a = "stablehlo.case"(%p) ({
      %0 = func.call @xla_metadata_call(%x) {mhlo.frontend_attributes = {pw.slice = "s0", pw.name = "f"}} : (!x) -> !x
      stablehlo.return %0 : !x
    }, {
      stablehlo.return %x : !x
    }) : (tensor<i32>) -> !x
    // CHECK: "pw.launch"(%{{.*}}) {callee = @f,
    %b = call @xla_metadata_call(%a) {mhlo.frontend_attributes = {pw.slice = "s0", pw.name = "f"}} : (!x) -> !x
    // CHECK: "stablehlo.case"
    // CHECK-NEXT: func.call @shared
    // CHECK: {pw.slice = @s0}
    %c = "stablehlo.case"(%p) ({
      %0 = func.call @shared(%b) : (!x) -> !x
      stablehlo.return %0 : !x
    }, {
      stablehlo.return %b : !x
    }) : (tensor<i32>) -> !x
    // CHECK: "stablehlo.case"
    // CHECK: func.call @shared
    // CHECK: {pw.slice = @s0}
    %d = "stablehlo.case"(%p) ({
      stablehlo.return %c : !x
    }, {
      %0 = func.call @shared(%c) : (!x) -> !x
      stablehlo.return %0 : !x
    }) : (tensor<i32>) -> !x
    return %c, %d : !x, !x
  }
  // CHECK: func.func private @shared
  func.func private @shared(%x: !x) -> !x {
    // CHECK-NEXT: call @f(%{{.*}}) :
    %y = func.call @xla_metadata_call(%x) {mhlo.frontend_attributes = {pw.slice = "s0", pw.name = "f"}} : (!x) -> !x
    return %y : !x
  }
  // CHECK: func.func private @f(
  func.func private @xla_metadata_call(%x: !x) -> !x {
    return %x : !x
  }
}

// -----

// What an operation names comes along, in whichever attribute, and the placed calls in it are known: here the
// decomposition of a composite.

!x = tensor<4xf32>
// CHECK-LABEL: module @composite attributes {pw.form = "imported"}
module @composite {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  func.func public @main(%x: !x) -> !x {
    // CHECK: stablehlo.composite "my.square" %{{.*}} {decomposition = @my.square, pw.slice = @s0}
    %y = stablehlo.composite "my.square" %x {decomposition = @my.square} : (!x) -> !x
    return %y : !x
  }
  // CHECK: func.func private @my.square
  func.func private @my.square(%x: !x) -> !x {
    // CHECK-NEXT: call @placed(%{{.*}}) :
    %y = call @placed(%x) {mhlo.frontend_attributes = {pw.slice = "s0", pw.name = "square"}} : (!x) -> !x
    return %y : !x
  }
  // CHECK: func.func private @placed
  func.func private @placed(%x: !x) -> !x {
    %y = stablehlo.multiply %x, %x : !x
    return %y : !x
  }
}

// -----

// A composite with placed calls of several slices, which none of them can run as one operation, is replaced by its
// decomposition: here one that is inside of another.

!x = tensor<4xf32>
// CHECK-LABEL: module @composite_over_slices attributes {pw.form = "imported"}
module @composite_over_slices {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  "pw.slice"() {sym_name = "s1", mesh = @mesh} : () -> ()
  // CHECK: func.func public @main
  // CHECK-NOT: stablehlo.composite
  func.func public @main(%x: !x) -> !x {
    // CHECK: [[A:%.*]] = "pw.launch"(%{{.*}}) {callee = @square, {{.*}}slice = @s0
    // CHECK: "pw.launch"([[A]]) {callee = @square, {{.*}}slice = @s1
    %y = stablehlo.composite "my.outer" %x {decomposition = @my.outer} : (!x) -> !x
    return %y : !x
  }
  func.func private @my.outer(%x: !x) -> !x {
    %y = stablehlo.composite "my.inner" %x {decomposition = @my.inner} : (!x) -> !x
    return %y : !x
  }
  func.func private @my.inner(%x: !x) -> !x {
    %y = call @placed(%x) {mhlo.frontend_attributes = {pw.slice = "s0", pw.name = "square"}} : (!x) -> !x
    %z = call @placed(%y) {mhlo.frontend_attributes = {pw.slice = "s1", pw.name = "square"}} : (!x) -> !x
    return %z : !x
  }
  func.func private @placed(%x: !x) -> !x {
    %y = stablehlo.multiply %x, %x : !x
    return %y : !x
  }
}
