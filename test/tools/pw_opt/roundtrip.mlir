// RUN: pw-opt %s --verify-roundtrip --canonicalize | filecheck %s

// The input is printed as text, generic text and bytecode, and read back from each, in front of the passes.

sdy.mesh @mesh = <["x"=2]>
"pw.slice"() {mesh = @mesh, sym_name = "s0"} : () -> ()
// CHECK-LABEL: func.func @main
// CHECK-SAME: pw.slice = @s0
func.func @main(%x: tensor<2xf32> {pw.slice = @s0}) -> (tensor<2xf32> {pw.slice = @s0}) {
  // CHECK-NEXT: "pw.launch"
  %y = "pw.launch"(%x) {callee = @f, slice = @s0} : (tensor<2xf32>) -> tensor<2xf32>
  return %y : tensor<2xf32>
}
func.func private @f(%x: tensor<2xf32>) -> tensor<2xf32> {
  return %x : tensor<2xf32>
}
