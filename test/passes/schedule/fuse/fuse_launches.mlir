// RUN: pw-opt %s --split-input-file --pw-fuse-launches | filecheck %s --check-prefixes=CHECK,GLUE
// RUN: pw-opt %s --split-input-file -p 'pw-fuse-launches{user-calls=true}' | filecheck %s --check-prefixes=CHECK,CALLS

// Glue joins the call in front of it; two calls of the user stay two unless asked for, and then say so.

!x = tensor<4xf32>
// CHECK-LABEL: module @glue_and_calls
module @glue_and_calls attributes {pw.form = "ordered"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  func.func @main(%x: !x {pw.slice = @s0}) -> (!x {pw.slice = @s0}) {
    // GLUE: %[[A:.*]] = "pw.launch"(%arg0) {callee = @f_fused, order = 0 : i64, origins = [{kind = "fwd", stage = 0 : i64}], slice = @s0
    // GLUE-NEXT: %[[B:.*]] = "pw.launch"(%[[A]]) {callee = @f, order = 1 : i64, origins = [{kind = "fwd"
    // GLUE-NEXT: return %[[B]]
    // CALLS: %[[B:.*]] = "pw.launch"(%arg0) {callee = @f_fused, order = 0
    // CALLS-NEXT: return %[[B]]
    %a = "pw.launch"(%x) {callee = @f, slice = @s0, order = 0, origins = [{kind = "fwd", stage = 0}]} : (!x) -> !x
    %b = "pw.launch"(%a) {callee = @glue, slice = @s0, order = 1} : (!x) -> !x
    %c = "pw.launch"(%b) {callee = @f, slice = @s0, order = 2, origins = [{kind = "fwd", stage = 0}]} : (!x) -> !x
    return %c : !x
  }
  // GLUE: func.func private @f_fused
  // GLUE-NEXT: stablehlo.negate
  // GLUE-NEXT: stablehlo.tanh
  // GLUE-NEXT: return
  // CALLS: func.func private @f_fused
  // CALLS-NEXT: stablehlo.negate
  // CALLS-NEXT: stablehlo.tanh
  // CALLS-NEXT: stablehlo.negate
  // CALLS-NEXT: return
  func.func private @f(%x: !x) -> !x {
    %y = stablehlo.negate %x : !x
    return %y : !x
  }
  func.func private @glue(%x: !x) -> !x {
    %y = stablehlo.tanh %x : !x
    return %y : !x
  }
}

// -----

// What leaves the slice ends a computation: fusing the next launch into it would delay the other slice.

!x = tensor<4xf32>
// CHECK-LABEL: module @result_leaves
module @result_leaves attributes {pw.form = "ordered"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  "pw.slice"() {sym_name = "s1", mesh = @mesh} : () -> ()
  "pw.channel"() {sym_name = "c0", src = @s0, dst = @s1, capacity = 1, value_type = !x} : () -> ()
  func.func @main(%x: !x {pw.slice = @s0}) -> (!x {pw.slice = @s0}, !x {pw.slice = @s1}) {
    // CHECK: %[[A:.*]] = "pw.launch"(%arg0) {callee = @f, order = 0
    %a = "pw.launch"(%x) {callee = @f, slice = @s0, order = 0, origins = [{kind = "fwd"}]} : (!x) -> !x
    // CHECK: "pw.transfer"(%[[A]])
    %b = "pw.transfer"(%a) {slice = @s1, channel = @c0, order = 1} : (!x) -> !x
    // CHECK: "pw.launch"(%[[A]]) {callee = @f, order = 2
    %c = "pw.launch"(%a) {callee = @f, slice = @s0, order = 2} : (!x) -> !x
    return %c, %b : !x, !x
  }
  func.func private @f(%x: !x) -> !x {
    return %x : !x
  }
}

// -----

// A launch that waits for another slice does not hold up the one before it.

