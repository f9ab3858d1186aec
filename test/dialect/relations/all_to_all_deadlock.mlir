// RUN: pw-opt %s --split-input-file --verify-diagnostics
// RUN: not pw-opt %s --split-input-file 2>&1 | filecheck %s

// A slice reads what it receives before it sends its own blocks, for which the other one waits.

// CHECK: 'pw.all_to_all' op deadlock: the order has a cycle
// CHECK-NEXT: exchange of blocks on @s0 (order 1) waits for launch of @f on @s0 (order 0): @s0 runs in this order
// CHECK-NEXT: launch of @f on @s0 (order 0) waits for exchange of blocks on @s0 (order 1): it reads its result

!x = tensor<2x4xf32>
module @reads_before_it_sends attributes {pw.form = "ordered"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {mesh = @mesh, sym_name = "s0"} : () -> ()
  "pw.slice"() {mesh = @mesh, sym_name = "s1"} : () -> ()
  func.func public @main(%x: !x {pw.slice = @s0}, %y: !x {pw.slice = @s1}) -> (!x {pw.slice = @s0}) {
    // expected-error@below {{deadlock: the order has a cycle}}
    %0:2 = "pw.all_to_all"(%x, %y) {orders = array<i64: 1, 0>, slices = [@s0, @s1]} : (!x, !x) -> (!x, !x)
    %1 = "pw.launch"(%0#0) {callee = @f, order = 0, slice = @s0} : (!x) -> !x
    return %1 : !x
  }
  func.func private @f(%x: !x) -> !x {
    return %x : !x
  }
}

// -----

// Each slice sends the blocks of another exchange first, and reads what it received from that before it goes on.

// CHECK: deadlock: the order has a cycle

!x = tensor<2x4xf32>
module @two_exchanges_in_two_orders attributes {pw.form = "ordered"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {mesh = @mesh, sym_name = "s0"} : () -> ()
  "pw.slice"() {mesh = @mesh, sym_name = "s1"} : () -> ()
  func.func public @main(%x: !x {pw.slice = @s0}, %y: !x {pw.slice = @s1}) -> (!x {pw.slice = @s0}, !x {pw.slice = @s1}) {
    // expected-error@below {{deadlock: the order has a cycle}}
    %0:2 = "pw.all_to_all"(%x, %y) {orders = array<i64: 0, 2>, slices = [@s0, @s1]} : (!x, !x) -> (!x, !x)
    %1:2 = "pw.all_to_all"(%x, %y) {orders = array<i64: 2, 0>, slices = [@s0, @s1]} : (!x, !x) -> (!x, !x)
    %2 = "pw.launch"(%0#0) {callee = @f, order = 1, slice = @s0} : (!x) -> !x
    %3 = "pw.launch"(%1#1) {callee = @f, order = 1, slice = @s1} : (!x) -> !x
    return %2, %3 : !x, !x
  }
  func.func private @f(%x: !x) -> !x {
    return %x : !x
  }
}

// -----

// Every transfer happens, whatever the blocks hold: if a host skipped an empty block, the other one would wait for it.

// CHECK: 'pw.recv' op receives transfer 1, which no pw.send sends

!x = tensor<1x4xf32>
module @two_hosts_of_which_one_skips_a_block attributes {pw.form = "host"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {host = 0, mesh = @mesh, sym_name = "s0"} : () -> ()
  "pw.slice"() {host = 1, mesh = @mesh, sym_name = "s1"} : () -> ()
  "pw.channel"() {capacity = 1, dst = @s1, src = @s0, sym_name = "c0", value_type = !x} : () -> ()
  "pw.channel"() {capacity = 1, dst = @s0, src = @s1, sym_name = "c1", value_type = !x} : () -> ()
  func.func @host_0(%x: !x {pw.number = 0, pw.slice = @s0}) attributes {pw.host = 0} {
    "pw.send"(%x) {channel = @c0, copy, index = 0, order = 0, slice = @s0} : (!x) -> ()
    // expected-error@below {{receives transfer 1, which no pw.send sends}}
    %0 = "pw.recv"() {channel = @c1, index = 1, order = 1, slice = @s0} : () -> !x
    "pw.launch"(%0) {callee = @f, order = 2, slice = @s0} : (!x) -> !x
    return
  }
  func.func @host_1(%y: !x {pw.number = 1, pw.slice = @s1}) attributes {pw.host = 1} {
    %0 = "pw.recv"() {channel = @c0, index = 0, order = 0, slice = @s1} : () -> !x
    "pw.launch"(%0) {callee = @f, order = 1, slice = @s1} : (!x) -> !x
    return
  }
  func.func private @f(!x) -> !x
}

// -----

// The same in a ring of three: only the block from @s2 to @s0 is missing.

// CHECK: 'pw.recv' op receives transfer 2, which no pw.send sends

!x = tensor<1x4xf32>
module @three_hosts_of_which_one_skips_a_block attributes {pw.form = "host"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {host = 0, mesh = @mesh, sym_name = "s0"} : () -> ()
  "pw.slice"() {host = 1, mesh = @mesh, sym_name = "s1"} : () -> ()
  "pw.slice"() {host = 2, mesh = @mesh, sym_name = "s2"} : () -> ()
  "pw.channel"() {capacity = 1, dst = @s1, src = @s0, sym_name = "c0", value_type = !x} : () -> ()
  "pw.channel"() {capacity = 1, dst = @s2, src = @s1, sym_name = "c1", value_type = !x} : () -> ()
  "pw.channel"() {capacity = 1, dst = @s0, src = @s2, sym_name = "c2", value_type = !x} : () -> ()
  func.func @host_0(%x: !x {pw.number = 0, pw.slice = @s0}) attributes {pw.host = 0} {
    "pw.send"(%x) {channel = @c0, copy, index = 0, order = 0, slice = @s0} : (!x) -> ()
    // expected-error@below {{receives transfer 2, which no pw.send sends}}
    %0 = "pw.recv"() {channel = @c2, index = 2, order = 1, slice = @s0} : () -> !x
    return
  }
  func.func @host_1(%x: !x {pw.number = 1, pw.slice = @s1}) attributes {pw.host = 1} {
    "pw.send"(%x) {channel = @c1, copy, index = 1, order = 0, slice = @s1} : (!x) -> ()
    %0 = "pw.recv"() {channel = @c0, index = 0, order = 1, slice = @s1} : () -> !x
    return
  }
  func.func @host_2(%x: !x {pw.number = 2, pw.slice = @s2}) attributes {pw.host = 2} {
    %0 = "pw.recv"() {channel = @c1, index = 1, order = 0, slice = @s2} : () -> !x
    return
  }
}
