// RUN: not pw-opt %s -p pw-propagate-shardings 2>&1 | filecheck %s

// A computation has to be there for shardings to go through it.
module attributes {pw.form = "placed"} {
  sdy.mesh @mesh = <["x"=2]>
  "pw.slice"() {mesh = @mesh, sym_name = "s0"} : () -> ()
  func.func @main(%x: tensor<16xf32> {pw.slice = @s0}) -> (tensor<16xf32> {pw.slice = @s0}) {
    // CHECK: error: 'pw.launch' op launches @f, which is only declared: shardings go through its body
    %y = "pw.launch"(%x) {callee = @f, slice = @s0} : (tensor<16xf32>) -> tensor<16xf32>
    return %y : tensor<16xf32>
  }
  func.func private @f(tensor<16xf32>) -> tensor<16xf32>
}
