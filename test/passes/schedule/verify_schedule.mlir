// RUN: pw-opt %s --split-input-file --verify-diagnostics --pw-verify-schedule
// RUN: not pw-opt %s --split-input-file --pw-verify-schedule 2>&1 | filecheck %s

// A schedule that can be met: each slice sends before it receives.

!x = tensor<4xf32>
module @exchange attributes {pw.form = "ordered"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  "pw.slice"() {sym_name = "s1", mesh = @mesh} : () -> ()
  "pw.channel"() {sym_name = "c0", src = @s0, dst = @s1, capacity = 1, value_type = !x} : () -> ()
  "pw.channel"() {sym_name = "c1", src = @s1, dst = @s0, capacity = 1, value_type = !x} : () -> ()
  func.func @main(%x: !x {pw.slice = @s0}, %y: !x {pw.slice = @s1}) -> (!x {pw.slice = @s1}, !x {pw.slice = @s0}) {
    %a = "pw.transfer"(%x) {slice = @s1, channel = @c0, order = 0} : (!x) -> !x
    %b = "pw.transfer"(%y) {slice = @s0, channel = @c1, order = 0} : (!x) -> !x
    %c = "pw.launch"(%a) {callee = @f, slice = @s1, order = 1} : (!x) -> !x
    %d = "pw.launch"(%b) {callee = @f, slice = @s0, order = 1} : (!x) -> !x
    return %c, %d : !x, !x
  }
  func.func private @f(%x: !x) -> !x {
    return %x : !x
  }
}

// -----

// Two slices: each receives before it sends. The block is sorted, so only the orders show the cycle.

// CHECK: 'pw.transfer' op deadlock: the order has a cycle
// CHECK-NEXT: send from @s0 to @s1 (order 1) waits for launch of @f on @s0 (order 0): @s0 runs in this order
// CHECK-NEXT: launch of @f on @s0 (order 0) waits for receive on @s0 from channel @c1 (sent with order 1): it reads its result
// CHECK-NEXT: receive on @s0 from channel @c1 (sent with order 1) waits for send from @s1 to @s0 (order 1): it receives what is sent
// CHECK-NEXT: send from @s1 to @s0 (order 1) waits for launch of @g on @s1 (order 0): @s1 runs in this order
// CHECK-NEXT: launch of @g on @s1 (order 0) waits for receive on @s1 from channel @c0 (sent with order 1): it reads its result
// CHECK-NEXT: receive on @s1 from channel @c0 (sent with order 1) waits for send from @s0 to @s1 (order 1): it receives what is sent

!x = tensor<4xf32>
module @two_slices_wait_for_each_other attributes {pw.form = "ordered"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  "pw.slice"() {sym_name = "s1", mesh = @mesh} : () -> ()
  "pw.channel"() {sym_name = "c0", src = @s0, dst = @s1, capacity = 1, value_type = !x} : () -> ()
  "pw.channel"() {sym_name = "c1", src = @s1, dst = @s0, capacity = 1, value_type = !x} : () -> ()
  func.func @main(%x: !x {pw.slice = @s0}, %y: !x {pw.slice = @s1}) -> (!x {pw.slice = @s1}, !x {pw.slice = @s0}) {
    // expected-error@+1 {{deadlock: the order has a cycle}}
    %a = "pw.transfer"(%x) {slice = @s1, channel = @c0, order = 1} : (!x) -> !x
    %b = "pw.transfer"(%y) {slice = @s0, channel = @c1, order = 1} : (!x) -> !x
    %c = "pw.launch"(%a) {callee = @g, slice = @s1, order = 0} : (!x) -> !x
    %d = "pw.launch"(%b) {callee = @f, slice = @s0, order = 0} : (!x) -> !x
    return %c, %d : !x, !x
  }
  func.func private @f(%x: !x) -> !x {
    return %x : !x
  }
  func.func private @g(%x: !x) -> !x {
    return %x : !x
  }
}

// -----

// Three slices in a ring, each waiting for its neighbour before it sends.

