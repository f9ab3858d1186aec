// RUN: pw-opt %s --split-input-file --verify-diagnostics

// Operands of a launch are in the memory that its computation is compiled for, and results in that of the program.
module attributes {pw.form = "scheduled"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {mesh = @mesh, sym_name = "s0"} : () -> ()
  func.func private @f(%x: tensor<f32>) -> (tensor<f32> {mhlo.memory_kind = "pinned_host"}) {
    return %x : tensor<f32>
  }
  func.func @main(%x: tensor<f32> {pw.slice = @s0}) -> (tensor<f32> {pw.slice = @s0}) {
    %0 = "pw.launch"(%x) {callee = @f, slice = @s0, order = 0} : (tensor<f32>) -> tensor<f32>
    // expected-error@below {{'pw.launch' op operand #0 is in pinned_host memory, but @f expects it in device memory}}
    %1 = "pw.launch"(%0) {callee = @f, slice = @s0, order = 1} : (tensor<f32>) -> tensor<f32>
    "pw.release"(%0) : (tensor<f32>) -> ()
    // expected-error@below {{'func.return' op result #0 is in pinned_host memory, but the program expects it in device memory}}
    return %1 : tensor<f32>
  }
}

// -----

// A memory kind is a name.
sdy.mesh @mesh = <["x"=1]>
"pw.slice"() {mesh = @mesh, sym_name = "s0"} : () -> ()
// expected-error@below {{argument #0: `mhlo.memory_kind` must be a string attribute, got 5}}
func.func @main(%x: tensor<f32> {pw.slice = @s0, mhlo.memory_kind = 5}) -> (tensor<f32> {pw.slice = @s0}) {
  return %x : tensor<f32>
}