!x = tensor<4xf32>
// CHECK-LABEL: module @waits_for_a_transfer
module @waits_for_a_transfer attributes {pw.form = "ordered"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  "pw.slice"() {sym_name = "s1", mesh = @mesh} : () -> ()
  "pw.channel"() {sym_name = "c0", src = @s1, dst = @s0, capacity = 1, value_type = !x} : () -> ()
  func.func @main(%x: !x {pw.slice = @s0}, %y: !x {pw.slice = @s1}) -> (!x {pw.slice = @s0}) {
    // CHECK: callee = @f, order = 0
    %a = "pw.launch"(%x) {callee = @f, slice = @s0, order = 0, origins = [{kind = "fwd"}]} : (!x) -> !x
    %b = "pw.transfer"(%y) {slice = @s0, channel = @c0, order = 0} : (!x) -> !x
    // The transfer has arrived for the first of these two, so the second may join it.
    // CHECK: callee = @add_fused, order = 1
    %c = "pw.launch"(%a, %b) {callee = @add, slice = @s0, order = 1} : (!x, !x) -> !x
    %d = "pw.launch"(%c, %b) {callee = @add, slice = @s0, order = 2} : (!x, !x) -> !x
    return %d : !x
  }
  func.func private @f(%x: !x) -> !x {
    return %x : !x
  }
  func.func private @add(%x: !x, %y: !x) -> !x {
    %z = stablehlo.add %x, %y : !x
    return %z : !x
  }
}

// -----

// Glue that reads only arguments and serves one launch joins it wherever that stands: a gradient's seed,
// a key for one layer. Equal fusions share a computation.

!x = tensor<4xf32>
// CHECK-LABEL: module @preparation
module @preparation attributes {pw.form = "ordered"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  "pw.slice"() {sym_name = "s1", mesh = @mesh} : () -> ()
  "pw.channel"() {sym_name = "c0", src = @s1, dst = @s0, capacity = 1, value_type = !x} : () -> ()
  "pw.channel"() {sym_name = "c1", src = @s0, dst = @s1, capacity = 1, value_type = !x} : () -> ()
  func.func @main(%x: !x {pw.slice = @s1}) -> (!x {pw.slice = @s1}) {
    %ones = "pw.launch"() {callee = @ones, slice = @s0, order = 0} : () -> !x
    %again = "pw.launch"() {callee = @ones, slice = @s0, order = 1} : () -> !x
    %b = "pw.transfer"(%x) {slice = @s0, channel = @c0, order = 0} : (!x) -> !x
    // CHECK: "pw.launch"(%{{.*}}) {callee = @[[FUSED:.*]], order = 0 : i64, origins = [{kind = "bwd"
    %c = "pw.launch"(%ones, %b) {callee = @add, slice = @s0, order = 2, origins = [{kind = "bwd"}]} : (!x, !x) -> !x
    %d = "pw.transfer"(%c) {slice = @s1, channel = @c1, order = 3} : (!x) -> !x
    // CHECK: "pw.launch"(%{{.*}}) {callee = @[[FUSED]], order = 2 : i64, origins = [{kind = "bwd"
    %e = "pw.launch"(%again, %b) {callee = @add, slice = @s0, order = 4, origins = [{kind = "bwd"}]} : (!x, !x) -> !x
    %f = "pw.transfer"(%e) {slice = @s1, channel = @c1, order = 5} : (!x) -> !x
    // CHECK: callee = @add, order = 1 : i64, origins = [{kind = "bwd"{{.*}}}], slice = @s1
    %g = "pw.launch"(%d, %f) {callee = @add, slice = @s1, order = 1, origins = [{kind = "bwd"}]} : (!x, !x) -> !x
    return %g : !x
  }
  func.func private @ones() -> !x {
    %y = stablehlo.constant dense<1.0> : !x
    return %y : !x
  }
  func.func private @add(%x: !x, %y: !x) -> !x {
    %z = stablehlo.add %x, %y : !x
    return %z : !x
  }
}

