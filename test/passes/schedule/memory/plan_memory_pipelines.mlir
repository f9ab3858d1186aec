// RUN: pw-opt %s --split-input-file -p 'pw-unroll-microbatches,pw-schedule{policy=gpipe},pw-accumulate,pw-plan-memory' | filecheck %s --check-prefixes=CHECK,GPIPE
// RUN: pw-opt %s --split-input-file -p 'pw-unroll-microbatches,pw-schedule{policy=1f1b},pw-accumulate,pw-plan-memory' | filecheck %s --check-prefixes=CHECK,1F1B

// Three stages, each with an activation of 1024 bytes from the forward to the backward of a microbatch, and values
// of 4 bytes between them. gpipe holds the activations of all M microbatches, 1f1b those of min(S - s, M) at stage s.
// The rest of a peak is smaller than one of them. The sum of the gradients is one buffer, small as it is.

!h = tensor<1xf32>
!act = tensor<256xf32>
// CHECK-LABEL: module @fewer_stages
// GPIPE: "pw.slice"() {mesh = @mesh, peak_bytes = 41{{..}} : i64, sym_name = "s0"}
// GPIPE: "pw.slice"() {mesh = @mesh, peak_bytes = 41{{..}} : i64, sym_name = "s1"}
// GPIPE: "pw.slice"() {mesh = @mesh, peak_bytes = 41{{..}} : i64, sym_name = "s2"}
// 1F1B: "pw.slice"() {mesh = @mesh, peak_bytes = 31{{..}} : i64, sym_name = "s0"}
// 1F1B: "pw.slice"() {mesh = @mesh, peak_bytes = 20{{..}} : i64, sym_name = "s1"}
// 1F1B: "pw.slice"() {mesh = @mesh, peak_bytes = 10{{..}} : i64, sym_name = "s2"}
module @fewer_stages attributes {pw.form = "sharded"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  "pw.slice"() {sym_name = "s1", mesh = @mesh} : () -> ()
  "pw.slice"() {sym_name = "s2", mesh = @mesh} : () -> ()
  "pw.loop"() {sym_name = "l", count = 4 : i64} : () -> ()
  func.func @main(%batch: tensor<4xf32> {pw.slice = @s0}) -> (!h {pw.slice = @s0}) {
    %h0 = "pw.split"(%batch) {loop = @l, slice = @s0} : (tensor<4xf32>) -> !h
    %h1, %r0 = "pw.launch"(%h0) {callee = @f, loop = @l, origins = [{kind = "fwd", stage = 0}], slice = @s0} : (!h) -> (!h, !act)
    %i1 = "pw.transfer"(%h1) {loop = @l, slice = @s1} : (!h) -> !h
    %h2, %r1 = "pw.launch"(%i1) {callee = @f, loop = @l, origins = [{kind = "fwd", stage = 1}], slice = @s1} : (!h) -> (!h, !act)
    %i2 = "pw.transfer"(%h2) {loop = @l, slice = @s2} : (!h) -> !h
    %h3, %r2 = "pw.launch"(%i2) {callee = @f, loop = @l, origins = [{kind = "fwd", stage = 2}], slice = @s2} : (!h) -> (!h, !act)
    %d2 = "pw.launch"(%h3, %r2) {callee = @f_bwd, loop = @l, origins = [{kind = "bwd", stage = 2}], slice = @s2} : (!h, !act) -> !h
    %e1 = "pw.transfer"(%d2) {loop = @l, slice = @s1} : (!h) -> !h
    %d1 = "pw.launch"(%e1, %r1) {callee = @f_bwd, loop = @l, origins = [{kind = "bwd", stage = 1}], slice = @s1} : (!h, !act) -> !h
    %e0 = "pw.transfer"(%d1) {loop = @l, slice = @s0} : (!h) -> !h
    %d0 = "pw.launch"(%e0, %r0) {callee = @f_bwd, loop = @l, origins = [{kind = "bwd", stage = 0}], slice = @s0} : (!h, !act) -> !h
    %g = "pw.reduce"(%d0) {kind = "sum", loop = @l, slice = @s0} : (!h) -> !h
    return %g : !h
  }
  func.func private @f(%h: !h) -> (!h, !act) {
    %r = stablehlo.broadcast_in_dim %h, dims = [0] : (!h) -> !act
    return %h, %r : !h, !act
  }
  func.func private @f_bwd(%d: !h, %r: !act) -> !h {
    return %d : !h
  }
  // CHECK: func.func private @f_bwd_add({{.*}}, %arg2: tensor<1xf32> {tf.aliasing_output = 0 : i32})
}

