// RUN: pw-opt %s | pw-opt | filecheck %s
// RUN: pw-opt %s --emit-bytecode | pw-opt | filecheck %s
// RUN: pw-opt %s --mlir-print-op-generic | pw-opt | filecheck %s

// Every operation with all of its attributes survives printing and parsing, as text and as bytecode.

!x = tensor<8x4xf32>

// CHECK: module @round_trip attributes {round.trip = "hand"}
module @round_trip attributes {round.trip = "hand"} {
  // CHECK: sdy.mesh @mesh = <["data"=2, "model"=2]>
  sdy.mesh @mesh = <["data"=2, "model"=2]>

  // CHECK: "pw.slice"() {island = "left", mesh = @mesh, peak_bytes = 4096 : i64, sym_name = "s0"} : () -> ()
  "pw.slice"() {island = "left", mesh = @mesh, peak_bytes = 4096, sym_name = "s0"} : () -> ()
  // CHECK: "pw.slice"() {mesh = @mesh, sym_name = "s1"} : () -> ()
  "pw.slice"() {mesh = @mesh, sym_name = "s1"} : () -> ()

  // CHECK: "pw.channel"() {capacity = 2 : i64, dst = @s1, sharding = #sdy.sharding<@mesh, [{"data"}, {}]>, src = @s0, sym_name = "c0", value_type = tensor<8x4xf32>} : () -> ()
  "pw.channel"() {capacity = 2, dst = @s1, sharding = #sdy.sharding<@mesh, [{"data"}, {}]>, src = @s0, sym_name = "c0", value_type = !x} : () -> ()

  // CHECK: "pw.constant"() {sym_name = "k0", value = dense<[1.000000e+00, 2.000000e+00]> : tensor<2xf32>} : () -> ()
  "pw.constant"() {sym_name = "k0", value = dense<[1.0, 2.0]> : tensor<2xf32>} : () -> ()

  // CHECK-LABEL: func.func @main
  // CHECK-SAME: (%[[X:.*]]: tensor<8x4xf32> {pw.slice = @s0}, %[[STEP:.*]]: tensor<i32> {pw.slice = [@s0, @s1]}, %{{.*}}: tensor<2xf32> {pw.constant = @k0, pw.slice = @s0})
  // CHECK-SAME: -> (tensor<8x4xf32> {pw.slice = @s1}, tensor<i32> {pw.slice = [@s0, @s1]})
  func.func @main(%x: !x {pw.slice = @s0}, %step: tensor<i32> {pw.slice = [@s0, @s1]}, %k: tensor<2xf32> {pw.constant = @k0, pw.slice = @s0}) -> (!x {pw.slice = @s1}, tensor<i32> {pw.slice = [@s0, @s1]}) {
    // CHECK: %[[Y:.*]] = "pw.launch"(%[[X]]) {callee = @double, loop = @batch, microbatch = 3 : i64, order = 0 : i64, origins = [{kind = "bwd", microbatch = 3 : i64, part = "input", stage = 1 : i64}], slice = @s0} : (tensor<8x4xf32>) -> tensor<8x4xf32>
    %y = "pw.launch"(%x) {callee = @double, loop = @batch, microbatch = 3, order = 0, origins = [{kind = "bwd", microbatch = 3, part = "input", stage = 1}], slice = @s0} : (!x) -> !x
    // CHECK: %[[Z:.*]] = "pw.transfer"(%[[Y]]) {channel = @c0, loop = @batch, microbatch = 3 : i64, order = 1 : i64, sharding = #sdy.sharding<@mesh, [{"data"}, {}]>, slice = @s1} : (tensor<8x4xf32>) -> tensor<8x4xf32>
    %z = "pw.transfer"(%y) {channel = @c0, loop = @batch, microbatch = 3, order = 1, sharding = #sdy.sharding<@mesh, [{"data"}, {}]>, slice = @s1} : (!x) -> !x
    // CHECK: "pw.release"(%[[Y]]) : (tensor<8x4xf32>) -> ()
    "pw.release"(%y) : (!x) -> ()
    // CHECK: %[[A:.*]] = "pw.launch"(%[[STEP]]) {callee = @next, slice = @s0} : (tensor<i32>) -> tensor<i32>
    %a = "pw.launch"(%step) {callee = @next, slice = @s0} : (tensor<i32>) -> tensor<i32>
    // CHECK: %[[B:.*]] = "pw.launch"(%[[STEP]]) {callee = @next, slice = @s1} : (tensor<i32>) -> tensor<i32>
    %b = "pw.launch"(%step) {callee = @next, slice = @s1} : (tensor<i32>) -> tensor<i32>
    // CHECK: %[[BOTH:.*]] = "pw.mirror"(%[[A]], %[[B]]) : (tensor<i32>, tensor<i32>) -> tensor<i32>
    %both = "pw.mirror"(%a, %b) : (tensor<i32>, tensor<i32>) -> tensor<i32>
    // CHECK: %{{.*}}:2 = "pw.transfer"(%[[X]], %[[X]]) {memory_kind = "pinned_host", order = 2 : i64, routes = array<i64: 0, 0, 1, 1, 0, 2, 1, 3, 0, 0, 1, 1, 0, 2, 1, 3>, sharding = #sdy.sharding<@mesh, [{"model"}, {}]>, slice = @s1} : (tensor<8x4xf32>, tensor<8x4xf32>) -> (tensor<4x8xf32>, tensor<4x8xf32>)
    %p:2 = "pw.transfer"(%x, %x) {memory_kind = "pinned_host", order = 2, routes = array<i64: 0, 0, 1, 1, 0, 2, 1, 3, 0, 0, 1, 1, 0, 2, 1, 3>, sharding = #sdy.sharding<@mesh, [{"model"}, {}]>, slice = @s1} : (!x, !x) -> (tensor<4x8xf32>, tensor<4x8xf32>)
    // CHECK: "pw.send"(%[[X]]) {channel = @c0, copy, index = 7 : i64, loop = @batch, microbatch = 3 : i64, order = 3 : i64, slice = @s0} : (tensor<8x4xf32>) -> ()
    "pw.send"(%x) {channel = @c0, copy, index = 7, loop = @batch, microbatch = 3, order = 3, slice = @s0} : (!x) -> ()
    // CHECK: %{{.*}} = "pw.recv"() {channel = @c0, index = 7 : i64, loop = @batch, memory_kind = "pinned_host", microbatch = 3 : i64, order = 4 : i64, routes = array<i64: 0, 0, 0, 1, 0, 2, 0, 3>, sharding = #sdy.sharding<@mesh, [{"data"}, {}]>, slice = @s1} : () -> tensor<8x4xf32>
    %r = "pw.recv"() {channel = @c0, index = 7, loop = @batch, memory_kind = "pinned_host", microbatch = 3, order = 4, routes = array<i64: 0, 0, 0, 1, 0, 2, 0, 3>, sharding = #sdy.sharding<@mesh, [{"data"}, {}]>, slice = @s1} : () -> !x
    // CHECK: return %[[Z]], %[[BOTH]]
    return %z, %both : !x, tensor<i32>
  }

  // CHECK-LABEL: func.func @exchanged
  func.func @exchanged(%x: tensor<2x4xf32> {pw.slice = @s0}, %y: tensor<2x4xf32> {pw.slice = @s1}) {
    // CHECK: %{{.*}}:2 = "pw.all_to_all"(%{{.*}}, %{{.*}}) {loop = @batch, microbatch = 3 : i64, orders = array<i64: 5, 0>, slices = [@s0, @s1]} : (tensor<2x4xf32>, tensor<2x4xf32>) -> (tensor<2x4xf32>, tensor<2x4xf32>)
    %0:2 = "pw.all_to_all"(%x, %y) {loop = @batch, microbatch = 3, orders = array<i64: 5, 0>, slices = [@s0, @s1]} : (tensor<2x4xf32>, tensor<2x4xf32>) -> (tensor<2x4xf32>, tensor<2x4xf32>)
    return
  }

  // CHECK: "pw.loop"() {count = 8 : i64, schedule = "1f1b", sym_name = "batch"} : () -> ()
  "pw.loop"() {count = 8, schedule = "1f1b", sym_name = "batch"} : () -> ()

  // CHECK-LABEL: func.func @looped
  func.func @looped(%x: tensor<64x4xf32> {pw.slice = @s0}) -> tensor<8x4xf32> {
    // CHECK: "pw.split"(%{{.*}}) {loop = @batch, slice = @s0} : (tensor<64x4xf32>) -> tensor<8x4xf32>
    %0 = "pw.split"(%x) {loop = @batch, slice = @s0} : (tensor<64x4xf32>) -> !x
    // CHECK: "pw.launch"(%{{.*}}) {callee = @double, loop = @batch, slice = @s0} : (tensor<8x4xf32>) -> tensor<8x4xf32>
    %1 = "pw.launch"(%0) {callee = @double, loop = @batch, slice = @s0} : (!x) -> !x
    // CHECK: "pw.reduce"(%{{.*}}) {kind = "sum", loop = @batch, slice = @s0} : (tensor<8x4xf32>) -> tensor<8x4xf32>
    %2 = "pw.reduce"(%1) {kind = "sum", loop = @batch, slice = @s0} : (!x) -> !x
    // CHECK: "pw.all_reduce"(%{{.*}}) {slice = @s0} : (tensor<8x4xf32>) -> tensor<8x4xf32>
    %3 = "pw.all_reduce"(%2) {slice = @s0} : (!x) -> !x
    // CHECK: "pw.reduce_scatter"(%{{.*}}) {dim = 1 : i64, slice = @s0} : (tensor<8x4xf32>) -> tensor<8x4xf32>
    %4 = "pw.reduce_scatter"(%2) {dim = 1, slice = @s0} : (!x) -> !x
    // CHECK: "pw.all_gather"(%{{.*}}) {dim = 1 : i64, slice = @s0} : (tensor<8x4xf32>) -> tensor<8x4xf32>
    %5 = "pw.all_gather"(%4) {dim = 1, slice = @s0} : (!x) -> !x
    // CHECK: "pw.replica"() {slice = @s0} : () -> tensor<i32>
    %6 = "pw.replica"() {slice = @s0} : () -> tensor<i32>
    return %3 : !x
  }

  func.func private @double(%x: !x) -> !x {
    %y = stablehlo.add %x, %x : !x
    return %y : !x
  }
  func.func private @next(%i: tensor<i32>) -> tensor<i32> {
    return %i : tensor<i32>
  }
}
