// RUN: pw-opt %s --split-input-file --verify-diagnostics
// RUN: not pw-opt %s --split-input-file 2>&1 | filecheck %s

// Each host receives before it sends what the other waits for. The proof goes across the functions.

// CHECK: 'pw.recv' op deadlock: the order has a cycle
// CHECK-NEXT: receive of transfer 1 on @s0 (order 0 of host 0) waits for send of transfer 1 on @s1 (order 2 of host 1): it receives what is sent
// CHECK-NEXT: send of transfer 1 on @s1 (order 2 of host 1) waits for launch of @f on @s1 (order 1 of host 1): host 1 does this in this order
// CHECK-NEXT: launch of @f on @s1 (order 1 of host 1) waits for receive of transfer 0 on @s1 (order 0 of host 1): host 1 does this in this order
// CHECK-NEXT: receive of transfer 0 on @s1 (order 0 of host 1) waits for send of transfer 0 on @s0 (order 2 of host 0): it receives what is sent
// CHECK-NEXT: send of transfer 0 on @s0 (order 2 of host 0) waits for launch of @f on @s0 (order 1 of host 0): host 0 does this in this order
// CHECK-NEXT: launch of @f on @s0 (order 1 of host 0) waits for receive of transfer 1 on @s0 (order 0 of host 0): host 0 does this in this order

!x = tensor<4xf32>
module @each_waits_for_the_other attributes {pw.form = "host"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh, host = 0} : () -> ()
  "pw.slice"() {sym_name = "s1", mesh = @mesh, host = 1} : () -> ()
  "pw.channel"() {sym_name = "c0", src = @s0, dst = @s1, capacity = 1, value_type = !x} : () -> ()
  "pw.channel"() {sym_name = "c1", src = @s1, dst = @s0, capacity = 1, value_type = !x} : () -> ()
  func.func @host_0() attributes {pw.host = 0} {
    // expected-error@below {{deadlock: the order has a cycle}}
    %a = "pw.recv"() {channel = @c1, index = 1, order = 0, slice = @s0} : () -> !x
    %b = "pw.launch"(%a) {callee = @f, order = 1, slice = @s0} : (!x) -> !x
    "pw.send"(%b) {channel = @c0, index = 0, order = 2, slice = @s0} : (!x) -> ()
    return
  }
  func.func @host_1() attributes {pw.host = 1} {
    %a = "pw.recv"() {channel = @c0, index = 0, order = 0, slice = @s1} : () -> !x
    %b = "pw.launch"(%a) {callee = @f, order = 1, slice = @s1} : (!x) -> !x
    "pw.send"(%b) {channel = @c1, index = 1, order = 2, slice = @s1} : (!x) -> ()
    return
  }
  func.func private @f(!x) -> !x
}

// -----

// On one device queue, a launch that waits for a receipt holds up the launch behind it, whose result the other
// host waits for, although nobody waits when the steps are issued.

!x = tensor<4xf32>
module @held_up attributes {pw.form = "host"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh, host = 0} : () -> ()
  "pw.slice"() {sym_name = "s1", mesh = @mesh, host = 1} : () -> ()
  "pw.channel"() {sym_name = "c0", src = @s0, dst = @s1, capacity = 1, value_type = !x} : () -> ()
  "pw.channel"() {sym_name = "c1", src = @s1, dst = @s0, capacity = 1, value_type = !x} : () -> ()
  func.func @host_0(%x: !x {pw.slice = @s0, pw.number = 0}) attributes {pw.host = 0} {
    // expected-error@below {{deadlock: the order has a cycle}}
    %a = "pw.recv"() {channel = @c1, index = 1, order = 0, slice = @s0} : () -> !x
    %b = "pw.launch"(%a) {callee = @f, order = 1, slice = @s0} : (!x) -> !x
    %c = "pw.launch"(%x) {callee = @f, order = 2, slice = @s0} : (!x) -> !x
    "pw.send"(%c) {channel = @c0, index = 0, order = 3, slice = @s0} : (!x) -> ()
    return
  }
  func.func @host_1() attributes {pw.host = 1} {
    %a = "pw.recv"() {channel = @c0, index = 0, order = 0, slice = @s1} : () -> !x
    "pw.send"(%a) {channel = @c1, index = 1, order = 1, slice = @s1} : (!x) -> ()
    return
  }
  func.func private @f(!x) -> !x
}
