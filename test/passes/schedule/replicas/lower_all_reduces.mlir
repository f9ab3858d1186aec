// RUN: pw-opt %s --split-input-file -p 'pw-lower-all-reduces{whole-bytes=40}' | filecheck %s
// RUN: pw-opt %s --split-input-file -p 'pw-lower-all-reduces{whole-bytes=16}' | filecheck %s --check-prefix=LARGE
// RUN: pw-opt %s --split-input-file -p 'pw-lower-all-reduces{whole-bytes=16,dtype=bfloat16}' | filecheck %s --check-prefix=NARROW

// Two replicas send each other all of a bucket, as many bytes as cut in pieces, and both add in one order.
// CHECK-LABEL: module @two_replicas
// CHECK: %[[B0:.*]] = "pw.launch"(%{{.*}}, %{{.*}}) {callee = @bucket, overlap_with_loop, slice = @s0} : (tensor<4x2xf32>, tensor<3xf32>) -> tensor<1x11xf32>
// CHECK: %[[B1:.*]] = "pw.launch"(%{{.*}}, %{{.*}}) {callee = @bucket, overlap_with_loop, slice = @s1}
// CHECK: %[[T1:.*]] = "pw.transfer"(%[[B1]]) {slice = @s0}
// CHECK: %[[T0:.*]] = "pw.transfer"(%[[B0]]) {slice = @s1}
// CHECK: %[[S0:.*]]:2 = "pw.launch"(%[[B0]], %[[T1]]) {callee = @bucket_total, slice = @s0}
// CHECK: %[[S1:.*]]:2 = "pw.launch"(%[[T0]], %[[B1]]) {callee = @bucket_total, slice = @s1}
// CHECK: return %[[S0]]#0, %[[S1]]#0, %[[S0]]#1, %[[S1]]#1

// What is large travels as it is.
// LARGE-LABEL: module @two_replicas
// LARGE: @main(%[[A0:.*]]: tensor<4x2xf32> {pw.slice = @s0}, %[[A1:.*]]: tensor<4x2xf32> {pw.slice = @s1},
// LARGE: %[[T1:.*]] = "pw.transfer"(%[[A1]]) {slice = @s0}
// LARGE-NEXT: "pw.launch"(%[[A0]], %[[T1]]) {callee = @total, slice = @s0}
// LARGE-NEXT: %[[T0:.*]] = "pw.transfer"(%[[A0]]) {slice = @s1}
// LARGE-NEXT: "pw.launch"(%[[T0]], %[[A1]]) {callee = @total, slice = @s1}
// LARGE: {callee = @bucket, overlap_with_loop, slice = @s0} : (tensor<3xf32>)
module @two_replicas {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {mesh = @mesh, replica = 0, sym_name = "s0"} : () -> ()
  "pw.slice"() {mesh = @mesh, replica = 1, replica_of = @s0, sym_name = "s1"} : () -> ()
  func.func public @main(
      %a0: tensor<4x2xf32> {pw.slice = @s0}, %a1: tensor<4x2xf32> {pw.slice = @s1},
      %b0: tensor<3xf32> {pw.slice = @s0}, %b1: tensor<3xf32> {pw.slice = @s1})
      -> (tensor<4x2xf32> {pw.slice = @s0}, tensor<4x2xf32> {pw.slice = @s1},
          tensor<3xf32> {pw.slice = @s0}, tensor<3xf32> {pw.slice = @s1}) {
    %a:2 = "pw.all_reduce"(%a0, %a1) : (tensor<4x2xf32>, tensor<4x2xf32>) -> (tensor<4x2xf32>, tensor<4x2xf32>)
    %b:2 = "pw.all_reduce"(%b0, %b1) : (tensor<3xf32>, tensor<3xf32>) -> (tensor<3xf32>, tensor<3xf32>)
    return %a#0, %a#1, %b#0, %b#1 : tensor<4x2xf32>, tensor<4x2xf32>, tensor<3xf32>, tensor<3xf32>
  }
}

// -----

