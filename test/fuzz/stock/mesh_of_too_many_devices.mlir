// pw-opt -p ''   was: crash SIGFPE MLIR's parser reading input.mlir, case 467
!a = !mpmd.mesh_tensor<"a", tensor<4xf32>, sharding=<@mesh, [{"x"}]>>
!r = !mpmd.mesh_tensor<"a", tensor<4xf32>>
!b = !mpmd.mesh_tensor<"b", tensor<4xf32>, sharding=<@mesh, [{"x"}]>>
!s = !mpmd.mesh_tensor<"b", tensor<4xf32>>
module @reshards {
  func.func @main(%x: !a) -> (!r, !b, !s, !b) attributes {topology = #mpmd.topology<<"a" : <["x"=4611686018427387904]>>, <"b" : <["x"=2]>>>} {
    %again = mpmd.transfer %x : (!a) -> !b
  }
}
