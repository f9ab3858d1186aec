// RUN: pw-opt %s --split-input-file -p 'pw-schedule{policy=gpipe}' | filecheck %s
// RUN: pw-opt %s --split-input-file -p pw-schedule | filecheck %s --check-prefix=PROGRAM

// Two replicas of a slice with two stages. The loops of both have one schedule and run side by side. What replicas
// exchange of the second stage is sent while the first still works; its sum has one more action to arrive in.
// CHECK-LABEL: module @exchange
// CHECK: %[[F0:.*]] = "pw.launch"(%{{.*}}) {callee = @f, loop = @batch, microbatch = 0 : i64, order = 0 : i64, origins = [{kind = "fwd", microbatch = 0 : i64, stage = 0 : i64}], slice = @s0}
// CHECK-NEXT: "pw.launch"(%{{.*}}) {callee = @f, loop = @batch_r1, microbatch = 0 : i64, order = 0 : i64, {{.*}}slice = @s0_r1}
// CHECK: callee = @b1, {{.*}}order = 2 : i64, {{.*}}slice = @s0}
// CHECK: callee = @bucket, order = 3 : i64, overlap_with_loop, slice = @s0}
// CHECK: "pw.transfer"{{.*}}order = 4 : i64, slice = @s0_r1}
// CHECK: callee = @b0, {{.*}}order = 5 : i64, {{.*}}slice = @s0}
// CHECK: callee = @bucket_sum, order = 6 : i64, overlap_with_loop, slice = @s0}
// CHECK: callee = @update, order = 7 : i64, slice = @s0}