// Of three replicas each adds up a third of a bucket, which zeros fill up.
// CHECK-LABEL: module @three_replicas
// CHECK: %[[B0:.*]]:3 = "pw.launch"(%{{.*}}) {callee = @bucket, overlap_with_loop, slice = @s0} : (tensor<4x4xf32>) -> (tensor<1x6xf32>, tensor<1x6xf32>, tensor<1x6xf32>)
// CHECK: %[[B1:.*]]:3 = "pw.launch"(%{{.*}}) {callee = @bucket, overlap_with_loop, slice = @s1}
// CHECK: %[[B2:.*]]:3 = "pw.launch"(%{{.*}}) {callee = @bucket, overlap_with_loop, slice = @s2}
// CHECK: %[[T0:.*]] = "pw.transfer"(%[[B0]]#1) {slice = @s1}
// CHECK: %[[T2:.*]] = "pw.transfer"(%[[B2]]#1) {slice = @s1}
// CHECK: %[[S1:.*]] = "pw.launch"(%[[T0]], %[[B1]]#1, %[[T2]]) {callee = @bucket_sum, overlap_with_loop, slice = @s1}
// CHECK: "pw.transfer"(%[[S1]]) {slice = @s0}
// CHECK: %{{.*}} = "pw.launch"(%{{.*}}, %{{.*}}, %{{.*}}) {callee = @bucket_join, slice = @s0} : (tensor<1x6xf32>, tensor<1x6xf32>, tensor<1x6xf32>) -> tensor<4x4xf32>

// Narrower floats are sent, terms and sums; they are added in their own dtype. Integers are sent as they are.
// NARROW-LABEL: module @three_replicas
// NARROW: callee = @bucket, overlap_with_loop, slice = @s0} : (tensor<4x4xf32>) -> (tensor<1x6xbf16>, tensor<1x6xbf16>, tensor<1x6xbf16>)
// NARROW-LABEL: func.func private @bucket_sum(
// NARROW: stablehlo.add %{{.*}}, %{{.*}} : tensor<1x6xf32>
// NARROW: stablehlo.convert %{{.*}} : (tensor<1x6xf32>) -> tensor<1x6xbf16>
// NARROW-LABEL: module @sharded
// NARROW: callee = @bucket_1, overlap_with_loop, slice = @s0} : (tensor<3xi32>) -> tensor<2x3xi32>
module @three_replicas {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {mesh = @mesh, replica = 0, sym_name = "s0"} : () -> ()
  "pw.slice"() {mesh = @mesh, replica = 1, replica_of = @s0, sym_name = "s1"} : () -> ()
  "pw.slice"() {mesh = @mesh, replica = 2, replica_of = @s0, sym_name = "s2"} : () -> ()
  func.func public @main(
      %a0: tensor<4x4xf32> {pw.slice = @s0}, %a1: tensor<4x4xf32> {pw.slice = @s1},
      %a2: tensor<4x4xf32> {pw.slice = @s2}) -> (tensor<4x4xf32> {pw.slice = @s0}) {
    %a:3 = "pw.all_reduce"(%a0, %a1, %a2) : (tensor<4x4xf32>, tensor<4x4xf32>, tensor<4x4xf32>)
        -> (tensor<4x4xf32>, tensor<4x4xf32>, tensor<4x4xf32>)
    return %a#0 : tensor<4x4xf32>
  }
}

// -----

// What is replicated over the devices of a slice is divided among them first, where a dimension divides; what does
// not divide is sent by each. Elements of other types travel apart.
// CHECK-LABEL: module @sharded
// CHECK: callee = @bucket, overlap_with_loop, slice = @s0} : (tensor<4x2xf32>, tensor<3xf32>) -> tensor<2x7xf32>
// CHECK: callee = @bucket_1, overlap_with_loop, slice = @s0} : (tensor<3xi32>) -> tensor<2x3xi32>
// CHECK-LABEL: func.func private @bucket(
// CHECK: sdy.sharding_constraint %{{.*}} <@mesh, [{"x"}, {}]> : tensor<4x2xf32>
// CHECK: sdy.manual_computation
module @sharded {
  sdy.mesh @mesh = <["x"=2]>
  "pw.slice"() {mesh = @mesh, replica = 0, sym_name = "s0"} : () -> ()
  "pw.slice"() {mesh = @mesh, replica = 1, replica_of = @s0, sym_name = "s1"} : () -> ()
  func.func public @main(
      %a0: tensor<4x2xf32> {pw.slice = @s0}, %a1: tensor<4x2xf32> {pw.slice = @s1},
      %b0: tensor<3xf32> {pw.slice = @s0}, %b1: tensor<3xf32> {pw.slice = @s1},
      %c0: tensor<3xi32> {pw.slice = @s0}, %c1: tensor<3xi32> {pw.slice = @s1})
      -> (tensor<4x2xf32> {pw.slice = @s0}, tensor<3xf32> {pw.slice = @s1}, tensor<3xi32> {pw.slice = @s0}) {
    %a:2 = "pw.all_reduce"(%a0, %a1) : (tensor<4x2xf32>, tensor<4x2xf32>) -> (tensor<4x2xf32>, tensor<4x2xf32>)
    %b:2 = "pw.all_reduce"(%b0, %b1) : (tensor<3xf32>, tensor<3xf32>) -> (tensor<3xf32>, tensor<3xf32>)
    %c:2 = "pw.all_reduce"(%c0, %c1) : (tensor<3xi32>, tensor<3xi32>) -> (tensor<3xi32>, tensor<3xi32>)
    return %a#0, %b#1, %c#0 : tensor<4x2xf32>, tensor<3xf32>, tensor<3xi32>
  }
}

