// RUN: pw-opt %s -p 'pw-accumulate{large=1}' | filecheck %s

// The computation is large: XLA is to compile one version of it, so the first launch takes zeros. They are
// made in front of what the slice runs for the loop, and lie as the sums do.

!x = tensor<4xf32>
!c = tensor<2xcomplex<f32>>
module @zeros attributes {pw.form = "ordered"} {
  sdy.mesh @mesh = <["x"=2]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  "pw.loop"() {sym_name = "batch", count = 2} : () -> ()
  func.func @main(%x: !x {pw.slice = @s0}) -> (!x {pw.slice = @s0}, !c {pw.slice = @s0}, !x {pw.slice = @s0}) {
    // CHECK: %[[Y:.*]] = "pw.launch"(%arg0) {callee = @once, order = 0 : i64
    // CHECK-NEXT: %[[ZEROS:.*]]:2 = "pw.launch"() {callee = @"batch/zeros", order = 1 : i64, slice = @s0}
    // CHECK-NEXT: %[[G0:.*]]:2 = "pw.launch"(%arg0, %[[ZEROS]]#0, %[[ZEROS]]#1) {callee = @f_add, loop = @batch, microbatch = 0 : i64, order = 2 : i64
    // CHECK-NEXT: %[[G1:.*]]:2 = "pw.launch"(%arg0, %[[G0]]#0, %[[G0]]#1) {callee = @f_add, loop = @batch, microbatch = 1 : i64, order = 3 : i64
    // CHECK-NEXT: return %[[G1]]#0, %[[G1]]#1, %[[Y]]
    %y = "pw.launch"(%x) {callee = @once, order = 0, slice = @s0} : (!x) -> !x
    %g0:2 = "pw.launch"(%x) {callee = @f, loop = @batch, microbatch = 0, order = 1, origins = [{kind = "bwd", microbatch = 0, stage = 0}], slice = @s0} : (!x) -> (!x, !c)
    %g1:2 = "pw.launch"(%x) {callee = @f, loop = @batch, microbatch = 1, order = 2, origins = [{kind = "bwd", microbatch = 1, stage = 0}], slice = @s0} : (!x) -> (!x, !c)
    %sum = "pw.reduce"(%g0#0, %g1#0) {kind = "sum", loop = @batch, slice = @s0} : (!x, !x) -> !x
    %other = "pw.reduce"(%g0#1, %g1#1) {kind = "sum", loop = @batch, slice = @s0} : (!c, !c) -> !c
    return %sum, %other, %y : !x, !c, !x
  }
  // CHECK-NOT: @f(
  // CHECK: func.func private @"batch/zeros"() -> (tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}]>}, tensor<2xcomplex<f32>>)
  // CHECK-NEXT: %[[REAL:.*]] = stablehlo.constant dense<0.000000e+00> : tensor<4xf32>
  // CHECK-NEXT: %[[PART:.*]] = stablehlo.constant dense<0.000000e+00> : tensor<2xf32>
  // CHECK-NEXT: %[[COMPLEX:.*]] = stablehlo.complex %[[PART]], %[[PART]]
  // CHECK-NEXT: return %[[REAL]], %[[COMPLEX]]
  func.func private @f(%x: !x) -> (!x {sdy.sharding = #sdy.sharding<@mesh, [{"x"}]>}, !c) {
    %y = stablehlo.tanh %x : !x
    %z = stablehlo.constant dense<(1.0, 2.0)> : !c
    return %y, %z : !x, !c
  }
  func.func private @once(%x: !x) -> !x {
    return %x : !x
  }
}
