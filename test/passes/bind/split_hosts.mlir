// RUN: pw-opt %s --split-input-file -p 'pw-split-hosts' | filecheck %s

// Each host gets a function with what runs on its slices, in an order of its own; a transfer to another host is
// a send here and a receive there. What is sent is released at the end.

// CHECK-LABEL: module @whole attributes {pw.form = "host"}
// CHECK: "pw.channel"() {capacity = 1 : i64, dst = @s1, src = @s0, sym_name = "c0"
// CHECK: func.func public @host_0(%[[W:.*]]: tensor<4xf32> {pw.donated, pw.number = 0 : i64, pw.slice = @s0})
// CHECK-SAME: -> (tensor<4xf32> {pw.number = 1 : i64, pw.slice = @s0})
// CHECK-SAME: attributes {pw.host = 0 : i64}
// CHECK-NEXT: %[[A:.*]] = "pw.launch"(%[[W]]) {callee = @f, order = 0 : i64, slice = @s0}
// CHECK-NEXT: "pw.send"(%[[A]]) {channel = @c0, index = 0 : i64, order = 1 : i64, slice = @s0} : (tensor<4xf32>) -> ()
// CHECK-NEXT: %[[B:.*]] = "pw.launch"(%[[W]]) {callee = @f, order = 2 : i64, slice = @s0}
// CHECK-NEXT: "pw.release"(%[[W]])
// CHECK-NEXT: %[[D:.*]] = "pw.launch"(%[[B]]) {callee = @f, order = 3 : i64, slice = @s0}
// CHECK-NEXT: "pw.release"(%[[B]])
// CHECK-NEXT: "pw.release"(%[[A]])
// CHECK-NEXT: return %[[D]]
// CHECK: func.func public @host_1(%[[V:.*]]: tensor<4xf32> {pw.number = 1 : i64, pw.slice = @s1})
// CHECK-SAME: -> (tensor<4xf32> {pw.number = 0 : i64, pw.slice = @s1})
// CHECK-SAME: attributes {pw.host = 1 : i64}
// CHECK-NEXT: %[[R:.*]] = "pw.recv"() {channel = @c0, index = 0 : i64, order = 0 : i64, slice = @s1} : () -> tensor<4xf32>
// CHECK-NEXT: %[[C:.*]] = "pw.launch"(%[[R]], %[[V]]) {callee = @g, order = 1 : i64, slice = @s1}
// CHECK-NEXT: "pw.release"(%[[R]])
// CHECK-NEXT: return %[[C]]
// CHECK-NOT: @main

!x = tensor<4xf32>
module @whole attributes {pw.form = "bound"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh, host = 0} : () -> ()
  "pw.slice"() {sym_name = "s1", mesh = @mesh, host = 1} : () -> ()
  "pw.channel"() {sym_name = "c0", src = @s0, dst = @s1, capacity = 1, value_type = !x} : () -> ()
  func.func @main(%w: !x {pw.slice = @s0, pw.donated}, %v: !x {pw.slice = @s1}) -> (!x {pw.slice = @s1}, !x {pw.slice = @s0}) {
    %a = "pw.launch"(%w) {callee = @f, slice = @s0, order = 0} : (!x) -> !x
    %t = "pw.transfer"(%a) {slice = @s1, channel = @c0, order = 1} : (!x) -> !x
    "pw.release"(%a) : (!x) -> ()
    %b = "pw.launch"(%w) {callee = @f, slice = @s0, order = 2} : (!x) -> !x
    "pw.release"(%w) : (!x) -> ()
    %c = "pw.launch"(%t, %v) {callee = @g, slice = @s1, order = 0} : (!x, !x) -> !x
    "pw.release"(%t) : (!x) -> ()
    %d = "pw.launch"(%b) {callee = @f, slice = @s0, order = 3} : (!x) -> !x
    "pw.release"(%b) : (!x) -> ()
    return %c, %d : !x, !x
  }
  func.func private @f(!x) -> !x
  func.func private @g(!x, !x) -> !x
}

// -----

// Pieces between unlike meshes are sent and received together; both ends know the routes.

// CHECK-LABEL: module @pieces
// CHECK: func.func public @host_0(%[[P:.*]]: tensor<4xf32> {{.*}}, %[[Q:.*]]: tensor<4xf32> {{.*}})
// CHECK-NEXT: "pw.send"(%[[P]], %[[Q]]) {channel = @c0, index = 0 : i64, order = 0 : i64, routes = array<i64: 0, 0, 1, 1>, slice = @s0}
// CHECK: func.func public @host_1() -> (tensor<8xf32> {{.*}})
// CHECK-NEXT: %[[R:.*]] = "pw.recv"() {channel = @c0, index = 0 : i64, order = 0 : i64, routes = array<i64: 0, 0, 1, 1>, sharding = #sdy.sharding<@two, [{"x"}]>, slice = @s1}
// CHECK-NEXT: return %[[R]]

