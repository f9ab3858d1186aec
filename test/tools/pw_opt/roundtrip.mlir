// RUN: pw-opt %s --verify-roundtrip --canonicalize | filecheck %s

// The input is printed as text, generic text and bytecode, and read back from each, in front of the passes.
// Names of resources stay as they are.

// CHECK: value = dense_resource<one> : tensor<i32>
"pw.constant"() {sym_name = "c", value = dense_resource<one> : tensor<i32>} : () -> ()
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

{-#
  dialect_resources: {
    builtin: {
      one: "0x0400000001000000"
    }
  }
#-}