// CHECK: 'pw.transfer' op deadlock: the order has a cycle
// CHECK-NEXT: send from @s0 to @s1 (order 1) waits for launch of @f on @s0 (order 0): @s0 runs in this order
// CHECK-NEXT: launch of @f on @s0 (order 0) waits for receive on @s0 from channel @c2 (sent with order 1): it reads its result
// CHECK-NEXT: receive on @s0 from channel @c2 (sent with order 1) waits for send from @s2 to @s0 (order 1): it receives what is sent
// CHECK-NEXT: send from @s2 to @s0 (order 1) waits for launch of @f on @s2 (order 0): @s2 runs in this order
// CHECK-NEXT: launch of @f on @s2 (order 0) waits for receive on @s2 from channel @c1 (sent with order 1): it reads its result
// CHECK-NEXT: receive on @s2 from channel @c1 (sent with order 1) waits for send from @s1 to @s2 (order 1): it receives what is sent
// CHECK-NEXT: send from @s1 to @s2 (order 1) waits for launch of @f on @s1 (order 0): @s1 runs in this order
// CHECK-NEXT: launch of @f on @s1 (order 0) waits for receive on @s1 from channel @c0 (sent with order 1): it reads its result
// CHECK-NEXT: receive on @s1 from channel @c0 (sent with order 1) waits for send from @s0 to @s1 (order 1): it receives what is sent

!x = tensor<4xf32>
module @three_slices_in_a_ring attributes {pw.form = "ordered"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  "pw.slice"() {sym_name = "s1", mesh = @mesh} : () -> ()
  "pw.slice"() {sym_name = "s2", mesh = @mesh} : () -> ()
  "pw.channel"() {sym_name = "c0", src = @s0, dst = @s1, capacity = 1, value_type = !x} : () -> ()
  "pw.channel"() {sym_name = "c1", src = @s1, dst = @s2, capacity = 1, value_type = !x} : () -> ()
  "pw.channel"() {sym_name = "c2", src = @s2, dst = @s0, capacity = 1, value_type = !x} : () -> ()
  func.func @main(%x: !x {pw.slice = @s0}, %y: !x {pw.slice = @s1}, %z: !x {pw.slice = @s2}) -> (!x {pw.slice = @s1}, !x {pw.slice = @s2}, !x {pw.slice = @s0}) {
    // expected-error@+1 {{deadlock: the order has a cycle}}
    %a = "pw.transfer"(%x) {slice = @s1, channel = @c0, order = 1} : (!x) -> !x
    %b = "pw.transfer"(%y) {slice = @s2, channel = @c1, order = 1} : (!x) -> !x
    %c = "pw.transfer"(%z) {slice = @s0, channel = @c2, order = 1} : (!x) -> !x
    %d = "pw.launch"(%a) {callee = @f, slice = @s1, order = 0} : (!x) -> !x
    %e = "pw.launch"(%b) {callee = @f, slice = @s2, order = 0} : (!x) -> !x
    %f = "pw.launch"(%c) {callee = @f, slice = @s0, order = 0} : (!x) -> !x
    return %d, %e, %f : !x, !x, !x
  }
  func.func private @f(%x: !x) -> !x {
    return %x : !x
  }
}

// -----

// A channel with room for one value: the second send waits until the first value is read, but what reads
// it stands behind a launch that needs something sent after both. With room for two the orders can be met.

// CHECK: 'pw.transfer' op deadlock: the order has a cycle
// CHECK-NEXT: send from @s0 to @s1 (order 1) waits for receive on @s1 from channel @c0 (sent with order 0): channel @c0 holds 1 and is full until then
// CHECK-NEXT: receive on @s1 from channel @c0 (sent with order 0) waits for launch of @g on @s1 (order 0): @s1 runs in this order
// CHECK-NEXT: launch of @g on @s1 (order 0) waits for receive on @s1 from channel @c1 (sent with order 2): it reads its result
// CHECK-NEXT: receive on @s1 from channel @c1 (sent with order 2) waits for send from @s0 to @s1 (order 2): it receives what is sent
// CHECK-NEXT: send from @s0 to @s1 (order 2) waits for send from @s0 to @s1 (order 1): @s0 runs in this order

