// RUN: pw-opt %s --split-input-file -p pw-lower-all-to-alls | filecheck %s
// RUN: pw-opt %s --split-input-file -p pw-lower-all-to-alls,pw-accumulate,pw-fuse-launches,pw-plan-memory,pw-verify-schedule | filecheck %s --check-prefix=WHOLE

// The blocks of a slice leave at the position of the exchange on it; those that it receives are joined right in
// front of their first reader, here one launch later on @s1.
// CHECK-LABEL: module @two_slices
// CHECK: %[[C0:.*]]:2 = "pw.launch"(%{{.*}}) {callee = @cut_blocks, order = 1 : i64, slice = @s0} : (tensor<2x4xf32>) -> (tensor<1x4xf32>, tensor<1x4xf32>)
// CHECK: %[[C1:.*]]:2 = "pw.launch"(%{{.*}}) {callee = @cut_blocks, order = 1 : i64, slice = @s1}
// CHECK: %[[T1:.*]] = "pw.transfer"(%[[C0]]#1) {channel = @c0, order = 2 : i64, slice = @s1}
// CHECK: %[[T0:.*]] = "pw.transfer"(%[[C1]]#0) {channel = @c1, order = 2 : i64, slice = @s0}
// CHECK: %[[J0:.*]] = "pw.launch"(%[[C0]]#0, %[[T0]]) {callee = @join_blocks, order = 3 : i64, slice = @s0}
// CHECK: "pw.launch"(%[[J0]]) {callee = @f, order = 4 : i64, slice = @s0}
// CHECK: %[[A:.*]] = "pw.launch"(%{{.*}}) {callee = @f, order = 3 : i64, slice = @s1}
// CHECK: %[[J1:.*]] = "pw.launch"(%[[T1]], %[[C1]]#1) {callee = @join_blocks, order = 4 : i64, slice = @s1}
// CHECK: "pw.launch"(%[[J1]]) {callee = @f, order = 5 : i64, slice = @s1}