// In the order of the program their events alternate too.
// PROGRAM-LABEL: module @exchange
// PROGRAM: callee = @f, loop = @batch, {{.*}}slice = @s0}
// PROGRAM-NEXT: callee = @f, loop = @batch_r1, {{.*}}slice = @s0_r1}
module @exchange attributes {pw.form = "unrolled"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {mesh = @mesh, replica = 0, sym_name = "s0"} : () -> ()
  "pw.slice"() {mesh = @mesh, replica = 1, replica_of = @s0, sym_name = "s0_r1"} : () -> ()
  "pw.loop"() {count = 1, sym_name = "batch"} : () -> ()
  "pw.loop"() {count = 1, replica_of = @batch, sym_name = "batch_r1"} : () -> ()
  func.func public @main(
      %x0: tensor<f32> {pw.replica = {count = 2, number = 0, of = 0}, pw.slice = @s0},
      %x1: tensor<f32> {pw.replica = {count = 2, number = 1, of = 0}, pw.slice = @s0_r1})
      -> (tensor<f32> {pw.replica = {count = 2, number = 0, of = 0}, pw.slice = @s0},
          tensor<f32> {pw.replica = {count = 2, number = 1, of = 0}, pw.slice = @s0_r1}) {
    %f0 = "pw.launch"(%x0) {callee = @f, loop = @batch, microbatch = 0, origins = [{kind = "fwd", microbatch = 0, stage = 0}], slice = @s0} : (tensor<f32>) -> tensor<f32>
    %g0 = "pw.launch"(%f0) {callee = @f, loop = @batch, microbatch = 0, origins = [{kind = "fwd", microbatch = 0, stage = 1}], slice = @s0} : (tensor<f32>) -> tensor<f32>
    %h0 = "pw.launch"(%g0) {callee = @b1, loop = @batch, microbatch = 0, origins = [{kind = "bwd", microbatch = 0, stage = 1}], slice = @s0} : (tensor<f32>) -> tensor<f32>
    %i0 = "pw.launch"(%h0) {callee = @b0, loop = @batch, microbatch = 0, origins = [{kind = "bwd", microbatch = 0, stage = 0}], slice = @s0} : (tensor<f32>) -> tensor<f32>
    %f1 = "pw.launch"(%x1) {callee = @f, loop = @batch_r1, microbatch = 0, origins = [{kind = "fwd", microbatch = 0, stage = 0}], slice = @s0_r1} : (tensor<f32>) -> tensor<f32>
    %g1 = "pw.launch"(%f1) {callee = @f, loop = @batch_r1, microbatch = 0, origins = [{kind = "fwd", microbatch = 0, stage = 1}], slice = @s0_r1} : (tensor<f32>) -> tensor<f32>
    %h1 = "pw.launch"(%g1) {callee = @b1, loop = @batch_r1, microbatch = 0, origins = [{kind = "bwd", microbatch = 0, stage = 1}], slice = @s0_r1} : (tensor<f32>) -> tensor<f32>
    %i1 = "pw.launch"(%h1) {callee = @b0, loop = @batch_r1, microbatch = 0, origins = [{kind = "bwd", microbatch = 0, stage = 0}], slice = @s0_r1} : (tensor<f32>) -> tensor<f32>
    %p0 = "pw.launch"(%h0) {callee = @bucket, overlap_with_loop, slice = @s0} : (tensor<f32>) -> tensor<f32>
    %p1 = "pw.launch"(%h1) {callee = @bucket, overlap_with_loop, slice = @s0_r1} : (tensor<f32>) -> tensor<f32>
    %t0 = "pw.transfer"(%p1) {slice = @s0} : (tensor<f32>) -> tensor<f32>
    %t1 = "pw.transfer"(%p0) {slice = @s0_r1} : (tensor<f32>) -> tensor<f32>
    %s0 = "pw.launch"(%p0, %t0) {callee = @bucket_sum, overlap_with_loop, slice = @s0} : (tensor<f32>, tensor<f32>) -> tensor<f32>
    %s1 = "pw.launch"(%t1, %p1) {callee = @bucket_sum, overlap_with_loop, slice = @s0_r1} : (tensor<f32>, tensor<f32>) -> tensor<f32>
    %u0 = "pw.launch"(%s0, %i0) {callee = @update, slice = @s0} : (tensor<f32>, tensor<f32>) -> tensor<f32>
    %u1 = "pw.launch"(%s1, %i1) {callee = @update, slice = @s0_r1} : (tensor<f32>, tensor<f32>) -> tensor<f32>
    return %u0, %u1 : tensor<f32>, tensor<f32>
  }
  func.func private @f(%x: tensor<f32>) -> tensor<f32> {
    return %x : tensor<f32>
  }
  func.func private @b0(%x: tensor<f32>) -> tensor<f32> {
    return %x : tensor<f32>
  }
  func.func private @b1(%x: tensor<f32>) -> tensor<f32> {
    return %x : tensor<f32>
  }
  func.func private @bucket(%x: tensor<f32>) -> tensor<f32> {
    return %x : tensor<f32>
  }
  func.func private @bucket_sum(%x: tensor<f32>, %y: tensor<f32>) -> tensor<f32> {
    return %x : tensor<f32>
  }
  func.func private @update(%x: tensor<f32>, %y: tensor<f32>) -> tensor<f32> {
    return %x : tensor<f32>
  }
}

// -----

