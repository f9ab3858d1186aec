// RUN: pw-opt %s --pw-replicate | filecheck %s

// Slices exchange blocks with those of their own replica.

!x = tensor<2x4xf32>
module @experts attributes {pw.form = "sharded"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {mesh = @mesh, replicas = 2, sym_name = "s0"} : () -> ()
  "pw.slice"() {mesh = @mesh, replicas = 2, sym_name = "s1"} : () -> ()
  "pw.loop"() {count = 4, sym_name = "batch"} : () -> ()
  func.func public @main(%x: tensor<8x4xf32> {pw.slice = @s0}, %y: tensor<8x4xf32> {pw.slice = @s1}) -> (tensor<8x4xf32> {pw.slice = @s0}) {
    %0 = "pw.split"(%x) {loop = @batch, slice = @s0} : (tensor<8x4xf32>) -> !x
    %1 = "pw.split"(%y) {loop = @batch, slice = @s1} : (tensor<8x4xf32>) -> !x
    // CHECK: "pw.all_to_all"({{.*}}) {loop = @batch, slices = [@s0, @s1]}
    // CHECK-NEXT: "pw.all_to_all"({{.*}}) {loop = @batch_r1, slices = [@s0_r1, @s1_r1]}
    %2:2 = "pw.all_to_all"(%0, %1) {loop = @batch, slices = [@s0, @s1]} : (!x, !x) -> (!x, !x)
    %3 = "pw.reduce"(%2#0) {kind = "concat", loop = @batch, slice = @s0} : (!x) -> tensor<8x4xf32>
    return %3 : tensor<8x4xf32>
  }
}
