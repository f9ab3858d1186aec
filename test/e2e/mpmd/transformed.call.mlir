module @jit__lambda attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main(%arg0: !mpmd.mesh_tensor<"mesh0", tensor<4x4xf32>>, %arg1: !mpmd.mesh_tensor<"mesh1", tensor<4x4xf32>>, %arg2: !mpmd.mesh_tensor<"mesh0", tensor<2x4xf32>>) -> (!mpmd.mesh_tensor<"mesh1", tensor<f32>> {jax.result_info = "result[0]"}, !mpmd.mesh_tensor<"mesh0", tensor<4x4xf32>> {jax.result_info = "result[1][0]"}, !mpmd.mesh_tensor<"mesh1", tensor<4x4xf32>> {jax.result_info = "result[1][1]"}) attributes {topology = #mpmd.topology<<"mesh0" : <["x"=1]>>, <"mesh1" : <["x"=1]>>>} {
    %0:3 = mpmd.fragment_call<mesh="mesh0", origin=["stage0"]> @p0_stage0_fwd._lambda(%arg0, %arg2) : (!mpmd.mesh_tensor<"mesh0", tensor<4x4xf32>>, !mpmd.mesh_tensor<"mesh0", tensor<2x4xf32>>) -> (!mpmd.mesh_tensor<"mesh0", tensor<2x4xf32>>, !mpmd.mesh_tensor<"mesh0", tensor<3x2x4xf32>>, !mpmd.mesh_tensor<"mesh0", tensor<3x2x4xf32>>)
    %1 = mpmd.transfer %0#0 : (!mpmd.mesh_tensor<"mesh0", tensor<2x4xf32>>) -> !mpmd.mesh_tensor<"mesh1", tensor<2x4xf32>>
    %2:3 = mpmd.fragment_call<mesh="mesh1", origin=["stage1"]> @p1_stage1_fwd._lambda(%arg1, %1) : (!mpmd.mesh_tensor<"mesh1", tensor<4x4xf32>>, !mpmd.mesh_tensor<"mesh1", tensor<2x4xf32>>) -> (!mpmd.mesh_tensor<"mesh1", tensor<f32>>, !mpmd.mesh_tensor<"mesh1", tensor<2x4xf32>>, !mpmd.mesh_tensor<"mesh1", tensor<2x4xf32>>)
    %3:2 = mpmd.fragment_call<mesh="mesh1", origin=["stage1"(1)]> @p2_stage1_bwd._lambda(%arg1, %2#1) : (!mpmd.mesh_tensor<"mesh1", tensor<4x4xf32>>, !mpmd.mesh_tensor<"mesh1", tensor<2x4xf32>>) -> (!mpmd.mesh_tensor<"mesh1", tensor<2x4xf32>>, !mpmd.mesh_tensor<"mesh1", tensor<2x4xf32>>)
    %4 = mpmd.transfer %3#0 : (!mpmd.mesh_tensor<"mesh1", tensor<2x4xf32>>) -> !mpmd.mesh_tensor<"mesh0", tensor<2x4xf32>>
    %5 = mpmd.fragment_call<mesh="mesh0", origin=["stage0"(1)]> @p3_stage0_bwd._lambda(%arg0, %arg2, %4) : (!mpmd.mesh_tensor<"mesh0", tensor<4x4xf32>>, !mpmd.mesh_tensor<"mesh0", tensor<2x4xf32>>, !mpmd.mesh_tensor<"mesh0", tensor<2x4xf32>>) -> !mpmd.mesh_tensor<"mesh0", tensor<2x4xf32>>
    %6 = mpmd.transfer %5 : (!mpmd.mesh_tensor<"mesh0", tensor<2x4xf32>>) -> !mpmd.mesh_tensor<"mesh1", tensor<2x4xf32>>
    %7:2 = mpmd.fragment_call<mesh="mesh1", origin=["stage1"]> @p4_stage1_fwd._lambda(%2#0, %6) : (!mpmd.mesh_tensor<"mesh1", tensor<f32>>, !mpmd.mesh_tensor<"mesh1", tensor<2x4xf32>>) -> (!mpmd.mesh_tensor<"mesh1", tensor<f32>>, !mpmd.mesh_tensor<"mesh1", tensor<2x4xf32>>)
    %8 = mpmd.transfer %7#1 : (!mpmd.mesh_tensor<"mesh1", tensor<2x4xf32>>) -> !mpmd.mesh_tensor<"mesh0", tensor<2x4xf32>>
    %9:2 = mpmd.fragment_call<mesh="mesh0", origin=["stage0"(2)]> @p5_stage0_transpose2._lambda(%arg0, %arg2, %4, %8) : (!mpmd.mesh_tensor<"mesh0", tensor<4x4xf32>>, !mpmd.mesh_tensor<"mesh0", tensor<2x4xf32>>, !mpmd.mesh_tensor<"mesh0", tensor<2x4xf32>>, !mpmd.mesh_tensor<"mesh0", tensor<2x4xf32>>) -> (!mpmd.mesh_tensor<"mesh0", tensor<4x4xf32>>, !mpmd.mesh_tensor<"mesh0", tensor<2x4xf32>>)
    %10 = mpmd.transfer %9#1 : (!mpmd.mesh_tensor<"mesh0", tensor<2x4xf32>>) -> !mpmd.mesh_tensor<"mesh1", tensor<2x4xf32>>
    %11:2 = mpmd.fragment_call<mesh="mesh1", origin=["stage1"(2)]> @p6_stage1_transpose2._lambda(%3#1, %arg1, %2#1, %10) : (!mpmd.mesh_tensor<"mesh1", tensor<2x4xf32>>, !mpmd.mesh_tensor<"mesh1", tensor<4x4xf32>>, !mpmd.mesh_tensor<"mesh1", tensor<2x4xf32>>, !mpmd.mesh_tensor<"mesh1", tensor<2x4xf32>>) -> (!mpmd.mesh_tensor<"mesh1", tensor<4x4xf32>>, !mpmd.mesh_tensor<"mesh1", tensor<2x4xf32>>)
    %12:2 = mpmd.fragment_call<mesh="mesh1", origin=["stage1"(1)]> @p7_stage1_bwd._lambda(%arg1, %1, %2#1, %2#2, %11#1, %11#0) : (!mpmd.mesh_tensor<"mesh1", tensor<4x4xf32>>, !mpmd.mesh_tensor<"mesh1", tensor<2x4xf32>>, !mpmd.mesh_tensor<"mesh1", tensor<2x4xf32>>, !mpmd.mesh_tensor<"mesh1", tensor<2x4xf32>>, !mpmd.mesh_tensor<"mesh1", tensor<2x4xf32>>, !mpmd.mesh_tensor<"mesh1", tensor<4x4xf32>>) -> (!mpmd.mesh_tensor<"mesh1", tensor<2x4xf32>>, !mpmd.mesh_tensor<"mesh1", tensor<4x4xf32>>)
    %13 = mpmd.transfer %12#0 : (!mpmd.mesh_tensor<"mesh1", tensor<2x4xf32>>) -> !mpmd.mesh_tensor<"mesh0", tensor<2x4xf32>>
    %14 = mpmd.fragment_call<mesh="mesh0", origin=["stage0"(1)]> @p8_stage0_bwd._lambda(%arg0, %0#1, %0#2, %13, %9#0) : (!mpmd.mesh_tensor<"mesh0", tensor<4x4xf32>>, !mpmd.mesh_tensor<"mesh0", tensor<3x2x4xf32>>, !mpmd.mesh_tensor<"mesh0", tensor<3x2x4xf32>>, !mpmd.mesh_tensor<"mesh0", tensor<2x4xf32>>, !mpmd.mesh_tensor<"mesh0", tensor<4x4xf32>>) -> !mpmd.mesh_tensor<"mesh0", tensor<4x4xf32>>
    return %7#0, %14, %12#1 : !mpmd.mesh_tensor<"mesh1", tensor<f32>>, !mpmd.mesh_tensor<"mesh0", tensor<4x4xf32>>, !mpmd.mesh_tensor<"mesh1", tensor<4x4xf32>>
  }
  func.func @p0_stage0_fwd._lambda(%arg0: tensor<4x4xf32>, %arg1: tensor<2x4xf32>) -> (tensor<2x4xf32>, tensor<3x2x4xf32>, tensor<3x2x4xf32>) attributes {mesh_shape = #sdy.mesh<["x"=1]>, reserved_hbm_bytes = 0 : i64} {
    %cst = stablehlo.constant dense<1.000000e+00> : tensor<2x4xf32>
    %c = stablehlo.constant dense<1> : tensor<i32>
    %c_0 = stablehlo.constant dense<3> : tensor<i32>
    %c_1 = stablehlo.constant dense<0> : tensor<i32>
    %cst_2 = stablehlo.constant dense<0.000000e+00> : tensor<3x2x4xf32>
    %0:4 = stablehlo.while(%iterArg = %c_1, %iterArg_3 = %arg1, %iterArg_4 = %cst_2, %iterArg_5 = %cst_2) : tensor<i32>, tensor<2x4xf32>, tensor<3x2x4xf32>, tensor<3x2x4xf32>
    cond {
      %1 = stablehlo.compare LT, %iterArg, %c_0, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %1 : tensor<i1>
    } do {
      %1 = stablehlo.dot_general %iterArg_3, %arg0, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] : (tensor<2x4xf32>, tensor<4x4xf32>) -> tensor<2x4xf32>
      %2 = stablehlo.tanh %1 : tensor<2x4xf32>
      %3 = stablehlo.add %2, %cst : tensor<2x4xf32>
      %4 = stablehlo.subtract %cst, %2 : tensor<2x4xf32>
      %5 = stablehlo.multiply %3, %4 : tensor<2x4xf32>
      %6 = stablehlo.reshape %iterArg_3 : (tensor<2x4xf32>) -> tensor<1x2x4xf32>
      %7 = stablehlo.dynamic_update_slice %iterArg_4, %6, %iterArg, %c_1, %c_1 : (tensor<3x2x4xf32>, tensor<1x2x4xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<3x2x4xf32>
      %8 = stablehlo.reshape %5 : (tensor<2x4xf32>) -> tensor<1x2x4xf32>
      %9 = stablehlo.dynamic_update_slice %iterArg_5, %8, %iterArg, %c_1, %c_1 : (tensor<3x2x4xf32>, tensor<1x2x4xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<3x2x4xf32>
      %10 = stablehlo.add %iterArg, %c : tensor<i32>
      stablehlo.return %10, %2, %7, %9 : tensor<i32>, tensor<2x4xf32>, tensor<3x2x4xf32>, tensor<3x2x4xf32>
    }
    return %0#1, %0#2, %0#3 : tensor<2x4xf32>, tensor<3x2x4xf32>, tensor<3x2x4xf32>
  }
  func.func @p1_stage1_fwd._lambda(%arg0: tensor<4x4xf32>, %arg1: tensor<2x4xf32>) -> (tensor<f32>, tensor<2x4xf32>, tensor<2x4xf32>) attributes {mesh_shape = #sdy.mesh<["x"=1]>, reserved_hbm_bytes = 0 : i64} {
    %cst = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %0 = stablehlo.dot_general %arg1, %arg0, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] : (tensor<2x4xf32>, tensor<4x4xf32>) -> tensor<2x4xf32>
    %1 = stablehlo.sine %0 : tensor<2x4xf32>
    %2 = stablehlo.cosine %0 : tensor<2x4xf32>
    %3 = stablehlo.reduce(%1 init: %cst) applies stablehlo.add across dimensions = [0, 1] : (tensor<2x4xf32>, tensor<f32>) -> tensor<f32>
    return %3, %2, %1 : tensor<f32>, tensor<2x4xf32>, tensor<2x4xf32>
  }
  func.func @p2_stage1_bwd._lambda(%arg0: tensor<4x4xf32>, %arg1: tensor<2x4xf32>) -> (tensor<2x4xf32>, tensor<2x4xf32>) attributes {mesh_shape = #sdy.mesh<["x"=1]>, reserved_hbm_bytes = 68 : i64} {
    %cst = stablehlo.constant dense<1.000000e+00> : tensor<2x4xf32>
    %0 = stablehlo.dot_general %arg1, %arg0, contracting_dims = [1] x [1], precision = [DEFAULT, DEFAULT] : (tensor<2x4xf32>, tensor<4x4xf32>) -> tensor<2x4xf32>
    return %0, %cst : tensor<2x4xf32>, tensor<2x4xf32>
  }
  func.func @p3_stage0_bwd._lambda(%arg0: tensor<4x4xf32>, %arg1: tensor<2x4xf32>, %arg2: tensor<2x4xf32>) -> tensor<2x4xf32> attributes {mesh_shape = #sdy.mesh<["x"=1]>, reserved_hbm_bytes = 192 : i64} {
    %cst = stablehlo.constant dense<1.000000e+00> : tensor<2x4xf32>
    %c = stablehlo.constant dense<1> : tensor<i32>
    %c_0 = stablehlo.constant dense<3> : tensor<i32>
    %c_1 = stablehlo.constant dense<0> : tensor<i32>
    %cst_2 = stablehlo.constant dense<0.000000e+00> : tensor<3x2x4xf32>
    %0:3 = stablehlo.while(%iterArg = %c_1, %iterArg_3 = %arg1, %iterArg_4 = %cst_2) : tensor<i32>, tensor<2x4xf32>, tensor<3x2x4xf32>
    cond {
      %2 = stablehlo.compare LT, %iterArg, %c_0, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %2 : tensor<i1>
    } do {
      %2 = stablehlo.dot_general %iterArg_3, %arg0, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] : (tensor<2x4xf32>, tensor<4x4xf32>) -> tensor<2x4xf32>
      %3 = stablehlo.tanh %2 : tensor<2x4xf32>
      %4 = stablehlo.add %3, %cst : tensor<2x4xf32>
      %5 = stablehlo.subtract %cst, %3 : tensor<2x4xf32>
      %6 = stablehlo.multiply %4, %5 : tensor<2x4xf32>
      %7 = stablehlo.reshape %6 : (tensor<2x4xf32>) -> tensor<1x2x4xf32>
      %8 = stablehlo.dynamic_update_slice %iterArg_4, %7, %iterArg, %c_1, %c_1 : (tensor<3x2x4xf32>, tensor<1x2x4xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<3x2x4xf32>
      %9 = stablehlo.add %iterArg, %c : tensor<i32>
      stablehlo.return %9, %3, %8 : tensor<i32>, tensor<2x4xf32>, tensor<3x2x4xf32>
    }
    %1:2 = stablehlo.while(%iterArg = %c_1, %iterArg_3 = %arg2) : tensor<i32>, tensor<2x4xf32>
    cond {
      %2 = stablehlo.compare LT, %iterArg, %c_0, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %2 : tensor<i1>
    } do {
      %2 = stablehlo.subtract %c_0, %iterArg : tensor<i32>
      %3 = stablehlo.subtract %2, %c : tensor<i32>
      %4 = stablehlo.dynamic_slice %0#2, %3, %c_1, %c_1, sizes = [1, 2, 4] : (tensor<3x2x4xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x2x4xf32>
      %5 = stablehlo.reshape %4 : (tensor<1x2x4xf32>) -> tensor<2x4xf32>
      %6 = stablehlo.multiply %iterArg_3, %5 : tensor<2x4xf32>
      %7 = stablehlo.dot_general %6, %arg0, contracting_dims = [1] x [1], precision = [DEFAULT, DEFAULT] : (tensor<2x4xf32>, tensor<4x4xf32>) -> tensor<2x4xf32>
      %8 = stablehlo.add %iterArg, %c : tensor<i32>
      stablehlo.return %8, %7 : tensor<i32>, tensor<2x4xf32>
    }
    return %1#1 : tensor<2x4xf32>
  }
  func.func @p4_stage1_fwd._lambda(%arg0: tensor<f32> {tf.aliasing_output = 0 : i32}, %arg1: tensor<2x4xf32> {tf.aliasing_output = 1 : i32}) -> (tensor<f32>, tensor<2x4xf32>) attributes {mesh_shape = #sdy.mesh<["x"=1]>, reserved_hbm_bytes = 192 : i64} {
    %cst = stablehlo.constant dense<2.000000e+00> : tensor<2x4xf32>
    %cst_0 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %0 = stablehlo.multiply %arg1, %arg1 : tensor<2x4xf32>
    %1 = stablehlo.multiply %arg1, %cst : tensor<2x4xf32>
    %2 = stablehlo.reduce(%0 init: %cst_0) applies stablehlo.add across dimensions = [0, 1] : (tensor<2x4xf32>, tensor<f32>) -> tensor<f32>
    %3 = stablehlo.add %arg0, %2 : tensor<f32>
    return %3, %1 : tensor<f32>, tensor<2x4xf32>
  }
  func.func @p5_stage0_transpose2._lambda(%arg0: tensor<4x4xf32>, %arg1: tensor<2x4xf32>, %arg2: tensor<2x4xf32> {tf.aliasing_output = 1 : i32}, %arg3: tensor<2x4xf32> {jax.buffer_donor = true}) -> (tensor<4x4xf32>, tensor<2x4xf32>) attributes {mesh_shape = #sdy.mesh<["x"=1]>, reserved_hbm_bytes = 192 : i64} {
    %cst = stablehlo.constant dense<0.000000e+00> : tensor<2x4xf32>
    %cst_0 = stablehlo.constant dense<0.000000e+00> : tensor<4x4xf32>
    %cst_1 = stablehlo.constant dense<-2.000000e+00> : tensor<2x4xf32>
    %cst_2 = stablehlo.constant dense<1.000000e+00> : tensor<2x4xf32>
    %cst_3 = stablehlo.constant dense<0.000000e+00> : tensor<3x2x4xf32>
    %c = stablehlo.constant dense<1> : tensor<i32>
    %c_4 = stablehlo.constant dense<3> : tensor<i32>
    %c_5 = stablehlo.constant dense<0> : tensor<i32>
    %0:4 = stablehlo.optimization_barrier %arg0, %arg1, %arg2, %arg3 : tensor<4x4xf32>, tensor<2x4xf32>, tensor<2x4xf32>, tensor<2x4xf32>
    %1:6 = stablehlo.while(%iterArg = %c_5, %iterArg_6 = %0#1, %iterArg_7 = %cst_3, %iterArg_8 = %cst_3, %iterArg_9 = %cst_3, %iterArg_10 = %cst_3) : tensor<i32>, tensor<2x4xf32>, tensor<3x2x4xf32>, tensor<3x2x4xf32>, tensor<3x2x4xf32>, tensor<3x2x4xf32>
    cond {
      %6 = stablehlo.compare LT, %iterArg, %c_4, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %6 : tensor<i1>
    } do {
      %6 = stablehlo.dot_general %iterArg_6, %0#0, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] : (tensor<2x4xf32>, tensor<4x4xf32>) -> tensor<2x4xf32>
      %7 = stablehlo.tanh %6 : tensor<2x4xf32>
      %8 = stablehlo.add %7, %cst_2 : tensor<2x4xf32>
      %9 = stablehlo.subtract %cst_2, %7 : tensor<2x4xf32>
      %10 = stablehlo.multiply %8, %9 : tensor<2x4xf32>
      %11 = stablehlo.multiply %7, %cst_1 : tensor<2x4xf32>
      %12 = stablehlo.reshape %10 : (tensor<2x4xf32>) -> tensor<1x2x4xf32>
      %13 = stablehlo.dynamic_update_slice %iterArg_7, %12, %iterArg, %c_5, %c_5 : (tensor<3x2x4xf32>, tensor<1x2x4xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<3x2x4xf32>
      %14 = stablehlo.reshape %iterArg_6 : (tensor<2x4xf32>) -> tensor<1x2x4xf32>
      %15 = stablehlo.dynamic_update_slice %iterArg_8, %14, %iterArg, %c_5, %c_5 : (tensor<3x2x4xf32>, tensor<1x2x4xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<3x2x4xf32>
      %16 = stablehlo.dynamic_update_slice %iterArg_9, %12, %iterArg, %c_5, %c_5 : (tensor<3x2x4xf32>, tensor<1x2x4xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<3x2x4xf32>
      %17 = stablehlo.reshape %11 : (tensor<2x4xf32>) -> tensor<1x2x4xf32>
      %18 = stablehlo.dynamic_update_slice %iterArg_10, %17, %iterArg, %c_5, %c_5 : (tensor<3x2x4xf32>, tensor<1x2x4xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<3x2x4xf32>
      %19 = stablehlo.add %iterArg, %c : tensor<i32>
      stablehlo.return %19, %7, %13, %15, %16, %18 : tensor<i32>, tensor<2x4xf32>, tensor<3x2x4xf32>, tensor<3x2x4xf32>, tensor<3x2x4xf32>, tensor<3x2x4xf32>
    }
    %2:4 = stablehlo.while(%iterArg = %c_5, %iterArg_6 = %0#2, %iterArg_7 = %cst_3, %iterArg_8 = %cst_3) : tensor<i32>, tensor<2x4xf32>, tensor<3x2x4xf32>, tensor<3x2x4xf32>
    cond {
      %6 = stablehlo.compare LT, %iterArg, %c_4, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %6 : tensor<i1>
    } do {
      %6 = stablehlo.subtract %c_4, %iterArg : tensor<i32>
      %7 = stablehlo.subtract %6, %c : tensor<i32>
      %8 = stablehlo.dynamic_slice %1#2, %7, %c_5, %c_5, sizes = [1, 2, 4] : (tensor<3x2x4xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x2x4xf32>
      %9 = stablehlo.reshape %8 : (tensor<1x2x4xf32>) -> tensor<2x4xf32>
      %10 = stablehlo.multiply %iterArg_6, %9 : tensor<2x4xf32>
      %11 = stablehlo.dot_general %10, %0#0, contracting_dims = [1] x [1], precision = [DEFAULT, DEFAULT] : (tensor<2x4xf32>, tensor<4x4xf32>) -> tensor<2x4xf32>
      %12 = stablehlo.reshape %iterArg_6 : (tensor<2x4xf32>) -> tensor<1x2x4xf32>
      %13 = stablehlo.dynamic_update_slice %iterArg_7, %12, %7, %c_5, %c_5 : (tensor<3x2x4xf32>, tensor<1x2x4xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<3x2x4xf32>
      %14 = stablehlo.reshape %10 : (tensor<2x4xf32>) -> tensor<1x2x4xf32>
      %15 = stablehlo.dynamic_update_slice %iterArg_8, %14, %7, %c_5, %c_5 : (tensor<3x2x4xf32>, tensor<1x2x4xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<3x2x4xf32>
      %16 = stablehlo.add %iterArg, %c : tensor<i32>
      stablehlo.return %16, %11, %13, %15 : tensor<i32>, tensor<2x4xf32>, tensor<3x2x4xf32>, tensor<3x2x4xf32>
    }
    %3:4 = stablehlo.while(%iterArg = %c_5, %iterArg_6 = %cst_0, %iterArg_7 = %0#3, %iterArg_8 = %cst_3) : tensor<i32>, tensor<4x4xf32>, tensor<2x4xf32>, tensor<3x2x4xf32>
    cond {
      %6 = stablehlo.compare LT, %iterArg, %c_4, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %6 : tensor<i1>
    } do {
      %6 = stablehlo.dynamic_slice %1#2, %iterArg, %c_5, %c_5, sizes = [1, 2, 4] : (tensor<3x2x4xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x2x4xf32>
      %7 = stablehlo.reshape %6 : (tensor<1x2x4xf32>) -> tensor<2x4xf32>
      %8 = stablehlo.dynamic_slice %2#2, %iterArg, %c_5, %c_5, sizes = [1, 2, 4] : (tensor<3x2x4xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x2x4xf32>
      %9 = stablehlo.reshape %8 : (tensor<1x2x4xf32>) -> tensor<2x4xf32>
      %10 = stablehlo.dynamic_slice %2#3, %iterArg, %c_5, %c_5, sizes = [1, 2, 4] : (tensor<3x2x4xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x2x4xf32>
      %11 = stablehlo.reshape %10 : (tensor<1x2x4xf32>) -> tensor<2x4xf32>
      %12 = stablehlo.dot_general %iterArg_7, %11, contracting_dims = [0] x [0], precision = [DEFAULT, DEFAULT] : (tensor<2x4xf32>, tensor<2x4xf32>) -> tensor<4x4xf32>
      %13 = stablehlo.add %iterArg_6, %12 : tensor<4x4xf32>
      %14 = stablehlo.dot_general %iterArg_7, %0#0, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] : (tensor<2x4xf32>, tensor<4x4xf32>) -> tensor<2x4xf32>
      %15 = stablehlo.multiply %9, %14 : tensor<2x4xf32>
      %16 = stablehlo.multiply %14, %7 : tensor<2x4xf32>
      %17 = stablehlo.reshape %15 : (tensor<2x4xf32>) -> tensor<1x2x4xf32>
      %18 = stablehlo.dynamic_update_slice %iterArg_8, %17, %iterArg, %c_5, %c_5 : (tensor<3x2x4xf32>, tensor<1x2x4xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<3x2x4xf32>
      %19 = stablehlo.add %iterArg, %c : tensor<i32>
      stablehlo.return %19, %13, %16, %18 : tensor<i32>, tensor<4x4xf32>, tensor<2x4xf32>, tensor<3x2x4xf32>
    }
    %4:3 = stablehlo.while(%iterArg = %c_5, %iterArg_6 = %cst_0, %iterArg_7 = %cst) : tensor<i32>, tensor<4x4xf32>, tensor<2x4xf32>
    cond {
      %6 = stablehlo.compare LT, %iterArg, %c_4, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %6 : tensor<i1>
    } do {
      %6 = stablehlo.subtract %c_4, %iterArg : tensor<i32>
      %7 = stablehlo.subtract %6, %c : tensor<i32>
      %8 = stablehlo.dynamic_slice %3#3, %7, %c_5, %c_5, sizes = [1, 2, 4] : (tensor<3x2x4xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x2x4xf32>
      %9 = stablehlo.reshape %8 : (tensor<1x2x4xf32>) -> tensor<2x4xf32>
      %10 = stablehlo.dynamic_slice %1#3, %7, %c_5, %c_5, sizes = [1, 2, 4] : (tensor<3x2x4xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x2x4xf32>
      %11 = stablehlo.reshape %10 : (tensor<1x2x4xf32>) -> tensor<2x4xf32>
      %12 = stablehlo.dynamic_slice %1#4, %7, %c_5, %c_5, sizes = [1, 2, 4] : (tensor<3x2x4xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x2x4xf32>
      %13 = stablehlo.reshape %12 : (tensor<1x2x4xf32>) -> tensor<2x4xf32>
      %14 = stablehlo.dynamic_slice %1#5, %7, %c_5, %c_5, sizes = [1, 2, 4] : (tensor<3x2x4xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x2x4xf32>
      %15 = stablehlo.reshape %14 : (tensor<1x2x4xf32>) -> tensor<2x4xf32>
      %16 = stablehlo.multiply %9, %15 : tensor<2x4xf32>
      %17 = stablehlo.add %iterArg_7, %16 : tensor<2x4xf32>
      %18 = stablehlo.multiply %17, %13 : tensor<2x4xf32>
      %19 = stablehlo.dot_general %18, %11, contracting_dims = [0] x [0], precision = [DEFAULT, DEFAULT] : (tensor<2x4xf32>, tensor<2x4xf32>) -> tensor<4x4xf32>
      %20 = stablehlo.transpose %19, dims = [1, 0] : (tensor<4x4xf32>) -> tensor<4x4xf32>
      %21 = stablehlo.add %iterArg_6, %20 : tensor<4x4xf32>
      %22 = stablehlo.dot_general %18, %0#0, contracting_dims = [1] x [1], precision = [DEFAULT, DEFAULT] : (tensor<2x4xf32>, tensor<4x4xf32>) -> tensor<2x4xf32>
      %23 = stablehlo.add %iterArg, %c : tensor<i32>
      stablehlo.return %23, %21, %22 : tensor<i32>, tensor<4x4xf32>, tensor<2x4xf32>
    }
    %5 = stablehlo.add %3#1, %4#1 : tensor<4x4xf32>
    return %5, %3#2 : tensor<4x4xf32>, tensor<2x4xf32>
  }
  func.func @p6_stage1_transpose2._lambda(%arg0: tensor<2x4xf32> {tf.aliasing_output = 1 : i32}, %arg1: tensor<4x4xf32>, %arg2: tensor<2x4xf32>, %arg3: tensor<2x4xf32> {jax.buffer_donor = true}) -> (tensor<4x4xf32>, tensor<2x4xf32>) attributes {mesh_shape = #sdy.mesh<["x"=1]>, reserved_hbm_bytes = 68 : i64} {
    %0 = stablehlo.dot_general %arg3, %arg2, contracting_dims = [0] x [0], precision = [DEFAULT, DEFAULT] : (tensor<2x4xf32>, tensor<2x4xf32>) -> tensor<4x4xf32>
    %1 = stablehlo.dot_general %arg3, %arg1, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] : (tensor<2x4xf32>, tensor<4x4xf32>) -> tensor<2x4xf32>
    %2 = stablehlo.multiply %arg0, %1 : tensor<2x4xf32>
    return %0, %2 : tensor<4x4xf32>, tensor<2x4xf32>
  }
  func.func @p7_stage1_bwd._lambda(%arg0: tensor<4x4xf32>, %arg1: tensor<2x4xf32> {tf.aliasing_output = 0 : i32}, %arg2: tensor<2x4xf32> {jax.buffer_donor = true}, %arg3: tensor<2x4xf32> {jax.buffer_donor = true}, %arg4: tensor<2x4xf32> {jax.buffer_donor = true}, %arg5: tensor<4x4xf32> {tf.aliasing_output = 1 : i32}) -> (tensor<2x4xf32>, tensor<4x4xf32>) attributes {mesh_shape = #sdy.mesh<["x"=1]>, reserved_hbm_bytes = 4 : i64} {
    %0 = stablehlo.negate %arg4 : tensor<2x4xf32>
    %1 = stablehlo.multiply %0, %arg3 : tensor<2x4xf32>
    %2 = stablehlo.add %1, %arg2 : tensor<2x4xf32>
    %3 = stablehlo.dot_general %2, %arg1, contracting_dims = [0] x [0], precision = [DEFAULT, DEFAULT] : (tensor<2x4xf32>, tensor<2x4xf32>) -> tensor<4x4xf32>
    %4 = stablehlo.transpose %3, dims = [1, 0] : (tensor<4x4xf32>) -> tensor<4x4xf32>
    %5 = stablehlo.dot_general %2, %arg0, contracting_dims = [1] x [1], precision = [DEFAULT, DEFAULT] : (tensor<2x4xf32>, tensor<4x4xf32>) -> tensor<2x4xf32>
    %6 = stablehlo.add %arg5, %4 : tensor<4x4xf32>
    return %5, %6 : tensor<2x4xf32>, tensor<4x4xf32>
  }
  func.func @p8_stage0_bwd._lambda(%arg0: tensor<4x4xf32>, %arg1: tensor<3x2x4xf32> {jax.buffer_donor = true}, %arg2: tensor<3x2x4xf32> {jax.buffer_donor = true}, %arg3: tensor<2x4xf32> {jax.buffer_donor = true}, %arg4: tensor<4x4xf32> {tf.aliasing_output = 0 : i32}) -> tensor<4x4xf32> attributes {mesh_shape = #sdy.mesh<["x"=1]>, reserved_hbm_bytes = 32 : i64} {
    %c = stablehlo.constant dense<1> : tensor<i32>
    %c_0 = stablehlo.constant dense<3> : tensor<i32>
    %c_1 = stablehlo.constant dense<0> : tensor<i32>
    %cst = stablehlo.constant dense<0.000000e+00> : tensor<4x4xf32>
    %0:3 = stablehlo.while(%iterArg = %c_1, %iterArg_2 = %cst, %iterArg_3 = %arg3) : tensor<i32>, tensor<4x4xf32>, tensor<2x4xf32>
    cond {
      %2 = stablehlo.compare LT, %iterArg, %c_0, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %2 : tensor<i1>
    } do {
      %2 = stablehlo.subtract %c_0, %iterArg : tensor<i32>
      %3 = stablehlo.subtract %2, %c : tensor<i32>
      %4 = stablehlo.dynamic_slice %arg1, %3, %c_1, %c_1, sizes = [1, 2, 4] : (tensor<3x2x4xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x2x4xf32>
      %5 = stablehlo.reshape %4 : (tensor<1x2x4xf32>) -> tensor<2x4xf32>
      %6 = stablehlo.dynamic_slice %arg2, %3, %c_1, %c_1, sizes = [1, 2, 4] : (tensor<3x2x4xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x2x4xf32>
      %7 = stablehlo.reshape %6 : (tensor<1x2x4xf32>) -> tensor<2x4xf32>
      %8 = stablehlo.multiply %iterArg_3, %7 : tensor<2x4xf32>
      %9 = stablehlo.dot_general %8, %5, contracting_dims = [0] x [0], precision = [DEFAULT, DEFAULT] : (tensor<2x4xf32>, tensor<2x4xf32>) -> tensor<4x4xf32>
      %10 = stablehlo.transpose %9, dims = [1, 0] : (tensor<4x4xf32>) -> tensor<4x4xf32>
      %11 = stablehlo.add %iterArg_2, %10 : tensor<4x4xf32>
      %12 = stablehlo.dot_general %8, %arg0, contracting_dims = [1] x [1], precision = [DEFAULT, DEFAULT] : (tensor<2x4xf32>, tensor<4x4xf32>) -> tensor<2x4xf32>
      %13 = stablehlo.add %iterArg, %c : tensor<i32>
      stablehlo.return %13, %11, %12 : tensor<i32>, tensor<4x4xf32>, tensor<2x4xf32>
    }
    %1 = stablehlo.add %arg4, %0#1 : tensor<4x4xf32>
    return %1 : tensor<4x4xf32>
  }
}
