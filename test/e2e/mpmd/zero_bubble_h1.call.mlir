module @jit_step attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  sdy.mesh @empty_mesh = <[]> {stablehlo.mesh = {axes = []}}
  func.func public @main(%arg0: !mpmd.mesh_tensor<"mesh0", tensor<2x2xf32>>, %arg1: !mpmd.mesh_tensor<"mesh1", tensor<2x2xf32>>, %arg2: !mpmd.mesh_tensor<"mesh0", tensor<2x2xf32>>, %arg3: !mpmd.mesh_tensor<"mesh0", tensor<2x2xf32>>, %arg4: !mpmd.mesh_tensor<"mesh0", tensor<2x2xf32>>) -> (!mpmd.mesh_tensor<"mesh1", tensor<f32>> {jax.result_info = "result[0]"}, !mpmd.mesh_tensor<"mesh0", tensor<2x2xf32>> {jax.result_info = "result[1][0]"}, !mpmd.mesh_tensor<"mesh1", tensor<2x2xf32>> {jax.result_info = "result[1][1]"}) attributes {topology = #mpmd.topology<<"mesh0" : <["x"=1]>>, <"mesh1" : <["x"=1]>>>} {
    %0:2 = mpmd.fragment_call<mesh="mesh0", origin=["stage0"]> @p0_stage0_fwd_calls0to2.step(%arg0, %arg2) : (!mpmd.mesh_tensor<"mesh0", tensor<2x2xf32>>, !mpmd.mesh_tensor<"mesh0", tensor<2x2xf32>>) -> (!mpmd.mesh_tensor<"mesh0", tensor<2x2xf32>>, !mpmd.mesh_tensor<"mesh0", tensor<2x2xf32>>)
    %1 = mpmd.transfer %0#0 : (!mpmd.mesh_tensor<"mesh0", tensor<2x2xf32>>) -> !mpmd.mesh_tensor<"mesh1", tensor<2x2xf32>>
    %2:2 = mpmd.fragment_call<mesh="mesh1", origin=["stage1"]> @p1_stage1_fwd_calls0to2.step(%arg1, %1) : (!mpmd.mesh_tensor<"mesh1", tensor<2x2xf32>>, !mpmd.mesh_tensor<"mesh1", tensor<2x2xf32>>) -> (!mpmd.mesh_tensor<"mesh1", tensor<f32>>, !mpmd.mesh_tensor<"mesh1", tensor<2x2xf32>>)
    %3:2 = mpmd.fragment_call<mesh="mesh1", origin=["stage1"(1)]> @p2_stage1_bwd_calls0to2.step(%arg1, %2#1) : (!mpmd.mesh_tensor<"mesh1", tensor<2x2xf32>>, !mpmd.mesh_tensor<"mesh1", tensor<2x2xf32>>) -> (!mpmd.mesh_tensor<"mesh1", tensor<2x2xf32>>, !mpmd.mesh_tensor<"mesh1", tensor<2x2xf32>>)
    %4 = mpmd.transfer %3#0 : (!mpmd.mesh_tensor<"mesh1", tensor<2x2xf32>>) -> !mpmd.mesh_tensor<"mesh0", tensor<2x2xf32>>
    %5:2 = mpmd.fragment_call<mesh="mesh0", origin=["stage0"]> @p0_stage0_fwd_calls0to2.step(%arg0, %arg3) : (!mpmd.mesh_tensor<"mesh0", tensor<2x2xf32>>, !mpmd.mesh_tensor<"mesh0", tensor<2x2xf32>>) -> (!mpmd.mesh_tensor<"mesh0", tensor<2x2xf32>>, !mpmd.mesh_tensor<"mesh0", tensor<2x2xf32>>)
    %6 = mpmd.transfer %5#0 : (!mpmd.mesh_tensor<"mesh0", tensor<2x2xf32>>) -> !mpmd.mesh_tensor<"mesh1", tensor<2x2xf32>>
    %7:2 = mpmd.fragment_call<mesh="mesh1", origin=["stage1"]> @p1_stage1_fwd_calls0to2.step(%arg1, %6) : (!mpmd.mesh_tensor<"mesh1", tensor<2x2xf32>>, !mpmd.mesh_tensor<"mesh1", tensor<2x2xf32>>) -> (!mpmd.mesh_tensor<"mesh1", tensor<f32>>, !mpmd.mesh_tensor<"mesh1", tensor<2x2xf32>>)
    %8:2 = mpmd.fragment_call<mesh="mesh1", origin=["stage1"(1)]> @p2_stage1_bwd_calls0to2.step(%arg1, %7#1) : (!mpmd.mesh_tensor<"mesh1", tensor<2x2xf32>>, !mpmd.mesh_tensor<"mesh1", tensor<2x2xf32>>) -> (!mpmd.mesh_tensor<"mesh1", tensor<2x2xf32>>, !mpmd.mesh_tensor<"mesh1", tensor<2x2xf32>>)
    %9 = mpmd.transfer %8#0 : (!mpmd.mesh_tensor<"mesh1", tensor<2x2xf32>>) -> !mpmd.mesh_tensor<"mesh0", tensor<2x2xf32>>
    %10 = mpmd.fragment_call<mesh="mesh1", origin=["stage1"(1)]> @p3_stage1_bwd_calls0to1.step(%1, %3#1) : (!mpmd.mesh_tensor<"mesh1", tensor<2x2xf32>>, !mpmd.mesh_tensor<"mesh1", tensor<2x2xf32>>) -> !mpmd.mesh_tensor<"mesh1", tensor<2x2xf32>>
    %11 = mpmd.fragment_call<mesh="mesh0", origin=["stage0"(1)]> @p4_stage0_bwd_calls0to1.step(%arg2, %0#1, %4) : (!mpmd.mesh_tensor<"mesh0", tensor<2x2xf32>>, !mpmd.mesh_tensor<"mesh0", tensor<2x2xf32>>, !mpmd.mesh_tensor<"mesh0", tensor<2x2xf32>>) -> !mpmd.mesh_tensor<"mesh0", tensor<2x2xf32>>
    %12:2 = mpmd.fragment_call<mesh="mesh0", origin=["stage0"]> @p0_stage0_fwd_calls0to2.step(%arg0, %arg4) : (!mpmd.mesh_tensor<"mesh0", tensor<2x2xf32>>, !mpmd.mesh_tensor<"mesh0", tensor<2x2xf32>>) -> (!mpmd.mesh_tensor<"mesh0", tensor<2x2xf32>>, !mpmd.mesh_tensor<"mesh0", tensor<2x2xf32>>)
    %13 = mpmd.transfer %12#0 : (!mpmd.mesh_tensor<"mesh0", tensor<2x2xf32>>) -> !mpmd.mesh_tensor<"mesh1", tensor<2x2xf32>>
    %14:2 = mpmd.fragment_call<mesh="mesh1", origin=["stage1"]> @p1_stage1_fwd_calls0to2.step(%arg1, %13) : (!mpmd.mesh_tensor<"mesh1", tensor<2x2xf32>>, !mpmd.mesh_tensor<"mesh1", tensor<2x2xf32>>) -> (!mpmd.mesh_tensor<"mesh1", tensor<f32>>, !mpmd.mesh_tensor<"mesh1", tensor<2x2xf32>>)
    %15:2 = mpmd.fragment_call<mesh="mesh1", origin=["stage1"(1)]> @p2_stage1_bwd_calls0to2.step(%arg1, %14#1) : (!mpmd.mesh_tensor<"mesh1", tensor<2x2xf32>>, !mpmd.mesh_tensor<"mesh1", tensor<2x2xf32>>) -> (!mpmd.mesh_tensor<"mesh1", tensor<2x2xf32>>, !mpmd.mesh_tensor<"mesh1", tensor<2x2xf32>>)
    %16 = mpmd.transfer %15#0 : (!mpmd.mesh_tensor<"mesh1", tensor<2x2xf32>>) -> !mpmd.mesh_tensor<"mesh0", tensor<2x2xf32>>
    %17 = mpmd.fragment_call<mesh="mesh1", origin=["stage1"(1)]> @p3_stage1_bwd_calls0to1.step(%6, %8#1) : (!mpmd.mesh_tensor<"mesh1", tensor<2x2xf32>>, !mpmd.mesh_tensor<"mesh1", tensor<2x2xf32>>) -> !mpmd.mesh_tensor<"mesh1", tensor<2x2xf32>>
    %18 = mpmd.fragment_call<mesh="mesh0", origin=["stage0"(1)]> @p4_stage0_bwd_calls0to1.step(%arg3, %5#1, %9) : (!mpmd.mesh_tensor<"mesh0", tensor<2x2xf32>>, !mpmd.mesh_tensor<"mesh0", tensor<2x2xf32>>, !mpmd.mesh_tensor<"mesh0", tensor<2x2xf32>>) -> !mpmd.mesh_tensor<"mesh0", tensor<2x2xf32>>
    %19:2 = mpmd.fragment_call<mesh="mesh1", origin=["stage1"(1)]> @p5_stage1_bwd_call2.step(%13, %15#1, %17, %10, %arg1, %14#0, %7#0, %2#0) : (!mpmd.mesh_tensor<"mesh1", tensor<2x2xf32>>, !mpmd.mesh_tensor<"mesh1", tensor<2x2xf32>>, !mpmd.mesh_tensor<"mesh1", tensor<2x2xf32>>, !mpmd.mesh_tensor<"mesh1", tensor<2x2xf32>>, !mpmd.mesh_tensor<"mesh1", tensor<2x2xf32>>, !mpmd.mesh_tensor<"mesh1", tensor<f32>>, !mpmd.mesh_tensor<"mesh1", tensor<f32>>, !mpmd.mesh_tensor<"mesh1", tensor<f32>>) -> (!mpmd.mesh_tensor<"mesh1", tensor<f32>>, !mpmd.mesh_tensor<"mesh1", tensor<2x2xf32>>)
    %20 = mpmd.fragment_call<mesh="mesh0", origin=["stage0"(1)]> @p6_stage0_bwd_call2.step(%arg4, %12#1, %16, %arg0, %11, %18) : (!mpmd.mesh_tensor<"mesh0", tensor<2x2xf32>>, !mpmd.mesh_tensor<"mesh0", tensor<2x2xf32>>, !mpmd.mesh_tensor<"mesh0", tensor<2x2xf32>>, !mpmd.mesh_tensor<"mesh0", tensor<2x2xf32>>, !mpmd.mesh_tensor<"mesh0", tensor<2x2xf32>>, !mpmd.mesh_tensor<"mesh0", tensor<2x2xf32>>) -> !mpmd.mesh_tensor<"mesh0", tensor<2x2xf32>>
    return %19#0, %20, %19#1 : !mpmd.mesh_tensor<"mesh1", tensor<f32>>, !mpmd.mesh_tensor<"mesh0", tensor<2x2xf32>>, !mpmd.mesh_tensor<"mesh1", tensor<2x2xf32>>
  }
  func.func @p0_stage0_fwd_calls0to2.step(%arg0: tensor<2x2xf32>, %arg1: tensor<2x2xf32>) -> (tensor<2x2xf32>, tensor<2x2xf32>) attributes {mesh_shape = #sdy.mesh<["x"=1]>, reserved_hbm_bytes = 80 : i64} {
    %cst = stablehlo.constant dense<1.000000e+00> : tensor<2x2xf32>
    %0 = stablehlo.dot_general %arg1, %arg0, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] : (tensor<2x2xf32>, tensor<2x2xf32>) -> tensor<2x2xf32>
    %1 = stablehlo.tanh %0 : tensor<2x2xf32>
    %2 = stablehlo.add %1, %cst : tensor<2x2xf32>
    %3 = stablehlo.subtract %cst, %1 : tensor<2x2xf32>
    %4 = stablehlo.multiply %2, %3 : tensor<2x2xf32>
    return %1, %4 : tensor<2x2xf32>, tensor<2x2xf32>
  }
  func.func @p1_stage1_fwd_calls0to2.step(%arg0: tensor<2x2xf32>, %arg1: tensor<2x2xf32>) -> (tensor<f32>, tensor<2x2xf32>) attributes {mesh_shape = #sdy.mesh<["x"=1]>, reserved_hbm_bytes = 56 : i64} {
    %cst = stablehlo.constant dense<2.000000e+00> : tensor<2x2xf32>
    %cst_0 = stablehlo.constant dense<4.000000e+00> : tensor<f32>
    %cst_1 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %0 = stablehlo.dot_general %arg1, %arg0, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] : (tensor<2x2xf32>, tensor<2x2xf32>) -> tensor<2x2xf32>
    %1 = stablehlo.multiply %0, %0 : tensor<2x2xf32>
    %2 = stablehlo.multiply %0, %cst : tensor<2x2xf32>
    %3 = stablehlo.reduce(%1 init: %cst_1) applies stablehlo.add across dimensions = [0, 1] : (tensor<2x2xf32>, tensor<f32>) -> tensor<f32>
    %4 = stablehlo.divide %3, %cst_0 : tensor<f32>
    return %4, %2 : tensor<f32>, tensor<2x2xf32>
  }
  func.func @p2_stage1_bwd_calls0to2.step(%arg0: tensor<2x2xf32>, %arg1: tensor<2x2xf32> {tf.aliasing_output = 0 : i32}) -> (tensor<2x2xf32>, tensor<2x2xf32>) attributes {mesh_shape = #sdy.mesh<["x"=1]>, reserved_hbm_bytes = 76 : i64} {
    %cst = stablehlo.constant dense<2.500000e-01> : tensor<2x2xf32>
    %0 = stablehlo.multiply %arg1, %cst : tensor<2x2xf32>
    %1 = stablehlo.dot_general %0, %arg0, contracting_dims = [1] x [1], precision = [DEFAULT, DEFAULT] : (tensor<2x2xf32>, tensor<2x2xf32>) -> tensor<2x2xf32>
    return %1, %0 : tensor<2x2xf32>, tensor<2x2xf32>
  }
  func.func @p3_stage1_bwd_calls0to1.step(%arg0: tensor<2x2xf32> {tf.aliasing_output = 0 : i32}, %arg1: tensor<2x2xf32> {jax.buffer_donor = true}) -> tensor<2x2xf32> attributes {mesh_shape = #sdy.mesh<["x"=1]>, reserved_hbm_bytes = 76 : i64} {
    %0 = stablehlo.dot_general %arg1, %arg0, contracting_dims = [0] x [0], precision = [DEFAULT, DEFAULT] : (tensor<2x2xf32>, tensor<2x2xf32>) -> tensor<2x2xf32>
    %1 = stablehlo.transpose %0, dims = [1, 0] : (tensor<2x2xf32>) -> tensor<2x2xf32>
    return %1 : tensor<2x2xf32>
  }
  func.func @p4_stage0_bwd_calls0to1.step(%arg0: tensor<2x2xf32>, %arg1: tensor<2x2xf32> {tf.aliasing_output = 0 : i32}, %arg2: tensor<2x2xf32> {jax.buffer_donor = true}) -> tensor<2x2xf32> attributes {mesh_shape = #sdy.mesh<["x"=1]>, reserved_hbm_bytes = 96 : i64} {
    %0 = stablehlo.multiply %arg2, %arg1 : tensor<2x2xf32>
    %1 = stablehlo.dot_general %0, %arg0, contracting_dims = [0] x [0], precision = [DEFAULT, DEFAULT] : (tensor<2x2xf32>, tensor<2x2xf32>) -> tensor<2x2xf32>
    %2 = stablehlo.transpose %1, dims = [1, 0] : (tensor<2x2xf32>) -> tensor<2x2xf32>
    return %2 : tensor<2x2xf32>
  }
  func.func @p5_stage1_bwd_call2.step(%arg0: tensor<2x2xf32> {tf.aliasing_output = 1 : i32}, %arg1: tensor<2x2xf32> {jax.buffer_donor = true}, %arg2: tensor<2x2xf32> {jax.buffer_donor = true}, %arg3: tensor<2x2xf32> {jax.buffer_donor = true}, %arg4: tensor<2x2xf32>, %arg5: tensor<f32> {tf.aliasing_output = 0 : i32}, %arg6: tensor<f32> {jax.buffer_donor = true}, %arg7: tensor<f32> {jax.buffer_donor = true}) -> (tensor<f32>, tensor<2x2xf32>) attributes {mesh_shape = #sdy.mesh<["x"=1]>, reserved_hbm_bytes = 0 : i64} {
    %cst = stablehlo.constant dense<1.000000e-01> : tensor<2x2xf32>
    %0 = stablehlo.dot_general %arg1, %arg0, contracting_dims = [0] x [0], precision = [DEFAULT, DEFAULT] : (tensor<2x2xf32>, tensor<2x2xf32>) -> tensor<2x2xf32>
    %1 = stablehlo.transpose %0, dims = [1, 0] : (tensor<2x2xf32>) -> tensor<2x2xf32>
    %2 = stablehlo.add %arg7, %arg6 : tensor<f32>
    %3 = stablehlo.add %2, %arg5 : tensor<f32>
    %4 = stablehlo.add %arg3, %arg2 : tensor<2x2xf32>
    %5 = stablehlo.add %4, %1 : tensor<2x2xf32>
    %6 = stablehlo.multiply %5, %cst : tensor<2x2xf32>
    %7 = stablehlo.subtract %arg4, %6 : tensor<2x2xf32>
    return %3, %7 : tensor<f32>, tensor<2x2xf32>
  }
  func.func @p6_stage0_bwd_call2.step(%arg0: tensor<2x2xf32>, %arg1: tensor<2x2xf32> {tf.aliasing_output = 0 : i32}, %arg2: tensor<2x2xf32> {jax.buffer_donor = true}, %arg3: tensor<2x2xf32>, %arg4: tensor<2x2xf32> {jax.buffer_donor = true}, %arg5: tensor<2x2xf32> {jax.buffer_donor = true}) -> tensor<2x2xf32> attributes {mesh_shape = #sdy.mesh<["x"=1]>, reserved_hbm_bytes = 32 : i64} {
    %cst = stablehlo.constant dense<1.000000e-01> : tensor<2x2xf32>
    %0 = stablehlo.multiply %arg2, %arg1 : tensor<2x2xf32>
    %1 = stablehlo.dot_general %0, %arg0, contracting_dims = [0] x [0], precision = [DEFAULT, DEFAULT] : (tensor<2x2xf32>, tensor<2x2xf32>) -> tensor<2x2xf32>
    %2 = stablehlo.transpose %1, dims = [1, 0] : (tensor<2x2xf32>) -> tensor<2x2xf32>
    %3 = stablehlo.add %arg4, %arg5 : tensor<2x2xf32>
    %4 = stablehlo.add %3, %2 : tensor<2x2xf32>
    %5 = stablehlo.multiply %4, %cst : tensor<2x2xf32>
    %6 = stablehlo.subtract %arg3, %5 : tensor<2x2xf32>
    return %6 : tensor<2x2xf32>
  }
}
