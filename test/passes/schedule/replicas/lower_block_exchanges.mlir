// RUN: pw-opt %s -p 'pw-lower-all-reduces{whole-bytes=16}' | filecheck %s
// RUN: pw-opt %s -p 'pw-lower-all-reduces{whole-bytes=16,dtype=bfloat16}' | filecheck %s --check-prefix=NARROW

// Each replica gets its block of both terms and adds them up; small arrays travel in one bucket. What is put
// together of blocks is not rounded.
// CHECK-LABEL: func.func public @main
// CHECK: %[[CUT0:.*]]:2 = "pw.launch"(%{{.*}}, %{{.*}}) {callee = @scatter, overlap_with_loop, slice = @s0} : (tensor<4xf32>, tensor<2x2xf32>) -> (tensor<1x4xf32>, tensor<1x4xf32>)
// CHECK: %[[CUT1:.*]]:2 = "pw.launch"(%{{.*}}, %{{.*}}) {callee = @scatter, overlap_with_loop, slice = @s1}
// CHECK: %[[TERM:.*]] = "pw.transfer"(%[[CUT1]]#0) {slice = @s0} : (tensor<1x4xf32>) -> tensor<1x4xf32>
// CHECK: %[[SUM0:.*]]:2 = "pw.launch"(%[[CUT0]]#0, %[[TERM]]) {callee = @scatter_total, slice = @s0} : {{.*}} -> (tensor<2xf32>, tensor<2x1xf32>)
// CHECK: %[[TERM1:.*]] = "pw.transfer"(%[[CUT0]]#1) {slice = @s1}
// CHECK: "pw.launch"(%[[TERM1]], %[[CUT1]]#1) {callee = @scatter_total, slice = @s1}
// CHECK: "pw.launch"(%[[SUM0]]#0, %[[SUM0]]#1) {callee = @bucket, slice = @s0} : (tensor<2xf32>, tensor<2x1xf32>) -> tensor<1x4xf32>
// CHECK: callee = @gathered, slice = @s0} : (tensor<1x4xf32>, tensor<1x4xf32>) -> (tensor<4xf32>, tensor<2x2xf32>)
// CHECK: func.func private @scatter(%[[A:.*]]: tensor<4xf32>, %[[B:.*]]: tensor<2x2xf32>)
// CHECK: stablehlo.slice %[[A]] [0:2]
// CHECK: stablehlo.slice %[[B]] [0:2, 0:1]
// CHECK: func.func private @gathered
// CHECK: stablehlo.concatenate {{.*}} dim = 0 : {{.*}} -> tensor<4xf32>
// CHECK: stablehlo.concatenate {{.*}} dim = 1 : {{.*}} -> tensor<2x2xf32>
// NARROW: callee = @scatter, overlap_with_loop, slice = @s0} : {{.*}} -> (tensor<1x4xbf16>, tensor<1x4xbf16>)
// NARROW: callee = @gathered, slice = @s0} : (tensor<1x4xf32>, tensor<1x4xf32>)
module attributes {pw.form = "sharded"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {mesh = @mesh, replica = 0, sym_name = "s0"} : () -> ()
  "pw.slice"() {mesh = @mesh, replica = 1, replica_of = @s0, sym_name = "s1"} : () -> ()
  func.func public @main(%a0: tensor<4xf32> {pw.slice = @s0}, %a1: tensor<4xf32> {pw.slice = @s1}, %b0: tensor<2x2xf32> {pw.slice = @s0}, %b1: tensor<2x2xf32> {pw.slice = @s1})
      -> (tensor<4xf32> {pw.slice = @s0}, tensor<4xf32> {pw.slice = @s1}, tensor<2x2xf32> {pw.slice = @s0}, tensor<2x2xf32> {pw.slice = @s1}) {
    %a:2 = "pw.reduce_scatter"(%a0, %a1) {dim = 0} : (tensor<4xf32>, tensor<4xf32>) -> (tensor<2xf32>, tensor<2xf32>)
    %b:2 = "pw.reduce_scatter"(%b0, %b1) {dim = 1} : (tensor<2x2xf32>, tensor<2x2xf32>) -> (tensor<2x1xf32>, tensor<2x1xf32>)
    %c:2 = "pw.all_gather"(%a#0, %a#1) {dim = 0} : (tensor<2xf32>, tensor<2xf32>) -> (tensor<4xf32>, tensor<4xf32>)
    %d:2 = "pw.all_gather"(%b#0, %b#1) {dim = 1} : (tensor<2x1xf32>, tensor<2x1xf32>) -> (tensor<2x2xf32>, tensor<2x2xf32>)
    return %c#0, %c#1, %d#0, %d#1 : tensor<4xf32>, tensor<4xf32>, tensor<2x2xf32>, tensor<2x2xf32>
  }
}
