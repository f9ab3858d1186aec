module @jit_f attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  sdy.mesh @empty_mesh = <[]> {stablehlo.mesh = {axes = []}}
  func.func public @main(%arg0: !mpmd.mesh_tensor<"mesh0", tensor<2x2xf32>>, %arg1: !mpmd.mesh_tensor<"mesh1", tensor<2x2xf32>>, %arg2: !mpmd.mesh_tensor<"mesh0", tensor<2x2xf32>>, %arg3: !mpmd.mesh_tensor<"mesh0", tensor<2x2xf32>>, %arg4: !mpmd.mesh_tensor<"mesh0", tensor<2x2xf32>>) -> (!mpmd.mesh_tensor<"mesh1", tensor<f32>> {jax.result_info = "result[0]"}, !mpmd.mesh_tensor<"mesh1", tensor<f32>> {jax.result_info = "result[1]"}, !mpmd.mesh_tensor<"mesh1", tensor<f32>> {jax.result_info = "result[2]"}) attributes {topology = #mpmd.topology<<"mesh0" : <["x"=1]>>, <"mesh1" : <["x"=1]>>>} {
    %0 = mpmd.fragment_call<mesh="mesh0", origin=["stage0"]> @p0_stage0.f(%arg0, %arg2) : (!mpmd.mesh_tensor<"mesh0", tensor<2x2xf32>>, !mpmd.mesh_tensor<"mesh0", tensor<2x2xf32>>) -> !mpmd.mesh_tensor<"mesh0", tensor<2x2xf32>>
    %1 = mpmd.transfer %0 : (!mpmd.mesh_tensor<"mesh0", tensor<2x2xf32>>) -> !mpmd.mesh_tensor<"mesh1", tensor<2x2xf32>>
    %2 = mpmd.fragment_call<mesh="mesh0", origin=["stage0"]> @p0_stage0.f(%arg0, %arg4) : (!mpmd.mesh_tensor<"mesh0", tensor<2x2xf32>>, !mpmd.mesh_tensor<"mesh0", tensor<2x2xf32>>) -> !mpmd.mesh_tensor<"mesh0", tensor<2x2xf32>>
    %3 = mpmd.transfer %2 : (!mpmd.mesh_tensor<"mesh0", tensor<2x2xf32>>) -> !mpmd.mesh_tensor<"mesh1", tensor<2x2xf32>>
    %4 = mpmd.fragment_call<mesh="mesh0", origin=["stage0"]> @p0_stage0.f(%arg0, %arg3) : (!mpmd.mesh_tensor<"mesh0", tensor<2x2xf32>>, !mpmd.mesh_tensor<"mesh0", tensor<2x2xf32>>) -> !mpmd.mesh_tensor<"mesh0", tensor<2x2xf32>>
    %5 = mpmd.transfer %4 : (!mpmd.mesh_tensor<"mesh0", tensor<2x2xf32>>) -> !mpmd.mesh_tensor<"mesh1", tensor<2x2xf32>>
    %6 = mpmd.fragment_call<mesh="mesh1", origin=["stage1"]> @p1_stage1.f(%arg1, %5) : (!mpmd.mesh_tensor<"mesh1", tensor<2x2xf32>>, !mpmd.mesh_tensor<"mesh1", tensor<2x2xf32>>) -> !mpmd.mesh_tensor<"mesh1", tensor<f32>>
    %7 = mpmd.fragment_call<mesh="mesh1", origin=["stage1"]> @p1_stage1.f(%arg1, %1) : (!mpmd.mesh_tensor<"mesh1", tensor<2x2xf32>>, !mpmd.mesh_tensor<"mesh1", tensor<2x2xf32>>) -> !mpmd.mesh_tensor<"mesh1", tensor<f32>>
    %8 = mpmd.fragment_call<mesh="mesh1", origin=["stage1"]> @p1_stage1.f(%arg1, %3) : (!mpmd.mesh_tensor<"mesh1", tensor<2x2xf32>>, !mpmd.mesh_tensor<"mesh1", tensor<2x2xf32>>) -> !mpmd.mesh_tensor<"mesh1", tensor<f32>>
    return %7, %6, %8 : !mpmd.mesh_tensor<"mesh1", tensor<f32>>, !mpmd.mesh_tensor<"mesh1", tensor<f32>>, !mpmd.mesh_tensor<"mesh1", tensor<f32>>
  }
  func.func @p0_stage0.f(%arg0: tensor<2x2xf32>, %arg1: tensor<2x2xf32>) -> tensor<2x2xf32> attributes {mesh_shape = #sdy.mesh<["x"=1]>, reserved_hbm_bytes = 32 : i64} {
    %0 = stablehlo.dot_general %arg1, %arg0, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] : (tensor<2x2xf32>, tensor<2x2xf32>) -> tensor<2x2xf32>
    %1 = stablehlo.tanh %0 : tensor<2x2xf32>
    return %1 : tensor<2x2xf32>
  }
  func.func @p1_stage1.f(%arg0: tensor<2x2xf32>, %arg1: tensor<2x2xf32> {jax.buffer_donor = true}) -> tensor<f32> attributes {mesh_shape = #sdy.mesh<["x"=1]>, reserved_hbm_bytes = 32 : i64} {
    %cst = stablehlo.constant dense<4.000000e+00> : tensor<f32>
    %cst_0 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %0 = stablehlo.dot_general %arg1, %arg0, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] : (tensor<2x2xf32>, tensor<2x2xf32>) -> tensor<2x2xf32>
    %1 = stablehlo.multiply %0, %0 : tensor<2x2xf32>
    %2 = stablehlo.reduce(%1 init: %cst_0) applies stablehlo.add across dimensions = [0, 1] : (tensor<2x2xf32>, tensor<f32>) -> tensor<f32>
    %3 = stablehlo.divide %2, %cst : tensor<f32>
    return %3 : tensor<f32>
  }
}