// -----

// A fused computation takes and returns its values in the shardings of its parts, and holds what is between
// them to theirs, so that XLA finds nothing to move that the parts did not.

!x = tensor<8x4xf32>
!half = tensor<4x4xf32>
// CHECK-LABEL: module @sharded
module @sharded attributes {pw.form = "ordered"} {
  sdy.mesh @mesh = <["x"=2]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  func.func @main(%x: !x {pw.slice = @s0, sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}) -> (!half {pw.slice = @s0, sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>}) {
    // CHECK: "pw.launch"(%arg0) {callee = @double_fused, order = 0 : i64, origins = [{kind = "fwd"}], slice = @s0}
    %y = "pw.launch"(%x) {callee = @double, slice = @s0, order = 0, origins = [{kind = "fwd"}]} : (!x) -> !x
    %z = "pw.launch"(%y) {callee = @top, slice = @s0, order = 1} : (!x) -> !half
    return %z : !half
  }
  func.func private @double(%x: !x {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}) -> (!x {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}) {
    %y = stablehlo.add %x, %x : !x
    return %y : !x
  }
  func.func private @top(%x: !x {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}) -> (!half {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>}) {
    %y = stablehlo.slice %x [0:4, 0:4] : (!x) -> !half
    return %y : !half
  }
  // CHECK: func.func private @double_fused(%[[X:.*]]: tensor<8x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}) -> (tensor<4x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>})
  // CHECK-NEXT: %[[Y:.*]] = stablehlo.add %[[X]], %[[X]]
  // CHECK-NEXT: %[[LAID:.*]] = sdy.sharding_constraint %[[Y]] <@mesh, [{"x"}, {}]>
  // CHECK-NEXT: %[[Z:.*]] = stablehlo.slice %[[LAID]]
  // CHECK-NEXT: %[[OUT:.*]] = sdy.sharding_constraint %[[Z]] <@mesh, [{}, {"x"}]>
  // CHECK-NEXT: return %[[OUT]]
}

// -----

// On the last stage of a pipeline the backward of a microbatch follows its forward, and nothing leaves in
// between: they become one, with the loss between them and the block of the batch that it reads. Two
// microbatches never do, though nothing leaves the slice here.

