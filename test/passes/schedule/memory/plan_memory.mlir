// RUN: pw-opt %s --split-input-file --pw-plan-memory | filecheck %s

// An intermediate is released behind its last reader; arguments that the caller keeps, and results, are
// not. The peak counts what is alive together: here argument, first and second result, 16 bytes each.

!x = tensor<4xf32>
// CHECK-LABEL: module @release
module @release attributes {pw.form = "ordered"} {
  sdy.mesh @mesh = <["x"=1]>
  // CHECK: "pw.slice"() {mesh = @mesh, peak_bytes = 48 : i64, sym_name = "s0"}
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  func.func @main(%x: !x {pw.slice = @s0}) -> (!x {pw.slice = @s0}) {
    // CHECK: %[[A:.*]] = "pw.launch"(%arg0)
    %a = "pw.launch"(%x) {callee = @f, slice = @s0, order = 0} : (!x) -> !x
    // CHECK-NEXT: %[[B:.*]] = "pw.launch"(%[[A]])
    %b = "pw.launch"(%a) {callee = @f, slice = @s0, order = 1} : (!x) -> !x
    // CHECK-NEXT: "pw.release"(%[[A]])
    // CHECK-NEXT: return %[[B]]
    return %b : !x
  }
  // CHECK: func.func private @f(%arg0: tensor<4xf32>)
  func.func private @f(%x: !x) -> !x {
    return %x : !x
  }
}

// -----

// The last reader of a donated argument takes its buffer for a result of the same type. Donation belongs
// to the computation, so a launch of it that may not donate keeps the plain one. A scalar is not worth compiling
// it twice.

!x = tensor<4xf32>
!n = tensor<i32>
// CHECK-LABEL: module @donation
module @donation attributes {pw.form = "ordered"} {
  sdy.mesh @mesh = <["x"=1]>
  // CHECK: peak_bytes = 64 : i64
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  func.func @main(%x: !x {pw.slice = @s0}, %given: !x {pw.slice = @s0, pw.donated}, %n: !n {pw.slice = @s0}, %count: !n {pw.slice = @s0, pw.donated}) -> (!x {pw.slice = @s0}, !x {pw.slice = @s0}, !n {pw.slice = @s0}, !n {pw.slice = @s0}) {
    // CHECK: "pw.launch"(%arg0) {callee = @f, order = 0
    %a = "pw.launch"(%x) {callee = @f, slice = @s0, order = 0} : (!x) -> !x
    // CHECK-NEXT: "pw.launch"(%arg1) {callee = @f_donating, order = 1
    %b = "pw.launch"(%given) {callee = @f, slice = @s0, order = 1} : (!x) -> !x
    // CHECK-NEXT: "pw.launch"(%arg2) {callee = @next, order = 2
    %m = "pw.launch"(%n) {callee = @next, slice = @s0, order = 2} : (!n) -> !n
    // CHECK-NEXT: "pw.launch"(%arg3) {callee = @next, order = 3
    %k = "pw.launch"(%count) {callee = @next, slice = @s0, order = 3} : (!n) -> !n
    // CHECK-NEXT: "pw.release"(%arg3)
    // CHECK-NEXT: return
    return %a, %b, %m, %k : !x, !x, !n, !n
  }
  // CHECK: func.func private @f_donating(%arg0: tensor<4xf32> {tf.aliasing_output = 0 : i32})
  func.func private @f(%x: !x) -> !x {
    return %x : !x
  }
  func.func private @next(%n: !n) -> !n {
    return %n : !n
  }
}

// -----

// A large intermediate is donated too, here into the second result, as the first has another type. A
// donated argument that matches no result, or that nothing reads, is released: the caller gave it away.