// -----

// With fewer microbatches than stages.

!h = tensor<1xf32>
!act = tensor<256xf32>
// CHECK-LABEL: module @fewer_microbatches
// GPIPE: "pw.slice"() {mesh = @mesh, peak_bytes = 20{{..}} : i64, sym_name = "s0"}
// GPIPE: "pw.slice"() {mesh = @mesh, peak_bytes = 20{{..}} : i64, sym_name = "s1"}
// GPIPE: "pw.slice"() {mesh = @mesh, peak_bytes = 20{{..}} : i64, sym_name = "s2"}
// 1F1B: "pw.slice"() {mesh = @mesh, peak_bytes = 20{{..}} : i64, sym_name = "s0"}
// 1F1B: "pw.slice"() {mesh = @mesh, peak_bytes = 20{{..}} : i64, sym_name = "s1"}
// 1F1B: "pw.slice"() {mesh = @mesh, peak_bytes = 10{{..}} : i64, sym_name = "s2"}
module @fewer_microbatches attributes {pw.form = "sharded"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  "pw.slice"() {sym_name = "s1", mesh = @mesh} : () -> ()
  "pw.slice"() {sym_name = "s2", mesh = @mesh} : () -> ()
  "pw.loop"() {sym_name = "l", count = 2 : i64} : () -> ()
  func.func @main(%batch: tensor<2xf32> {pw.slice = @s0}) -> (!h {pw.slice = @s0}) {
    %h0 = "pw.split"(%batch) {loop = @l, slice = @s0} : (tensor<2xf32>) -> !h
    %h1, %r0 = "pw.launch"(%h0) {callee = @f, loop = @l, origins = [{kind = "fwd", stage = 0}], slice = @s0} : (!h) -> (!h, !act)
    %i1 = "pw.transfer"(%h1) {loop = @l, slice = @s1} : (!h) -> !h
    %h2, %r1 = "pw.launch"(%i1) {callee = @f, loop = @l, origins = [{kind = "fwd", stage = 1}], slice = @s1} : (!h) -> (!h, !act)
    %i2 = "pw.transfer"(%h2) {loop = @l, slice = @s2} : (!h) -> !h
    %h3, %r2 = "pw.launch"(%i2) {callee = @f, loop = @l, origins = [{kind = "fwd", stage = 2}], slice = @s2} : (!h) -> (!h, !act)
    %d2 = "pw.launch"(%h3, %r2) {callee = @f_bwd, loop = @l, origins = [{kind = "bwd", stage = 2}], slice = @s2} : (!h, !act) -> !h
    %e1 = "pw.transfer"(%d2) {loop = @l, slice = @s1} : (!h) -> !h
    %d1 = "pw.launch"(%e1, %r1) {callee = @f_bwd, loop = @l, origins = [{kind = "bwd", stage = 1}], slice = @s1} : (!h, !act) -> !h
    %e0 = "pw.transfer"(%d1) {loop = @l, slice = @s0} : (!h) -> !h
    %d0 = "pw.launch"(%e0, %r0) {callee = @f_bwd, loop = @l, origins = [{kind = "bwd", stage = 0}], slice = @s0} : (!h, !act) -> !h
    %g = "pw.reduce"(%d0) {kind = "sum", loop = @l, slice = @s0} : (!h) -> !h
    return %g : !h
  }
  func.func private @f(%h: !h) -> (!h, !act) {
    %r = stablehlo.broadcast_in_dim %h, dims = [0] : (!h) -> !act
    return %h, %r : !h, !act
  }
  func.func private @f_bwd(%d: !h, %r: !act) -> !h {
    return %d : !h
  }
  // CHECK: func.func private @f_bwd_add({{.*}}, %arg2: tensor<1xf32> {tf.aliasing_output = 0 : i32})
}