!w = tensor<4xf32>
!x = tensor<8xf32>
// CHECK-LABEL: module @last_stage
module @last_stage attributes {pw.form = "ordered"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  "pw.loop"() {sym_name = "batch", count = 2} : () -> ()
  func.func @main(%w: !w {pw.slice = @s0}, %x: !x {pw.slice = @s0}, %n0: tensor<i32> {pw.slice = @s0}, %n1: tensor<i32> {pw.slice = @s0}) -> (!w {pw.slice = @s0}) {
    // GLUE: %[[G0:.*]] = "pw.launch"({{.*}}) {callee = @[[FIRST:.*]], loop = @batch, microbatch = 0 : i64, order = 0 : i64, origins = [{kind = "fwd", microbatch = 0 : i64, stage = 0 : i64}, {kind = "bwd", microbatch = 0 : i64, stage = 0 : i64}], slice = @s0}
    // GLUE-NEXT: %[[G1:.*]] = "pw.launch"({{.*}}%[[G0]]{{.*}}) {callee = @{{.*}}, loop = @batch, microbatch = 1 : i64, order = 1 : i64, origins = [{kind = "fwd", microbatch = 1 : i64, stage = 0 : i64}, {kind = "bwd", microbatch = 1 : i64, stage = 0 : i64}], slice = @s0}
    // GLUE-NEXT: return %[[G1]]
    // CALLS: %[[ALL:.*]] = "pw.launch"({{.*}}) {callee = @{{.*}}, loop = @batch, microbatch = 0 : i64, order = 0 : i64, origins = [{kind = "fwd"{{.*}}}, {kind = "bwd"{{.*}}}, {kind = "fwd"{{.*}}}, {kind = "bwd"{{.*}}}]
    // CALLS-NEXT: return %[[ALL]]
    %b0 = "pw.launch"(%x, %n0) {callee = @block, slice = @s0, loop = @batch, microbatch = 0, order = 0} : (!x, tensor<i32>) -> !w
    %h0 = "pw.launch"(%w) {callee = @f, slice = @s0, loop = @batch, microbatch = 0, order = 1, origins = [{kind = "fwd", microbatch = 0, stage = 0}]} : (!w) -> !w
    %d0 = "pw.launch"(%h0, %b0) {callee = @loss, slice = @s0, loop = @batch, microbatch = 0, order = 2} : (!w, !w) -> !w
    %g0 = "pw.launch"(%d0) {callee = @f_bwd, slice = @s0, loop = @batch, microbatch = 0, order = 3, origins = [{kind = "bwd", microbatch = 0, stage = 0}]} : (!w) -> !w
    %b1 = "pw.launch"(%x, %n1) {callee = @block, slice = @s0, loop = @batch, microbatch = 1, order = 4} : (!x, tensor<i32>) -> !w
    %h1 = "pw.launch"(%w) {callee = @f, slice = @s0, loop = @batch, microbatch = 1, order = 5, origins = [{kind = "fwd", microbatch = 1, stage = 0}]} : (!w) -> !w
    %d1 = "pw.launch"(%h1, %b1) {callee = @loss, slice = @s0, loop = @batch, microbatch = 1, order = 6} : (!w, !w) -> !w
    %g1 = "pw.launch"(%d1, %g0) {callee = @f_bwd_add, slice = @s0, loop = @batch, microbatch = 1, order = 7, origins = [{kind = "bwd", microbatch = 1, stage = 0}]} : (!w, !w) -> !w
    return %g1 : !w
  }
  func.func private @block(%x: !x, %n: tensor<i32>) -> !w {
    %b = stablehlo.dynamic_slice %x, %n, sizes = [4] : (!x, tensor<i32>) -> !w
    return %b : !w
  }
  func.func private @f(%w: !w) -> !w {
    %y = stablehlo.tanh %w : !w
    return %y : !w
  }
  func.func private @loss(%h: !w, %b: !w) -> !w {
    %d = stablehlo.subtract %h, %b : !w
    return %d : !w
  }
  func.func private @f_bwd(%d: !w) -> !w {
    %g = stablehlo.negate %d : !w
    return %g : !w
  }
  func.func private @f_bwd_add(%d: !w, %s: !w) -> !w {
    %g = stablehlo.negate %d : !w
    %t = stablehlo.add %s, %g : !w
    return %t : !w
  }
  // GLUE: func.func private @[[FIRST]](
  // GLUE-NEXT: stablehlo.tanh
  // GLUE-NEXT: stablehlo.dynamic_slice
  // GLUE-NEXT: stablehlo.subtract
  // GLUE-NEXT: stablehlo.negate
  // GLUE-NEXT: return
}

// -----

// Forwards of two microbatches, and those of two stages, stay apart.

!x = tensor<4xf32>
// CHECK-LABEL: module @forwards
module @forwards attributes {pw.form = "ordered"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  "pw.loop"() {sym_name = "batch", count = 2} : () -> ()
  func.func @main(%x: !x {pw.slice = @s0}, %y: !x {pw.slice = @s0}) -> (!x {pw.slice = @s0}, !x {pw.slice = @s0}) {
    // GLUE: callee = @f, loop = @batch, microbatch = 0 : i64, order = 0
    // GLUE-NEXT: callee = @f, loop = @batch, microbatch = 0 : i64, order = 1
    // GLUE-NEXT: callee = @f, loop = @batch, microbatch = 1 : i64, order = 2
    %a = "pw.launch"(%x) {callee = @f, slice = @s0, loop = @batch, microbatch = 0, order = 0, origins = [{kind = "fwd", microbatch = 0, stage = 0}]} : (!x) -> !x
    %b = "pw.launch"(%a) {callee = @f, slice = @s0, loop = @batch, microbatch = 0, order = 1, origins = [{kind = "fwd", microbatch = 0, stage = 1}]} : (!x) -> !x
    %c = "pw.launch"(%y) {callee = @f, slice = @s0, loop = @batch, microbatch = 1, order = 2, origins = [{kind = "fwd", microbatch = 1, stage = 0}]} : (!x) -> !x
    return %b, %c : !x, !x
  }
  func.func private @f(%x: !x) -> !x {
    %y = stablehlo.negate %x : !x
    return %y : !x
  }
}

