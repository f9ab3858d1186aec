// RUN: pw-opt %s --split-input-file --verify-diagnostics --pw-lower-transfers

// What a sharding splits must divide.
sdy.mesh @mesh_1 = <["x"=1]>
sdy.mesh @mesh_2 = <["x"=2]>
"pw.slice"() {mesh = @mesh_1, sym_name = "s0"} : () -> ()
"pw.slice"() {mesh = @mesh_2, sym_name = "s1"} : () -> ()
func.func @main(%x: tensor<7xf32> {pw.slice = @s0}) {
  // expected-error@below {{'pw.transfer' op attribute `sharding`: dimension 0 of size 7 is not divisible by 2 (axes x)}}
  %0 = "pw.transfer"(%x) {sharding = #sdy.sharding<@mesh_2, [{"x"}]>, slice = @s1} : (tensor<7xf32>) -> tensor<7xf32>
  return
}

// -----

// A value that lives nowhere cannot leave.
sdy.mesh @mesh_2 = <["x"=2]>
"pw.slice"() {mesh = @mesh_2, sym_name = "s1"} : () -> ()
// expected-error@below {{'func.func' op argument #0 is not placed: it has no `pw.slice`}}
func.func @main(%x: tensor<8xf32>) {
  %0 = "pw.transfer"(%x) {slice = @s1} : (tensor<8xf32>) -> tensor<8xf32>
  return
}
