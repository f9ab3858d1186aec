module @jit__lambda attributes {mhlo.num_partitions = 4 : i32, mhlo.num_replicas = 1 : i32} {
  sdy.mesh @mesh = <["x"=4]> {stablehlo.mesh = {axes = [{name = "x", size = 4 : i64}]}}
  sdy.mesh @maximal_mesh_0 = <[], device_ids=[0]> {stablehlo.mesh = {axes = [], device_ids = dense<0> : tensor<1xi64>}}
  func.func public @main(%arg0: !mpmd.mesh_tensor<"mesh0", tensor<4x4xf32>, sharding=<@mesh, [{"x"}, {}]>>) -> (!mpmd.mesh_tensor<"mesh1", tensor<4x4xf32>> {jax.result_info = "result"}) attributes {topology = #mpmd.topology<<"mesh0" : <["x"=4]>>, <"mesh1" : <["x"=4]>>>} {
    %0 = mpmd.fragment_call<mesh="mesh0", origin=["stage0"]> @p0_stage0._lambda(%arg0) : (!mpmd.mesh_tensor<"mesh0", tensor<4x4xf32>, sharding=<@mesh, [{"x"}, {}]>>) -> !mpmd.mesh_tensor<"mesh0", tensor<4x4xf32>, sharding=<@mesh, [{"x"}, {}]>>
    %1 = mpmd.transfer %0 : (!mpmd.mesh_tensor<"mesh0", tensor<4x4xf32>, sharding=<@mesh, [{"x"}, {}]>>) -> !mpmd.mesh_tensor<"mesh1", tensor<4x4xf32>, sharding=<@mesh, [{"x"}, {}]>>
    %2 = mpmd.fragment_call<mesh="mesh1", origin=["stage1"]> @p1_stage1._lambda(%1) : (!mpmd.mesh_tensor<"mesh1", tensor<4x4xf32>, sharding=<@mesh, [{"x"}, {}]>>) -> !mpmd.mesh_tensor<"mesh1", tensor<4x4xf32>>
    return %2 : !mpmd.mesh_tensor<"mesh1", tensor<4x4xf32>>
  }
  func.func @p0_stage0._lambda(%arg0: tensor<4x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}) -> (tensor<4x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}) attributes {mesh_shape = #sdy.mesh<["x"=4]>, reserved_hbm_bytes = 0 : i64} {
    %cst = stablehlo.constant dense<2.000000e+00> : tensor<4x4xf32>
    %cst_0 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %0 = stablehlo.reduce(%arg0 init: %cst_0) applies stablehlo.add across dimensions = [0, 1] : (tensor<4x4xf32>, tensor<f32>) -> tensor<f32>
    stablehlo.custom_call @xla_ffi_python_cpu_callback(%0) {api_version = 4 : i32, backend_config = {index = 0 : ui64}, has_side_effect = true, operand_layouts = [dense<> : tensor<0xindex>], result_layouts = []} : (tensor<f32>) -> ()
    %1 = stablehlo.multiply %arg0, %cst : tensor<4x4xf32>
    return %1 : tensor<4x4xf32>
  }
  func.func @p1_stage1._lambda(%arg0: tensor<4x4xf32> {jax.buffer_donor = true, sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}) -> tensor<4x4xf32> attributes {mesh_shape = #sdy.mesh<["x"=4]>, reserved_hbm_bytes = 0 : i64} {
    %cst = stablehlo.constant dense<3.000000e+00> : tensor<4x4xf32>
    %0 = stablehlo.custom_call @xla_ffi_python_cpu_callback(%arg0) {api_version = 4 : i32, backend_config = {index = 1 : ui64}, operand_layouts = [dense<[1, 0]> : tensor<2xindex>], result_layouts = [dense<[1, 0]> : tensor<2xindex>]} : (tensor<4x4xf32>) -> tensor<4x4xf32>
    %1 = stablehlo.multiply %0, %cst : tensor<4x4xf32>
    return %1 : tensor<4x4xf32>
  }
}
