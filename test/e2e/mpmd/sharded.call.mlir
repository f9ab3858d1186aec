module @jit_step attributes {mhlo.num_partitions = 4 : i32, mhlo.num_replicas = 1 : i32} {
  sdy.mesh @mesh = <["x"=4]> {stablehlo.mesh = {axes = [{name = "x", size = 4 : i64}]}}
  func.func public @main(%arg0: !mpmd.mesh_tensor<"mesh0", tensor<4x8xf32>, sharding=<@mesh, [{}, {"x"}]>> {jax.buffer_donor = true}, %arg1: !mpmd.mesh_tensor<"mesh1", tensor<8x4xf32>, sharding=<@mesh, [{"x"}, {}]>> {jax.buffer_donor = true}, %arg2: !mpmd.mesh_tensor<"mesh0", tensor<2x8x4xf32>, sharding=<@mesh, [{}, {"x"}, {}]>>) -> (!mpmd.mesh_tensor<"mesh1", tensor<f32>, sharding=<@mesh, []>> {jax.result_info = "result[0]"}, !mpmd.mesh_tensor<"mesh0", tensor<4x8xf32>, sharding=<@mesh, [{}, {"x"}]>> {jax.result_info = "result[1][0]"}, !mpmd.mesh_tensor<"mesh1", tensor<8x4xf32>, sharding=<@mesh, [{"x"}, {}]>> {jax.result_info = "result[1][1]"}) attributes {topology = #mpmd.topology<<"mesh0" : <["x"=4]>>, <"mesh1" : <["x"=4]>>>} {
    %0:4 = mpmd.fragment_call<mesh="mesh0", origin=["stage0"]> @p0_stage0_fwd_call0.step(%arg2, %arg0) : (!mpmd.mesh_tensor<"mesh0", tensor<2x8x4xf32>, sharding=<@mesh, [{}, {"x"}, {}]>>, !mpmd.mesh_tensor<"mesh0", tensor<4x8xf32>, sharding=<@mesh, [{}, {"x"}]>>) -> (!mpmd.mesh_tensor<"mesh0", tensor<8x4xf32>, sharding=<@mesh, [{"x"}, {}]>>, !mpmd.mesh_tensor<"mesh0", tensor<8x4xf32>, sharding=<@mesh, [{"x"}, {}]>>, !mpmd.mesh_tensor<"mesh0", tensor<8x8xf32>, sharding=<@mesh, [{"x"}, {}]>>, !mpmd.mesh_tensor<"mesh0", tensor<8x8xf32>, sharding=<@mesh, [{"x"}, {}]>>)
    %1 = mpmd.transfer %0#2 : (!mpmd.mesh_tensor<"mesh0", tensor<8x8xf32>, sharding=<@mesh, [{"x"}, {}]>>) -> !mpmd.mesh_tensor<"mesh1", tensor<8x8xf32>, sharding=<@mesh, [{"x"}, {}]>>
    %2:2 = mpmd.fragment_call<mesh="mesh1", origin=["stage1"]> @p1_stage1_fwd_calls0to1.step(%arg1, %1) : (!mpmd.mesh_tensor<"mesh1", tensor<8x4xf32>, sharding=<@mesh, [{"x"}, {}]>>, !mpmd.mesh_tensor<"mesh1", tensor<8x8xf32>, sharding=<@mesh, [{"x"}, {}]>>) -> (!mpmd.mesh_tensor<"mesh1", tensor<f32>, sharding=<@mesh, []>>, !mpmd.mesh_tensor<"mesh1", tensor<8x4xf32>, sharding=<@mesh, [{"x"}, {}]>>)
    %3:2 = mpmd.fragment_call<mesh="mesh1", origin=["stage1"(1)]> @p2_stage1_bwd_call0.step(%arg1, %1, %2#1) : (!mpmd.mesh_tensor<"mesh1", tensor<8x4xf32>, sharding=<@mesh, [{"x"}, {}]>>, !mpmd.mesh_tensor<"mesh1", tensor<8x8xf32>, sharding=<@mesh, [{"x"}, {}]>>, !mpmd.mesh_tensor<"mesh1", tensor<8x4xf32>, sharding=<@mesh, [{"x"}, {}]>>) -> (!mpmd.mesh_tensor<"mesh1", tensor<8x4xf32>, sharding=<@mesh, [{"x"}, {}]>>, !mpmd.mesh_tensor<"mesh1", tensor<8x8xf32>, sharding=<@mesh, [{"x"}, {}]>>)
    %4 = mpmd.transfer %3#1 : (!mpmd.mesh_tensor<"mesh1", tensor<8x8xf32>, sharding=<@mesh, [{"x"}, {}]>>) -> !mpmd.mesh_tensor<"mesh0", tensor<8x8xf32>, sharding=<@mesh, [{"x"}, {}]>>
    %5:2 = mpmd.fragment_call<mesh="mesh0", origin=["stage0"]> @p3_stage0_fwd_call1.step(%arg0, %0#1) : (!mpmd.mesh_tensor<"mesh0", tensor<4x8xf32>, sharding=<@mesh, [{}, {"x"}]>>, !mpmd.mesh_tensor<"mesh0", tensor<8x4xf32>, sharding=<@mesh, [{"x"}, {}]>>) -> (!mpmd.mesh_tensor<"mesh0", tensor<8x8xf32>, sharding=<@mesh, [{"x"}, {}]>>, !mpmd.mesh_tensor<"mesh0", tensor<8x8xf32>, sharding=<@mesh, [{"x"}, {}]>>)
    %6 = mpmd.transfer %5#0 : (!mpmd.mesh_tensor<"mesh0", tensor<8x8xf32>, sharding=<@mesh, [{"x"}, {}]>>) -> !mpmd.mesh_tensor<"mesh1", tensor<8x8xf32>, sharding=<@mesh, [{"x"}, {}]>>
    %7:2 = mpmd.fragment_call<mesh="mesh1", origin=["stage1"]> @p1_stage1_fwd_calls0to1.step(%arg1, %6) : (!mpmd.mesh_tensor<"mesh1", tensor<8x4xf32>, sharding=<@mesh, [{"x"}, {}]>>, !mpmd.mesh_tensor<"mesh1", tensor<8x8xf32>, sharding=<@mesh, [{"x"}, {}]>>) -> (!mpmd.mesh_tensor<"mesh1", tensor<f32>, sharding=<@mesh, []>>, !mpmd.mesh_tensor<"mesh1", tensor<8x4xf32>, sharding=<@mesh, [{"x"}, {}]>>)
    %8:3 = mpmd.fragment_call<mesh="mesh1", origin=["stage1"(1)]> @p4_stage1_bwd_call1.step(%arg1, %6, %7#1, %2#0, %7#0, %3#0) : (!mpmd.mesh_tensor<"mesh1", tensor<8x4xf32>, sharding=<@mesh, [{"x"}, {}]>>, !mpmd.mesh_tensor<"mesh1", tensor<8x8xf32>, sharding=<@mesh, [{"x"}, {}]>>, !mpmd.mesh_tensor<"mesh1", tensor<8x4xf32>, sharding=<@mesh, [{"x"}, {}]>>, !mpmd.mesh_tensor<"mesh1", tensor<f32>, sharding=<@mesh, []>>, !mpmd.mesh_tensor<"mesh1", tensor<f32>, sharding=<@mesh, []>>, !mpmd.mesh_tensor<"mesh1", tensor<8x4xf32>, sharding=<@mesh, [{"x"}, {}]>>) -> (!mpmd.mesh_tensor<"mesh1", tensor<8x8xf32>, sharding=<@mesh, [{"x"}, {}]>>, !mpmd.mesh_tensor<"mesh1", tensor<f32>, sharding=<@mesh, []>>, !mpmd.mesh_tensor<"mesh1", tensor<8x4xf32>, sharding=<@mesh, [{"x"}, {}]>>)
    %9 = mpmd.transfer %8#0 : (!mpmd.mesh_tensor<"mesh1", tensor<8x8xf32>, sharding=<@mesh, [{"x"}, {}]>>) -> !mpmd.mesh_tensor<"mesh0", tensor<8x8xf32>, sharding=<@mesh, [{"x"}, {}]>>
    %10 = mpmd.fragment_call<mesh="mesh0", origin=["stage0"(1)]> @p5_stage0_bwd_call0.step(%0#0, %0#3, %4) : (!mpmd.mesh_tensor<"mesh0", tensor<8x4xf32>, sharding=<@mesh, [{"x"}, {}]>>, !mpmd.mesh_tensor<"mesh0", tensor<8x8xf32>, sharding=<@mesh, [{"x"}, {}]>>, !mpmd.mesh_tensor<"mesh0", tensor<8x8xf32>, sharding=<@mesh, [{"x"}, {}]>>) -> !mpmd.mesh_tensor<"mesh0", tensor<4x8xf32>, sharding=<@mesh, [{}, {"x"}]>>
    %11 = mpmd.fragment_call<mesh="mesh0", origin=["stage0"(1)]> @p6_stage0_bwd_call1.step(%0#1, %5#1, %9, %arg0, %10) : (!mpmd.mesh_tensor<"mesh0", tensor<8x4xf32>, sharding=<@mesh, [{"x"}, {}]>>, !mpmd.mesh_tensor<"mesh0", tensor<8x8xf32>, sharding=<@mesh, [{"x"}, {}]>>, !mpmd.mesh_tensor<"mesh0", tensor<8x8xf32>, sharding=<@mesh, [{"x"}, {}]>>, !mpmd.mesh_tensor<"mesh0", tensor<4x8xf32>, sharding=<@mesh, [{}, {"x"}]>>, !mpmd.mesh_tensor<"mesh0", tensor<4x8xf32>, sharding=<@mesh, [{}, {"x"}]>>) -> !mpmd.mesh_tensor<"mesh0", tensor<4x8xf32>, sharding=<@mesh, [{}, {"x"}]>>
    return %8#1, %11, %8#2 : !mpmd.mesh_tensor<"mesh1", tensor<f32>, sharding=<@mesh, []>>, !mpmd.mesh_tensor<"mesh0", tensor<4x8xf32>, sharding=<@mesh, [{}, {"x"}]>>, !mpmd.mesh_tensor<"mesh1", tensor<8x4xf32>, sharding=<@mesh, [{"x"}, {}]>>
  }
  func.func @p0_stage0_fwd_call0.step(%arg0: tensor<2x8x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}, {}]>}, %arg1: tensor<4x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>}) -> (tensor<8x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}, tensor<8x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}, tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}, tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}) attributes {mesh_shape = #sdy.mesh<["x"=4]>, reserved_hbm_bytes = 0 : i64} {
    %cst = stablehlo.constant dense<1.000000e+00> : tensor<8x8xf32>
    %0 = stablehlo.slice %arg0 [0:1, 0:8, 0:4] : (tensor<2x8x4xf32>) -> tensor<1x8x4xf32>
    %1 = stablehlo.reshape %0 : (tensor<1x8x4xf32>) -> tensor<8x4xf32>
    %2 = stablehlo.slice %arg0 [1:2, 0:8, 0:4] : (tensor<2x8x4xf32>) -> tensor<1x8x4xf32>
    %3 = stablehlo.reshape %2 : (tensor<1x8x4xf32>) -> tensor<8x4xf32>
    %4 = stablehlo.dot_general %1, %arg1, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] : (tensor<8x4xf32>, tensor<4x8xf32>) -> tensor<8x8xf32>
    %5 = stablehlo.tanh %4 : tensor<8x8xf32>
    %6 = stablehlo.add %5, %cst : tensor<8x8xf32>
    %7 = stablehlo.subtract %cst, %5 : tensor<8x8xf32>
    %8 = stablehlo.multiply %6, %7 : tensor<8x8xf32>
    return %1, %3, %5, %8 : tensor<8x4xf32>, tensor<8x4xf32>, tensor<8x8xf32>, tensor<8x8xf32>
  }
  func.func @p1_stage1_fwd_calls0to1.step(%arg0: tensor<8x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}, %arg1: tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}) -> (tensor<f32> {sdy.sharding = #sdy.sharding<@mesh, []>}, tensor<8x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}) attributes {mesh_shape = #sdy.mesh<["x"=4]>, reserved_hbm_bytes = 36 : i64} {
    %cst = stablehlo.constant dense<2.000000e+00> : tensor<8x4xf32>
    %cst_0 = stablehlo.constant dense<3.200000e+01> : tensor<f32>
    %cst_1 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %0 = stablehlo.dot_general %arg1, %arg0, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] : (tensor<8x8xf32>, tensor<8x4xf32>) -> tensor<8x4xf32>
    %1 = stablehlo.multiply %0, %0 : tensor<8x4xf32>
    %2 = stablehlo.multiply %0, %cst : tensor<8x4xf32>
    %3 = stablehlo.reduce(%1 init: %cst_1) applies stablehlo.add across dimensions = [0, 1] : (tensor<8x4xf32>, tensor<f32>) -> tensor<f32>
    %4 = stablehlo.divide %3, %cst_0 : tensor<f32>
    return %4, %2 : tensor<f32>, tensor<8x4xf32>
  }
  func.func @p2_stage1_bwd_call0.step(%arg0: tensor<8x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}, %arg1: tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>, tf.aliasing_output = 1 : i32}, %arg2: tensor<8x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>, tf.aliasing_output = 0 : i32}) -> (tensor<8x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}, tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}) attributes {mesh_shape = #sdy.mesh<["x"=4]>, reserved_hbm_bytes = 4 : i64} {
    %cst = stablehlo.constant dense<3.125000e-02> : tensor<8x4xf32>
    %0 = stablehlo.multiply %arg2, %cst : tensor<8x4xf32>
    %1 = stablehlo.dot_general %0, %arg1, contracting_dims = [0] x [0], precision = [DEFAULT, DEFAULT] : (tensor<8x4xf32>, tensor<8x8xf32>) -> tensor<4x8xf32>
    %2 = stablehlo.transpose %1, dims = [1, 0] : (tensor<4x8xf32>) -> tensor<8x4xf32>
    %3 = stablehlo.dot_general %0, %arg0, contracting_dims = [1] x [1], precision = [DEFAULT, DEFAULT] : (tensor<8x4xf32>, tensor<8x4xf32>) -> tensor<8x8xf32>
    return %2, %3 : tensor<8x4xf32>, tensor<8x8xf32>
  }
  func.func @p3_stage0_fwd_call1.step(%arg0: tensor<4x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>}, %arg1: tensor<8x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}) -> (tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}, tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}) attributes {mesh_shape = #sdy.mesh<["x"=4]>, reserved_hbm_bytes = 224 : i64} {
    %cst = stablehlo.constant dense<1.000000e+00> : tensor<8x8xf32>
    %0 = stablehlo.dot_general %arg1, %arg0, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] : (tensor<8x4xf32>, tensor<4x8xf32>) -> tensor<8x8xf32>
    %1 = stablehlo.tanh %0 : tensor<8x8xf32>
    %2 = stablehlo.add %1, %cst : tensor<8x8xf32>
    %3 = stablehlo.subtract %cst, %1 : tensor<8x8xf32>
    %4 = stablehlo.multiply %2, %3 : tensor<8x8xf32>
    return %1, %4 : tensor<8x8xf32>, tensor<8x8xf32>
  }
  func.func @p4_stage1_bwd_call1.step(%arg0: tensor<8x4xf32> {jax.buffer_donor = true, sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}, %arg1: tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>, tf.aliasing_output = 0 : i32}, %arg2: tensor<8x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>, tf.aliasing_output = 2 : i32}, %arg3: tensor<f32> {sdy.sharding = #sdy.sharding<@mesh, []>, tf.aliasing_output = 1 : i32}, %arg4: tensor<f32> {jax.buffer_donor = true, sdy.sharding = #sdy.sharding<@mesh, []>}, %arg5: tensor<8x4xf32> {jax.buffer_donor = true, sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}) -> (tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}, tensor<f32> {sdy.sharding = #sdy.sharding<@mesh, []>}, tensor<8x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}) attributes {mesh_shape = #sdy.mesh<["x"=4]>, reserved_hbm_bytes = 0 : i64} {
    %cst = stablehlo.constant dense<1.000000e-01> : tensor<8x4xf32>
    %cst_0 = stablehlo.constant dense<3.125000e-02> : tensor<8x4xf32>
    %0 = stablehlo.multiply %arg2, %cst_0 : tensor<8x4xf32>
    %1 = stablehlo.dot_general %0, %arg1, contracting_dims = [0] x [0], precision = [DEFAULT, DEFAULT] : (tensor<8x4xf32>, tensor<8x8xf32>) -> tensor<4x8xf32>
    %2 = stablehlo.transpose %1, dims = [1, 0] : (tensor<4x8xf32>) -> tensor<8x4xf32>
    %3 = stablehlo.dot_general %0, %arg0, contracting_dims = [1] x [1], precision = [DEFAULT, DEFAULT] : (tensor<8x4xf32>, tensor<8x4xf32>) -> tensor<8x8xf32>
    %4 = stablehlo.add %arg3, %arg4 : tensor<f32>
    %5 = stablehlo.add %arg5, %2 : tensor<8x4xf32>
    %6 = stablehlo.multiply %5, %cst : tensor<8x4xf32>
    %7 = stablehlo.subtract %arg0, %6 : tensor<8x4xf32>
    return %3, %4, %7 : tensor<8x8xf32>, tensor<f32>, tensor<8x4xf32>
  }
  func.func @p5_stage0_bwd_call0.step(%arg0: tensor<8x4xf32> {jax.buffer_donor = true, sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}, %arg1: tensor<8x8xf32> {jax.buffer_donor = true, sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}, %arg2: tensor<8x8xf32> {jax.buffer_donor = true, sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}) -> (tensor<4x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>}) attributes {mesh_shape = #sdy.mesh<["x"=4]>, reserved_hbm_bytes = 256 : i64} {
    %0 = stablehlo.multiply %arg2, %arg1 : tensor<8x8xf32>
    %1 = stablehlo.dot_general %0, %arg0, contracting_dims = [0] x [0], precision = [DEFAULT, DEFAULT] : (tensor<8x8xf32>, tensor<8x4xf32>) -> tensor<8x4xf32>
    %2 = stablehlo.transpose %1, dims = [1, 0] : (tensor<8x4xf32>) -> tensor<4x8xf32>
    return %2 : tensor<4x8xf32>
  }
  func.func @p6_stage0_bwd_call1.step(%arg0: tensor<8x4xf32> {jax.buffer_donor = true, sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}, %arg1: tensor<8x8xf32> {jax.buffer_donor = true, sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}, %arg2: tensor<8x8xf32> {jax.buffer_donor = true, sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}, %arg3: tensor<4x8xf32> {jax.buffer_donor = true, sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>}, %arg4: tensor<4x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>, tf.aliasing_output = 0 : i32}) -> (tensor<4x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>}) attributes {mesh_shape = #sdy.mesh<["x"=4]>, reserved_hbm_bytes = 64 : i64} {
    %cst = stablehlo.constant dense<1.000000e-01> : tensor<4x8xf32>
    %0 = stablehlo.multiply %arg2, %arg1 : tensor<8x8xf32>
    %1 = stablehlo.dot_general %0, %arg0, contracting_dims = [0] x [0], precision = [DEFAULT, DEFAULT] : (tensor<8x8xf32>, tensor<8x4xf32>) -> tensor<8x4xf32>
    %2 = stablehlo.transpose %1, dims = [1, 0] : (tensor<8x4xf32>) -> tensor<4x8xf32>
    %3 = stablehlo.add %arg4, %2 : tensor<4x8xf32>
    %4 = stablehlo.multiply %3, %cst : tensor<4x8xf32>
    %5 = stablehlo.subtract %arg3, %4 : tensor<4x8xf32>
    return %5 : tensor<4x8xf32>
  }
}