// The second replica starts from what the first hands on. What leads there needs no action of the loop and runs
// before all of them; then the forwards and backwards of both run side by side.
// CHECK-LABEL: module @handed_on
// CHECK: callee = @advance, loop = @batch, microbatch = 0 : i64, order = 0 : i64, slice = @s0}
// CHECK: callee = @advance, loop = @batch, microbatch = 1 : i64, order = 1 : i64, slice = @s0}
// CHECK-NEXT: "pw.transfer"{{.*}}order = 2 : i64, slice = @s0_r1}
// CHECK-NEXT: callee = @f, loop = @batch, microbatch = 0 : i64, order = 3 : i64
// CHECK-NEXT: callee = @advance, loop = @batch_r1, microbatch = 0 : i64, order = 0 : i64
// CHECK-NEXT: callee = @f, loop = @batch, microbatch = 1 : i64, order = 4 : i64
// CHECK-NEXT: callee = @f, loop = @batch_r1, microbatch = 0 : i64, order = 1 : i64
module @handed_on attributes {pw.form = "unrolled"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {mesh = @mesh, replica = 0, sym_name = "s0"} : () -> ()
  "pw.slice"() {mesh = @mesh, replica = 1, replica_of = @s0, sym_name = "s0_r1"} : () -> ()
  "pw.loop"() {count = 2, sym_name = "batch"} : () -> ()
  "pw.loop"() {count = 2, replica_of = @batch, sym_name = "batch_r1"} : () -> ()
  func.func public @main(
      %x0: tensor<f32> {pw.replica = {count = 2, number = 0, of = 0}, pw.slice = @s0},
      %x1: tensor<f32> {pw.replica = {count = 2, number = 1, of = 0}, pw.slice = @s0_r1})
      -> (tensor<f32> {pw.replica = {count = 2, number = 0, of = 0}, pw.slice = @s0},
          tensor<f32> {pw.replica = {count = 2, number = 1, of = 0}, pw.slice = @s0_r1}) {
    %a00 = "pw.launch"(%x0) {callee = @advance, loop = @batch, microbatch = 0, slice = @s0} : (tensor<f32>) -> tensor<f32>
    %f00 = "pw.launch"(%a00) {callee = @f, loop = @batch, microbatch = 0, origins = [{kind = "fwd", microbatch = 0, stage = 0}], slice = @s0} : (tensor<f32>) -> tensor<f32>
    %b00 = "pw.launch"(%f00) {callee = @b, loop = @batch, microbatch = 0, origins = [{kind = "bwd", microbatch = 0, stage = 0}], slice = @s0} : (tensor<f32>) -> tensor<f32>
    %a01 = "pw.launch"(%a00) {callee = @advance, loop = @batch, microbatch = 1, slice = @s0} : (tensor<f32>) -> tensor<f32>
    %f01 = "pw.launch"(%a01) {callee = @f, loop = @batch, microbatch = 1, origins = [{kind = "fwd", microbatch = 1, stage = 0}], slice = @s0} : (tensor<f32>) -> tensor<f32>
    %b01 = "pw.launch"(%f01) {callee = @b, loop = @batch, microbatch = 1, origins = [{kind = "bwd", microbatch = 1, stage = 0}], slice = @s0} : (tensor<f32>) -> tensor<f32>
    %t = "pw.transfer"(%a01) {slice = @s0_r1} : (tensor<f32>) -> tensor<f32>
    %a10 = "pw.launch"(%t) {callee = @advance, loop = @batch_r1, microbatch = 0, slice = @s0_r1} : (tensor<f32>) -> tensor<f32>
    %f10 = "pw.launch"(%a10) {callee = @f, loop = @batch_r1, microbatch = 0, origins = [{kind = "fwd", microbatch = 0, stage = 0}], slice = @s0_r1} : (tensor<f32>) -> tensor<f32>
    %b10 = "pw.launch"(%f10) {callee = @b, loop = @batch_r1, microbatch = 0, origins = [{kind = "bwd", microbatch = 0, stage = 0}], slice = @s0_r1} : (tensor<f32>) -> tensor<f32>
    %a11 = "pw.launch"(%a10) {callee = @advance, loop = @batch_r1, microbatch = 1, slice = @s0_r1} : (tensor<f32>) -> tensor<f32>
    %f11 = "pw.launch"(%a11) {callee = @f, loop = @batch_r1, microbatch = 1, origins = [{kind = "fwd", microbatch = 1, stage = 0}], slice = @s0_r1} : (tensor<f32>) -> tensor<f32>
    %b11 = "pw.launch"(%f11) {callee = @b, loop = @batch_r1, microbatch = 1, origins = [{kind = "bwd", microbatch = 1, stage = 0}], slice = @s0_r1} : (tensor<f32>) -> tensor<f32>
    return %b01, %b11 : tensor<f32>, tensor<f32>
  }
  func.func private @advance(%x: tensor<f32>) -> tensor<f32> {
    return %x : tensor<f32>
  }
  func.func private @f(%x: tensor<f32>) -> tensor<f32> {
    return %x : tensor<f32>
  }
  func.func private @b(%x: tensor<f32>) -> tensor<f32> {
    return %x : tensor<f32>
  }
}