!x = tensor<4xf32>
module @full_channel attributes {pw.form = "ordered"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  "pw.slice"() {sym_name = "s1", mesh = @mesh} : () -> ()
  "pw.channel"() {sym_name = "c0", src = @s0, dst = @s1, capacity = 1, value_type = !x} : () -> ()
  "pw.channel"() {sym_name = "c1", src = @s0, dst = @s1, capacity = 1, value_type = tensor<f32>} : () -> ()
  func.func @main(%x: !x {pw.slice = @s0}, %y: !x {pw.slice = @s0}, %z: tensor<f32> {pw.slice = @s0}) -> (!x {pw.slice = @s1}, !x {pw.slice = @s1}, tensor<f32> {pw.slice = @s1}) {
    %a = "pw.transfer"(%x) {slice = @s1, channel = @c0, order = 0} : (!x) -> !x
    // expected-error@+1 {{deadlock: the order has a cycle}}
    %b = "pw.transfer"(%y) {slice = @s1, channel = @c0, order = 1} : (!x) -> !x
    %c = "pw.transfer"(%z) {slice = @s1, channel = @c1, order = 2} : (tensor<f32>) -> tensor<f32>
    %d = "pw.launch"(%c) {callee = @g, slice = @s1, order = 0} : (tensor<f32>) -> tensor<f32>
    %e = "pw.launch"(%a) {callee = @f, slice = @s1, order = 1} : (!x) -> !x
    %f = "pw.launch"(%b) {callee = @f, slice = @s1, order = 2} : (!x) -> !x
    return %e, %f, %d : !x, !x, tensor<f32>
  }
  func.func private @f(%x: !x) -> !x {
    return %x : !x
  }
  func.func private @g(%x: tensor<f32>) -> tensor<f32> {
    return %x : tensor<f32>
  }
}

// -----

// Values on one channel arrive in the order in which they are sent; the receiver wants them the other
// way round.

// CHECK: 'pw.launch' op deadlock: the order has a cycle
// CHECK-NEXT: launch of @f on @s1 (order 0) waits for receive on @s1 from channel @c0 (sent with order 1): it reads its result
// CHECK-NEXT: receive on @s1 from channel @c0 (sent with order 1) waits for receive on @s1 from channel @c0 (sent with order 0): channel @c0 delivers in the order of sending
// CHECK-NEXT: receive on @s1 from channel @c0 (sent with order 0) waits for launch of @f on @s1 (order 0): @s1 runs in this order

!x = tensor<4xf32>
module @channel_order attributes {pw.form = "ordered"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  "pw.slice"() {sym_name = "s1", mesh = @mesh} : () -> ()
  "pw.channel"() {sym_name = "c0", src = @s0, dst = @s1, capacity = 2, value_type = !x} : () -> ()
  func.func @main(%x: !x {pw.slice = @s0}, %y: !x {pw.slice = @s0}) -> (!x {pw.slice = @s1}, !x {pw.slice = @s1}) {
    %a = "pw.transfer"(%x) {slice = @s1, channel = @c0, order = 0} : (!x) -> !x
    %b = "pw.transfer"(%y) {slice = @s1, channel = @c0, order = 1} : (!x) -> !x
    // expected-error@+1 {{deadlock: the order has a cycle}}
    %c = "pw.launch"(%b) {callee = @f, slice = @s1, order = 0} : (!x) -> !x
    %d = "pw.launch"(%a) {callee = @f, slice = @s1, order = 1} : (!x) -> !x
    return %c, %d : !x, !x
  }
  func.func private @f(%x: !x) -> !x {
    return %x : !x
  }
}

// -----

// Order and channel are part of the scheduled form.

!x = tensor<4xf32>
module @no_order attributes {pw.form = "ordered"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  func.func @main(%x: !x {pw.slice = @s0}) -> (!x {pw.slice = @s0}) {
    // expected-error@+1 {{has no `order`, which form 'ordered' requires}}
    %a = "pw.launch"(%x) {callee = @f, slice = @s0} : (!x) -> !x
    return %a : !x
  }
  func.func private @f(%x: !x) -> !x {
    return %x : !x
  }
}

// -----