// -----

// The update of a slice becomes part of its last launch in the loop, though the gradient of its input leaves:
// it leaves a little later, for one microbatch. Glue with a matrix product stands for itself.

!w = tensor<4x4xf32>
// CHECK-LABEL: module @update
module @update attributes {pw.form = "ordered"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  "pw.slice"() {sym_name = "s1", mesh = @mesh} : () -> ()
  "pw.loop"() {sym_name = "batch", count = 2} : () -> ()
  "pw.channel"() {sym_name = "c0", src = @s1, dst = @s0, capacity = 2, value_type = !w} : () -> ()
  func.func @main(%w: !w {pw.slice = @s1}, %x: !w {pw.slice = @s1}) -> (!w {pw.slice = @s1}, !w {pw.slice = @s1}, !w {pw.slice = @s0}) {
    // CHECK: %[[A:.*]]:2 = "pw.launch"({{.*}}) {callee = @f_bwd, loop = @batch, microbatch = 0 : i64, order = 0
    %a:2 = "pw.launch"(%x) {callee = @f_bwd, slice = @s1, loop = @batch, microbatch = 0, order = 0, origins = [{kind = "bwd", microbatch = 0, stage = 1}]} : (!w) -> (!w, !w)
    // CHECK-NEXT: "pw.transfer"(%[[A]]#0) {channel = @c0, {{.*}}order = 1
    %dx0 = "pw.transfer"(%a#0) {channel = @c0, loop = @batch, microbatch = 0, order = 1, slice = @s0} : (!w) -> !w
    // CHECK-NEXT: %[[B:.*]]:2 = "pw.launch"({{.*}}) {callee = @f_bwd_add_fused, loop = @batch, microbatch = 1 : i64, order = 2 : i64, origins = [{kind = "bwd"
    %b:2 = "pw.launch"(%x, %a#1) {callee = @f_bwd_add, slice = @s1, loop = @batch, microbatch = 1, order = 2, origins = [{kind = "bwd", microbatch = 1, stage = 1}]} : (!w, !w) -> (!w, !w)
    // CHECK-NEXT: "pw.transfer"(%[[B]]#{{.}}) {channel = @c0, {{.*}}order = 3
    %dx1 = "pw.transfer"(%b#0) {channel = @c0, loop = @batch, microbatch = 1, order = 3, slice = @s0} : (!w) -> !w
    %new = "pw.launch"(%w, %b#1) {callee = @update, slice = @s1, order = 4} : (!w, !w) -> !w
    // CHECK-NEXT: %[[P:.*]] = "pw.launch"(%[[B]]#{{.}}) {callee = @product, order = 4
    %p = "pw.launch"(%new) {callee = @product, slice = @s1, order = 5} : (!w) -> !w
    %sum = "pw.launch"(%dx0, %dx1) {callee = @update, slice = @s0, order = 0} : (!w, !w) -> !w
    return %new, %p, %sum : !w, !w, !w
  }
  func.func private @f_bwd(%x: !w) -> (!w, !w) {
    return %x, %x : !w, !w
  }
  func.func private @f_bwd_add(%x: !w, %s: !w) -> (!w, !w) {
    %t = stablehlo.add %s, %x : !w
    return %x, %t : !w, !w
  }
  func.func private @update(%w: !w, %g: !w) -> !w {
    %n = stablehlo.subtract %w, %g : !w
    return %n : !w
  }
  func.func private @product(%w: !w) -> !w {
    %n = stablehlo.dot_general %w, %w, contracting_dims = [1] x [0] : (!w, !w) -> !w
    return %n : !w
  }
}

// -----

// A constant is repeated for each launch that reads it, so that none waits for it, and none is kept. Glue of a
// loop that reads what is worked out in front of the loop becomes part of its reader as if it read arguments.

!x = tensor<4xf32>
// CHECK-LABEL: module @constants
module @constants attributes {pw.form = "ordered"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  "pw.slice"() {sym_name = "s1", mesh = @mesh} : () -> ()
  "pw.loop"() {sym_name = "batch", count = 2} : () -> ()
  "pw.channel"() {sym_name = "c0", src = @s0, dst = @s1, capacity = 2, value_type = !x} : () -> ()
  func.func @main(%x: !x {pw.slice = @s0}) -> (!x {pw.slice = @s1}, !x {pw.slice = @s1}) {
    // GLUE: %[[K:.*]] = "pw.launch"(%arg0) {callee = @keys, order = 0
    %keys = "pw.launch"(%x) {callee = @keys, slice = @s0, order = 0, origins = [{kind = "fwd"}]} : (!x) -> !x
    %one = "pw.launch"() {callee = @one, slice = @s0, order = 1} : () -> !x
    %k0 = "pw.launch"(%keys) {callee = @key, slice = @s0, loop = @batch, microbatch = 0, order = 2} : (!x) -> !x
    // GLUE-NEXT: %[[A:.*]] = "pw.launch"(%[[K]]) {callee = @[[FUSED:.*]], loop = @batch, microbatch = 0 : i64, order = 1
    %a = "pw.launch"(%one, %k0) {callee = @add, slice = @s0, loop = @batch, microbatch = 0, order = 3, origins = [{kind = "fwd", microbatch = 0, stage = 0}]} : (!x, !x) -> !x
    // GLUE-NEXT: "pw.transfer"(%[[A]]) {channel = @c0, {{.*}}order = 2
    %s = "pw.transfer"(%a) {channel = @c0, loop = @batch, microbatch = 0, order = 4, slice = @s1} : (!x) -> !x
    %k1 = "pw.launch"(%keys) {callee = @key, slice = @s0, loop = @batch, microbatch = 1, order = 5} : (!x) -> !x
    // GLUE-NEXT: %[[B:.*]] = "pw.launch"(%[[K]]) {callee = @[[FUSED]], loop = @batch, microbatch = 1 : i64, order = 3
    %b = "pw.launch"(%one, %k1) {callee = @add, slice = @s0, loop = @batch, microbatch = 1, order = 6, origins = [{kind = "fwd", microbatch = 1, stage = 0}]} : (!x, !x) -> !x
    %t = "pw.transfer"(%b) {channel = @c0, loop = @batch, microbatch = 1, order = 7, slice = @s1} : (!x) -> !x
    return %s, %t : !x, !x
  }
  func.func private @keys(%x: !x) -> !x {
    %y = stablehlo.sine %x : !x
    return %y : !x
  }
  func.func private @one() -> !x {
    %y = stablehlo.constant dense<1.0> : !x
    return %y : !x
  }
  func.func private @key(%x: !x) -> !x {
    %y = stablehlo.cosine %x : !x
    return %y : !x
  }
  func.func private @add(%x: !x, %y: !x) -> !x {
    %z = stablehlo.add %x, %y : !x
    return %z : !x
  }
  // GLUE: func.func private @[[FUSED]](
  // GLUE-DAG: stablehlo.cosine
  // GLUE-DAG: stablehlo.constant
  // GLUE: stablehlo.add
}

// -----

// A mirror that only the caller reads moves behind a launch that fusion has moved behind it.

!x = tensor<4xf32>
// CHECK-LABEL: module @mirrored
module @mirrored attributes {pw.form = "ordered"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  "pw.slice"() {sym_name = "s1", mesh = @mesh} : () -> ()
  func.func @main(%x: !x {pw.slice = [@s0, @s1]}) -> (!x {pw.slice = [@s0, @s1]}, !x {pw.slice = @s0}) {
    %a = "pw.launch"(%x) {callee = @f, slice = @s0, order = 0} : (!x) -> !x
    %b = "pw.launch"(%x) {callee = @f, slice = @s1, order = 0} : (!x) -> !x
    %both = "pw.mirror"(%a, %b) : (!x, !x) -> !x
    // CHECK: %[[B:.*]] = "pw.launch"({{.*}}) {callee = @f, order = 0 : i64, slice = @s1}
    // CHECK-NEXT: %[[AC:.*]]:2 = "pw.launch"({{.*}}) {callee = @f_fused, order = 0 : i64, origins = [{kind = "fwd"}], slice = @s0}
    // CHECK-NEXT: "pw.mirror"(%[[AC]]#0, %[[B]])
    %c = "pw.launch"(%a) {callee = @f, slice = @s0, order = 1, origins = [{kind = "fwd"}]} : (!x) -> !x
    return %both, %c : !x, !x
  }
  func.func private @f(%x: !x) -> !x {
    %y = stablehlo.negate %x : !x
    return %y : !x
  }
}

// -----

// A launch of its own costs more than a counter: counting joins the call of its iteration, though that one waits for
// a transfer.

!v = tensor<i32>
!x = tensor<4xf32>
// CHECK-LABEL: module @counter
module @counter attributes {pw.form = "ordered"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  "pw.slice"() {sym_name = "s1", mesh = @mesh} : () -> ()
  "pw.loop"() {count = 1, sequential, sym_name = "steps"} : () -> ()
  "pw.channel"() {sym_name = "c0", src = @s0, dst = @s1, capacity = 1, value_type = !x} : () -> ()
  func.func @main(%x: !x {pw.slice = @s0}, %n: !v {pw.slice = @s1}) -> (!x {pw.slice = @s1}, !v {pw.slice = @s1}) {
    %y = "pw.launch"(%x) {callee = @f, slice = @s0, loop = @steps, microbatch = 0, order = 0, origins = [{kind = "fwd", microbatch = 0, stage = 0}]} : (!x) -> !x
    // CHECK: %[[Y:.*]] = "pw.transfer"
    %z = "pw.transfer"(%y) {channel = @c0, loop = @steps, microbatch = 0, order = 1, slice = @s1} : (!x) -> !x
    // CHECK-NEXT: "pw.launch"(%arg1, %[[Y]]) {callee = @g_fused, loop = @steps, microbatch = 0 : i64, order = 0
    // CHECK-NEXT: return
    %m = "pw.launch"(%n) {callee = @count, slice = @s1, loop = @steps, microbatch = 0, order = 0} : (!v) -> !v
    %a = "pw.launch"(%m, %z) {callee = @g, slice = @s1, loop = @steps, microbatch = 0, order = 1, origins = [{kind = "fwd", microbatch = 0, stage = 1}]} : (!v, !x) -> !x
    return %a, %m : !x, !v
  }
  func.func private @f(%x: !x) -> !x {
    %y = stablehlo.negate %x : !x
    return %y : !x
  }
  func.func private @count(%n: !v) -> !v {
    %m = stablehlo.add %n, %n : !v
    return %m : !v
  }
  func.func private @g(%n: !v, %x: !x) -> !x {
    %y = stablehlo.negate %x : !x
    return %y : !x
  }
}

// -----

// Glue on more than 1 KB is done while the transfer is under way.

!v = tensor<512xi32>
!x = tensor<4xf32>
// CHECK-LABEL: module @larger
module @larger attributes {pw.form = "ordered"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  "pw.slice"() {sym_name = "s1", mesh = @mesh} : () -> ()
  "pw.loop"() {count = 1, sequential, sym_name = "steps"} : () -> ()
  "pw.channel"() {sym_name = "c0", src = @s0, dst = @s1, capacity = 1, value_type = !x} : () -> ()
  func.func @main(%x: !x {pw.slice = @s0}, %n: !v {pw.slice = @s1}) -> (!x {pw.slice = @s1}, !v {pw.slice = @s1}) {
    %y = "pw.launch"(%x) {callee = @f, slice = @s0, loop = @steps, microbatch = 0, order = 0, origins = [{kind = "fwd", microbatch = 0, stage = 0}]} : (!x) -> !x
    // CHECK: %[[Y:.*]] = "pw.transfer"
    %z = "pw.transfer"(%y) {channel = @c0, loop = @steps, microbatch = 0, order = 1, slice = @s1} : (!x) -> !x
    // CHECK: %[[N:.*]] = "pw.launch"(%arg1) {callee = @count
    // CHECK: "pw.launch"(%[[N]], %[[Y]]) {callee = @g,
    %m = "pw.launch"(%n) {callee = @count, slice = @s1, loop = @steps, microbatch = 0, order = 0} : (!v) -> !v
    %a = "pw.launch"(%m, %z) {callee = @g, slice = @s1, loop = @steps, microbatch = 0, order = 1, origins = [{kind = "fwd", microbatch = 0, stage = 1}]} : (!v, !x) -> !x
    return %a, %m : !x, !v
  }
  func.func private @f(%x: !x) -> !x {
    %y = stablehlo.negate %x : !x
    return %y : !x
  }
  func.func private @count(%n: !v) -> !v {
    %m = stablehlo.add %n, %n : !v
    return %m : !v
  }
  func.func private @g(%n: !v, %x: !x) -> !x {
    %y = stablehlo.negate %x : !x
    return %y : !x
  }
}

// -----

// Not over a send of what was received: the first launch would receive its value after that, and @c0 delivers it before.

!x = tensor<4xf32>
// CHECK-LABEL: module @sent_on
module @sent_on attributes {pw.form = "ordered"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  "pw.slice"() {sym_name = "s1", mesh = @mesh} : () -> ()
  "pw.channel"() {sym_name = "c0", src = @s0, dst = @s1, capacity = 2, value_type = !x} : () -> ()
  "pw.channel"() {sym_name = "c1", src = @s1, dst = @s0, capacity = 1, value_type = !x} : () -> ()
  func.func @main(%x: !x {pw.slice = @s0}, %y: !x {pw.slice = @s0}) -> (!x {pw.slice = @s1}, !x {pw.slice = @s0}) {
    %a = "pw.transfer"(%x) {channel = @c0, order = 0, slice = @s1} : (!x) -> !x
    // CHECK: %[[B:.*]] = "pw.transfer"(%arg1)
    %b = "pw.transfer"(%y) {channel = @c0, order = 1, slice = @s1} : (!x) -> !x
    // CHECK: %[[C:.*]] = "pw.launch"({{.*}}) {callee = @glue, order = 0
    %c = "pw.launch"(%a) {callee = @glue, order = 0, slice = @s1} : (!x) -> !x
    // CHECK: "pw.transfer"(%[[B]]) {channel = @c1, order = 1
    %d = "pw.transfer"(%b) {channel = @c1, order = 1, slice = @s0} : (!x) -> !x
    // CHECK: "pw.launch"(%[[C]]) {callee = @glue, order = 2
    %e = "pw.launch"(%c) {callee = @glue, order = 2, slice = @s1} : (!x) -> !x
    return %e, %d : !x, !x
  }
  func.func private @glue(%x: !x) -> !x {
    %y = stablehlo.negate %x : !x
    return %y : !x
  }
}
