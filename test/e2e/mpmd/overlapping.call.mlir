module @jit_step attributes {mhlo.num_partitions = 2 : i32, mhlo.num_replicas = 1 : i32} {
  sdy.mesh @mesh = <["x"=2]> {stablehlo.mesh = {axes = [{name = "x", size = 2 : i64}]}}
  func.func public @main(%arg0: !mpmd.mesh_tensor<"mesh0", tensor<4x4xf32>, sharding=<@mesh, [{"x"}, {}]>>, %arg1: !mpmd.mesh_tensor<"mesh1", tensor<4x2xf32>, sharding=<@mesh, [{}, {}]>>, %arg2: !mpmd.mesh_tensor<"mesh0", tensor<8x4xf32>, sharding=<@mesh, [{"x"}, {}]>>) -> (!mpmd.mesh_tensor<"mesh1", tensor<f32>, sharding=<@mesh, []>> {jax.result_info = "result['loss']"}, !mpmd.mesh_tensor<"mesh0", tensor<4x4xf32>, sharding=<@mesh, [{"x"}, {}]>> {jax.result_info = "result['params']['w'][0]"}, !mpmd.mesh_tensor<"mesh1", tensor<4x2xf32>, sharding=<@mesh, [{}, {}]>> {jax.result_info = "result['params']['w'][1]"}) attributes {topology = #mpmd.topology<<"mesh0" : <["x"=2]>>, <"mesh1" : <["x"=2]>>>} {
    %0:2 = mpmd.fragment_call<mesh="mesh0", origin=["stage0"]> @p0_stage0_fwd.step(%arg0, %arg2) : (!mpmd.mesh_tensor<"mesh0", tensor<4x4xf32>, sharding=<@mesh, [{"x"}, {}]>>, !mpmd.mesh_tensor<"mesh0", tensor<8x4xf32>, sharding=<@mesh, [{"x"}, {}]>>) -> (!mpmd.mesh_tensor<"mesh0", tensor<8x4xf32>, sharding=<@mesh, [{"x"}, {}]>>, !mpmd.mesh_tensor<"mesh0", tensor<8x4xf32>, sharding=<@mesh, [{"x"}, {}]>>)
    %1 = mpmd.transfer %0#0 : (!mpmd.mesh_tensor<"mesh0", tensor<8x4xf32>, sharding=<@mesh, [{"x"}, {}]>>) -> !mpmd.mesh_tensor<"mesh1", tensor<8x4xf32>, sharding=<@mesh, [{"x"}, {}]>>
    %2:2 = mpmd.fragment_call<mesh="mesh1", origin=["stage1"]> @p1_stage1_fwd.step(%arg1, %1) : (!mpmd.mesh_tensor<"mesh1", tensor<4x2xf32>, sharding=<@mesh, [{}, {}]>>, !mpmd.mesh_tensor<"mesh1", tensor<8x4xf32>, sharding=<@mesh, [{"x"}, {}]>>) -> (!mpmd.mesh_tensor<"mesh1", tensor<f32>, sharding=<@mesh, []>>, !mpmd.mesh_tensor<"mesh1", tensor<8x2xf32>, sharding=<@mesh, [{"x"}, {}]>>)
    %3:2 = mpmd.fragment_call<mesh="mesh1", origin=["stage1"(1)]> @p2_stage1_bwd.step(%arg1, %1, %2#1) : (!mpmd.mesh_tensor<"mesh1", tensor<4x2xf32>, sharding=<@mesh, [{}, {}]>>, !mpmd.mesh_tensor<"mesh1", tensor<8x4xf32>, sharding=<@mesh, [{"x"}, {}]>>, !mpmd.mesh_tensor<"mesh1", tensor<8x2xf32>, sharding=<@mesh, [{"x"}, {}]>>) -> (!mpmd.mesh_tensor<"mesh1", tensor<8x4xf32>, sharding=<@mesh, [{"x"}, {}]>>, !mpmd.mesh_tensor<"mesh1", tensor<4x2xf32>, sharding=<@mesh, [{}, {}]>>)
    %4 = mpmd.transfer %3#0 : (!mpmd.mesh_tensor<"mesh1", tensor<8x4xf32>, sharding=<@mesh, [{"x"}, {}]>>) -> !mpmd.mesh_tensor<"mesh0", tensor<8x4xf32>, sharding=<@mesh, [{"x"}, {}]>>
    %5 = mpmd.fragment_call<mesh="mesh0", origin=["stage0"(1)]> @p3_stage0_bwd.step(%arg2, %0#1, %4, %arg0) : (!mpmd.mesh_tensor<"mesh0", tensor<8x4xf32>, sharding=<@mesh, [{"x"}, {}]>>, !mpmd.mesh_tensor<"mesh0", tensor<8x4xf32>, sharding=<@mesh, [{"x"}, {}]>>, !mpmd.mesh_tensor<"mesh0", tensor<8x4xf32>, sharding=<@mesh, [{"x"}, {}]>>, !mpmd.mesh_tensor<"mesh0", tensor<4x4xf32>, sharding=<@mesh, [{"x"}, {}]>>) -> !mpmd.mesh_tensor<"mesh0", tensor<4x4xf32>, sharding=<@mesh, [{"x"}, {}]>>
    return %2#0, %5, %3#1 : !mpmd.mesh_tensor<"mesh1", tensor<f32>, sharding=<@mesh, []>>, !mpmd.mesh_tensor<"mesh0", tensor<4x4xf32>, sharding=<@mesh, [{"x"}, {}]>>, !mpmd.mesh_tensor<"mesh1", tensor<4x2xf32>, sharding=<@mesh, [{}, {}]>>
  }
  func.func @p0_stage0_fwd.step(%arg0: tensor<4x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}, %arg1: tensor<8x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}) -> (tensor<8x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}, tensor<8x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}) attributes {mesh_shape = #sdy.mesh<["x"=2]>, reserved_hbm_bytes = 0 : i64} {
    %cst = stablehlo.constant dense<1.000000e+00> : tensor<8x4xf32>
    %0 = stablehlo.dot_general %arg1, %arg0, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] : (tensor<8x4xf32>, tensor<4x4xf32>) -> tensor<8x4xf32>
    %1 = stablehlo.tanh %0 : tensor<8x4xf32>
    %2 = stablehlo.add %1, %cst : tensor<8x4xf32>
    %3 = stablehlo.subtract %cst, %1 : tensor<8x4xf32>
    %4 = stablehlo.multiply %2, %3 : tensor<8x4xf32>
    return %1, %4 : tensor<8x4xf32>, tensor<8x4xf32>
  }
  func.func @p1_stage1_fwd.step(%arg0: tensor<4x2xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>}, %arg1: tensor<8x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}) -> (tensor<f32> {sdy.sharding = #sdy.sharding<@mesh, []>}, tensor<8x2xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}) attributes {mesh_shape = #sdy.mesh<["x"=2]>, reserved_hbm_bytes = 0 : i64} {
    %cst = stablehlo.constant dense<2.000000e+00> : tensor<8x2xf32>
    %cst_0 = stablehlo.constant dense<1.600000e+01> : tensor<f32>
    %cst_1 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %0 = stablehlo.dot_general %arg1, %arg0, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] : (tensor<8x4xf32>, tensor<4x2xf32>) -> tensor<8x2xf32>
    %1 = stablehlo.multiply %0, %0 : tensor<8x2xf32>
    %2 = stablehlo.multiply %0, %cst : tensor<8x2xf32>
    %3 = stablehlo.reduce(%1 init: %cst_1) applies stablehlo.add across dimensions = [0, 1] : (tensor<8x2xf32>, tensor<f32>) -> tensor<f32>
    %4 = stablehlo.divide %3, %cst_0 : tensor<f32>
    return %4, %2 : tensor<f32>, tensor<8x2xf32>
  }
  func.func @p2_stage1_bwd.step(%arg0: tensor<4x2xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>}, %arg1: tensor<8x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>, tf.aliasing_output = 0 : i32}, %arg2: tensor<8x2xf32> {jax.buffer_donor = true, sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}) -> (tensor<8x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}, tensor<4x2xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>}) attributes {mesh_shape = #sdy.mesh<["x"=2]>, reserved_hbm_bytes = 4 : i64} {
    %cst = stablehlo.constant dense<1.000000e-01> : tensor<4x2xf32>
    %cst_0 = stablehlo.constant dense<6.250000e-02> : tensor<8x2xf32>
    %0 = stablehlo.multiply %arg2, %cst_0 : tensor<8x2xf32>
    %1 = stablehlo.dot_general %0, %arg1, contracting_dims = [0] x [0], precision = [DEFAULT, DEFAULT] : (tensor<8x2xf32>, tensor<8x4xf32>) -> tensor<2x4xf32>
    %2 = stablehlo.transpose %1, dims = [1, 0] : (tensor<2x4xf32>) -> tensor<4x2xf32>
    %3 = stablehlo.dot_general %0, %arg0, contracting_dims = [1] x [1], precision = [DEFAULT, DEFAULT] : (tensor<8x2xf32>, tensor<4x2xf32>) -> tensor<8x4xf32>
    %4 = stablehlo.multiply %2, %cst : tensor<4x2xf32>
    %5 = stablehlo.subtract %arg0, %4 : tensor<4x2xf32>
    return %3, %5 : tensor<8x4xf32>, tensor<4x2xf32>
  }
  func.func @p3_stage0_bwd.step(%arg0: tensor<8x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}, %arg1: tensor<8x4xf32> {jax.buffer_donor = true, sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}, %arg2: tensor<8x4xf32> {jax.buffer_donor = true, sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}, %arg3: tensor<4x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}) -> (tensor<4x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}) attributes {mesh_shape = #sdy.mesh<["x"=2]>, reserved_hbm_bytes = 0 : i64} {
    %cst = stablehlo.constant dense<1.000000e-01> : tensor<4x4xf32>
    %0 = stablehlo.multiply %arg2, %arg1 : tensor<8x4xf32>
    %1 = stablehlo.dot_general %0, %arg0, contracting_dims = [0] x [0], precision = [DEFAULT, DEFAULT] : (tensor<8x4xf32>, tensor<8x4xf32>) -> tensor<4x4xf32>
    %2 = stablehlo.transpose %1, dims = [1, 0] : (tensor<4x4xf32>) -> tensor<4x4xf32>
    %3 = stablehlo.multiply %2, %cst : tensor<4x4xf32>
    %4 = stablehlo.subtract %arg3, %3 : tensor<4x4xf32>
    return %4 : tensor<4x4xf32>
  }
}
