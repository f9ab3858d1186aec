// RUN: pw-opt %s --pw-infer-placement --pw-outline | filecheck %s

// A large carried value stays on one slice, where the fewest bytes cross; a small one that both slices read is
// handed on by each of them, and so is nothing but a number. The index is at hand everywhere.

!h = tensor<512xf32>
!n = tensor<i32>
module @decode attributes {pw.form = "imported"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  "pw.slice"() {sym_name = "s1", mesh = @mesh} : () -> ()
  "pw.loop"() {sym_name = "loop", count = 3, sequential} : () -> ()
  // CHECK: func.func public @main(%[[X:.*]]: tensor<512xf32> {pw.slice = @s0}, %[[SEED:.*]]: tensor<i32> {pw.slice = [@s0, @s1]})
  // CHECK-SAME: -> (tensor<512xf32> {pw.slice = @s0}, tensor<i32> {pw.slice = [@s0, @s1]})
  func.func public @main(%x: !h, %seed: !n) -> (!h, !n) {
    // CHECK: %[[I:.*]] = "pw.index"() {loop = @loop}
    // CHECK-DAG: %[[N0:.*]] = "pw.carry"(%[[SEED]]) {loop = @loop, slice = @s0}
    // CHECK-DAG: %[[N1:.*]] = "pw.carry"(%[[SEED]]) {loop = @loop, slice = @s1}
    // CHECK-DAG: %[[H:.*]] = "pw.carry"(%[[X]]) {loop = @loop, slice = @s0}
    // CHECK-DAG: %[[D0:.*]] = "pw.launch"(%[[N0]], %[[I]]) {callee = @glue, loop = @loop, slice = @s0}
    // CHECK-DAG: %[[D1:.*]] = "pw.launch"(%[[N1]], %[[I]]) {callee = @glue, loop = @loop, slice = @s1}
    // CHECK: %[[A:.*]] = "pw.launch"(%[[H]], %[[D0]]) {callee = @f, loop = @loop
    // CHECK: %[[B:.*]] = "pw.launch"(%[[A]], %[[D1]]) {callee = @f, loop = @loop
    %i = "pw.index"() {loop = @loop} : () -> !n
    %h = "pw.carry"(%x) {loop = @loop} : (!h) -> !h
    %n = "pw.carry"(%seed) {loop = @loop} : (!n) -> !n
    %d = stablehlo.add %n, %i {pw.loop = @loop} : !n
    %a = "pw.launch"(%h, %d) {callee = @f, loop = @loop, origins = [{kind = "fwd", stage = 0}], slice = @s0} : (!h, !n) -> !h
    %b = "pw.launch"(%a, %d) {callee = @f, loop = @loop, origins = [{kind = "fwd", stage = 1}], slice = @s1} : (!h, !n) -> !h
    // CHECK-DAG: %[[M0:.*]] = "pw.next"(%[[N0]], %[[D0]]) {loop = @loop, slice = @s0}
    // CHECK-DAG: %[[M1:.*]] = "pw.next"(%[[N1]], %[[D1]]) {loop = @loop, slice = @s1}
    // CHECK-DAG: %[[LAST:.*]] = "pw.next"(%[[H]], %[[B]]) {loop = @loop, slice = @s0}
    // CHECK: %[[BOTH:.*]] = "pw.mirror"(%[[M0]], %[[M1]])
    // CHECK: return %[[LAST]], %[[BOTH]]
    %last = "pw.next"(%h, %b) {loop = @loop} : (!h, !h) -> !h
    %m = "pw.next"(%n, %d) {loop = @loop} : (!n, !n) -> !n
    return %last, %m : !h, !n
  }
  func.func private @f(%h: !h, %n: !n) -> !h {
    %0 = stablehlo.convert %n : (!n) -> tensor<f32>
    %1 = stablehlo.broadcast_in_dim %0, dims = [] : (tensor<f32>) -> !h
    %2 = stablehlo.multiply %h, %1 : !h
    return %2 : !h
  }
}
