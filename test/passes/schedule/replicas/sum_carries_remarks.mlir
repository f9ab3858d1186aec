// RUN: pw-opt %s --verify-diagnostics -p pw-sum-carries

module {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {mesh = @mesh, replicas = 2, sym_name = "s0"} : () -> ()
  "pw.loop"() {count = 4, sym_name = "batch"} : () -> ()
  func.func public @main(%sum: tensor<2xf32> {pw.slice = @s0}) -> (tensor<2xf32> {pw.slice = @s0}) {
    // expected-remark@below {{'pw.carry' op of type tensor<2xf32> is summed up by each replica apart, and over replicas after @batch: nothing waits for the replica before}}
    %c = "pw.carry"(%sum) {loop = @batch, slice = @s0} : (tensor<2xf32>) -> tensor<2xf32>
    %n = "pw.launch"(%c) {callee = @f, loop = @batch, slice = @s0} : (tensor<2xf32>) -> tensor<2xf32>
    %l = "pw.next"(%c, %n) {loop = @batch, slice = @s0} : (tensor<2xf32>, tensor<2xf32>) -> tensor<2xf32>
    return %l : tensor<2xf32>
  }
  func.func private @f(%c: tensor<2xf32>) -> tensor<2xf32> {
    %one = stablehlo.constant dense<1.0> : tensor<2xf32>
    %n = stablehlo.add %c, %one : tensor<2xf32>
    return %n : tensor<2xf32>
  }
}
