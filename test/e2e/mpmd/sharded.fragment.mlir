module @jit_step attributes {mhlo.num_partitions = 4 : i32, mhlo.num_replicas = 1 : i32} {
  sdy.mesh @mesh = <["x"=4]> {stablehlo.mesh = {axes = [{name = "x", size = 4 : i64}]}}
  func.func public @main(%arg0: !mpmd.mesh_tensor<"mesh0", tensor<4x8xf32>> {jax.buffer_donor = true, sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>}, %arg1: !mpmd.mesh_tensor<"mesh1", tensor<8x4xf32>> {jax.buffer_donor = true, sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}, %arg2: !mpmd.mesh_tensor<"mesh0", tensor<2x8x4xf32>> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}, {}]>}) -> (!mpmd.mesh_tensor<"mesh1", tensor<f32>> {jax.result_info = "result[0]"}, !mpmd.mesh_tensor<"mesh0", tensor<4x8xf32>> {jax.result_info = "result[1][0]"}, !mpmd.mesh_tensor<"mesh1", tensor<8x4xf32>> {jax.result_info = "result[1][1]"}) attributes {topology = #mpmd.topology<<"mesh0" : <["x"=4]>>, <"mesh1" : <["x"=4]>>>} {
    %0:4 = mpmd.fragment<mesh="mesh0", origin=["stage0"], stage=0> (%arg2, %arg0) {call_counter = 0 : ui32} (%arg3: tensor<2x8x4xf32>, %arg4: tensor<4x8xf32>) {
      %12 = stablehlo.slice %arg3 [0:1, 0:8, 0:4] : (tensor<2x8x4xf32>) -> tensor<1x8x4xf32>
      %13 = stablehlo.reshape %12 : (tensor<1x8x4xf32>) -> tensor<8x4xf32>
      %14 = stablehlo.slice %arg3 [1:2, 0:8, 0:4] : (tensor<2x8x4xf32>) -> tensor<1x8x4xf32>
      %15 = stablehlo.reshape %14 : (tensor<1x8x4xf32>) -> tensor<8x4xf32>
      %cst = stablehlo.constant dense<1.000000e+00> : tensor<8x8xf32>
      %16 = stablehlo.dot_general %13, %arg4, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] : (tensor<8x4xf32>, tensor<4x8xf32>) -> tensor<8x8xf32>
      %17 = stablehlo.tanh %16 : tensor<8x8xf32>
      %18 = stablehlo.add %17, %cst : tensor<8x8xf32>
      %19 = stablehlo.subtract %cst, %17 : tensor<8x8xf32>
      %20 = stablehlo.multiply %18, %19 : tensor<8x8xf32>
      mpmd.return %13, %15, %17, %20 : tensor<8x4xf32>, tensor<8x4xf32>, tensor<8x8xf32>, tensor<8x8xf32>
    } : (!mpmd.mesh_tensor<"mesh0", tensor<2x8x4xf32>>, !mpmd.mesh_tensor<"mesh0", tensor<4x8xf32>>) -> (!mpmd.mesh_tensor<"mesh0", tensor<8x4xf32>>, !mpmd.mesh_tensor<"mesh0", tensor<8x4xf32>>, !mpmd.mesh_tensor<"mesh0", tensor<8x8xf32>>, !mpmd.mesh_tensor<"mesh0", tensor<8x8xf32>>)
    %1 = mpmd.transfer %0#2 : (!mpmd.mesh_tensor<"mesh0", tensor<8x8xf32>>) -> !mpmd.mesh_tensor<"mesh1", tensor<8x8xf32>>
    %2:2 = mpmd.fragment<mesh="mesh1", origin=["stage1"], stage=1> (%arg1, %1) {call_counter = 0 : ui32} (%arg3: tensor<8x4xf32>, %arg4: tensor<8x8xf32>) {
      %cst = stablehlo.constant dense<2.000000e+00> : tensor<8x4xf32>
      %cst_0 = stablehlo.constant dense<3.200000e+01> : tensor<f32>
      %cst_1 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %12 = stablehlo.dot_general %arg4, %arg3, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] : (tensor<8x8xf32>, tensor<8x4xf32>) -> tensor<8x4xf32>
      %13 = stablehlo.multiply %12, %12 : tensor<8x4xf32>
      %14 = stablehlo.multiply %12, %cst : tensor<8x4xf32>
      %15 = stablehlo.reduce(%13 init: %cst_1) applies stablehlo.add across dimensions = [0, 1] : (tensor<8x4xf32>, tensor<f32>) -> tensor<f32>
      %16 = stablehlo.divide %15, %cst_0 : tensor<f32>
      mpmd.return %16, %14 : tensor<f32>, tensor<8x4xf32>
    } : (!mpmd.mesh_tensor<"mesh1", tensor<8x4xf32>>, !mpmd.mesh_tensor<"mesh1", tensor<8x8xf32>>) -> (!mpmd.mesh_tensor<"mesh1", tensor<f32>>, !mpmd.mesh_tensor<"mesh1", tensor<8x4xf32>>)
    %3:2 = mpmd.fragment<mesh="mesh1", origin=["stage1"(1)], stage=1> (%arg1, %1, %2#1) {call_counter = 0 : ui32} (%arg3: tensor<8x4xf32>, %arg4: tensor<8x8xf32>, %arg5: tensor<8x4xf32>) {
      %cst = stablehlo.constant dense<1.000000e+00> : tensor<f32>
      %cst_0 = stablehlo.constant dense<3.200000e+01> : tensor<f32>
      %12 = stablehlo.divide %cst, %cst_0 : tensor<f32>
      %13 = stablehlo.broadcast_in_dim %12, dims = [] : (tensor<f32>) -> tensor<8x4xf32>
      %14 = stablehlo.multiply %13, %arg5 : tensor<8x4xf32>
      %15 = stablehlo.dot_general %14, %arg4, contracting_dims = [0] x [0], precision = [DEFAULT, DEFAULT] : (tensor<8x4xf32>, tensor<8x8xf32>) -> tensor<4x8xf32>
      %16 = stablehlo.transpose %15, dims = [1, 0] : (tensor<4x8xf32>) -> tensor<8x4xf32>
      %17 = stablehlo.dot_general %14, %arg3, contracting_dims = [1] x [1], precision = [DEFAULT, DEFAULT] : (tensor<8x4xf32>, tensor<8x4xf32>) -> tensor<8x8xf32>
      mpmd.return %16, %17 : tensor<8x4xf32>, tensor<8x8xf32>
    } : (!mpmd.mesh_tensor<"mesh1", tensor<8x4xf32>>, !mpmd.mesh_tensor<"mesh1", tensor<8x8xf32>>, !mpmd.mesh_tensor<"mesh1", tensor<8x4xf32>>) -> (!mpmd.mesh_tensor<"mesh1", tensor<8x4xf32>>, !mpmd.mesh_tensor<"mesh1", tensor<8x8xf32>>)
    %4 = mpmd.transfer %3#1 : (!mpmd.mesh_tensor<"mesh1", tensor<8x8xf32>>) -> !mpmd.mesh_tensor<"mesh0", tensor<8x8xf32>>
    %5:2 = mpmd.fragment<mesh="mesh0", origin=["stage0"], stage=0> (%arg0, %0#1) {call_counter = 1 : ui32} (%arg3: tensor<4x8xf32>, %arg4: tensor<8x4xf32>) {
      %cst = stablehlo.constant dense<1.000000e+00> : tensor<8x8xf32>
      %12 = stablehlo.dot_general %arg4, %arg3, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] : (tensor<8x4xf32>, tensor<4x8xf32>) -> tensor<8x8xf32>
      %13 = stablehlo.tanh %12 : tensor<8x8xf32>
      %14 = stablehlo.add %13, %cst : tensor<8x8xf32>
      %15 = stablehlo.subtract %cst, %13 : tensor<8x8xf32>
      %16 = stablehlo.multiply %14, %15 : tensor<8x8xf32>
      mpmd.return %13, %16 : tensor<8x8xf32>, tensor<8x8xf32>
    } : (!mpmd.mesh_tensor<"mesh0", tensor<4x8xf32>>, !mpmd.mesh_tensor<"mesh0", tensor<8x4xf32>>) -> (!mpmd.mesh_tensor<"mesh0", tensor<8x8xf32>>, !mpmd.mesh_tensor<"mesh0", tensor<8x8xf32>>)
    %6 = mpmd.transfer %5#0 : (!mpmd.mesh_tensor<"mesh0", tensor<8x8xf32>>) -> !mpmd.mesh_tensor<"mesh1", tensor<8x8xf32>>
    %7:2 = mpmd.fragment<mesh="mesh1", origin=["stage1"], stage=1> (%arg1, %6) {call_counter = 1 : ui32} (%arg3: tensor<8x4xf32>, %arg4: tensor<8x8xf32>) {
      %cst = stablehlo.constant dense<2.000000e+00> : tensor<8x4xf32>
      %cst_0 = stablehlo.constant dense<3.200000e+01> : tensor<f32>
      %cst_1 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %12 = stablehlo.dot_general %arg4, %arg3, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] : (tensor<8x8xf32>, tensor<8x4xf32>) -> tensor<8x4xf32>
      %13 = stablehlo.multiply %12, %12 : tensor<8x4xf32>
      %14 = stablehlo.multiply %12, %cst : tensor<8x4xf32>
      %15 = stablehlo.reduce(%13 init: %cst_1) applies stablehlo.add across dimensions = [0, 1] : (tensor<8x4xf32>, tensor<f32>) -> tensor<f32>
      %16 = stablehlo.divide %15, %cst_0 : tensor<f32>
      mpmd.return %16, %14 : tensor<f32>, tensor<8x4xf32>
    } : (!mpmd.mesh_tensor<"mesh1", tensor<8x4xf32>>, !mpmd.mesh_tensor<"mesh1", tensor<8x8xf32>>) -> (!mpmd.mesh_tensor<"mesh1", tensor<f32>>, !mpmd.mesh_tensor<"mesh1", tensor<8x4xf32>>)
    %8:3 = mpmd.fragment<mesh="mesh1", origin=["stage1"(1)], stage=1> (%arg1, %6, %7#1, %2#0, %7#0, %3#0) {call_counter = 1 : ui32} (%arg3: tensor<8x4xf32>, %arg4: tensor<8x8xf32>, %arg5: tensor<8x4xf32>, %arg6: tensor<f32>, %arg7: tensor<f32>, %arg8: tensor<8x4xf32>) {
      %cst = stablehlo.constant dense<1.000000e+00> : tensor<f32>
      %cst_0 = stablehlo.constant dense<3.200000e+01> : tensor<f32>
      %12 = stablehlo.divide %cst, %cst_0 : tensor<f32>
      %13 = stablehlo.broadcast_in_dim %12, dims = [] : (tensor<f32>) -> tensor<8x4xf32>
      %14 = stablehlo.multiply %13, %arg5 : tensor<8x4xf32>
      %15 = stablehlo.dot_general %14, %arg4, contracting_dims = [0] x [0], precision = [DEFAULT, DEFAULT] : (tensor<8x4xf32>, tensor<8x8xf32>) -> tensor<4x8xf32>
      %16 = stablehlo.transpose %15, dims = [1, 0] : (tensor<4x8xf32>) -> tensor<8x4xf32>
      %17 = stablehlo.dot_general %14, %arg3, contracting_dims = [1] x [1], precision = [DEFAULT, DEFAULT] : (tensor<8x4xf32>, tensor<8x4xf32>) -> tensor<8x8xf32>
      %18 = stablehlo.add %arg6, %arg7 : tensor<f32>
      %cst_1 = stablehlo.constant dense<1.000000e-01> : tensor<8x4xf32>
      %19 = stablehlo.add %arg8, %16 : tensor<8x4xf32>
      %20 = stablehlo.multiply %19, %cst_1 : tensor<8x4xf32>
      %21 = stablehlo.subtract %arg3, %20 : tensor<8x4xf32>
      mpmd.return %17, %18, %21 : tensor<8x8xf32>, tensor<f32>, tensor<8x4xf32>
    } : (!mpmd.mesh_tensor<"mesh1", tensor<8x4xf32>>, !mpmd.mesh_tensor<"mesh1", tensor<8x8xf32>>, !mpmd.mesh_tensor<"mesh1", tensor<8x4xf32>>, !mpmd.mesh_tensor<"mesh1", tensor<f32>>, !mpmd.mesh_tensor<"mesh1", tensor<f32>>, !mpmd.mesh_tensor<"mesh1", tensor<8x4xf32>>) -> (!mpmd.mesh_tensor<"mesh1", tensor<8x8xf32>>, !mpmd.mesh_tensor<"mesh1", tensor<f32>>, !mpmd.mesh_tensor<"mesh1", tensor<8x4xf32>>)
    %9 = mpmd.transfer %8#0 : (!mpmd.mesh_tensor<"mesh1", tensor<8x8xf32>>) -> !mpmd.mesh_tensor<"mesh0", tensor<8x8xf32>>
    %10 = mpmd.fragment<mesh="mesh0", origin=["stage0"(1)], stage=0> (%0#0, %0#3, %4) {call_counter = 0 : ui32} (%arg3: tensor<8x4xf32>, %arg4: tensor<8x8xf32>, %arg5: tensor<8x8xf32>) {
      %12 = stablehlo.multiply %arg5, %arg4 : tensor<8x8xf32>
      %13 = stablehlo.dot_general %12, %arg3, contracting_dims = [0] x [0], precision = [DEFAULT, DEFAULT] : (tensor<8x8xf32>, tensor<8x4xf32>) -> tensor<8x4xf32>
      %14 = stablehlo.transpose %13, dims = [1, 0] : (tensor<8x4xf32>) -> tensor<4x8xf32>
      mpmd.return %14 : tensor<4x8xf32>
    } : (!mpmd.mesh_tensor<"mesh0", tensor<8x4xf32>>, !mpmd.mesh_tensor<"mesh0", tensor<8x8xf32>>, !mpmd.mesh_tensor<"mesh0", tensor<8x8xf32>>) -> !mpmd.mesh_tensor<"mesh0", tensor<4x8xf32>>
    %11 = mpmd.fragment<mesh="mesh0", origin=["stage0"(1)], stage=0> (%0#1, %5#1, %9, %arg0, %10) {call_counter = 1 : ui32} (%arg3: tensor<8x4xf32>, %arg4: tensor<8x8xf32>, %arg5: tensor<8x8xf32>, %arg6: tensor<4x8xf32>, %arg7: tensor<4x8xf32>) {
      %12 = stablehlo.multiply %arg5, %arg4 : tensor<8x8xf32>
      %13 = stablehlo.dot_general %12, %arg3, contracting_dims = [0] x [0], precision = [DEFAULT, DEFAULT] : (tensor<8x8xf32>, tensor<8x4xf32>) -> tensor<8x4xf32>
      %14 = stablehlo.transpose %13, dims = [1, 0] : (tensor<8x4xf32>) -> tensor<4x8xf32>
      %cst = stablehlo.constant dense<1.000000e-01> : tensor<4x8xf32>
      %15 = stablehlo.add %arg7, %14 : tensor<4x8xf32>
      %16 = stablehlo.multiply %15, %cst : tensor<4x8xf32>
      %17 = stablehlo.subtract %arg6, %16 : tensor<4x8xf32>
      mpmd.return %17 : tensor<4x8xf32>
    } : (!mpmd.mesh_tensor<"mesh0", tensor<8x4xf32>>, !mpmd.mesh_tensor<"mesh0", tensor<8x8xf32>>, !mpmd.mesh_tensor<"mesh0", tensor<8x8xf32>>, !mpmd.mesh_tensor<"mesh0", tensor<4x8xf32>>, !mpmd.mesh_tensor<"mesh0", tensor<4x8xf32>>) -> !mpmd.mesh_tensor<"mesh0", tensor<4x8xf32>>
    return %8#1, %11, %8#2 : !mpmd.mesh_tensor<"mesh1", tensor<f32>>, !mpmd.mesh_tensor<"mesh0", tensor<4x8xf32>>, !mpmd.mesh_tensor<"mesh1", tensor<8x4xf32>>
  }
}