// -----

// What each replica carries for itself, such as a running average, travels with the gradients of its stage.
// CHECK-LABEL: module @average
// CHECK: "pw.launch"({{.*}}) {callee = @bucket, overlap_with_loop, slice = @s0} : (tensor<4xf32>, tensor<2xf32>) -> tensor<1x6xf32>
// CHECK-NOT: callee = @bucket_1
module @average {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {mesh = @mesh, replica = 0, sym_name = "s0"} : () -> ()
  "pw.slice"() {mesh = @mesh, replica = 1, replica_of = @s0, sym_name = "s1"} : () -> ()
  "pw.loop"() {count = 2, sym_name = "batch"} : () -> ()
  "pw.loop"() {count = 2, replica_of = @batch, sym_name = "batch_r1"} : () -> ()
  func.func public @main(%z0: tensor<2xf32> {pw.slice = @s0}, %z1: tensor<2xf32> {pw.slice = @s1})
      -> (tensor<2xf32> {pw.slice = @s0}, tensor<2xf32> {pw.slice = @s1},
          tensor<4xf32> {pw.slice = @s0}, tensor<4xf32> {pw.slice = @s1}) {
    %c0 = "pw.carry"(%z0) {loop = @batch, per_replica, slice = @s0} : (tensor<2xf32>) -> tensor<2xf32>
    %c1 = "pw.carry"(%z1) {loop = @batch_r1, per_replica, slice = @s1} : (tensor<2xf32>) -> tensor<2xf32>
    %n0:2 = "pw.launch"(%c0) {callee = @f, loop = @batch, origins = [{kind = "fwd", stage = 0}], slice = @s0} : (tensor<2xf32>) -> (tensor<2xf32>, tensor<4xf32>)
    %n1:2 = "pw.launch"(%c1) {callee = @f, loop = @batch_r1, origins = [{kind = "fwd", stage = 0}], slice = @s1} : (tensor<2xf32>) -> (tensor<2xf32>, tensor<4xf32>)
    %g0 = "pw.reduce"(%n0#1) {kind = "sum", loop = @batch, slice = @s0} : (tensor<4xf32>) -> tensor<4xf32>
    %g1 = "pw.reduce"(%n1#1) {kind = "sum", loop = @batch_r1, slice = @s1} : (tensor<4xf32>) -> tensor<4xf32>
    %e0 = "pw.next"(%c0, %n0#0) {loop = @batch, slice = @s0} : (tensor<2xf32>, tensor<2xf32>) -> tensor<2xf32>
    %e1 = "pw.next"(%c1, %n1#0) {loop = @batch_r1, slice = @s1} : (tensor<2xf32>, tensor<2xf32>) -> tensor<2xf32>
    %g:2 = "pw.all_reduce"(%g0, %g1) : (tensor<4xf32>, tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>)
    %e:2 = "pw.all_reduce"(%e0, %e1) : (tensor<2xf32>, tensor<2xf32>) -> (tensor<2xf32>, tensor<2xf32>)
    return %e#0, %e#1, %g#0, %g#1 : tensor<2xf32>, tensor<2xf32>, tensor<4xf32>, tensor<4xf32>
  }
  func.func private @f(%c: tensor<2xf32>) -> (tensor<2xf32>, tensor<4xf32>) {
    %g = stablehlo.constant dense<1.0> : tensor<4xf32>
    return %c, %g : tensor<2xf32>, tensor<4xf32>
  }
}