!x = tensor<4xf32>
module @no_channel attributes {pw.form = "ordered"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  "pw.slice"() {sym_name = "s1", mesh = @mesh} : () -> ()
  func.func @main(%x: !x {pw.slice = @s0}) -> (!x {pw.slice = @s1}) {
    // expected-error@+1 {{has no `channel`, which form 'ordered' requires}}
    %a = "pw.transfer"(%x) {slice = @s1, order = 0} : (!x) -> !x
    return %a : !x
  }
}

// -----

// Two events of a slice cannot share a position.

!x = tensor<4xf32>
module @same_position attributes {pw.form = "ordered"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  func.func @main(%x: !x {pw.slice = @s0}) -> (!x {pw.slice = @s0}) {
    %a = "pw.launch"(%x) {callee = @f, slice = @s0, order = 0} : (!x) -> !x
    // expected-error@+1 {{has order 0 on @s0, which the launch of @f has too}}
    %b = "pw.launch"(%a) {callee = @f, slice = @s0, order = 0} : (!x) -> !x
    return %b : !x
  }
  func.func private @f(%x: !x) -> !x {
    return %x : !x
  }
}

// -----

// Each slice sends two values before it reads any, over channels with room for one. A single value each would
// pass, as in the first case; so would these with room for two.

// CHECK: 'pw.transfer' op deadlock: the order has a cycle
// CHECK-NEXT: send from @s0 to @s1 (order 1) waits for receive on @s1 from channel @c0 (sent with order 0): channel @c0 holds 1 and is full until then
// CHECK-NEXT: receive on @s1 from channel @c0 (sent with order 0) waits for send from @s1 to @s0 (order 1): @s1 runs in this order
// CHECK-NEXT: send from @s1 to @s0 (order 1) waits for receive on @s0 from channel @c1 (sent with order 0): channel @c1 holds 1 and is full until then
// CHECK-NEXT: receive on @s0 from channel @c1 (sent with order 0) waits for send from @s0 to @s1 (order 1): @s0 runs in this order

!x = tensor<4xf32>
module @both_send_first attributes {pw.form = "ordered"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  "pw.slice"() {sym_name = "s1", mesh = @mesh} : () -> ()
  "pw.channel"() {sym_name = "c0", src = @s0, dst = @s1, capacity = 1, value_type = !x} : () -> ()
  "pw.channel"() {sym_name = "c1", src = @s1, dst = @s0, capacity = 1, value_type = !x} : () -> ()
  func.func @main(%x: !x {pw.slice = @s0}, %y: !x {pw.slice = @s0}, %v: !x {pw.slice = @s1}, %w: !x {pw.slice = @s1}) -> (!x {pw.slice = @s1}, !x {pw.slice = @s0}) {
    %a = "pw.transfer"(%x) {slice = @s1, channel = @c0, order = 0} : (!x) -> !x
    // expected-error@+1 {{deadlock: the order has a cycle}}
    %b = "pw.transfer"(%y) {slice = @s1, channel = @c0, order = 1} : (!x) -> !x
    %c = "pw.transfer"(%v) {slice = @s0, channel = @c1, order = 0} : (!x) -> !x
    %d = "pw.transfer"(%w) {slice = @s0, channel = @c1, order = 1} : (!x) -> !x
    %e = "pw.launch"(%a) {callee = @f, slice = @s1, order = 2} : (!x) -> !x
    %f = "pw.launch"(%b) {callee = @f, slice = @s1, order = 3} : (!x) -> !x
    %g = "pw.launch"(%c) {callee = @f, slice = @s0, order = 2} : (!x) -> !x
    %h = "pw.launch"(%d) {callee = @f, slice = @s0, order = 3} : (!x) -> !x
    return %f, %h : !x, !x
  }
  func.func private @f(!x) -> !x
}

// -----

// Values are read in the order of sending also if a value that nobody reads stands between them.

// CHECK: 'pw.launch' op deadlock: the order has a cycle
// CHECK-NEXT: launch of @f on @s1 (order 0) waits for receive on @s1 from channel @c0 (sent with order 2): it reads its result
// CHECK-NEXT: receive on @s1 from channel @c0 (sent with order 2) waits for receive on @s1 from channel @c0 (sent with order 1): channel @c0 delivers in the order of sending
// CHECK-NEXT: receive on @s1 from channel @c0 (sent with order 1) waits for receive on @s1 from channel @c0 (sent with order 0): channel @c0 delivers in the order of sending
// CHECK-NEXT: receive on @s1 from channel @c0 (sent with order 0) waits for launch of @f on @s1 (order 0): @s1 runs in this order

