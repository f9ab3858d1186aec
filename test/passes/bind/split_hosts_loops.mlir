// RUN: pw-opt %s -p 'pw-unroll-microbatches,pw-schedule,pw-accumulate,pw-plan-memory,pw-verify-schedule,pw-bind-slices{count=2},pw-split-hosts' | filecheck %s
// RUN: pw-opt %s -p 'pw-unroll-microbatches,pw-schedule,pw-accumulate,pw-plan-memory,pw-verify-schedule,pw-bind-slices{count=2},pw-split-hosts{ahead=3}' | filecheck %s --check-prefix AHEAD

// A loop over two hosts: each microbatch has its send and its receive, and says so. The channel has room for all of
// them, since nobody waits. The peak counts all that is sent and received, of 128 bytes each: of one step, and
// of those that run ahead.

// CHECK: "pw.slice"() {host = 0 : i64, mesh = @mesh, peak_bytes = 844 : i64, sym_name = "s0"}
// CHECK: "pw.slice"() {host = 1 : i64, mesh = @mesh, peak_bytes = 388 : i64, sym_name = "s1"}
// CHECK: "pw.channel"() {capacity = 3 : i64
// CHECK: func.func public @host_0(
// CHECK: %[[A:.*]] = "pw.launch"({{.*}}) {callee = @front, loop = @batch, microbatch = 0 : i64, order = 1 : i64
// CHECK-NEXT: "pw.send"(%[[A]]) {channel = @c0, index = 0 : i64, loop = @batch, microbatch = 0 : i64, order = 2 : i64, slice = @s0}
// CHECK: %[[B:.*]] = "pw.launch"({{.*}}) {callee = @front, loop = @batch, microbatch = 1 : i64, order = 4 : i64
// CHECK-NEXT: "pw.send"(%[[B]]) {channel = @c0, index = 1 : i64, loop = @batch, microbatch = 1 : i64, order = 5 : i64, slice = @s0}
// CHECK: %[[C:.*]] = "pw.launch"({{.*}}) {callee = @front, loop = @batch, microbatch = 2 : i64, order = 7 : i64
// CHECK-NEXT: "pw.send"(%[[C]]) {channel = @c0, index = 2 : i64, loop = @batch, microbatch = 2 : i64, order = 8 : i64, slice = @s0}
// CHECK: "pw.release"(%[[A]], %[[B]], %[[C]])
// CHECK-NEXT: return
// CHECK: func.func public @host_1(
// CHECK-NEXT: %[[R:.*]] = "pw.recv"() {channel = @c0, index = 0 : i64, loop = @batch, microbatch = 0 : i64, order = 0 : i64, slice = @s1}
// CHECK-NEXT: %[[L:.*]] = "pw.launch"(%[[R]]) {callee = @loss, {{.*}}order = 1 : i64
// CHECK-NEXT: "pw.release"(%[[R]])
// CHECK-NEXT: %[[S:.*]] = "pw.recv"() {channel = @c0, index = 1 : i64, loop = @batch, microbatch = 1 : i64, order = 2 : i64, slice = @s1}
// CHECK-NEXT: "pw.launch"(%[[S]], %[[L]]) {callee = @loss_add, {{.*}}order = 3 : i64

// AHEAD: peak_bytes = 1612 : i64, sym_name = "s0"
// AHEAD: peak_bytes = 1156 : i64, sym_name = "s1"
// AHEAD: "pw.channel"() {capacity = 9 : i64

!w = tensor<4x4xf32>
!x = tensor<8x4xf32>
module @loop attributes {pw.form = "sharded"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {mesh = @mesh, sym_name = "s0"} : () -> ()
  "pw.slice"() {mesh = @mesh, sym_name = "s1"} : () -> ()
  "pw.loop"() {count = 3, sym_name = "batch"} : () -> ()
  func.func public @main(%w: !w {pw.slice = @s0}, %x: tensor<24x4xf32> {pw.slice = @s0}) -> (tensor<f32> {pw.slice = @s1}) {
    %0 = "pw.split"(%x) {loop = @batch, slice = @s0} : (tensor<24x4xf32>) -> !x
    %1 = "pw.launch"(%w, %0) {callee = @front, loop = @batch, origins = [{kind = "fwd", stage = 0}], slice = @s0} : (!w, !x) -> !x
    %2 = "pw.transfer"(%1) {loop = @batch, slice = @s1} : (!x) -> !x
    %3 = "pw.launch"(%2) {callee = @loss, loop = @batch, origins = [{kind = "fwd", stage = 1}], slice = @s1} : (!x) -> tensor<f32>
    %4 = "pw.reduce"(%3) {kind = "sum", loop = @batch, slice = @s1} : (tensor<f32>) -> tensor<f32>
    return %4 : tensor<f32>
  }
  func.func private @front(%w: !w, %x: !x) -> !x {
    %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (!x, !w) -> !x
    return %0 : !x
  }
  func.func private @loss(%x: !x) -> tensor<f32> {
    %zero = stablehlo.constant dense<0.0> : tensor<f32>
    %0 = stablehlo.reduce(%x init: %zero) applies stablehlo.add across dimensions = [0, 1] : (!x, tensor<f32>) -> tensor<f32>
    return %0 : tensor<f32>
  }
}
