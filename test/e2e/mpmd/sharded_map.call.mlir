module @jit__lambda attributes {mhlo.num_partitions = 2 : i32, mhlo.num_replicas = 1 : i32} {
  sdy.mesh @mesh0 = <["x"=2]>
  sdy.mesh @mesh = <["x"=2]> {stablehlo.mesh = {axes = [{name = "x", size = 2 : i64}]}}
  func.func public @main(%arg0: !mpmd.mesh_tensor<"mesh0", tensor<4x4xf32>, sharding=<@mesh, [{"x"}, {}]>>) -> (!mpmd.mesh_tensor<"mesh1", tensor<2x4xf32>> {jax.result_info = "result"}) attributes {topology = #mpmd.topology<<"mesh0" : <["x"=2]>>, <"mesh1" : <["x"=2]>>>} {
    %0 = mpmd.fragment_call<mesh="mesh0", origin=["stage0"]> @p0_stage0._lambda(%arg0) : (!mpmd.mesh_tensor<"mesh0", tensor<4x4xf32>, sharding=<@mesh, [{"x"}, {}]>>) -> !mpmd.mesh_tensor<"mesh0", tensor<2x4xf32>>
    %1 = mpmd.transfer %0 : (!mpmd.mesh_tensor<"mesh0", tensor<2x4xf32>>) -> !mpmd.mesh_tensor<"mesh1", tensor<2x4xf32>>
    %2 = mpmd.fragment_call<mesh="mesh1", origin=["stage1"]> @p1_stage1._lambda(%1) : (!mpmd.mesh_tensor<"mesh1", tensor<2x4xf32>>) -> !mpmd.mesh_tensor<"mesh1", tensor<2x4xf32>>
    return %2 : !mpmd.mesh_tensor<"mesh1", tensor<2x4xf32>>
  }
  func.func @p0_stage0._lambda(%arg0: tensor<4x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}) -> tensor<2x4xf32> attributes {mesh_shape = #sdy.mesh<["x"=2]>, reserved_hbm_bytes = 0 : i64} {
    %0 = sdy.sharding_constraint %arg0 <@mesh, [{"x"}, {}]> : tensor<4x4xf32>
    %1 = sdy.manual_computation(%0) in_shardings=[<@mesh0, [{"x"}, {}]>] out_shardings=[<@mesh0, [{}, {}]>] manual_axes={"x"} (%arg1: tensor<2x4xf32>) {
      %2 = "stablehlo.all_reduce"(%arg1) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "x">]>, use_global_device_ids}> ({
      ^bb0(%arg2: tensor<f32>, %arg3: tensor<f32>):
        %3 = stablehlo.add %arg2, %arg3 : tensor<f32>
        stablehlo.return %3 : tensor<f32>
      }) : (tensor<2x4xf32>) -> tensor<2x4xf32>
      sdy.return %2 : tensor<2x4xf32>
    } : (tensor<4x4xf32>) -> tensor<2x4xf32>
    return %1 : tensor<2x4xf32>
  }
  func.func @p1_stage1._lambda(%arg0: tensor<2x4xf32> {tf.aliasing_output = 0 : i32}) -> tensor<2x4xf32> attributes {mesh_shape = #sdy.mesh<["x"=2]>, reserved_hbm_bytes = 0 : i64} {
    %cst = stablehlo.constant dense<2.000000e+00> : tensor<2x4xf32>
    %0 = stablehlo.multiply %arg0, %cst : tensor<2x4xf32>
    return %0 : tensor<2x4xf32>
  }
}
