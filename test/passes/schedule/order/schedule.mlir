// RUN: pw-opt %s --split-input-file --pw-schedule | filecheck %s
// RUN: pw-opt %s --split-input-file -p 'pw-schedule{policy=program}' | filecheck %s

// Every launch and send gets its position on its slice, in the order of the program; a send counts on
// the slice it leaves.

!x = tensor<4xf32>
// CHECK-LABEL: module @positions
module @positions attributes {pw.form = "unrolled"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  "pw.slice"() {sym_name = "s1", mesh = @mesh} : () -> ()
  // CHECK: "pw.channel"() {capacity = 1 : i64, dst = @s1, src = @s0, sym_name = "c0", value_type = tensor<4xf32>}
  func.func @main(%x: !x {pw.slice = @s0}) -> (!x {pw.slice = @s1}) {
    // CHECK: callee = @f, order = 0 : i64, slice = @s0
    %a = "pw.launch"(%x) {callee = @f, slice = @s0} : (!x) -> !x
    // CHECK: "pw.transfer"(%{{.*}}) {channel = @c0, {{.*}}order = 1 : i64, slice = @s1}
    %b = "pw.transfer"(%a) {slice = @s1} : (!x) -> !x
    // CHECK: callee = @f, order = 2 : i64, slice = @s0
    %c = "pw.launch"(%a) {callee = @f, slice = @s0} : (!x) -> !x
    // CHECK: callee = @f, order = 0 : i64, slice = @s1
    %d = "pw.launch"(%b) {callee = @f, slice = @s1} : (!x) -> !x
    return %d : !x
  }
  func.func private @f(%x: !x) -> !x {
    return %x : !x
  }
}

// -----

// Values of one type share a channel while they are read in the order in which they are sent, and its
// capacity is the most of them under way at once. The third is read before the second: it needs a
// channel of its own.

!x = tensor<4xf32>
// CHECK-LABEL: module @channels
module @channels attributes {pw.form = "unrolled"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  "pw.slice"() {sym_name = "s1", mesh = @mesh} : () -> ()
  // CHECK-DAG: "pw.channel"() {capacity = 2 : i64, dst = @s1, src = @s0, sym_name = "c0"
  // CHECK-DAG: "pw.channel"() {capacity = 1 : i64, dst = @s1, src = @s0, sym_name = "c1"
  func.func @main(%x: !x {pw.slice = @s0}, %y: !x {pw.slice = @s0}, %z: !x {pw.slice = @s0}) -> (!x {pw.slice = @s1}) {
    // CHECK: "pw.transfer"(%arg0) {channel = @c0
    %a = "pw.transfer"(%x) {slice = @s1} : (!x) -> !x
    // CHECK: "pw.transfer"(%arg1) {channel = @c0
    %b = "pw.transfer"(%y) {slice = @s1} : (!x) -> !x
    // CHECK: "pw.transfer"(%arg2) {channel = @c1
    %c = "pw.transfer"(%z) {slice = @s1} : (!x) -> !x
    %d = "pw.launch"(%a, %a) {callee = @f, slice = @s1} : (!x, !x) -> !x
    %e = "pw.launch"(%d, %c) {callee = @f, slice = @s1} : (!x, !x) -> !x
    %f = "pw.launch"(%e, %b) {callee = @f, slice = @s1} : (!x, !x) -> !x
    return %f : !x
  }
  func.func private @f(%x: !x, %y: !x) -> !x {
    return %x : !x
  }
}

// -----

// A channel says how its values lie over the slice that receives them; values that lie differently, or pieces
// of another type, take another one.