module @pieces attributes {pw.form = "bound"} {
  sdy.mesh @four = <["y"=4]>
  sdy.mesh @two = <["x"=2]>
  "pw.slice"() {sym_name = "s0", mesh = @four, host = 0} : () -> ()
  "pw.slice"() {sym_name = "s1", mesh = @two, host = 1} : () -> ()
  "pw.constant"() {sym_name = "k", value = dense<0.0> : tensor<4xf32>} : () -> ()
  "pw.channel"() {sym_name = "c0", src = @s0, dst = @s1, capacity = 1, value_type = tensor<8xf32>, sharding = #sdy.sharding<@two, [{"x"}]>} : () -> ()
  func.func @main(%p: tensor<4xf32> {pw.slice = @s0, pw.constant = @k}, %q: tensor<4xf32> {pw.slice = @s0, pw.constant = @k}) -> (tensor<8xf32> {pw.slice = @s1, sdy.sharding = #sdy.sharding<@two, [{"x"}]>}) {
    %t = "pw.transfer"(%p, %q) {slice = @s1, channel = @c0, order = 0, routes = array<i64: 0, 0, 1, 1>, sharding = #sdy.sharding<@two, [{"x"}]>} : (tensor<4xf32>, tensor<4xf32>) -> tensor<8xf32>
    return %t : tensor<8xf32>
  }
}

// -----

// Each host that reads a mirrored argument takes it, and each that has a copy of a mirrored result returns it. A host
// without work, @s3's, has no function.

// CHECK-LABEL: module @mirrored
// CHECK: func.func public @host_0(%[[K:.*]]: tensor<4xf32> {pw.number = 0 : i64, pw.slice = [@s0, @s1]})
// CHECK-SAME: -> (tensor<4xf32> {pw.number = 0 : i64, pw.slice = [@s0, @s1]})
// CHECK-NEXT: %[[A:.*]] = "pw.launch"(%[[K]]) {callee = @f, order = 0 : i64, slice = @s0}
// CHECK-NEXT: %[[B:.*]] = "pw.launch"(%[[K]]) {callee = @f, order = 1 : i64, slice = @s1}
// CHECK-NEXT: %[[M:.*]] = "pw.mirror"(%[[A]], %[[B]])
// CHECK-NEXT: return %[[M]]
// CHECK: func.func public @host_1(%[[L:.*]]: tensor<4xf32> {pw.number = 0 : i64, pw.slice = @s2})
// CHECK-SAME: -> (tensor<4xf32> {pw.number = 0 : i64, pw.slice = @s2})
// CHECK-NEXT: %[[C:.*]] = "pw.launch"(%[[L]]) {callee = @f, order = 0 : i64, slice = @s2}
// CHECK-NEXT: return %[[C]]
// CHECK-NOT: @host_2

!x = tensor<4xf32>
module @mirrored attributes {pw.form = "bound"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh, host = 0} : () -> ()
  "pw.slice"() {sym_name = "s1", mesh = @mesh, host = 0} : () -> ()
  "pw.slice"() {sym_name = "s2", mesh = @mesh, host = 1} : () -> ()
  "pw.slice"() {sym_name = "s3", mesh = @mesh, host = 2} : () -> ()
  func.func @main(%k: !x {pw.slice = [@s0, @s1, @s2, @s3]}) -> (!x {pw.slice = [@s0, @s1, @s2]}) {
    %a = "pw.launch"(%k) {callee = @f, slice = @s0, order = 0} : (!x) -> !x
    %b = "pw.launch"(%k) {callee = @f, slice = @s1, order = 0} : (!x) -> !x
    %c = "pw.launch"(%k) {callee = @f, slice = @s2, order = 0} : (!x) -> !x
    %m = "pw.mirror"(%a, %b, %c) : (!x, !x, !x) -> !x
    return %m : !x
  }
  func.func private @f(!x) -> !x
}

// -----

// Two slices of one host: what moves between them stays a transfer, in the one order of the host.

// CHECK-LABEL: module @several_slices
// CHECK: func.func public @host_0(
// CHECK-NEXT: %[[A:.*]] = "pw.launch"({{.*}}) {callee = @f, order = 0 : i64, slice = @s0}
// CHECK-NEXT: %[[T:.*]] = "pw.transfer"(%[[A]]) {channel = @c0, order = 1 : i64, slice = @s1}
// CHECK-NEXT: %[[B:.*]] = "pw.launch"(%[[T]]) {callee = @f, order = 2 : i64, slice = @s1}
// CHECK-NEXT: "pw.send"(%[[B]]) {channel = @c1, copy, index = 0 : i64, order = 3 : i64, slice = @s1}
// CHECK: func.func public @host_1(

!x = tensor<4xf32>
module @several_slices attributes {pw.form = "bound"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh, host = 0} : () -> ()
  "pw.slice"() {sym_name = "s1", mesh = @mesh, host = 0} : () -> ()
  "pw.slice"() {sym_name = "s2", mesh = @mesh, host = 1} : () -> ()
  "pw.channel"() {sym_name = "c0", src = @s0, dst = @s1, capacity = 1, value_type = !x} : () -> ()
  "pw.channel"() {sym_name = "c1", src = @s1, dst = @s2, capacity = 1, value_type = !x} : () -> ()
  func.func @main(%x: !x {pw.slice = @s0}) -> (!x {pw.slice = @s1}, !x {pw.slice = @s2}) {
    %a = "pw.launch"(%x) {callee = @f, slice = @s0, order = 0} : (!x) -> !x
    %t = "pw.transfer"(%a) {slice = @s1, channel = @c0, order = 1} : (!x) -> !x
    %b = "pw.launch"(%t) {callee = @f, slice = @s1, order = 0} : (!x) -> !x
    %u = "pw.transfer"(%b) {slice = @s2, channel = @c1, order = 1} : (!x) -> !x
    return %b, %u : !x, !x
  }
  func.func private @f(!x) -> !x
}

// -----

// A copy is sent of what the caller keeps, of what is returned, and of what a launch takes; not of what the program
// owns to the end, and not of a constant.

// CHECK-LABEL: module @copies
// CHECK: func.func public @host_0(%[[KEPT:.*]]: tensor<4xf32> {pw.number = 0 {{.*}}}, %[[GIVEN:.*]]: tensor<4xf32> {pw.donated, {{.*}}}, %[[TAKEN:.*]]: tensor<4xf32> {pw.donated, {{.*}}}, %[[CONSTANT:.*]]: tensor<4xf32> {pw.constant = @k
// CHECK: "pw.send"(%[[KEPT]]) {channel = @c0, copy, index = 0
// CHECK: "pw.send"(%[[GIVEN]]) {channel = @c0, index = 1
// CHECK: "pw.send"(%[[TAKEN]]) {channel = @c0, copy, index = 2
// CHECK: "pw.send"(%[[CONSTANT]]) {channel = @c0, index = 3
// CHECK: %[[A:.*]] = "pw.launch"(%[[TAKEN]]) {callee = @takes
// CHECK: "pw.send"(%[[A]]) {channel = @c0, copy, index = 4
// CHECK-NEXT: "pw.release"(%[[GIVEN]])
// CHECK-NEXT: return %[[A]]
// CHECK: func.func public @host_1(

!x = tensor<4xf32>
module @copies attributes {pw.form = "bound"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh, host = 0} : () -> ()
  "pw.slice"() {sym_name = "s1", mesh = @mesh, host = 1} : () -> ()
  "pw.constant"() {sym_name = "k", value = dense<0.0> : !x} : () -> ()
  "pw.channel"() {sym_name = "c0", src = @s0, dst = @s1, capacity = 5, value_type = !x} : () -> ()
  func.func @main(%kept: !x {pw.slice = @s0}, %given: !x {pw.slice = @s0, pw.donated}, %taken: !x {pw.slice = @s0, pw.donated}, %k: !x {pw.slice = @s0, pw.constant = @k}) -> (!x {pw.slice = @s0}) {
    %0 = "pw.transfer"(%kept) {slice = @s1, channel = @c0, order = 0} : (!x) -> !x
    %1 = "pw.transfer"(%given) {slice = @s1, channel = @c0, order = 1} : (!x) -> !x
    %2 = "pw.transfer"(%taken) {slice = @s1, channel = @c0, order = 2} : (!x) -> !x
    %3 = "pw.transfer"(%k) {slice = @s1, channel = @c0, order = 3} : (!x) -> !x
    "pw.release"(%given) : (!x) -> ()
    %a = "pw.launch"(%taken) {callee = @takes, slice = @s0, order = 4} : (!x) -> !x
    %4 = "pw.transfer"(%a) {slice = @s1, channel = @c0, order = 5} : (!x) -> !x
    "pw.release"(%0, %1, %2, %3, %4) : (!x, !x, !x, !x, !x) -> ()
    return %a : !x
  }
  func.func private @takes(!x {tf.aliasing_output = 0 : i32}) -> !x
}

