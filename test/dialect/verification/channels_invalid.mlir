// RUN: pw-opt %s --split-input-file --verify-diagnostics

// A channel leads from one slice to another, and holds at least one value.
sdy.mesh @mesh = <["x"=2]>
"pw.slice"() {mesh = @mesh, sym_name = "s0"} : () -> ()
"pw.slice"() {mesh = @mesh, sym_name = "s1"} : () -> ()
// expected-error@below {{'pw.channel' op expected `src` and `dst` to be different slices, got @s0 twice}}
"pw.channel"() {capacity = 1, dst = @s0, src = @s0, sym_name = "c0", value_type = tensor<f32>} : () -> ()
// expected-error@below {{'pw.channel' op expected a capacity of at least 1, got 0}}
"pw.channel"() {capacity = 0, dst = @s1, src = @s0, sym_name = "c1", value_type = tensor<f32>} : () -> ()

// -----

// A transfer takes a channel that starts where the value lives, ends at its slice, and carries its type.
sdy.mesh @mesh = <["x"=2]>
"pw.slice"() {mesh = @mesh, sym_name = "s0"} : () -> ()
"pw.slice"() {mesh = @mesh, sym_name = "s1"} : () -> ()
"pw.slice"() {mesh = @mesh, sym_name = "s2"} : () -> ()
"pw.channel"() {capacity = 1, dst = @s1, src = @s0, sym_name = "c0", value_type = tensor<f32>} : () -> ()
func.func @main(%x: tensor<f32> {pw.slice = @s0}, %y: tensor<i32> {pw.slice = @s0}) {
  %0 = "pw.transfer"(%x) {channel = @c0, slice = @s1} : (tensor<f32>) -> tensor<f32>
  // expected-error@below {{'pw.transfer' op goes to @s2, but channel @c0 leads to @s1}}
  %1 = "pw.transfer"(%x) {channel = @c0, slice = @s2} : (tensor<f32>) -> tensor<f32>
  // expected-error@below {{'pw.transfer' op moves tensor<i32>, but channel @c0 carries tensor<f32>}}
  %2 = "pw.transfer"(%y) {channel = @c0, slice = @s1} : (tensor<i32>) -> tensor<i32>
  return
}

// -----

// A value leaves from where it lives.
sdy.mesh @mesh = <["x"=2]>
"pw.slice"() {mesh = @mesh, sym_name = "s0"} : () -> ()
"pw.slice"() {mesh = @mesh, sym_name = "s1"} : () -> ()
"pw.slice"() {mesh = @mesh, sym_name = "s2"} : () -> ()
"pw.channel"() {capacity = 1, dst = @s1, src = @s0, sym_name = "c0", value_type = tensor<f32>} : () -> ()
func.func @main(%z: tensor<f32> {pw.slice = @s2}) {
  // expected-error@below {{'pw.transfer' op operand lives on @s2, but channel @c0 starts at @s0}}
  %3 = "pw.transfer"(%z) {channel = @c0, slice = @s1} : (tensor<f32>) -> tensor<f32>
  return
}
