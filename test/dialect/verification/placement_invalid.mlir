// RUN: pw-opt %s --split-input-file --verify-diagnostics

// An operand on another slice: the message says which transfer is missing.
sdy.mesh @mesh = <["x"=2]>
"pw.slice"() {mesh = @mesh, sym_name = "s0"} : () -> ()
"pw.slice"() {mesh = @mesh, sym_name = "s1"} : () -> ()
func.func private @f(tensor<f32>) -> tensor<f32>
func.func @main(%x: tensor<f32> {pw.slice = @s0}) {
  // expected-error@below {{'pw.launch' op operand #0 lives on @s0, but the launch runs on @s1: a pw.transfer of it to @s1 is missing}}
  %0 = "pw.launch"(%x) {callee = @f, slice = @s1} : (tensor<f32>) -> tensor<f32>
  return
}

// -----

// A mirrored value serves each of its slices, and no other.
sdy.mesh @mesh = <["x"=2]>
"pw.slice"() {mesh = @mesh, sym_name = "s0"} : () -> ()
"pw.slice"() {mesh = @mesh, sym_name = "s1"} : () -> ()
"pw.slice"() {mesh = @mesh, sym_name = "s2"} : () -> ()
func.func private @f(tensor<f32>) -> tensor<f32>
func.func @main(%x: tensor<f32> {pw.slice = [@s0, @s1]}) {
  %0 = "pw.launch"(%x) {callee = @f, slice = @s0} : (tensor<f32>) -> tensor<f32>
  %1 = "pw.launch"(%x) {callee = @f, slice = @s1} : (tensor<f32>) -> tensor<f32>
  // expected-error@below {{'pw.launch' op operand #0 lives on @s0, @s1, but the launch runs on @s2}}
  %2 = "pw.launch"(%x) {callee = @f, slice = @s2} : (tensor<f32>) -> tensor<f32>
  return
}

// -----

// In the imported form transfers are not inserted yet, so the same is no error.
module attributes {pw.form = "imported"} {
  sdy.mesh @mesh = <["x"=2]>
  "pw.slice"() {mesh = @mesh, sym_name = "s0"} : () -> ()
  "pw.slice"() {mesh = @mesh, sym_name = "s1"} : () -> ()
  func.func private @f(tensor<f32>) -> tensor<f32>
  func.func @main(%x: tensor<f32> {pw.slice = @s0}) {
    %0 = "pw.launch"(%x) {callee = @f, slice = @s1} : (tensor<f32>) -> tensor<f32>
    return
  }
}

// -----

// A transfer to where the value already lives.
sdy.mesh @mesh = <["x"=2]>
"pw.slice"() {mesh = @mesh, sym_name = "s0"} : () -> ()
func.func @main(%x: tensor<f32> {pw.slice = @s0}) {
  // expected-error@below {{'pw.transfer' op expected a slice other than its operand's, got @s0}}
  %0 = "pw.transfer"(%x) {slice = @s0} : (tensor<f32>) -> tensor<f32>
  return
}

// -----

// A transfer keeps the type.
sdy.mesh @mesh = <["x"=2]>
"pw.slice"() {mesh = @mesh, sym_name = "s0"} : () -> ()
func.func @main(%x: tensor<2xf32>) {
  // expected-error@below {{'pw.transfer' op expected operand and result of one type, got tensor<2xf32> and tensor<3xf32>}}
  %0 = "pw.transfer"(%x) {slice = @s0} : (tensor<2xf32>) -> tensor<3xf32>
  return
}

// -----

// A result that is returned from another slice than the function says.
sdy.mesh @mesh = <["x"=2]>
"pw.slice"() {mesh = @mesh, sym_name = "s0"} : () -> ()
"pw.slice"() {mesh = @mesh, sym_name = "s1"} : () -> ()
func.func @main(%x: tensor<f32> {pw.slice = @s0}) -> (tensor<f32> {pw.slice = @s1}) {
  // expected-error@below {{'func.return' op operand #0 lives on @s0, result needs it on @s1}}
  return %x : tensor<f32>
}

// -----

// A mirrored value is made of at least two copies of one type ...
func.func @main(%x: tensor<f32>, %y: tensor<i32>) {
  // expected-error@below {{'pw.mirror' op expected at least 2 operands, got 1}}
  %0 = "pw.mirror"(%x) : (tensor<f32>) -> tensor<f32>
  // expected-error@below {{'pw.mirror' op operand #1 has type tensor<i32>, but the result has tensor<f32>}}
  %1 = "pw.mirror"(%x, %y) : (tensor<f32>, tensor<i32>) -> tensor<f32>
  return
}

// -----

// ... on different slices.
sdy.mesh @mesh = <["x"=2]>
"pw.slice"() {mesh = @mesh, sym_name = "s0"} : () -> ()
func.func @main(%x: tensor<f32> {pw.slice = @s0}, %y: tensor<f32> {pw.slice = @s0}) {
  // expected-error@below {{'pw.mirror' op operand #1 lives on @s0, where an earlier operand lives already}}
  %0 = "pw.mirror"(%x, %y) : (tensor<f32>, tensor<f32>) -> tensor<f32>
  return
}

// -----

// A sharding is over the mesh of the slice.

module attributes {pw.form = "placed"} {
  sdy.mesh @mesh_2x2 = <["x"=2, "y"=2]>
  sdy.mesh @mesh_4 = <["z"=4]>
  "pw.slice"() {mesh = @mesh_4, sym_name = "s0"} : () -> ()
  "pw.slice"() {mesh = @mesh_4, sym_name = "s1"} : () -> ()
  // expected-error@below {{'func.func' op argument #0 is sharded over @mesh_2x2, but @s0 has @mesh_4}}
  func.func public @main(%x: tensor<8x8xf32> {pw.slice = @s0, sdy.sharding = #sdy.sharding<@mesh_2x2, [{"x"}, {}]>})
      -> (tensor<8x8xf32> {pw.slice = @s1}) {
    // expected-error@below {{'pw.transfer' op result is sharded over @mesh_2x2, but @s1 has @mesh_4}}
    %0 = "pw.transfer"(%x) {slice = @s1, sharding = #sdy.sharding<@mesh_2x2, [{"x"}, {}]>}
        : (tensor<8x8xf32>) -> tensor<8x8xf32>
    // The computation is launched on a slice with another mesh.
    %1 = "pw.launch"(%0) {callee = @f, slice = @s1} : (tensor<8x8xf32>) -> tensor<8x8xf32>
    return %1 : tensor<8x8xf32>
  }
  // expected-error@below {{'func.func' op argument #0 is sharded over @mesh_2x2, but @s1 has @mesh_4}}
  func.func private @f(%x: tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh_2x2, [{"x"}, {}]>}) -> tensor<8x8xf32> {
    return %x : tensor<8x8xf32>
  }
}