// -----

// Arguments of callers have the numbers that callers know them by, wherever constants are among them.

// CHECK-LABEL: module @constant_first
// CHECK: func.func public @host_0(%{{.*}}: tensor<4xf32> {pw.constant = @k, pw.number = 2 : i64, pw.slice = @s0}, %{{.*}}: tensor<4xf32> {pw.number = 0 : i64, pw.slice = @s0})
// CHECK: func.func public @host_1(%{{.*}}: tensor<4xf32> {pw.number = 1 : i64, pw.slice = @s1})

!x = tensor<4xf32>
module @constant_first attributes {pw.form = "bound"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh, host = 0} : () -> ()
  "pw.slice"() {sym_name = "s1", mesh = @mesh, host = 1} : () -> ()
  "pw.constant"() {sym_name = "k", value = dense<0.0> : !x} : () -> ()
  func.func @main(%k: !x {pw.slice = @s0, pw.constant = @k}, %x: !x {pw.slice = @s0}, %y: !x {pw.slice = @s1}) -> (!x {pw.slice = @s0}, !x {pw.slice = @s1}) {
    %a = "pw.launch"(%k, %x) {callee = @f, slice = @s0, order = 0} : (!x, !x) -> !x
    return %a, %y : !x, !x
  }
  func.func private @f(!x, !x) -> !x
}