!x = tensor<128x128xf32>
// CHECK-LABEL: module @intermediates
module @intermediates attributes {pw.form = "ordered"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  func.func @main(%x: !x {pw.slice = @s0}, %n: tensor<i32> {pw.slice = @s0, pw.donated}, %unread: !x {pw.slice = @s0, pw.donated}) -> (tensor<f32> {pw.slice = @s0}, !x {pw.slice = @s0}) {
    // CHECK: "pw.release"(%arg2)
    // CHECK-NEXT: %[[A:.*]] = "pw.launch"(%arg0, %arg1) {callee = @f
    %a = "pw.launch"(%x, %n) {callee = @f, slice = @s0, order = 0} : (!x, tensor<i32>) -> !x
    // CHECK-NEXT: "pw.release"(%arg1)
    // CHECK-NEXT: "pw.launch"(%[[A]]) {callee = @g
    %b:2 = "pw.launch"(%a) {callee = @g, slice = @s0, order = 1} : (!x) -> (tensor<f32>, !x)
    // CHECK-NEXT: return
    return %b#0, %b#1 : tensor<f32>, !x
  }
  func.func private @f(%x: !x, %n: tensor<i32>) -> !x {
    return %x : !x
  }
  // CHECK: func.func private @g(%arg0: tensor<128x128xf32> {tf.aliasing_output = 1 : i32})
  func.func private @g(%x: !x) -> (tensor<f32>, !x) {
    %s = stablehlo.constant dense<0.0> : tensor<f32>
    return %s, %x : tensor<f32>, !x
  }
}

// -----

// The block is sorted by the proved order, and channels get the room that it needs.

!x = tensor<4xf32>
// CHECK-LABEL: module @sorted
module @sorted attributes {pw.form = "ordered"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  "pw.slice"() {sym_name = "s1", mesh = @mesh} : () -> ()
  // CHECK: "pw.channel"() {capacity = 1 : i64
  "pw.channel"() {sym_name = "c0", src = @s0, dst = @s1, capacity = 5, value_type = !x} : () -> ()
  func.func @main(%x: !x {pw.slice = @s0}) -> (!x {pw.slice = @s0}, !x {pw.slice = @s1}) {
    // CHECK: "pw.transfer"(%arg0) {channel = @c0, order = 0
    // CHECK-NEXT: callee = @f, order = 1 : i64, slice = @s0
    %a = "pw.launch"(%x) {callee = @f, slice = @s0, order = 1} : (!x) -> !x
    %b = "pw.transfer"(%x) {slice = @s1, channel = @c0, order = 0} : (!x) -> !x
    return %a, %b : !x, !x
  }
  func.func private @f(%x: !x) -> !x {
    return %x : !x
  }
}

// -----

// A buffer serves only for a result that lies over the slice as the operand does.

!x = tensor<8x8xf32>
// CHECK-LABEL: module @sharded
module @sharded attributes {pw.form = "ordered"} {
  sdy.mesh @mesh = <["x"=2]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  func.func @main(%x: !x {pw.slice = @s0, pw.donated, sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}, %y: !x {pw.slice = @s0, pw.donated, sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>}) -> (!x {pw.slice = @s0, sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>}) {
    // CHECK: "pw.launch"(%arg0, %arg1)
    // CHECK-NEXT: "pw.release"(%arg0)
    %0 = "pw.launch"(%x, %y) {callee = @f, slice = @s0, order = 0} : (!x, !x) -> !x
    return %0 : !x
  }
  // CHECK: func.func private @f(%arg0: tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}, %arg1: tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>, tf.aliasing_output = 0 : i32})
  func.func private @f(%x: !x {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}, %y: !x {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>}) -> (!x {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>}) {
    %0 = stablehlo.add %x, %y : !x
    return %0 : !x
  }
}

// -----

// The peak counts the devices of a slice together: a sharded value once, a replicated one on each.

