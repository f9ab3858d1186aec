// RUN: not pw-opt %s --split-input-file -p pw-propagate-shardings 2>&1 | filecheck %s

// A computation has to be there for shardings to go through it.
module attributes {pw.form = "placed"} {
  sdy.mesh @mesh = <["x"=2]>
  "pw.slice"() {mesh = @mesh, sym_name = "s0"} : () -> ()
  func.func @main(%x: tensor<16xf32> {pw.slice = @s0}) -> (tensor<16xf32> {pw.slice = @s0}) {
    // CHECK: error: 'pw.launch' op launches @f, which is only declared: shardings are propagated through its body
    %y = "pw.launch"(%x) {callee = @f, slice = @s0} : (tensor<16xf32>) -> tensor<16xf32>
    return %y : tensor<16xf32>
  }
  func.func private @f(tensor<16xf32>) -> tensor<16xf32>
}

// -----

// What computations constrain lies over the mesh of their slice.
module attributes {pw.form = "placed"} {
  sdy.mesh @mesh_2x2 = <["x"=2, "y"=2]>
  sdy.mesh @mesh_4 = <["z"=4]>
  "pw.slice"() {mesh = @mesh_4, sym_name = "s0"} : () -> ()
  func.func @main(%x: tensor<8x8xf32> {pw.slice = @s0}) -> (tensor<8x8xf32> {pw.slice = @s0}) {
    // CHECK: error: 'func.func' op splits an operand or result along 'y', which is not an axis of @mesh_4
    %y = "pw.launch"(%x) {callee = @f, slice = @s0} : (tensor<8x8xf32>) -> tensor<8x8xf32>
    return %y : tensor<8x8xf32>
  }
  func.func private @f(%x: tensor<8x8xf32>) -> tensor<8x8xf32> {
    %0 = sdy.sharding_constraint %x <@mesh_2x2, [{"y"}, {}]> : tensor<8x8xf32>
    return %0 : tensor<8x8xf32>
  }
}