!x = tensor<8x4xf32>
!half = tensor<4x4xf32>
// CHECK-LABEL: module @sharded
module @sharded attributes {pw.form = "unrolled"} {
  sdy.mesh @mesh = <["x"=2]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  "pw.slice"() {sym_name = "s1", mesh = @mesh} : () -> ()
  // CHECK: "pw.channel"() {capacity = 1 : i64, dst = @s1, sharding = #sdy.sharding<@mesh, [{"x"}, {}]>, src = @s0, sym_name = "c0", value_type = tensor<8x4xf32>}
  // CHECK: "pw.channel"() {capacity = 1 : i64, dst = @s1, sharding = #sdy.sharding<@mesh, [{}, {"x"}]>, src = @s0, sym_name = "c1", value_type = tensor<8x4xf32>}
  // CHECK: "pw.channel"() {capacity = 1 : i64, dst = @s1, sharding = #sdy.sharding<@mesh, [{"x"}, {}]>, src = @s0, sym_name = "c2", value_type = tensor<4x4xf32>}
  func.func @main(
      %x: !x {pw.slice = @s0, sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>},
      %y: !x {pw.slice = @s0, sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>})
      -> (!x {pw.slice = @s1}, !x {pw.slice = @s1}, !half {pw.slice = @s1}, !half {pw.slice = @s1}) {
    // CHECK: "pw.transfer"(%arg0) {channel = @c0, {{.*}}order = 0
    %0 = "pw.transfer"(%x) {sharding = #sdy.sharding<@mesh, [{"x"}, {}]>, slice = @s1} : (!x) -> !x
    // CHECK: "pw.transfer"(%arg1) {channel = @c1, {{.*}}order = 1
    %1 = "pw.transfer"(%y) {sharding = #sdy.sharding<@mesh, [{}, {"x"}]>, slice = @s1} : (!x) -> !x
    // CHECK: "pw.transfer"(%arg0) {channel = @c2, {{.*}}order = 2
    %2:2 = "pw.transfer"(%x) {routes = array<i64: 0, 0, 0, 1, 0, 0, 0, 1>, sharding = #sdy.sharding<@mesh, [{"x"}, {}]>, slice = @s1} : (!x) -> (!half, !half)
    return %0, %1, %2#0, %2#1 : !x, !x, !half, !half
  }
}

// -----

// What is sent on, or joined with others, is read by that: @s1 needs what is sent last first, so it has a channel of
// its own, and so has what the mirror joins.

!x = tensor<4xf32>
// CHECK-LABEL: module @sent_on
module @sent_on attributes {pw.form = "unrolled"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  "pw.slice"() {sym_name = "s1", mesh = @mesh} : () -> ()
  "pw.slice"() {sym_name = "s2", mesh = @mesh} : () -> ()
  func.func @main(%x: !x {pw.slice = @s0}, %y: !x {pw.slice = @s0}, %z: !x {pw.slice = @s0}, %w: !x {pw.slice = @s2}) -> (!x {pw.slice = @s2}, !x {pw.slice = @s1}, !x {pw.slice = @s1}) {
    // CHECK: %[[A:.*]] = "pw.transfer"(%arg0) {channel = @c0, order = 0
    %a = "pw.transfer"(%x) {slice = @s1} : (!x) -> !x
    // CHECK: %[[B:.*]] = "pw.transfer"(%arg1) {channel = @c1, order = 1
    %b = "pw.transfer"(%y) {slice = @s1} : (!x) -> !x
    // CHECK: %[[C:.*]] = "pw.transfer"(%arg2) {channel = @c2, order = 2
    %c = "pw.transfer"(%z) {slice = @s1} : (!x) -> !x
    %m = "pw.mirror"(%c, %w) : (!x, !x) -> !x
    %e = "pw.launch"(%m) {callee = @f, slice = @s1} : (!x) -> !x
    // CHECK: "pw.transfer"(%[[B]]) {channel = @c3, order = 1
    %d = "pw.transfer"(%b) {slice = @s2} : (!x) -> !x
    %f = "pw.launch"(%a) {callee = @f, slice = @s1} : (!x) -> !x
    return %d, %e, %f : !x, !x, !x
  }
  func.func private @f(%x: !x) -> !x {
    return %x : !x
  }
}
