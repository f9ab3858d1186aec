// pw-opt -p ''   was: crash SIGSEGV MLIR's parser reading input.mlir, case 3005
!x = tensor<4xf32>
module @loop_over_two_slices {
  func.func public @main(%x: !x) -> !x {
    %0:2 = stablehlo.while(%i = %0#0, %a = %x) : tensor<i32>, !x
      cond {
        %c = stablehlo.compare LT, %i, %0#0 : (tensor<i32>, tensor<i32>) -> f32
        stablehlo.return %c : f32
      } do {
        %c = func.call @f(%0#1) : (!x) -> !x
        stablehlo.return %i, %c : tensor<i32>, !x
      }
  }
}
