// Two computations on two slices; the value between them has to move:
//
//     pw-opt examples/two_slices.mlir --pw-insert-transfers

module @two_slices attributes {pw.form = "outlined"} {
  sdy.mesh @mesh = <["x"=2]>
  "pw.slice"() {mesh = @mesh, sym_name = "s0"} : () -> ()
  "pw.slice"() {mesh = @mesh, sym_name = "s1"} : () -> ()
  func.func public @main(%v: tensor<2xf32> {pw.slice = @s0}) -> (tensor<2xf32> {pw.slice = @s1}) {
    %x = "pw.launch"(%v) {callee = @double, slice = @s0} : (tensor<2xf32>) -> tensor<2xf32>
    %y = "pw.launch"(%x) {callee = @increment, slice = @s1} : (tensor<2xf32>) -> tensor<2xf32>
    return %y : tensor<2xf32>
  }
  func.func private @double(%v: tensor<2xf32>) -> tensor<2xf32> {
    %two = stablehlo.constant dense<2.0> : tensor<2xf32>
    %0 = stablehlo.multiply %v, %two : tensor<2xf32>
    return %0 : tensor<2xf32>
  }
  func.func private @increment(%v: tensor<2xf32>) -> tensor<2xf32> {
    %one = stablehlo.constant dense<1.0> : tensor<2xf32>
    %0 = stablehlo.add %v, %one : tensor<2xf32>
    return %0 : tensor<2xf32>
  }
}
