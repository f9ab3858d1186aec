module @jit_step attributes {mhlo.num_partitions = 2 : i32, mhlo.num_replicas = 1 : i32} {
  sdy.mesh @mesh = <["x"=2]> {stablehlo.mesh = {axes = [{name = "x", size = 2 : i64}]}}
  func.func public @main(%arg0: !mpmd.mesh_tensor<"mesh0", tensor<4x4xf32>> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}, %arg1: !mpmd.mesh_tensor<"mesh1", tensor<4x2xf32>>, %arg2: !mpmd.mesh_tensor<"mesh0", tensor<8x4xf32>> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}) -> (!mpmd.mesh_tensor<"mesh1", tensor<f32>> {jax.result_info = "result['loss']"}, !mpmd.mesh_tensor<"mesh0", tensor<4x4xf32>> {jax.result_info = "result['params']['w'][0]"}, !mpmd.mesh_tensor<"mesh1", tensor<4x2xf32>> {jax.result_info = "result['params']['w'][1]"}) attributes {topology = #mpmd.topology<<"mesh0" : <["x"=2]>>, <"mesh1" : <["x"=2]>>>} {
    %0:2 = mpmd.fragment<mesh="mesh0", origin=["stage0"], stage=0> (%arg0, %arg2) (%arg3: tensor<4x4xf32>, %arg4: tensor<8x4xf32>) {
      %cst = stablehlo.constant dense<1.000000e+00> : tensor<8x4xf32>
      %6 = stablehlo.dot_general %arg4, %arg3, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] : (tensor<8x4xf32>, tensor<4x4xf32>) -> tensor<8x4xf32>
      %7 = stablehlo.tanh %6 : tensor<8x4xf32>
      %8 = stablehlo.add %7, %cst : tensor<8x4xf32>
      %9 = stablehlo.subtract %cst, %7 : tensor<8x4xf32>
      %10 = stablehlo.multiply %8, %9 : tensor<8x4xf32>
      mpmd.return %7, %10 : tensor<8x4xf32>, tensor<8x4xf32>
    } : (!mpmd.mesh_tensor<"mesh0", tensor<4x4xf32>>, !mpmd.mesh_tensor<"mesh0", tensor<8x4xf32>>) -> (!mpmd.mesh_tensor<"mesh0", tensor<8x4xf32>>, !mpmd.mesh_tensor<"mesh0", tensor<8x4xf32>>)
    %1 = mpmd.transfer %0#0 : (!mpmd.mesh_tensor<"mesh0", tensor<8x4xf32>>) -> !mpmd.mesh_tensor<"mesh1", tensor<8x4xf32>>
    %2:2 = mpmd.fragment<mesh="mesh1", origin=["stage1"], stage=1> (%arg1, %1) (%arg3: tensor<4x2xf32>, %arg4: tensor<8x4xf32>) {
      %cst = stablehlo.constant dense<2.000000e+00> : tensor<8x2xf32>
      %cst_0 = stablehlo.constant dense<1.600000e+01> : tensor<f32>
      %cst_1 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %6 = stablehlo.dot_general %arg4, %arg3, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] : (tensor<8x4xf32>, tensor<4x2xf32>) -> tensor<8x2xf32>
      %7 = stablehlo.multiply %6, %6 : tensor<8x2xf32>
      %8 = stablehlo.multiply %6, %cst : tensor<8x2xf32>
      %9 = stablehlo.reduce(%7 init: %cst_1) applies stablehlo.add across dimensions = [0, 1] : (tensor<8x2xf32>, tensor<f32>) -> tensor<f32>
      %10 = stablehlo.divide %9, %cst_0 : tensor<f32>
      mpmd.return %10, %8 : tensor<f32>, tensor<8x2xf32>
    } : (!mpmd.mesh_tensor<"mesh1", tensor<4x2xf32>>, !mpmd.mesh_tensor<"mesh1", tensor<8x4xf32>>) -> (!mpmd.mesh_tensor<"mesh1", tensor<f32>>, !mpmd.mesh_tensor<"mesh1", tensor<8x2xf32>>)
    %3:2 = mpmd.fragment<mesh="mesh1", origin=["stage1"(1)], stage=1> (%arg1, %1, %2#1) (%arg3: tensor<4x2xf32>, %arg4: tensor<8x4xf32>, %arg5: tensor<8x2xf32>) {
      %cst = stablehlo.constant dense<1.000000e+00> : tensor<f32>
      %cst_0 = stablehlo.constant dense<1.600000e+01> : tensor<f32>
      %6 = stablehlo.divide %cst, %cst_0 : tensor<f32>
      %7 = stablehlo.broadcast_in_dim %6, dims = [] : (tensor<f32>) -> tensor<8x2xf32>
      %8 = stablehlo.multiply %7, %arg5 : tensor<8x2xf32>
      %9 = stablehlo.dot_general %8, %arg4, contracting_dims = [0] x [0], precision = [DEFAULT, DEFAULT] : (tensor<8x2xf32>, tensor<8x4xf32>) -> tensor<2x4xf32>
      %10 = stablehlo.transpose %9, dims = [1, 0] : (tensor<2x4xf32>) -> tensor<4x2xf32>
      %11 = stablehlo.dot_general %8, %arg3, contracting_dims = [1] x [1], precision = [DEFAULT, DEFAULT] : (tensor<8x2xf32>, tensor<4x2xf32>) -> tensor<8x4xf32>
      %cst_1 = stablehlo.constant dense<1.000000e-01> : tensor<4x2xf32>
      %12 = stablehlo.multiply %10, %cst_1 : tensor<4x2xf32>
      %13 = stablehlo.subtract %arg3, %12 : tensor<4x2xf32>
      mpmd.return %11, %13 : tensor<8x4xf32>, tensor<4x2xf32>
    } : (!mpmd.mesh_tensor<"mesh1", tensor<4x2xf32>>, !mpmd.mesh_tensor<"mesh1", tensor<8x4xf32>>, !mpmd.mesh_tensor<"mesh1", tensor<8x2xf32>>) -> (!mpmd.mesh_tensor<"mesh1", tensor<8x4xf32>>, !mpmd.mesh_tensor<"mesh1", tensor<4x2xf32>>)
    %4 = mpmd.transfer %3#0 : (!mpmd.mesh_tensor<"mesh1", tensor<8x4xf32>>) -> !mpmd.mesh_tensor<"mesh0", tensor<8x4xf32>>
    %5 = mpmd.fragment<mesh="mesh0", origin=["stage0"(1)], stage=0> (%arg2, %0#1, %4, %arg0) (%arg3: tensor<8x4xf32>, %arg4: tensor<8x4xf32>, %arg5: tensor<8x4xf32>, %arg6: tensor<4x4xf32>) {
      %6 = stablehlo.multiply %arg5, %arg4 : tensor<8x4xf32>
      %7 = stablehlo.dot_general %6, %arg3, contracting_dims = [0] x [0], precision = [DEFAULT, DEFAULT] : (tensor<8x4xf32>, tensor<8x4xf32>) -> tensor<4x4xf32>
      %8 = stablehlo.transpose %7, dims = [1, 0] : (tensor<4x4xf32>) -> tensor<4x4xf32>
      %cst = stablehlo.constant dense<1.000000e-01> : tensor<4x4xf32>
      %9 = stablehlo.multiply %8, %cst : tensor<4x4xf32>
      %10 = stablehlo.subtract %arg6, %9 : tensor<4x4xf32>
      mpmd.return %10 : tensor<4x4xf32>
    } : (!mpmd.mesh_tensor<"mesh0", tensor<8x4xf32>>, !mpmd.mesh_tensor<"mesh0", tensor<8x4xf32>>, !mpmd.mesh_tensor<"mesh0", tensor<8x4xf32>>, !mpmd.mesh_tensor<"mesh0", tensor<4x4xf32>>) -> !mpmd.mesh_tensor<"mesh0", tensor<4x4xf32>>
    return %2#0, %5, %3#1 : !mpmd.mesh_tensor<"mesh1", tensor<f32>>, !mpmd.mesh_tensor<"mesh0", tensor<4x4xf32>>, !mpmd.mesh_tensor<"mesh1", tensor<4x2xf32>>
  }
}
