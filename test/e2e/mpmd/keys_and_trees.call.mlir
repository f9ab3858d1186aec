module @jit_f attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  sdy.mesh @empty_mesh = <[]> {stablehlo.mesh = {axes = []}}
  func.func public @main(%arg0: !mpmd.mesh_tensor<"mesh0", tensor<2xui32>>, %arg1: !mpmd.mesh_tensor<"mesh1", tensor<3x4xf32>>, %arg2: !mpmd.mesh_tensor<"mesh1", tensor<f32>>, %arg3: !mpmd.mesh_tensor<"mesh0", tensor<2xf32>>) -> (!mpmd.mesh_tensor<"mesh0", tensor<2xui32>> {jax.result_info = "result[0]['key']"}, !mpmd.mesh_tensor<"mesh1", tensor<3x4xf32>> {jax.result_info = "result[0]['y'][0]"}, !mpmd.mesh_tensor<"mesh1", tensor<3x4xf32>> {jax.result_info = "result[0]['y'][2]"}, !mpmd.mesh_tensor<"mesh0", tensor<2xf32>> {jax.result_info = "result[1]"}) attributes {topology = #mpmd.topology<<"mesh0" : <["x"=2]>>, <"mesh1" : <["x"=2]>>>} {
    %0:2 = mpmd.fragment_call<mesh="mesh0", origin=["stage0"]> @p0_stage0.f(%arg0) : (!mpmd.mesh_tensor<"mesh0", tensor<2xui32>>) -> (!mpmd.mesh_tensor<"mesh0", tensor<4x4xf32>>, !mpmd.mesh_tensor<"mesh0", tensor<2xui32>>)
    %1 = mpmd.transfer %0#0 : (!mpmd.mesh_tensor<"mesh0", tensor<4x4xf32>>) -> !mpmd.mesh_tensor<"mesh1", tensor<4x4xf32>>
    %2:2 = mpmd.fragment_call<mesh="mesh1", origin=["stage1"]> @p1_stage1.f(%arg1, %1, %arg2) : (!mpmd.mesh_tensor<"mesh1", tensor<3x4xf32>>, !mpmd.mesh_tensor<"mesh1", tensor<4x4xf32>>, !mpmd.mesh_tensor<"mesh1", tensor<f32>>) -> (!mpmd.mesh_tensor<"mesh1", tensor<3x4xf32>>, !mpmd.mesh_tensor<"mesh1", tensor<3x4xf32>>)
    %3 = mpmd.fragment_call<mesh="mesh0", origin=[]> @p2_inferred.f(%arg3) : (!mpmd.mesh_tensor<"mesh0", tensor<2xf32>>) -> !mpmd.mesh_tensor<"mesh0", tensor<2xf32>>
    return %0#1, %2#0, %2#1, %3 : !mpmd.mesh_tensor<"mesh0", tensor<2xui32>>, !mpmd.mesh_tensor<"mesh1", tensor<3x4xf32>>, !mpmd.mesh_tensor<"mesh1", tensor<3x4xf32>>, !mpmd.mesh_tensor<"mesh0", tensor<2xf32>>
  }
  func.func @p0_stage0.f(%arg0: tensor<2xui32>) -> (tensor<4x4xf32>, tensor<2xui32>) attributes {mesh_shape = #sdy.mesh<["x"=2]>, reserved_hbm_bytes = 8 : i64} {
    %c = stablehlo.constant dense<32> : tensor<2xui64>
    %c_0 = stablehlo.constant dense<32> : tensor<ui32>
    %c_1 = stablehlo.constant dense<1> : tensor<i32>
    %c_2 = stablehlo.constant dense<5> : tensor<i32>
    %c_3 = stablehlo.constant dense<0> : tensor<i32>
    %c_4 = stablehlo.constant dense<466688986> : tensor<ui32>
    %c_5 = stablehlo.constant dense<[13, 15, 26, 6]> : tensor<4xui32>
    %c_6 = stablehlo.constant dense<[17, 29, 16, 24]> : tensor<4xui32>
    %cst = stablehlo.constant dense<5.000000e+00> : tensor<4x4xf32>
    %cst_7 = stablehlo.constant dense<2.500000e+00> : tensor<4x4xf32>
    %cst_8 = stablehlo.constant dense<3.000000e+00> : tensor<4x4xf32>
    %cst_9 = stablehlo.constant dense<2.81022636E-8> : tensor<4x4xf32>
    %cst_10 = stablehlo.constant dense<-2.00214257E-4> : tensor<4x4xf32>
    %cst_11 = stablehlo.constant dense<3.43273939E-7> : tensor<4x4xf32>
    %cst_12 = stablehlo.constant dense<1.00950558E-4> : tensor<4x4xf32>
    %cst_13 = stablehlo.constant dense<-3.5233877E-6> : tensor<4x4xf32>
    %cst_14 = stablehlo.constant dense<0.00134934322> : tensor<4x4xf32>
    %cst_15 = stablehlo.constant dense<-4.39150654E-6> : tensor<4x4xf32>
    %cst_16 = stablehlo.constant dense<-0.00367342844> : tensor<4x4xf32>
    %cst_17 = stablehlo.constant dense<2.1858087E-4> : tensor<4x4xf32>
    %cst_18 = stablehlo.constant dense<0.00573950773> : tensor<4x4xf32>
    %cst_19 = stablehlo.constant dense<-0.00125372503> : tensor<4x4xf32>
    %cst_20 = stablehlo.constant dense<-0.0076224613> : tensor<4x4xf32>
    %cst_21 = stablehlo.constant dense<-0.00417768164> : tensor<4x4xf32>
    %cst_22 = stablehlo.constant dense<0.00943887047> : tensor<4x4xf32>
    %cst_23 = stablehlo.constant dense<0.246640727> : tensor<4x4xf32>
    %cst_24 = stablehlo.constant dense<1.00167406> : tensor<4x4xf32>
    %cst_25 = stablehlo.constant dense<1.50140941> : tensor<4x4xf32>
    %cst_26 = stablehlo.constant dense<2.83297682> : tensor<4x4xf32>
    %cst_27 = stablehlo.constant dense<1.000000e+00> : tensor<4x4xf32>
    %cst_28 = stablehlo.constant dense<0x7F800000> : tensor<4x4xf32>
    %c_29 = stablehlo.constant dense<4> : tensor<4x4xui64>
    %c_30 = stablehlo.constant dense<32> : tensor<4x4xui64>
    %c_31 = stablehlo.constant dense<9> : tensor<4x4xui32>
    %c_32 = stablehlo.constant dense<1065353216> : tensor<4x4xui32>
    %cst_33 = stablehlo.constant dense<2.000000e+00> : tensor<4x4xf32>
    %cst_34 = stablehlo.constant dense<-0.99999994> : tensor<4x4xf32>
    %cst_35 = stablehlo.constant dense<1.41421354> : tensor<4x4xf32>
    %0 = sdy.sharding_constraint %arg0 <@empty_mesh, [{}]> : tensor<2xui32>
    %1 = stablehlo.slice %0 [0:1] : (tensor<2xui32>) -> tensor<1xui32>
    %2 = stablehlo.reshape %1 : (tensor<1xui32>) -> tensor<ui32>
    %3 = stablehlo.slice %0 [1:2] : (tensor<2xui32>) -> tensor<1xui32>
    %4 = stablehlo.reshape %3 : (tensor<1xui32>) -> tensor<ui32>
    %5 = stablehlo.iota dim = 0 : tensor<4xui64>
    %6 = stablehlo.broadcast_in_dim %5, dims = [0] : (tensor<4xui64>) -> tensor<4x4xui64>
    %7 = stablehlo.broadcast_in_dim %5, dims = [1] : (tensor<4xui64>) -> tensor<4x4xui64>
    %8 = stablehlo.multiply %6, %c_29 : tensor<4x4xui64>
    %9 = stablehlo.add %8, %7 : tensor<4x4xui64>
    %10 = stablehlo.shift_right_logical %9, %c_30 : tensor<4x4xui64>
    %11 = stablehlo.convert %9 : (tensor<4x4xui64>) -> tensor<4x4xui32>
    %12 = stablehlo.convert %10 : (tensor<4x4xui64>) -> tensor<4x4xui32>
    %13 = stablehlo.xor %2, %4 : tensor<ui32>
    %14 = stablehlo.xor %13, %c_4 : tensor<ui32>
    %15 = stablehlo.broadcast_in_dim %2, dims = [] : (tensor<ui32>) -> tensor<4x4xui32>
    %16 = stablehlo.add %12, %15 : tensor<4x4xui32>
    %17 = stablehlo.broadcast_in_dim %4, dims = [] : (tensor<ui32>) -> tensor<4x4xui32>
    %18 = stablehlo.add %11, %17 : tensor<4x4xui32>
    %19:9 = stablehlo.while(%iterArg = %c_3, %iterArg_36 = %c_3, %iterArg_37 = %16, %iterArg_38 = %18, %iterArg_39 = %4, %iterArg_40 = %14, %iterArg_41 = %2, %iterArg_42 = %c_5, %iterArg_43 = %c_6) : tensor<i32>, tensor<i32>, tensor<4x4xui32>, tensor<4x4xui32>, tensor<ui32>, tensor<ui32>, tensor<ui32>, tensor<4xui32>, tensor<4xui32>
    cond {
      %83 = stablehlo.compare LT, %iterArg, %c_2, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %83 : tensor<i1>
    } do {
      %83 = stablehlo.add %iterArg_36, %c_1 : tensor<i32>
      %84 = stablehlo.slice %iterArg_42 [0:1] : (tensor<4xui32>) -> tensor<1xui32>
      %85 = stablehlo.reshape %84 : (tensor<1xui32>) -> tensor<ui32>
      %86 = stablehlo.slice %iterArg_42 [1:2] : (tensor<4xui32>) -> tensor<1xui32>
      %87 = stablehlo.reshape %86 : (tensor<1xui32>) -> tensor<ui32>
      %88 = stablehlo.slice %iterArg_42 [2:3] : (tensor<4xui32>) -> tensor<1xui32>
      %89 = stablehlo.reshape %88 : (tensor<1xui32>) -> tensor<ui32>
      %90 = stablehlo.slice %iterArg_42 [3:4] : (tensor<4xui32>) -> tensor<1xui32>
      %91 = stablehlo.reshape %90 : (tensor<1xui32>) -> tensor<ui32>
      %92 = stablehlo.add %iterArg_37, %iterArg_38 : tensor<4x4xui32>
      %93 = stablehlo.broadcast_in_dim %85, dims = [] : (tensor<ui32>) -> tensor<4x4xui32>
      %94 = stablehlo.shift_left %iterArg_38, %93 : tensor<4x4xui32>
      %95 = stablehlo.subtract %c_0, %85 : tensor<ui32>
      %96 = stablehlo.broadcast_in_dim %95, dims = [] : (tensor<ui32>) -> tensor<4x4xui32>
      %97 = stablehlo.shift_right_logical %iterArg_38, %96 : tensor<4x4xui32>
      %98 = stablehlo.or %94, %97 : tensor<4x4xui32>
      %99 = stablehlo.xor %92, %98 : tensor<4x4xui32>
      %100 = stablehlo.add %92, %99 : tensor<4x4xui32>
      %101 = stablehlo.broadcast_in_dim %87, dims = [] : (tensor<ui32>) -> tensor<4x4xui32>
      %102 = stablehlo.shift_left %99, %101 : tensor<4x4xui32>
      %103 = stablehlo.subtract %c_0, %87 : tensor<ui32>
      %104 = stablehlo.broadcast_in_dim %103, dims = [] : (tensor<ui32>) -> tensor<4x4xui32>
      %105 = stablehlo.shift_right_logical %99, %104 : tensor<4x4xui32>
      %106 = stablehlo.or %102, %105 : tensor<4x4xui32>
      %107 = stablehlo.xor %100, %106 : tensor<4x4xui32>
      %108 = stablehlo.add %100, %107 : tensor<4x4xui32>
      %109 = stablehlo.broadcast_in_dim %89, dims = [] : (tensor<ui32>) -> tensor<4x4xui32>
      %110 = stablehlo.shift_left %107, %109 : tensor<4x4xui32>
      %111 = stablehlo.subtract %c_0, %89 : tensor<ui32>
      %112 = stablehlo.broadcast_in_dim %111, dims = [] : (tensor<ui32>) -> tensor<4x4xui32>
      %113 = stablehlo.shift_right_logical %107, %112 : tensor<4x4xui32>
      %114 = stablehlo.or %110, %113 : tensor<4x4xui32>
      %115 = stablehlo.xor %108, %114 : tensor<4x4xui32>
      %116 = stablehlo.add %108, %115 : tensor<4x4xui32>
      %117 = stablehlo.broadcast_in_dim %91, dims = [] : (tensor<ui32>) -> tensor<4x4xui32>
      %118 = stablehlo.shift_left %115, %117 : tensor<4x4xui32>
      %119 = stablehlo.subtract %c_0, %91 : tensor<ui32>
      %120 = stablehlo.broadcast_in_dim %119, dims = [] : (tensor<ui32>) -> tensor<4x4xui32>
      %121 = stablehlo.shift_right_logical %115, %120 : tensor<4x4xui32>
      %122 = stablehlo.or %118, %121 : tensor<4x4xui32>
      %123 = stablehlo.xor %116, %122 : tensor<4x4xui32>
      %124 = stablehlo.broadcast_in_dim %iterArg_39, dims = [] : (tensor<ui32>) -> tensor<4x4xui32>
      %125 = stablehlo.add %116, %124 : tensor<4x4xui32>
      %126 = stablehlo.broadcast_in_dim %iterArg_40, dims = [] : (tensor<ui32>) -> tensor<4x4xui32>
      %127 = stablehlo.add %123, %126 : tensor<4x4xui32>
      %128 = stablehlo.convert %83 : (tensor<i32>) -> tensor<ui32>
      %129 = stablehlo.broadcast_in_dim %128, dims = [] : (tensor<ui32>) -> tensor<4x4xui32>
      %130 = stablehlo.add %127, %129 : tensor<4x4xui32>
      %131 = stablehlo.add %iterArg, %c_1 : tensor<i32>
      stablehlo.return %131, %83, %125, %130, %iterArg_40, %iterArg_41, %iterArg_39, %iterArg_43, %iterArg_42 : tensor<i32>, tensor<i32>, tensor<4x4xui32>, tensor<4x4xui32>, tensor<ui32>, tensor<ui32>, tensor<ui32>, tensor<4xui32>, tensor<4xui32>
    }
    %20 = stablehlo.xor %19#2, %19#3 : tensor<4x4xui32>
    %21 = stablehlo.shift_right_logical %20, %c_31 : tensor<4x4xui32>
    %22 = stablehlo.or %21, %c_32 : tensor<4x4xui32>
    %23 = stablehlo.bitcast_convert %22 : (tensor<4x4xui32>) -> tensor<4x4xf32>
    %24 = stablehlo.subtract %23, %cst_27 : tensor<4x4xf32>
    %25 = stablehlo.multiply %24, %cst_33 : tensor<4x4xf32>
    %26 = stablehlo.add %25, %cst_34 : tensor<4x4xf32>
    %27 = stablehlo.maximum %26, %cst_34 : tensor<4x4xf32>
    %28 = stablehlo.negate %27 : tensor<4x4xf32>
    %29 = stablehlo.multiply %27, %28 : tensor<4x4xf32>
    %30 = stablehlo.log_plus_one %29 : tensor<4x4xf32>
    %31 = stablehlo.negate %30 : tensor<4x4xf32>
    %32 = stablehlo.compare LT, %31, %cst : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xi1>
    %33 = stablehlo.subtract %31, %cst_7 : tensor<4x4xf32>
    %34 = stablehlo.sqrt %31 : tensor<4x4xf32>
    %35 = stablehlo.subtract %34, %cst_8 : tensor<4x4xf32>
    %36 = stablehlo.select %32, %33, %35 : tensor<4x4xi1>, tensor<4x4xf32>
    %37 = stablehlo.select %32, %cst_9, %cst_10 : tensor<4x4xi1>, tensor<4x4xf32>
    %38 = stablehlo.select %32, %cst_11, %cst_12 : tensor<4x4xi1>, tensor<4x4xf32>
    %39 = stablehlo.multiply %37, %36 : tensor<4x4xf32>
    %40 = stablehlo.add %38, %39 : tensor<4x4xf32>
    %41 = stablehlo.select %32, %cst_13, %cst_14 : tensor<4x4xi1>, tensor<4x4xf32>
    %42 = stablehlo.multiply %40, %36 : tensor<4x4xf32>
    %43 = stablehlo.add %41, %42 : tensor<4x4xf32>
    %44 = stablehlo.select %32, %cst_15, %cst_16 : tensor<4x4xi1>, tensor<4x4xf32>
    %45 = stablehlo.multiply %43, %36 : tensor<4x4xf32>
    %46 = stablehlo.add %44, %45 : tensor<4x4xf32>
    %47 = stablehlo.select %32, %cst_17, %cst_18 : tensor<4x4xi1>, tensor<4x4xf32>
    %48 = stablehlo.multiply %46, %36 : tensor<4x4xf32>
    %49 = stablehlo.add %47, %48 : tensor<4x4xf32>
    %50 = stablehlo.select %32, %cst_19, %cst_20 : tensor<4x4xi1>, tensor<4x4xf32>
    %51 = stablehlo.multiply %49, %36 : tensor<4x4xf32>
    %52 = stablehlo.add %50, %51 : tensor<4x4xf32>
    %53 = stablehlo.select %32, %cst_21, %cst_22 : tensor<4x4xi1>, tensor<4x4xf32>
    %54 = stablehlo.multiply %52, %36 : tensor<4x4xf32>
    %55 = stablehlo.add %53, %54 : tensor<4x4xf32>
    %56 = stablehlo.select %32, %cst_23, %cst_24 : tensor<4x4xi1>, tensor<4x4xf32>
    %57 = stablehlo.multiply %55, %36 : tensor<4x4xf32>
    %58 = stablehlo.add %56, %57 : tensor<4x4xf32>
    %59 = stablehlo.select %32, %cst_25, %cst_26 : tensor<4x4xi1>, tensor<4x4xf32>
    %60 = stablehlo.multiply %58, %36 : tensor<4x4xf32>
    %61 = stablehlo.add %59, %60 : tensor<4x4xf32>
    %62 = stablehlo.multiply %61, %27 : tensor<4x4xf32>
    %63 = stablehlo.abs %27 : tensor<4x4xf32>
    %64 = stablehlo.compare EQ, %63, %cst_27 : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xi1>
    %65 = stablehlo.multiply %27, %cst_28 : tensor<4x4xf32>
    %66 = stablehlo.select %64, %65, %62 : tensor<4x4xi1>, tensor<4x4xf32>
    %67 = stablehlo.multiply %66, %cst_35 : tensor<4x4xf32>
    %68 = stablehlo.iota dim = 0 : tensor<2xui64>
    %69 = stablehlo.shift_right_logical %68, %c : tensor<2xui64>
    %70 = stablehlo.convert %68 : (tensor<2xui64>) -> tensor<2xui32>
    %71 = stablehlo.convert %69 : (tensor<2xui64>) -> tensor<2xui32>
    %72 = stablehlo.broadcast_in_dim %2, dims = [] : (tensor<ui32>) -> tensor<2xui32>
    %73 = stablehlo.add %71, %72 : tensor<2xui32>
    %74 = stablehlo.broadcast_in_dim %4, dims = [] : (tensor<ui32>) -> tensor<2xui32>
    %75 = stablehlo.add %70, %74 : tensor<2xui32>
    %76:9 = stablehlo.while(%iterArg = %c_3, %iterArg_36 = %c_3, %iterArg_37 = %73, %iterArg_38 = %75, %iterArg_39 = %4, %iterArg_40 = %14, %iterArg_41 = %2, %iterArg_42 = %c_5, %iterArg_43 = %c_6) : tensor<i32>, tensor<i32>, tensor<2xui32>, tensor<2xui32>, tensor<ui32>, tensor<ui32>, tensor<ui32>, tensor<4xui32>, tensor<4xui32>
    cond {
      %83 = stablehlo.compare LT, %iterArg, %c_2, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %83 : tensor<i1>
    } do {
      %83 = stablehlo.add %iterArg_36, %c_1 : tensor<i32>
      %84 = stablehlo.slice %iterArg_42 [0:1] : (tensor<4xui32>) -> tensor<1xui32>
      %85 = stablehlo.reshape %84 : (tensor<1xui32>) -> tensor<ui32>
      %86 = stablehlo.slice %iterArg_42 [1:2] : (tensor<4xui32>) -> tensor<1xui32>
      %87 = stablehlo.reshape %86 : (tensor<1xui32>) -> tensor<ui32>
      %88 = stablehlo.slice %iterArg_42 [2:3] : (tensor<4xui32>) -> tensor<1xui32>
      %89 = stablehlo.reshape %88 : (tensor<1xui32>) -> tensor<ui32>
      %90 = stablehlo.slice %iterArg_42 [3:4] : (tensor<4xui32>) -> tensor<1xui32>
      %91 = stablehlo.reshape %90 : (tensor<1xui32>) -> tensor<ui32>
      %92 = stablehlo.add %iterArg_37, %iterArg_38 : tensor<2xui32>
      %93 = stablehlo.broadcast_in_dim %85, dims = [] : (tensor<ui32>) -> tensor<2xui32>
      %94 = stablehlo.shift_left %iterArg_38, %93 : tensor<2xui32>
      %95 = stablehlo.subtract %c_0, %85 : tensor<ui32>
      %96 = stablehlo.broadcast_in_dim %95, dims = [] : (tensor<ui32>) -> tensor<2xui32>
      %97 = stablehlo.shift_right_logical %iterArg_38, %96 : tensor<2xui32>
      %98 = stablehlo.or %94, %97 : tensor<2xui32>
      %99 = stablehlo.xor %92, %98 : tensor<2xui32>
      %100 = stablehlo.add %92, %99 : tensor<2xui32>
      %101 = stablehlo.broadcast_in_dim %87, dims = [] : (tensor<ui32>) -> tensor<2xui32>
      %102 = stablehlo.shift_left %99, %101 : tensor<2xui32>
      %103 = stablehlo.subtract %c_0, %87 : tensor<ui32>
      %104 = stablehlo.broadcast_in_dim %103, dims = [] : (tensor<ui32>) -> tensor<2xui32>
      %105 = stablehlo.shift_right_logical %99, %104 : tensor<2xui32>
      %106 = stablehlo.or %102, %105 : tensor<2xui32>
      %107 = stablehlo.xor %100, %106 : tensor<2xui32>
      %108 = stablehlo.add %100, %107 : tensor<2xui32>
      %109 = stablehlo.broadcast_in_dim %89, dims = [] : (tensor<ui32>) -> tensor<2xui32>
      %110 = stablehlo.shift_left %107, %109 : tensor<2xui32>
      %111 = stablehlo.subtract %c_0, %89 : tensor<ui32>
      %112 = stablehlo.broadcast_in_dim %111, dims = [] : (tensor<ui32>) -> tensor<2xui32>
      %113 = stablehlo.shift_right_logical %107, %112 : tensor<2xui32>
      %114 = stablehlo.or %110, %113 : tensor<2xui32>
      %115 = stablehlo.xor %108, %114 : tensor<2xui32>
      %116 = stablehlo.add %108, %115 : tensor<2xui32>
      %117 = stablehlo.broadcast_in_dim %91, dims = [] : (tensor<ui32>) -> tensor<2xui32>
      %118 = stablehlo.shift_left %115, %117 : tensor<2xui32>
      %119 = stablehlo.subtract %c_0, %91 : tensor<ui32>
      %120 = stablehlo.broadcast_in_dim %119, dims = [] : (tensor<ui32>) -> tensor<2xui32>
      %121 = stablehlo.shift_right_logical %115, %120 : tensor<2xui32>
      %122 = stablehlo.or %118, %121 : tensor<2xui32>
      %123 = stablehlo.xor %116, %122 : tensor<2xui32>
      %124 = stablehlo.broadcast_in_dim %iterArg_39, dims = [] : (tensor<ui32>) -> tensor<2xui32>
      %125 = stablehlo.add %116, %124 : tensor<2xui32>
      %126 = stablehlo.broadcast_in_dim %iterArg_40, dims = [] : (tensor<ui32>) -> tensor<2xui32>
      %127 = stablehlo.add %123, %126 : tensor<2xui32>
      %128 = stablehlo.convert %83 : (tensor<i32>) -> tensor<ui32>
      %129 = stablehlo.broadcast_in_dim %128, dims = [] : (tensor<ui32>) -> tensor<2xui32>
      %130 = stablehlo.add %127, %129 : tensor<2xui32>
      %131 = stablehlo.add %iterArg, %c_1 : tensor<i32>
      stablehlo.return %131, %83, %125, %130, %iterArg_40, %iterArg_41, %iterArg_39, %iterArg_43, %iterArg_42 : tensor<i32>, tensor<i32>, tensor<2xui32>, tensor<2xui32>, tensor<ui32>, tensor<ui32>, tensor<ui32>, tensor<4xui32>, tensor<4xui32>
    }
    %77 = stablehlo.reshape %76#2 : (tensor<2xui32>) -> tensor<2x1xui32>
    %78 = stablehlo.reshape %76#3 : (tensor<2xui32>) -> tensor<2x1xui32>
    %79 = stablehlo.concatenate %77, %78, dim = 1 : (tensor<2x1xui32>, tensor<2x1xui32>) -> tensor<2x2xui32>
    %80 = stablehlo.slice %79 [0:1, 0:2] : (tensor<2x2xui32>) -> tensor<1x2xui32>
    %81 = stablehlo.reshape %80 : (tensor<1x2xui32>) -> tensor<2xui32>
    %82 = sdy.sharding_constraint %81 <@empty_mesh, [{}]> : tensor<2xui32>
    return %67, %82 : tensor<4x4xf32>, tensor<2xui32>
  }
  func.func @p1_stage1.f(%arg0: tensor<3x4xf32>, %arg1: tensor<4x4xf32> {jax.buffer_donor = true}, %arg2: tensor<f32>) -> (tensor<3x4xf32>, tensor<3x4xf32>) attributes {mesh_shape = #sdy.mesh<["x"=2]>, reserved_hbm_bytes = 0 : i64} {
    %0 = stablehlo.dot_general %arg0, %arg1, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] : (tensor<3x4xf32>, tensor<4x4xf32>) -> tensor<3x4xf32>
    %1 = stablehlo.broadcast_in_dim %arg2, dims = [] : (tensor<f32>) -> tensor<3x4xf32>
    %2 = stablehlo.multiply %0, %1 : tensor<3x4xf32>
    return %2, %2 : tensor<3x4xf32>, tensor<3x4xf32>
  }
  func.func @p2_inferred.f(%arg0: tensor<2xf32>) -> tensor<2xf32> attributes {mesh_shape = #sdy.mesh<["x"=2]>, reserved_hbm_bytes = 16 : i64} {
    return %arg0 : tensor<2xf32>
  }
}
