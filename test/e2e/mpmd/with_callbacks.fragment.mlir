module @jit__lambda attributes {mhlo.num_partitions = 4 : i32, mhlo.num_replicas = 1 : i32} {
  sdy.mesh @mesh = <["x"=4]> {stablehlo.mesh = {axes = [{name = "x", size = 4 : i64}]}}
  sdy.mesh @maximal_mesh_0 = <[], device_ids=[0]> {stablehlo.mesh = {axes = [], device_ids = dense<0> : tensor<1xi64>}}
  func.func public @main(%arg0: !mpmd.mesh_tensor<"mesh0", tensor<4x4xf32>> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}) -> (!mpmd.mesh_tensor<"mesh1", tensor<4x4xf32>> {jax.result_info = "result"}) attributes {topology = #mpmd.topology<<"mesh0" : <["x"=4]>>, <"mesh1" : <["x"=4]>>>} {
    %0 = mpmd.fragment<mesh="mesh0", origin=["stage0"], stage=0> (%arg0) (%arg1: tensor<4x4xf32>) {
      %cst = stablehlo.constant dense<2.000000e+00> : tensor<4x4xf32>
      %cst_0 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %3 = stablehlo.reduce(%arg1 init: %cst_0) applies stablehlo.add across dimensions = [0, 1] : (tensor<4x4xf32>, tensor<f32>) -> tensor<f32>
      stablehlo.custom_call @xla_ffi_python_cpu_callback(%3) {api_version = 4 : i32, backend_config = {index = 0 : ui64}, has_side_effect = true, operand_layouts = [dense<> : tensor<0xindex>], result_layouts = [], sdy.sharding = #sdy.sharding_per_value<[<@maximal_mesh_0, []>]>} : (tensor<f32>) -> ()
      %4 = stablehlo.multiply %arg1, %cst : tensor<4x4xf32>
      mpmd.return %4 : tensor<4x4xf32>
    } : (!mpmd.mesh_tensor<"mesh0", tensor<4x4xf32>>) -> !mpmd.mesh_tensor<"mesh0", tensor<4x4xf32>>
    %1 = mpmd.transfer %0 : (!mpmd.mesh_tensor<"mesh0", tensor<4x4xf32>>) -> !mpmd.mesh_tensor<"mesh1", tensor<4x4xf32>>
    %2 = mpmd.fragment<mesh="mesh1", origin=["stage1"], stage=1> (%1) (%arg1: tensor<4x4xf32>) {
      %cst = stablehlo.constant dense<3.000000e+00> : tensor<4x4xf32>
      %3 = stablehlo.custom_call @xla_ffi_python_cpu_callback(%arg1) {api_version = 4 : i32, backend_config = {index = 1 : ui64}, operand_layouts = [dense<[1, 0]> : tensor<2xindex>], result_layouts = [dense<[1, 0]> : tensor<2xindex>], sdy.sharding = #sdy.sharding_per_value<[<@maximal_mesh_0, []>]>} : (tensor<4x4xf32>) -> tensor<4x4xf32>
      %4 = stablehlo.multiply %3, %cst : tensor<4x4xf32>
      mpmd.return %4 : tensor<4x4xf32>
    } : (!mpmd.mesh_tensor<"mesh1", tensor<4x4xf32>>) -> !mpmd.mesh_tensor<"mesh1", tensor<4x4xf32>>
    return %2 : !mpmd.mesh_tensor<"mesh1", tensor<4x4xf32>>
  }
}
