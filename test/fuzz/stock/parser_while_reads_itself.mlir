// pw-opt -p ''   was: crash SIGSEGV MLIR's parser reading input.mlir, case 846
module @lambda {
  func.func private @threefry2x32(%arg0: tensor<ui32>, %arg1: tensor<ui32>, %arg2: tensor<8xui32>, %arg3: tensor<8xui32>) -> (tensor<8xui32>, tensor<8xui32>) {
    %6:9 = stablehlo.while(%iterArg = %6#1, %iterArg_4 = %6#0, %iterArg_5 = %6#3, %iterArg_6 = %6#2, %iterArg_7 = %arg1, %iterArg_8 = %6#4, %iterArg_9 = %arg0, %iterArg_10 = %6#7, %iterArg_11 = %6#8) : tensor<i32>, tensor<i32>, tensor<8xui32>, tensor<8xui32>, tensor<ui32>, tensor<ui32>, tensor<ui32>, tensor<4xui32>, tensor<4xui32>
    cond {
      %7 = stablehlo.compare LT, %iterArg, %6#0, SIGNED : (tensor<i32>, tensor<i32>) -> i32
      stablehlo.return %7 : i32
    } do {
      %7 = stablehlo.add %iterArg_4, %6#0 : tensor<i32>
      stablehlo.return %7, %7, %arg2, %6#3, %iterArg_8, %iterArg_9, %iterArg_7, %iterArg_11, %iterArg_10 : tensor<i32>, tensor<i32>, tensor<8xui32>, tensor<8xui32>, tensor<ui32>, tensor<ui32>, tensor<ui32>, tensor<4xui32>, tensor<4xui32>
    }
  }
}
