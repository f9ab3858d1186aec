module @jit_step attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  sdy.mesh @empty_mesh = <[]> {stablehlo.mesh = {axes = []}}
  func.func public @main(%arg0: !mpmd.mesh_tensor<"mesh0", tensor<2x2xf32>>, %arg1: !mpmd.mesh_tensor<"mesh1", tensor<2x2xf32>>, %arg2: !mpmd.mesh_tensor<"mesh0", tensor<2x2xf32>>, %arg3: !mpmd.mesh_tensor<"mesh0", tensor<2x2xf32>>, %arg4: !mpmd.mesh_tensor<"mesh0", tensor<2x2xf32>>) -> (!mpmd.mesh_tensor<"mesh1", tensor<f32>> {jax.result_info = "result[0]"}, !mpmd.mesh_tensor<"mesh0", tensor<2x2xf32>> {jax.result_info = "result[1][0]"}, !mpmd.mesh_tensor<"mesh1", tensor<2x2xf32>> {jax.result_info = "result[1][1]"}) attributes {topology = #mpmd.topology<<"mesh0" : <["x"=1]>>, <"mesh1" : <["x"=1]>>>} {
    %0:2 = mpmd.fragment<mesh="mesh0", origin=["stage0"], stage=0> (%arg0, %arg2) {call_counter = 0 : ui32} (%arg5: tensor<2x2xf32>, %arg6: tensor<2x2xf32>) {
      %cst = stablehlo.constant dense<1.000000e+00> : tensor<2x2xf32>
      %21 = stablehlo.dot_general %arg6, %arg5, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] : (tensor<2x2xf32>, tensor<2x2xf32>) -> tensor<2x2xf32>
      %22 = stablehlo.tanh %21 : tensor<2x2xf32>
      %23 = stablehlo.add %22, %cst : tensor<2x2xf32>
      %24 = stablehlo.subtract %cst, %22 : tensor<2x2xf32>
      %25 = stablehlo.multiply %23, %24 : tensor<2x2xf32>
      mpmd.return %22, %25 : tensor<2x2xf32>, tensor<2x2xf32>
    } : (!mpmd.mesh_tensor<"mesh0", tensor<2x2xf32>>, !mpmd.mesh_tensor<"mesh0", tensor<2x2xf32>>) -> (!mpmd.mesh_tensor<"mesh0", tensor<2x2xf32>>, !mpmd.mesh_tensor<"mesh0", tensor<2x2xf32>>)
    %1 = mpmd.transfer %0#0 : (!mpmd.mesh_tensor<"mesh0", tensor<2x2xf32>>) -> !mpmd.mesh_tensor<"mesh1", tensor<2x2xf32>>
    %2:2 = mpmd.fragment<mesh="mesh1", origin=["stage1"], stage=1> (%arg1, %1) {call_counter = 0 : ui32} (%arg5: tensor<2x2xf32>, %arg6: tensor<2x2xf32>) {
      %cst = stablehlo.constant dense<2.000000e+00> : tensor<2x2xf32>
      %cst_0 = stablehlo.constant dense<4.000000e+00> : tensor<f32>
      %cst_1 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %21 = stablehlo.dot_general %arg6, %arg5, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] : (tensor<2x2xf32>, tensor<2x2xf32>) -> tensor<2x2xf32>
      %22 = stablehlo.multiply %21, %21 : tensor<2x2xf32>
      %23 = stablehlo.multiply %21, %cst : tensor<2x2xf32>
      %24 = stablehlo.reduce(%22 init: %cst_1) applies stablehlo.add across dimensions = [0, 1] : (tensor<2x2xf32>, tensor<f32>) -> tensor<f32>
      %25 = stablehlo.divide %24, %cst_0 : tensor<f32>
      mpmd.return %25, %23 : tensor<f32>, tensor<2x2xf32>
    } : (!mpmd.mesh_tensor<"mesh1", tensor<2x2xf32>>, !mpmd.mesh_tensor<"mesh1", tensor<2x2xf32>>) -> (!mpmd.mesh_tensor<"mesh1", tensor<f32>>, !mpmd.mesh_tensor<"mesh1", tensor<2x2xf32>>)
    %3:2 = mpmd.fragment<mesh="mesh1", origin=["stage1"(1)], stage=1> (%arg1, %2#1) {call_counter = 0 : ui32, split_keep_transferred} (%arg5: tensor<2x2xf32>, %arg6: tensor<2x2xf32>) {
      %cst = stablehlo.constant dense<1.000000e+00> : tensor<f32>
      %cst_0 = stablehlo.constant dense<4.000000e+00> : tensor<f32>
      %21 = stablehlo.divide %cst, %cst_0 : tensor<f32>
      %22 = stablehlo.broadcast_in_dim %21, dims = [] : (tensor<f32>) -> tensor<2x2xf32>
      %23 = stablehlo.multiply %22, %arg6 : tensor<2x2xf32>
      %24 = stablehlo.dot_general %23, %arg5, contracting_dims = [1] x [1], precision = [DEFAULT, DEFAULT] : (tensor<2x2xf32>, tensor<2x2xf32>) -> tensor<2x2xf32>
      mpmd.return %24, %23 : tensor<2x2xf32>, tensor<2x2xf32>
    } : (!mpmd.mesh_tensor<"mesh1", tensor<2x2xf32>>, !mpmd.mesh_tensor<"mesh1", tensor<2x2xf32>>) -> (!mpmd.mesh_tensor<"mesh1", tensor<2x2xf32>>, !mpmd.mesh_tensor<"mesh1", tensor<2x2xf32>>)
    %4 = mpmd.transfer %3#0 : (!mpmd.mesh_tensor<"mesh1", tensor<2x2xf32>>) -> !mpmd.mesh_tensor<"mesh0", tensor<2x2xf32>>
    %5:2 = mpmd.fragment<mesh="mesh0", origin=["stage0"], stage=0> (%arg0, %arg3) {call_counter = 1 : ui32} (%arg5: tensor<2x2xf32>, %arg6: tensor<2x2xf32>) {
      %cst = stablehlo.constant dense<1.000000e+00> : tensor<2x2xf32>
      %21 = stablehlo.dot_general %arg6, %arg5, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] : (tensor<2x2xf32>, tensor<2x2xf32>) -> tensor<2x2xf32>
      %22 = stablehlo.tanh %21 : tensor<2x2xf32>
      %23 = stablehlo.add %22, %cst : tensor<2x2xf32>
      %24 = stablehlo.subtract %cst, %22 : tensor<2x2xf32>
      %25 = stablehlo.multiply %23, %24 : tensor<2x2xf32>
      mpmd.return %22, %25 : tensor<2x2xf32>, tensor<2x2xf32>
    } : (!mpmd.mesh_tensor<"mesh0", tensor<2x2xf32>>, !mpmd.mesh_tensor<"mesh0", tensor<2x2xf32>>) -> (!mpmd.mesh_tensor<"mesh0", tensor<2x2xf32>>, !mpmd.mesh_tensor<"mesh0", tensor<2x2xf32>>)
    %6 = mpmd.transfer %5#0 : (!mpmd.mesh_tensor<"mesh0", tensor<2x2xf32>>) -> !mpmd.mesh_tensor<"mesh1", tensor<2x2xf32>>
    %7:2 = mpmd.fragment<mesh="mesh1", origin=["stage1"], stage=1> (%arg1, %6) {call_counter = 1 : ui32} (%arg5: tensor<2x2xf32>, %arg6: tensor<2x2xf32>) {
      %cst = stablehlo.constant dense<2.000000e+00> : tensor<2x2xf32>
      %cst_0 = stablehlo.constant dense<4.000000e+00> : tensor<f32>
      %cst_1 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %21 = stablehlo.dot_general %arg6, %arg5, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] : (tensor<2x2xf32>, tensor<2x2xf32>) -> tensor<2x2xf32>
      %22 = stablehlo.multiply %21, %21 : tensor<2x2xf32>
      %23 = stablehlo.multiply %21, %cst : tensor<2x2xf32>
      %24 = stablehlo.reduce(%22 init: %cst_1) applies stablehlo.add across dimensions = [0, 1] : (tensor<2x2xf32>, tensor<f32>) -> tensor<f32>
      %25 = stablehlo.divide %24, %cst_0 : tensor<f32>
      mpmd.return %25, %23 : tensor<f32>, tensor<2x2xf32>
    } : (!mpmd.mesh_tensor<"mesh1", tensor<2x2xf32>>, !mpmd.mesh_tensor<"mesh1", tensor<2x2xf32>>) -> (!mpmd.mesh_tensor<"mesh1", tensor<f32>>, !mpmd.mesh_tensor<"mesh1", tensor<2x2xf32>>)
    %8:2 = mpmd.fragment<mesh="mesh1", origin=["stage1"(1)], stage=1> (%arg1, %7#1) {call_counter = 1 : ui32, split_keep_transferred} (%arg5: tensor<2x2xf32>, %arg6: tensor<2x2xf32>) {
      %cst = stablehlo.constant dense<1.000000e+00> : tensor<f32>
      %cst_0 = stablehlo.constant dense<4.000000e+00> : tensor<f32>
      %21 = stablehlo.divide %cst, %cst_0 : tensor<f32>
      %22 = stablehlo.broadcast_in_dim %21, dims = [] : (tensor<f32>) -> tensor<2x2xf32>
      %23 = stablehlo.multiply %22, %arg6 : tensor<2x2xf32>
      %24 = stablehlo.dot_general %23, %arg5, contracting_dims = [1] x [1], precision = [DEFAULT, DEFAULT] : (tensor<2x2xf32>, tensor<2x2xf32>) -> tensor<2x2xf32>
      mpmd.return %24, %23 : tensor<2x2xf32>, tensor<2x2xf32>
    } : (!mpmd.mesh_tensor<"mesh1", tensor<2x2xf32>>, !mpmd.mesh_tensor<"mesh1", tensor<2x2xf32>>) -> (!mpmd.mesh_tensor<"mesh1", tensor<2x2xf32>>, !mpmd.mesh_tensor<"mesh1", tensor<2x2xf32>>)
    %9 = mpmd.transfer %8#0 : (!mpmd.mesh_tensor<"mesh1", tensor<2x2xf32>>) -> !mpmd.mesh_tensor<"mesh0", tensor<2x2xf32>>
    %10 = mpmd.fragment<mesh="mesh1", origin=["stage1"(1)], stage=1> (%1, %3#1) {call_counter = 0 : ui32, split_drop_transferred} (%arg5: tensor<2x2xf32>, %arg6: tensor<2x2xf32>) {
      %21 = stablehlo.dot_general %arg6, %arg5, contracting_dims = [0] x [0], precision = [DEFAULT, DEFAULT] : (tensor<2x2xf32>, tensor<2x2xf32>) -> tensor<2x2xf32>
      %22 = stablehlo.transpose %21, dims = [1, 0] : (tensor<2x2xf32>) -> tensor<2x2xf32>
      mpmd.return %22 : tensor<2x2xf32>
    } : (!mpmd.mesh_tensor<"mesh1", tensor<2x2xf32>>, !mpmd.mesh_tensor<"mesh1", tensor<2x2xf32>>) -> !mpmd.mesh_tensor<"mesh1", tensor<2x2xf32>>
    %11 = mpmd.fragment<mesh="mesh0", origin=["stage0"(1)], stage=0> (%arg2, %0#1, %4) {call_counter = 0 : ui32} (%arg5: tensor<2x2xf32>, %arg6: tensor<2x2xf32>, %arg7: tensor<2x2xf32>) {
      %21 = stablehlo.multiply %arg7, %arg6 : tensor<2x2xf32>
      %22 = stablehlo.dot_general %21, %arg5, contracting_dims = [0] x [0], precision = [DEFAULT, DEFAULT] : (tensor<2x2xf32>, tensor<2x2xf32>) -> tensor<2x2xf32>
      %23 = stablehlo.transpose %22, dims = [1, 0] : (tensor<2x2xf32>) -> tensor<2x2xf32>
      mpmd.return %23 : tensor<2x2xf32>
    } : (!mpmd.mesh_tensor<"mesh0", tensor<2x2xf32>>, !mpmd.mesh_tensor<"mesh0", tensor<2x2xf32>>, !mpmd.mesh_tensor<"mesh0", tensor<2x2xf32>>) -> !mpmd.mesh_tensor<"mesh0", tensor<2x2xf32>>
    %12:2 = mpmd.fragment<mesh="mesh0", origin=["stage0"], stage=0> (%arg0, %arg4) {call_counter = 2 : ui32} (%arg5: tensor<2x2xf32>, %arg6: tensor<2x2xf32>) {
      %cst = stablehlo.constant dense<1.000000e+00> : tensor<2x2xf32>
      %21 = stablehlo.dot_general %arg6, %arg5, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] : (tensor<2x2xf32>, tensor<2x2xf32>) -> tensor<2x2xf32>
      %22 = stablehlo.tanh %21 : tensor<2x2xf32>
      %23 = stablehlo.add %22, %cst : tensor<2x2xf32>
      %24 = stablehlo.subtract %cst, %22 : tensor<2x2xf32>
      %25 = stablehlo.multiply %23, %24 : tensor<2x2xf32>
      mpmd.return %22, %25 : tensor<2x2xf32>, tensor<2x2xf32>
    } : (!mpmd.mesh_tensor<"mesh0", tensor<2x2xf32>>, !mpmd.mesh_tensor<"mesh0", tensor<2x2xf32>>) -> (!mpmd.mesh_tensor<"mesh0", tensor<2x2xf32>>, !mpmd.mesh_tensor<"mesh0", tensor<2x2xf32>>)
    %13 = mpmd.transfer %12#0 : (!mpmd.mesh_tensor<"mesh0", tensor<2x2xf32>>) -> !mpmd.mesh_tensor<"mesh1", tensor<2x2xf32>>
    %14:2 = mpmd.fragment<mesh="mesh1", origin=["stage1"], stage=1> (%arg1, %13) {call_counter = 2 : ui32} (%arg5: tensor<2x2xf32>, %arg6: tensor<2x2xf32>) {
      %cst = stablehlo.constant dense<2.000000e+00> : tensor<2x2xf32>
      %cst_0 = stablehlo.constant dense<4.000000e+00> : tensor<f32>
      %cst_1 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %21 = stablehlo.dot_general %arg6, %arg5, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] : (tensor<2x2xf32>, tensor<2x2xf32>) -> tensor<2x2xf32>
      %22 = stablehlo.multiply %21, %21 : tensor<2x2xf32>
      %23 = stablehlo.multiply %21, %cst : tensor<2x2xf32>
      %24 = stablehlo.reduce(%22 init: %cst_1) applies stablehlo.add across dimensions = [0, 1] : (tensor<2x2xf32>, tensor<f32>) -> tensor<f32>
      %25 = stablehlo.divide %24, %cst_0 : tensor<f32>
      mpmd.return %25, %23 : tensor<f32>, tensor<2x2xf32>
    } : (!mpmd.mesh_tensor<"mesh1", tensor<2x2xf32>>, !mpmd.mesh_tensor<"mesh1", tensor<2x2xf32>>) -> (!mpmd.mesh_tensor<"mesh1", tensor<f32>>, !mpmd.mesh_tensor<"mesh1", tensor<2x2xf32>>)
    %15:2 = mpmd.fragment<mesh="mesh1", origin=["stage1"(1)], stage=1> (%arg1, %14#1) {call_counter = 2 : ui32, split_keep_transferred} (%arg5: tensor<2x2xf32>, %arg6: tensor<2x2xf32>) {
      %cst = stablehlo.constant dense<1.000000e+00> : tensor<f32>
      %cst_0 = stablehlo.constant dense<4.000000e+00> : tensor<f32>
      %21 = stablehlo.divide %cst, %cst_0 : tensor<f32>
      %22 = stablehlo.broadcast_in_dim %21, dims = [] : (tensor<f32>) -> tensor<2x2xf32>
      %23 = stablehlo.multiply %22, %arg6 : tensor<2x2xf32>
      %24 = stablehlo.dot_general %23, %arg5, contracting_dims = [1] x [1], precision = [DEFAULT, DEFAULT] : (tensor<2x2xf32>, tensor<2x2xf32>) -> tensor<2x2xf32>
      mpmd.return %24, %23 : tensor<2x2xf32>, tensor<2x2xf32>
    } : (!mpmd.mesh_tensor<"mesh1", tensor<2x2xf32>>, !mpmd.mesh_tensor<"mesh1", tensor<2x2xf32>>) -> (!mpmd.mesh_tensor<"mesh1", tensor<2x2xf32>>, !mpmd.mesh_tensor<"mesh1", tensor<2x2xf32>>)
    %16 = mpmd.transfer %15#0 : (!mpmd.mesh_tensor<"mesh1", tensor<2x2xf32>>) -> !mpmd.mesh_tensor<"mesh0", tensor<2x2xf32>>
    %17 = mpmd.fragment<mesh="mesh1", origin=["stage1"(1)], stage=1> (%6, %8#1) {call_counter = 1 : ui32, split_drop_transferred} (%arg5: tensor<2x2xf32>, %arg6: tensor<2x2xf32>) {
      %21 = stablehlo.dot_general %arg6, %arg5, contracting_dims = [0] x [0], precision = [DEFAULT, DEFAULT] : (tensor<2x2xf32>, tensor<2x2xf32>) -> tensor<2x2xf32>
      %22 = stablehlo.transpose %21, dims = [1, 0] : (tensor<2x2xf32>) -> tensor<2x2xf32>
      mpmd.return %22 : tensor<2x2xf32>
    } : (!mpmd.mesh_tensor<"mesh1", tensor<2x2xf32>>, !mpmd.mesh_tensor<"mesh1", tensor<2x2xf32>>) -> !mpmd.mesh_tensor<"mesh1", tensor<2x2xf32>>
    %18 = mpmd.fragment<mesh="mesh0", origin=["stage0"(1)], stage=0> (%arg3, %5#1, %9) {call_counter = 1 : ui32} (%arg5: tensor<2x2xf32>, %arg6: tensor<2x2xf32>, %arg7: tensor<2x2xf32>) {
      %21 = stablehlo.multiply %arg7, %arg6 : tensor<2x2xf32>
      %22 = stablehlo.dot_general %21, %arg5, contracting_dims = [0] x [0], precision = [DEFAULT, DEFAULT] : (tensor<2x2xf32>, tensor<2x2xf32>) -> tensor<2x2xf32>
      %23 = stablehlo.transpose %22, dims = [1, 0] : (tensor<2x2xf32>) -> tensor<2x2xf32>
      mpmd.return %23 : tensor<2x2xf32>
    } : (!mpmd.mesh_tensor<"mesh0", tensor<2x2xf32>>, !mpmd.mesh_tensor<"mesh0", tensor<2x2xf32>>, !mpmd.mesh_tensor<"mesh0", tensor<2x2xf32>>) -> !mpmd.mesh_tensor<"mesh0", tensor<2x2xf32>>
    %19:2 = mpmd.fragment<mesh="mesh1", origin=["stage1"(1)], stage=1> (%13, %15#1, %17, %10, %arg1, %14#0, %7#0, %2#0) {call_counter = 2 : ui32, split_drop_transferred} (%arg5: tensor<2x2xf32>, %arg6: tensor<2x2xf32>, %arg7: tensor<2x2xf32>, %arg8: tensor<2x2xf32>, %arg9: tensor<2x2xf32>, %arg10: tensor<f32>, %arg11: tensor<f32>, %arg12: tensor<f32>) {
      %cst = stablehlo.constant dense<1.000000e-01> : tensor<2x2xf32>
      %21 = stablehlo.dot_general %arg6, %arg5, contracting_dims = [0] x [0], precision = [DEFAULT, DEFAULT] : (tensor<2x2xf32>, tensor<2x2xf32>) -> tensor<2x2xf32>
      %22 = stablehlo.transpose %21, dims = [1, 0] : (tensor<2x2xf32>) -> tensor<2x2xf32>
      %23 = stablehlo.add %arg12, %arg11 : tensor<f32>
      %24 = stablehlo.add %23, %arg10 : tensor<f32>
      %25 = stablehlo.add %arg8, %arg7 : tensor<2x2xf32>
      %26 = stablehlo.add %25, %22 : tensor<2x2xf32>
      %27 = stablehlo.multiply %26, %cst : tensor<2x2xf32>
      %28 = stablehlo.subtract %arg9, %27 : tensor<2x2xf32>
      mpmd.return %24, %28 : tensor<f32>, tensor<2x2xf32>
    } : (!mpmd.mesh_tensor<"mesh1", tensor<2x2xf32>>, !mpmd.mesh_tensor<"mesh1", tensor<2x2xf32>>, !mpmd.mesh_tensor<"mesh1", tensor<2x2xf32>>, !mpmd.mesh_tensor<"mesh1", tensor<2x2xf32>>, !mpmd.mesh_tensor<"mesh1", tensor<2x2xf32>>, !mpmd.mesh_tensor<"mesh1", tensor<f32>>, !mpmd.mesh_tensor<"mesh1", tensor<f32>>, !mpmd.mesh_tensor<"mesh1", tensor<f32>>) -> (!mpmd.mesh_tensor<"mesh1", tensor<f32>>, !mpmd.mesh_tensor<"mesh1", tensor<2x2xf32>>)
    %20 = mpmd.fragment<mesh="mesh0", origin=["stage0"(1)], stage=0> (%arg4, %12#1, %16, %arg0, %11, %18) {call_counter = 2 : ui32} (%arg5: tensor<2x2xf32>, %arg6: tensor<2x2xf32>, %arg7: tensor<2x2xf32>, %arg8: tensor<2x2xf32>, %arg9: tensor<2x2xf32>, %arg10: tensor<2x2xf32>) {
      %cst = stablehlo.constant dense<1.000000e-01> : tensor<2x2xf32>
      %21 = stablehlo.multiply %arg7, %arg6 : tensor<2x2xf32>
      %22 = stablehlo.dot_general %21, %arg5, contracting_dims = [0] x [0], precision = [DEFAULT, DEFAULT] : (tensor<2x2xf32>, tensor<2x2xf32>) -> tensor<2x2xf32>
      %23 = stablehlo.transpose %22, dims = [1, 0] : (tensor<2x2xf32>) -> tensor<2x2xf32>
      %24 = stablehlo.add %arg9, %arg10 : tensor<2x2xf32>
      %25 = stablehlo.add %24, %23 : tensor<2x2xf32>
      %26 = stablehlo.multiply %25, %cst : tensor<2x2xf32>
      %27 = stablehlo.subtract %arg8, %26 : tensor<2x2xf32>
      mpmd.return %27 : tensor<2x2xf32>
    } : (!mpmd.mesh_tensor<"mesh0", tensor<2x2xf32>>, !mpmd.mesh_tensor<"mesh0", tensor<2x2xf32>>, !mpmd.mesh_tensor<"mesh0", tensor<2x2xf32>>, !mpmd.mesh_tensor<"mesh0", tensor<2x2xf32>>, !mpmd.mesh_tensor<"mesh0", tensor<2x2xf32>>, !mpmd.mesh_tensor<"mesh0", tensor<2x2xf32>>) -> !mpmd.mesh_tensor<"mesh0", tensor<2x2xf32>>
    return %19#0, %20, %19#1 : !mpmd.mesh_tensor<"mesh1", tensor<f32>>, !mpmd.mesh_tensor<"mesh0", tensor<2x2xf32>>, !mpmd.mesh_tensor<"mesh1", tensor<2x2xf32>>
  }
}
