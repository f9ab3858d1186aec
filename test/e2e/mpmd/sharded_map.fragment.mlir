module @jit__lambda attributes {mhlo.num_partitions = 2 : i32, mhlo.num_replicas = 1 : i32} {
  sdy.mesh @mesh = <["x"=2]> {stablehlo.mesh = {axes = [{name = "x", size = 2 : i64}]}}
  sdy.mesh @mesh_0 = <["x"=2]> {stablehlo.mesh = {axes = [{name = "x", size = 2 : i64}]}}
  func.func public @main(%arg0: !mpmd.mesh_tensor<"mesh0", tensor<4x4xf32>>) -> (!mpmd.mesh_tensor<"mesh1", tensor<2x4xf32>> {jax.result_info = "result"}) attributes {topology = #mpmd.topology<<"mesh0" : <["x"=2]>>, <"mesh1" : <["x"=2]>>>} {
    %0 = mpmd.fragment<mesh="mesh0", origin=["stage0"], stage=0> (%arg0) (%arg1: tensor<4x4xf32>) {
      %3 = sdy.manual_computation(%arg1) in_shardings=[<@mesh, [{"x"}, {}]>] out_shardings=[<@mesh, [{}, {}]>] manual_axes={"x"} (%arg2: tensor<2x4xf32>) {
        %4 = "stablehlo.all_reduce"(%arg2) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh_0, axes = [#stablehlo.axis_ref<name = "x">]>, use_global_device_ids}> ({
        ^bb0(%arg3: tensor<f32>, %arg4: tensor<f32>):
          %5 = stablehlo.add %arg3, %arg4 : tensor<f32>
          stablehlo.return %5 : tensor<f32>
        }) : (tensor<2x4xf32>) -> tensor<2x4xf32>
        sdy.return %4 : tensor<2x4xf32>
      } : (tensor<4x4xf32>) -> tensor<2x4xf32>
      mpmd.return %3 : tensor<2x4xf32>
    } : (!mpmd.mesh_tensor<"mesh0", tensor<4x4xf32>>) -> !mpmd.mesh_tensor<"mesh0", tensor<2x4xf32>>
    %1 = mpmd.transfer %0 : (!mpmd.mesh_tensor<"mesh0", tensor<2x4xf32>>) -> !mpmd.mesh_tensor<"mesh1", tensor<2x4xf32>>
    %2 = mpmd.fragment<mesh="mesh1", origin=["stage1"], stage=1> (%1) (%arg1: tensor<2x4xf32>) {
      %cst = stablehlo.constant dense<2.000000e+00> : tensor<2x4xf32>
      %3 = stablehlo.multiply %arg1, %cst : tensor<2x4xf32>
      mpmd.return %3 : tensor<2x4xf32>
    } : (!mpmd.mesh_tensor<"mesh1", tensor<2x4xf32>>) -> !mpmd.mesh_tensor<"mesh1", tensor<2x4xf32>>
    return %2 : !mpmd.mesh_tensor<"mesh1", tensor<2x4xf32>>
  }
}