!x = tensor<4xf32>
// CHECK-LABEL: module @several_devices
module @several_devices attributes {pw.form = "ordered"} {
  sdy.mesh @mesh = <["x"=2]>
  // CHECK: "pw.slice"() {mesh = @mesh, peak_bytes = 48 : i64, sym_name = "s0"}
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  func.func @main(%x: !x {pw.slice = @s0, sdy.sharding = #sdy.sharding<@mesh, [{"x"}]>}) -> (!x {pw.slice = @s0, sdy.sharding = #sdy.sharding<@mesh, [{}]>}) {
    %a = "pw.launch"(%x) {callee = @gather, slice = @s0, order = 0} : (!x) -> !x
    return %a : !x
  }
  func.func private @gather(%x: !x {sdy.sharding = #sdy.sharding<@mesh, [{"x"}]>}) -> (!x {sdy.sharding = #sdy.sharding<@mesh, [{}]>}) {
    return %x : !x
  }
}

// -----

// What costs no variant is donated whatever its size: all launches of @add can donate the sum so far, so that
// a sum over microbatches is one buffer. Not all can donate the term. The peak is the argument, a term and the sum.

!x = tensor<4xf32>
// CHECK-LABEL: module @accumulator
module @accumulator attributes {pw.form = "ordered"} {
  sdy.mesh @mesh = <["x"=1]>
  // CHECK: peak_bytes = 48 : i64
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  func.func @main(%x: !x {pw.slice = @s0}) -> (!x {pw.slice = @s0}) {
    // CHECK: %[[A:.*]] = "pw.launch"(%arg0) {callee = @term
    // CHECK-NEXT: %[[T:.*]] = "pw.launch"(%arg0) {callee = @term
    // CHECK-NEXT: %[[B:.*]] = "pw.launch"(%[[T]], %[[A]]) {callee = @add,
    // CHECK-NEXT: "pw.release"(%[[T]])
    // CHECK-NEXT: %[[C:.*]] = "pw.launch"(%arg0, %[[B]]) {callee = @add,
    // CHECK-NEXT: return %[[C]]
    %a = "pw.launch"(%x) {callee = @term, slice = @s0, order = 0} : (!x) -> !x
    %t = "pw.launch"(%x) {callee = @term, slice = @s0, order = 1} : (!x) -> !x
    %b = "pw.launch"(%t, %a) {callee = @add, slice = @s0, order = 2} : (!x, !x) -> !x
    %c = "pw.launch"(%x, %b) {callee = @add, slice = @s0, order = 3} : (!x, !x) -> !x
    return %c : !x
  }
  func.func private @term(!x) -> !x
  // CHECK: func.func private @add(tensor<4xf32>, tensor<4xf32> {tf.aliasing_output = 0 : i32})
  func.func private @add(!x, !x) -> !x
}

// -----

// Transfers that follow each other are issued together, so what the first one reads is alive when the second
// one arrives: @s0 holds both.

!x = tensor<4xf32>
// CHECK-LABEL: module @transfers_between_launches
module @transfers_between_launches attributes {pw.form = "ordered"} {
  sdy.mesh @mesh = <["x"=1]>
  // CHECK: "pw.slice"() {mesh = @mesh, peak_bytes = 32 : i64, sym_name = "s0"}
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  "pw.slice"() {sym_name = "s1", mesh = @mesh} : () -> ()
  "pw.channel"() {sym_name = "c0", src = @s0, dst = @s1, capacity = 1, value_type = !x} : () -> ()
  "pw.channel"() {sym_name = "c1", src = @s1, dst = @s0, capacity = 1, value_type = !x} : () -> ()
  func.func @main(%x: !x {pw.slice = @s0, pw.donated}, %y: !x {pw.slice = @s1, pw.donated}) -> (!x {pw.slice = @s1}, !x {pw.slice = @s0}) {
    // CHECK: "pw.transfer"(%arg0)
    // CHECK-NEXT: "pw.transfer"(%arg1)
    // CHECK-NEXT: "pw.release"(%arg0, %arg1)
    %a = "pw.transfer"(%x) {slice = @s1, channel = @c0, order = 0} : (!x) -> !x
    %b = "pw.transfer"(%y) {slice = @s0, channel = @c1, order = 0} : (!x) -> !x
    return %a, %b : !x, !x
  }
}

// -----

// The caller gets a copy of an argument that it keeps, and of what is a result already. An argument that it
// keeps and that nothing reads is not brought to the slice.

!x = tensor<4xf32>
// CHECK-LABEL: module @copied_results
module @copied_results attributes {pw.form = "ordered"} {
  sdy.mesh @mesh = <["x"=1]>
  // CHECK: peak_bytes = 64 : i64
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  func.func @main(%x: !x {pw.slice = @s0}, %unread: !x {pw.slice = @s0}, %given: !x {pw.slice = @s0, pw.donated}) -> (!x {pw.slice = @s0}, !x {pw.slice = @s0}, !x {pw.slice = @s0}) {
    return %x, %given, %given : !x, !x, !x
  }
}

// -----

// Values live as long as the one that they are mirrored into.

!x = tensor<4xf32>
// CHECK-LABEL: module @mirrored
module @mirrored attributes {pw.form = "ordered"} {
  sdy.mesh @mesh = <["x"=1]>
  // CHECK: peak_bytes = 32 : i64, sym_name = "s0"
  // CHECK: peak_bytes = 48 : i64, sym_name = "s1"
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  "pw.slice"() {sym_name = "s1", mesh = @mesh} : () -> ()
  func.func @main(%x: !x {pw.slice = [@s0, @s1]}) -> (!x {pw.slice = @s1}) {
    // CHECK: %[[A:.*]] = "pw.launch"
    // CHECK: %[[B:.*]] = "pw.launch"
    // CHECK: %[[M:.*]] = "pw.mirror"(%[[A]], %[[B]])
    // CHECK-NEXT: "pw.launch"(%[[M]])
    // CHECK-NEXT: "pw.release"(%[[A]], %[[B]])
    %a = "pw.launch"(%x) {callee = @f, slice = @s0, order = 0} : (!x) -> !x
    %b = "pw.launch"(%x) {callee = @f, slice = @s1, order = 0} : (!x) -> !x
    %m = "pw.mirror"(%a, %b) : (!x, !x) -> !x
    %c = "pw.launch"(%m) {callee = @f, slice = @s1, order = 1} : (!x) -> !x
    return %c : !x
  }
  func.func private @f(!x) -> !x
}

// -----

// Fusion may have delayed a launch that receives: capacities come from the order that is left, not the other
// way round. Slices that overlap have one order, in which both sends stand in front of the first receipt.

!x = tensor<4xf32>
// CHECK-LABEL: module @delayed_receipt
module @delayed_receipt attributes {pw.form = "ordered"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh, overlap} : () -> ()
  "pw.slice"() {sym_name = "s1", mesh = @mesh, overlap} : () -> ()
  // CHECK: "pw.channel"() {capacity = 2 : i64
  "pw.channel"() {sym_name = "c0", src = @s0, dst = @s1, capacity = 1, value_type = !x} : () -> ()
  func.func @main(%x: !x {pw.slice = @s0}, %y: !x {pw.slice = @s0}) -> (!x {pw.slice = @s1}, !x {pw.slice = @s1}) {
    %a = "pw.transfer"(%x) {slice = @s1, channel = @c0, order = 0} : (!x) -> !x
    %b = "pw.transfer"(%y) {slice = @s1, channel = @c0, order = 1} : (!x) -> !x
    %c = "pw.launch"(%a) {callee = @f, slice = @s1, order = 2} : (!x) -> !x
    %d = "pw.launch"(%b) {callee = @f, slice = @s1, order = 3} : (!x) -> !x
    return %c, %d : !x, !x
  }
  func.func private @f(%x: !x) -> !x {
    return %x : !x
  }
}

// -----

// A buffer is in one memory: a donated argument in device memory is none for a result in that of the host, which
// takes the one of an argument there. The peak counts device memory.

!x = tensor<4xf32>
// CHECK-LABEL: module @memories
module @memories attributes {pw.form = "ordered"} {
  sdy.mesh @mesh = <["x"=1]>
  // CHECK: peak_bytes = 16 : i64
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  func.func @main(%x: !x {pw.slice = @s0, pw.donated}, %h: !x {mhlo.memory_kind = "pinned_host", pw.slice = @s0, pw.donated}) -> (!x {mhlo.memory_kind = "pinned_host", pw.slice = @s0}) {
    %a = "pw.launch"(%x, %h) {callee = @f, slice = @s0, order = 0} : (!x, !x) -> !x
    return %a : !x
  }
  // CHECK: func.func private @f(%arg0: tensor<4xf32>, %arg1: tensor<4xf32> {mhlo.memory_kind = "pinned_host", tf.aliasing_output = 0 : i32})
  func.func private @f(%x: !x, %h: !x {mhlo.memory_kind = "pinned_host"}) -> (!x {mhlo.memory_kind = "pinned_host"}) {
    %y = stablehlo.custom_call @annotate_device_placement(%x) {mhlo.frontend_attributes = {_xla_buffer_placement = "pinned_host"}} : (!x) -> !x
    return %y : !x
  }
}