!x = tensor<4xf32>
module @unread_between attributes {pw.form = "ordered"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  "pw.slice"() {sym_name = "s1", mesh = @mesh} : () -> ()
  "pw.channel"() {sym_name = "c0", src = @s0, dst = @s1, capacity = 3, value_type = !x} : () -> ()
  func.func @main(%x: !x {pw.slice = @s0}, %y: !x {pw.slice = @s0}, %z: !x {pw.slice = @s0}) -> (!x {pw.slice = @s1}, !x {pw.slice = @s1}, !x {pw.slice = @s1}) {
    %a = "pw.transfer"(%x) {slice = @s1, channel = @c0, order = 0} : (!x) -> !x
    %b = "pw.transfer"(%y) {slice = @s1, channel = @c0, order = 1} : (!x) -> !x
    %c = "pw.transfer"(%z) {slice = @s1, channel = @c0, order = 2} : (!x) -> !x
    // expected-error@+1 {{deadlock: the order has a cycle}}
    %d = "pw.launch"(%c) {callee = @f, slice = @s1, order = 0} : (!x) -> !x
    %e = "pw.launch"(%a) {callee = @f, slice = @s1, order = 1} : (!x) -> !x
    return %b, %d, %e : !x, !x, !x
  }
  func.func private @f(!x) -> !x
}

// -----

// Slices that share devices run in one order. One that could be met by devices of their own cannot be met by these:
// the first slice would hold the devices while it waits for the second.

// CHECK: 'pw.launch' op deadlock: the order has a cycle
// CHECK-NEXT: launch of @f on @s1 (order 1) waits for launch of @f on @s0 (order 0): slices that overlap run in this order
// CHECK-NEXT: launch of @f on @s0 (order 0) waits for receive on @s0 from channel @c0 (sent with order 2): it reads its result
// CHECK-NEXT: receive on @s0 from channel @c0 (sent with order 2) waits for send from @s1 to @s0 (order 2): it receives what is sent
// CHECK-NEXT: send from @s1 to @s0 (order 2) waits for launch of @f on @s1 (order 1): it reads its result

!x = tensor<4xf32>
module @overlap attributes {pw.form = "ordered"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh, overlap} : () -> ()
  "pw.slice"() {sym_name = "s1", mesh = @mesh, overlap} : () -> ()
  "pw.channel"() {sym_name = "c0", src = @s1, dst = @s0, capacity = 1, value_type = !x} : () -> ()
  func.func @main(%x: !x {pw.slice = @s1}) -> (!x {pw.slice = @s0}) {
    // expected-error@+1 {{deadlock: the order has a cycle}}
    %a = "pw.launch"(%x) {callee = @f, slice = @s1, order = 1} : (!x) -> !x
    %b = "pw.transfer"(%a) {slice = @s0, channel = @c0, order = 2} : (!x) -> !x
    %c = "pw.launch"(%b) {callee = @f, slice = @s0, order = 0} : (!x) -> !x
    return %c : !x
  }
  func.func private @f(!x) -> !x
}

// -----

// Their computations have collectives: in which order they reach the devices must not be left open by an order for
// each slice.

!x = tensor<4xf32>
module @overlap_in_two_orders attributes {pw.form = "ordered"} {
  sdy.mesh @mesh = <["x"=2]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh, overlap} : () -> ()
  "pw.slice"() {sym_name = "s1", mesh = @mesh, overlap} : () -> ()
  func.func @main(%x: !x {pw.slice = @s0}, %y: !x {pw.slice = @s1}) -> (!x {pw.slice = @s0}, !x {pw.slice = @s1}) {
    %a = "pw.launch"(%x) {callee = @f, slice = @s0, order = 0} : (!x) -> !x
    // expected-error@+1 {{has order 0 on @s1, which the launch of @f has too}}
    %b = "pw.launch"(%y) {callee = @f, slice = @s1, order = 0} : (!x) -> !x
    return %a, %b : !x, !x
  }
  func.func private @f(!x) -> !x
}