// Cutting becomes part of the launch that computes the blocks, joining of the launch that reads them.
// WHOLE-LABEL: module @two_slices
// WHOLE-NOT: all_to_all
// WHOLE-COUNT-2: "pw.transfer"
module @two_slices attributes {pw.form = "ordered"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {mesh = @mesh, sym_name = "s0"} : () -> ()
  "pw.slice"() {mesh = @mesh, sym_name = "s1"} : () -> ()
  func.func public @main(%x: tensor<2x4xf32> {pw.slice = @s0}, %y: tensor<2x4xf32> {pw.slice = @s1})
      -> (tensor<2x4xf32> {pw.slice = @s0}, tensor<2x4xf32> {pw.slice = @s1}, tensor<2x4xf32> {pw.slice = @s1}) {
    %0 = "pw.launch"(%x) {callee = @f, order = 0 : i64, slice = @s0} : (tensor<2x4xf32>) -> tensor<2x4xf32>
    %1 = "pw.launch"(%y) {callee = @f, order = 0 : i64, slice = @s1} : (tensor<2x4xf32>) -> tensor<2x4xf32>
    %2:2 = "pw.all_to_all"(%0, %1) {orders = array<i64: 1, 1>, slices = [@s0, @s1]}
        : (tensor<2x4xf32>, tensor<2x4xf32>) -> (tensor<2x4xf32>, tensor<2x4xf32>)
    %3 = "pw.launch"(%2#0) {callee = @f, order = 2 : i64, slice = @s0} : (tensor<2x4xf32>) -> tensor<2x4xf32>
    %4 = "pw.launch"(%y) {callee = @f, order = 2 : i64, slice = @s1} : (tensor<2x4xf32>) -> tensor<2x4xf32>
    %5 = "pw.launch"(%2#1) {callee = @f, order = 3 : i64, slice = @s1} : (tensor<2x4xf32>) -> tensor<2x4xf32>
    return %3, %4, %5 : tensor<2x4xf32>, tensor<2x4xf32>, tensor<2x4xf32>
  }
  func.func private @f(%x: tensor<2x4xf32>) -> tensor<2x4xf32> {
    %0 = stablehlo.tanh %x : tensor<2x4xf32>
    return %0 : tensor<2x4xf32>
  }
}

// -----

// Each slice sends to the next one first, then to the one after that: none receives from all others at once.
// Results that are only returned are joined at the end.
// CHECK-LABEL: module @three_slices
// CHECK-DAG: "pw.transfer"(%[[C0:.*]]#1) {channel = @{{.*}}, order = 1 : i64, slice = @s1}
// CHECK-DAG: "pw.transfer"(%[[C0]]#2) {channel = @{{.*}}, order = 2 : i64, slice = @s2}
// CHECK-DAG: "pw.transfer"(%[[C1:.*]]#2) {channel = @{{.*}}, order = 1 : i64, slice = @s2}
// CHECK-DAG: "pw.transfer"(%[[C1]]#0) {channel = @{{.*}}, order = 2 : i64, slice = @s0}
// CHECK-DAG: "pw.transfer"(%[[C2:.*]]#0) {channel = @{{.*}}, order = 1 : i64, slice = @s0}
// CHECK-DAG: "pw.transfer"(%[[C2]]#1) {channel = @{{.*}}, order = 2 : i64, slice = @s1}
// CHECK: callee = @join_blocks, order = 3 : i64, slice = @s0
// WHOLE-LABEL: module @three_slices
// WHOLE-COUNT-6: "pw.transfer"
// WHOLE-NOT: "pw.transfer"
module @three_slices attributes {pw.form = "ordered"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {mesh = @mesh, sym_name = "s0"} : () -> ()
  "pw.slice"() {mesh = @mesh, sym_name = "s1"} : () -> ()
  "pw.slice"() {mesh = @mesh, sym_name = "s2"} : () -> ()
  func.func public @main(%x: tensor<3x4xf32> {pw.slice = @s0}, %y: tensor<3x4xf32> {pw.slice = @s1}, %z: tensor<3x4xf32> {pw.slice = @s2})
      -> (tensor<3x4xf32> {pw.slice = @s0}, tensor<3x4xf32> {pw.slice = @s1}, tensor<3x4xf32> {pw.slice = @s2}) {
    %0:3 = "pw.all_to_all"(%x, %y, %z) {orders = array<i64: 0, 0, 0>, slices = [@s0, @s1, @s2]}
        : (tensor<3x4xf32>, tensor<3x4xf32>, tensor<3x4xf32>) -> (tensor<3x4xf32>, tensor<3x4xf32>, tensor<3x4xf32>)
    return %0#0, %0#1, %0#2 : tensor<3x4xf32>, tensor<3x4xf32>, tensor<3x4xf32>
  }
}

// -----

// An exchange reads the results of another one: their blocks are joined right in front of its position.
// The launches belong to the microbatch of the exchange.
// CHECK-LABEL: module @in_a_row
// CHECK: callee = @join_blocks, loop = @l, microbatch = 0 : i64, order = 2 : i64, slice = @s0
// CHECK: callee = @cut_blocks, loop = @l, microbatch = 0 : i64, order = 3 : i64, slice = @s0
// CHECK: "pw.transfer"{{.*}}loop = @l, microbatch = 0 : i64, order = 4 : i64, slice = @s1
// WHOLE-LABEL: module @in_a_row
// WHOLE-COUNT-4: "pw.transfer"
module @in_a_row attributes {pw.form = "ordered"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {mesh = @mesh, sym_name = "s0"} : () -> ()
  "pw.slice"() {mesh = @mesh, sym_name = "s1"} : () -> ()
  "pw.loop"() {count = 1 : i64, sym_name = "l"} : () -> ()
  func.func public @main(%x: tensor<2x4xf32> {pw.slice = @s0}, %y: tensor<2x4xf32> {pw.slice = @s1})
      -> (tensor<2x4xf32> {pw.slice = @s0}, tensor<2x4xf32> {pw.slice = @s1}) {
    %0:2 = "pw.all_to_all"(%x, %y) {loop = @l, microbatch = 0 : i64, orders = array<i64: 0, 0>, slices = [@s0, @s1]}
        : (tensor<2x4xf32>, tensor<2x4xf32>) -> (tensor<2x4xf32>, tensor<2x4xf32>)
    %1:2 = "pw.all_to_all"(%0#0, %0#1) {loop = @l, microbatch = 0 : i64, orders = array<i64: 1, 1>, slices = [@s0, @s1]}
        : (tensor<2x4xf32>, tensor<2x4xf32>) -> (tensor<2x4xf32>, tensor<2x4xf32>)
    return %1#0, %1#1 : tensor<2x4xf32>, tensor<2x4xf32>
  }
}

// -----

// Slices of two devices and of one: the blocks for the smaller slice are joined from pieces there, and those
// for the larger one cut, as other transfers are.
// CHECK-LABEL: module @unequal_meshes
// CHECK: callee = @cut_blocks, order = 0 : i64, slice = @s0} : (tensor<2x4xf32>) -> (tensor<1x4xf32>, tensor<1x4xf32>)
// CHECK: callee = @cut, order = 1 : i64, slice = @s1
// CHECK: routes
// CHECK: callee = @join, order = {{.*}}, slice = @s1
// CHECK: func.func private @cut_blocks(%arg0: tensor<2x4xf32> {sdy.sharding = #sdy.sharding<@two, [{}, {"x"}]>})
module @unequal_meshes attributes {pw.form = "ordered"} {
  sdy.mesh @two = <["x"=2]>
  sdy.mesh @one = <["x"=1]>
  "pw.slice"() {mesh = @two, sym_name = "s0"} : () -> ()
  "pw.slice"() {mesh = @one, sym_name = "s1"} : () -> ()
  func.func public @main(
      %x: tensor<2x4xf32> {pw.slice = @s0, sdy.sharding = #sdy.sharding<@two, [{}, {"x"}]>},
      %y: tensor<2x4xf32> {pw.slice = @s1})
      -> (tensor<2x4xf32> {pw.slice = @s0, sdy.sharding = #sdy.sharding<@two, [{}, {"x"}]>},
          tensor<2x4xf32> {pw.slice = @s1}) {
    %0:2 = "pw.all_to_all"(%x, %y) {orders = array<i64: 0, 0>, slices = [@s0, @s1]}
        : (tensor<2x4xf32>, tensor<2x4xf32>) -> (tensor<2x4xf32>, tensor<2x4xf32>)
    return %0#0, %0#1 : tensor<2x4xf32>, tensor<2x4xf32>
  }
}

// -----

// Exchanges that leave all slices one right after the other share the launches, which their first reader needs.
// CHECK-LABEL: module @rows_and_counts
// CHECK: %[[C0:.*]]:4 = "pw.launch"(%arg0, %arg1) {callee = @cut_blocks, order = 0 : i64, slice = @s0}
// CHECK: %[[C1:.*]]:4 = "pw.launch"(%arg2, %arg3) {callee = @cut_blocks, order = 0 : i64, slice = @s1}
// CHECK-DAG: %[[X:.*]] = "pw.transfer"(%[[C1]]#0) {channel = @{{.*}}, order = 1 : i64, slice = @s0} : (tensor<1x4xf32>)
// CHECK-DAG: %[[N:.*]] = "pw.transfer"(%[[C1]]#2) {channel = @{{.*}}, order = 2 : i64, slice = @s0} : (tensor<1xi32>)
// CHECK: %[[J:.*]]:2 = "pw.launch"(%[[C0]]#0, %[[X]], %[[C0]]#2, %[[N]]) {callee = @join_blocks, order = 3 : i64, slice = @s0}
// CHECK: "pw.launch"(%[[J]]#0) {callee = @f, order = 4 : i64, slice = @s0}
// CHECK: return %{{.*}}, %[[J]]#1
module @rows_and_counts attributes {pw.form = "ordered"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {mesh = @mesh, sym_name = "s0"} : () -> ()
  "pw.slice"() {mesh = @mesh, sym_name = "s1"} : () -> ()
  func.func public @main(%x: tensor<2x4xf32> {pw.slice = @s0}, %n: tensor<2xi32> {pw.slice = @s0},
                         %y: tensor<2x4xf32> {pw.slice = @s1}, %m: tensor<2xi32> {pw.slice = @s1})
      -> (tensor<2x4xf32> {pw.slice = @s0}, tensor<2xi32> {pw.slice = @s0}, tensor<2x4xf32> {pw.slice = @s1}) {
    %0:2 = "pw.all_to_all"(%x, %y) {orders = array<i64: 0, 0>, slices = [@s0, @s1]}
        : (tensor<2x4xf32>, tensor<2x4xf32>) -> (tensor<2x4xf32>, tensor<2x4xf32>)
    %1:2 = "pw.all_to_all"(%n, %m) {orders = array<i64: 1, 1>, slices = [@s0, @s1]}
        : (tensor<2xi32>, tensor<2xi32>) -> (tensor<2xi32>, tensor<2xi32>)
    %2 = "pw.launch"(%0#0) {callee = @f, order = 2 : i64, slice = @s0} : (tensor<2x4xf32>) -> tensor<2x4xf32>
    return %2, %1#0, %0#1 : tensor<2x4xf32>, tensor<2xi32>, tensor<2x4xf32>
  }
  func.func private @f(%x: tensor<2x4xf32>) -> tensor<2x4xf32> {
    %0 = stablehlo.tanh %x : tensor<2x4xf32>
    return %0 : tensor<2x4xf32>
  }
}

// -----

// @s0 sends what @s1 computes of the first exchange: with one launch for both, @s0 would wait for itself.
// CHECK-LABEL: module @reads_a_transfer
// CHECK: callee = @cut_blocks, order = 0 : i64, slice = @s0} : (tensor<2x4xf32>) -> (tensor<1x4xf32>, tensor<1x4xf32>)
// CHECK: callee = @cut_blocks, order = {{.*}}, slice = @s0} : (tensor<2x4xf32>) -> (tensor<1x4xf32>, tensor<1x4xf32>)
module @reads_a_transfer attributes {pw.form = "ordered"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {mesh = @mesh, sym_name = "s0"} : () -> ()
  "pw.slice"() {mesh = @mesh, sym_name = "s1"} : () -> ()
  "pw.channel"() {capacity = 1, dst = @s0, src = @s1, sym_name = "c0", value_type = tensor<2x4xf32>} : () -> ()
  func.func public @main(%x: tensor<2x4xf32> {pw.slice = @s0}, %y: tensor<2x4xf32> {pw.slice = @s1})
      -> (tensor<2x4xf32> {pw.slice = @s0}, tensor<2x4xf32> {pw.slice = @s1}) {
    %0:2 = "pw.all_to_all"(%x, %y) {orders = array<i64: 0, 0>, slices = [@s0, @s1]}
        : (tensor<2x4xf32>, tensor<2x4xf32>) -> (tensor<2x4xf32>, tensor<2x4xf32>)
    %1 = "pw.transfer"(%0#1) {channel = @c0, order = 2 : i64, slice = @s0} : (tensor<2x4xf32>) -> tensor<2x4xf32>
    %2:2 = "pw.all_to_all"(%1, %y) {orders = array<i64: 1, 1>, slices = [@s0, @s1]}
        : (tensor<2x4xf32>, tensor<2x4xf32>) -> (tensor<2x4xf32>, tensor<2x4xf32>)
    return %2#0, %2#1 : tensor<2x4xf32>, tensor<2x4xf32>
  }
}
