// RUN: pw-opt %s --split-input-file --pw-fuse-launches | filecheck %s --check-prefixes=CHECK,GLUE
// RUN: pw-opt %s --split-input-file -p 'pw-fuse-launches{user-calls=true}' | filecheck %s --check-prefixes=CHECK,CALLS

// Glue joins the call in front of it; two calls of the user stay two unless asked for, and then say so.

!x = tensor<4xf32>
// CHECK-LABEL: module @glue_and_calls
module @glue_and_calls attributes {pw.form = "placed"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  func.func @main(%x: !x {pw.slice = @s0}) -> (!x {pw.slice = @s0}) {
    // GLUE: %[[A:.*]] = "pw.launch"(%arg0) {callee = @f_fused, order = 0 : i64, phase = "fwd", slice = @s0, stage = 0
    // GLUE-NEXT: %[[B:.*]] = "pw.launch"(%[[A]]) {callee = @f, order = 1 : i64, phase = "fwd"
    // GLUE-NEXT: return %[[B]]
    // CALLS: %[[B:.*]] = "pw.launch"(%arg0) {callee = @f_fused, fused = ["fwd", "fwd"], order = 0
    // CALLS-NEXT: return %[[B]]
    %a = "pw.launch"(%x) {callee = @f, slice = @s0, order = 0, phase = "fwd", stage = 0} : (!x) -> !x
    %b = "pw.launch"(%a) {callee = @glue, slice = @s0, order = 1, phase = "glue"} : (!x) -> !x
    %c = "pw.launch"(%b) {callee = @f, slice = @s0, order = 2, phase = "fwd", stage = 0} : (!x) -> !x
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
module @result_leaves attributes {pw.form = "placed"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  "pw.slice"() {sym_name = "s1", mesh = @mesh} : () -> ()
  "pw.channel"() {sym_name = "c0", src = @s0, dst = @s1, capacity = 1, type = !x} : () -> ()
  func.func @main(%x: !x {pw.slice = @s0}) -> (!x {pw.slice = @s0}, !x {pw.slice = @s1}) {
    // CHECK: %[[A:.*]] = "pw.launch"(%arg0) {callee = @f, order = 0
    %a = "pw.launch"(%x) {callee = @f, slice = @s0, order = 0, phase = "fwd"} : (!x) -> !x
    // CHECK: "pw.transfer"(%[[A]])
    %b = "pw.transfer"(%a) {slice = @s1, channel = @c0, order = 1} : (!x) -> !x
    // CHECK: "pw.launch"(%[[A]]) {callee = @f, order = 2
    %c = "pw.launch"(%a) {callee = @f, slice = @s0, order = 2, phase = "glue"} : (!x) -> !x
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
module @waits_for_a_transfer attributes {pw.form = "placed"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  "pw.slice"() {sym_name = "s1", mesh = @mesh} : () -> ()
  "pw.channel"() {sym_name = "c0", src = @s1, dst = @s0, capacity = 1, type = !x} : () -> ()
  func.func @main(%x: !x {pw.slice = @s0}, %y: !x {pw.slice = @s1}) -> (!x {pw.slice = @s0}) {
    // CHECK: callee = @f, order = 0
    %a = "pw.launch"(%x) {callee = @f, slice = @s0, order = 0, phase = "fwd"} : (!x) -> !x
    %b = "pw.transfer"(%y) {slice = @s0, channel = @c0, order = 0} : (!x) -> !x
    // The transfer has arrived for the first of these two, so the second may join it.
    // CHECK: callee = @add_fused, order = 1
    %c = "pw.launch"(%a, %b) {callee = @add, slice = @s0, order = 1, phase = "glue"} : (!x, !x) -> !x
    %d = "pw.launch"(%c, %b) {callee = @add, slice = @s0, order = 2, phase = "glue"} : (!x, !x) -> !x
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
module @preparation attributes {pw.form = "placed"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  "pw.slice"() {sym_name = "s1", mesh = @mesh} : () -> ()
  "pw.channel"() {sym_name = "c0", src = @s1, dst = @s0, capacity = 1, type = !x} : () -> ()
  "pw.channel"() {sym_name = "c1", src = @s0, dst = @s1, capacity = 1, type = !x} : () -> ()
  func.func @main(%x: !x {pw.slice = @s1}) -> (!x {pw.slice = @s1}) {
    %ones = "pw.launch"() {callee = @ones, slice = @s0, order = 0, phase = "glue"} : () -> !x
    %again = "pw.launch"() {callee = @ones, slice = @s0, order = 1, phase = "glue"} : () -> !x
    %b = "pw.transfer"(%x) {slice = @s0, channel = @c0, order = 0} : (!x) -> !x
    // CHECK: "pw.launch"(%{{.*}}) {callee = @[[FUSED:.*]], order = 0 : i64, phase = "bwd"
    %c = "pw.launch"(%ones, %b) {callee = @add, slice = @s0, order = 2, phase = "bwd"} : (!x, !x) -> !x
    %d = "pw.transfer"(%c) {slice = @s1, channel = @c1, order = 3} : (!x) -> !x
    // CHECK: "pw.launch"(%{{.*}}) {callee = @[[FUSED]], order = 2 : i64, phase = "bwd"
    %e = "pw.launch"(%again, %b) {callee = @add, slice = @s0, order = 4, phase = "bwd"} : (!x, !x) -> !x
    %f = "pw.transfer"(%e) {slice = @s1, channel = @c1, order = 5} : (!x) -> !x
    // CHECK: callee = @add, order = 1 : i64, phase = "bwd", slice = @s1
    %g = "pw.launch"(%d, %f) {callee = @add, slice = @s1, order = 1, phase = "bwd"} : (!x, !x) -> !x
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
module @sharded attributes {pw.form = "placed"} {
  sdy.mesh @mesh = <["x"=2]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  func.func @main(%x: !x {pw.slice = @s0, sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}) -> (!half {pw.slice = @s0, sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>}) {
    // CHECK: "pw.launch"(%arg0) {callee = @double_fused, order = 0 : i64, phase = "fwd", slice = @s0}
    %y = "pw.launch"(%x) {callee = @double, slice = @s0, order = 0, phase = "fwd"} : (!x) -> !x
    %z = "pw.launch"(%y) {callee = @top, slice = @s0, order = 1, phase = "glue"} : (!x) -> !half
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
