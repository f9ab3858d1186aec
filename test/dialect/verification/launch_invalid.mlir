// RUN: pw-opt %s --split-input-file --verify-diagnostics

// A launch has the signature of its callee.
sdy.mesh @mesh = <["x"=2]>
"pw.slice"() {mesh = @mesh, sym_name = "s0"} : () -> ()
func.func private @f(tensor<2xf32>, tensor<f32>) -> tensor<2xf32>
func.func @main(%x: tensor<2xf32>, %y: tensor<f32>) {
  // expected-error@below {{'pw.launch' op expected 2 operands, as for @f, got 1}}
  %0 = "pw.launch"(%x) {callee = @f, slice = @s0} : (tensor<2xf32>) -> tensor<2xf32>
  // expected-error@below {{'pw.launch' op expected 1 result, as for @f, got 0}}
  "pw.launch"(%x, %y) {callee = @f, slice = @s0} : (tensor<2xf32>, tensor<f32>) -> ()
  // expected-error@below {{'pw.launch' op operand #1 has type tensor<2xf32>, but @f has tensor<f32>}}
  %1 = "pw.launch"(%x, %x) {callee = @f, slice = @s0} : (tensor<2xf32>, tensor<2xf32>) -> tensor<2xf32>
  // expected-error@below {{'pw.launch' op result #0 has type tensor<f32>, but @f has tensor<2xf32>}}
  %2 = "pw.launch"(%x, %y) {callee = @f, slice = @s0} : (tensor<2xf32>, tensor<f32>) -> tensor<f32>
  return
}

// -----

// A released value is not used any more: not by a launch, a transfer, another release, or the return.
sdy.mesh @mesh = <["x"=2]>
"pw.slice"() {mesh = @mesh, sym_name = "s0"} : () -> ()
"pw.slice"() {mesh = @mesh, sym_name = "s1"} : () -> ()
func.func private @f(tensor<f32>) -> tensor<f32>
func.func @main(%x: tensor<f32> {pw.slice = @s0}) -> (tensor<f32> {pw.slice = @s0}) {
  "pw.release"(%x) : (tensor<f32>) -> ()
  // expected-error@below {{'pw.launch' op operand #0 is used after it was released}}
  %0 = "pw.launch"(%x) {callee = @f, slice = @s0} : (tensor<f32>) -> tensor<f32>
  // expected-error@below {{'pw.transfer' op operand #0 is used after it was released}}
  %1 = "pw.transfer"(%x) {slice = @s1} : (tensor<f32>) -> tensor<f32>
  // expected-error@below {{'pw.release' op operand #0 is used after it was released}}
  "pw.release"(%x) : (tensor<f32>) -> ()
  // expected-error@below {{'func.return' op operand #0 is used after it was released}}
  return %x : tensor<f32>
}

// -----

// A donated value is not used any more, whichever attribute of the callee donates it.
sdy.mesh @mesh = <["x"=2]>
"pw.slice"() {mesh = @mesh, sym_name = "s0"} : () -> ()
func.func private @alias(tensor<f32> {tf.aliasing_output = 0 : i32}) -> tensor<f32>
func.func private @donor(tensor<f32> {jax.buffer_donor = true}) -> tensor<f32>
func.func @main(%x: tensor<f32> {pw.slice = @s0}) {
  %0 = "pw.launch"(%x) {callee = @alias, slice = @s0} : (tensor<f32>) -> tensor<f32>
  // expected-error@below {{'pw.launch' op operand #0 is used after it was donated}}
  %1 = "pw.launch"(%x) {callee = @alias, slice = @s0} : (tensor<f32>) -> tensor<f32>
  %2 = "pw.launch"(%0) {callee = @donor, slice = @s0} : (tensor<f32>) -> tensor<f32>
  // expected-error@below {{'pw.release' op operand #0 is used after it was donated}}
  "pw.release"(%0) : (tensor<f32>) -> ()
  return
}

// -----

// One array passed twice, once donated.
sdy.mesh @mesh = <["x"=2]>
"pw.slice"() {mesh = @mesh, sym_name = "s0"} : () -> ()
func.func private @f(tensor<f32>, tensor<f32> {tf.aliasing_output = 0 : i32}) -> tensor<f32>
func.func @main(%x: tensor<f32> {pw.slice = @s0}) {
  // expected-error@below {{'pw.launch' op donates operand #1, which it is also given as operand #0}}
  %0 = "pw.launch"(%x, %x) {callee = @f, slice = @s0} : (tensor<f32>, tensor<f32>) -> tensor<f32>
  return
}

// -----

// A launch without operands, or of a computation without results, is fine.
sdy.mesh @mesh = <["x"=2]>
"pw.slice"() {mesh = @mesh, sym_name = "s0"} : () -> ()
func.func private @f() -> tensor<f32>
func.func private @g(tensor<f32>)
func.func @main() {
  %0 = "pw.launch"() {callee = @f, slice = @s0} : () -> tensor<f32>
  "pw.launch"(%0) {callee = @g, slice = @s0} : (tensor<f32>) -> ()
  return
}

// -----

// JAX writes the comparator of a custom call like a region, but what is launched is a function.
sdy.mesh @mesh = <["x"=2]>
"pw.slice"() {mesh = @mesh, sym_name = "s0"} : () -> ()
func.func private @compares(%x: tensor<f32>) -> tensor<f32> {
  "stablehlo.custom_call"() {call_target_name = "x", called_computations = [@comparator]} : () -> ()
  return %x : tensor<f32>
}
func.func private @comparator(%x: tensor<f32>) -> tensor<f32> {
  stablehlo.return %x : tensor<f32>
}
func.func private @computation(%x: tensor<f32>) -> tensor<f32> {
  // expected-error@below {{'stablehlo.return' op must be followed by a `func.return`, which ends the body}}
  stablehlo.return %x : tensor<f32>
}
func.func @main(%x: tensor<f32>) {
  %0 = "pw.launch"(%x) {callee = @compares, slice = @s0} : (tensor<f32>) -> tensor<f32>
  %1 = "pw.launch"(%x) {callee = @computation, slice = @s0} : (tensor<f32>) -> tensor<f32>
  return
}

// -----

// A value ends once, whichever of its names it is called by.
sdy.mesh @mesh = <["x"=2]>
"pw.slice"() {mesh = @mesh, sym_name = "s0"} : () -> ()
"pw.slice"() {mesh = @mesh, sym_name = "s1"} : () -> ()
func.func private @f() -> tensor<f32>
func.func private @g(tensor<f32>) -> tensor<f32>
func.func @main() {
  %0 = "pw.launch"() {callee = @f, slice = @s0} : () -> tensor<f32>
  // expected-error@below {{'pw.release' op releases operand #1, which it was given before}}
  "pw.release"(%0, %0) : (tensor<f32>, tensor<f32>) -> ()
  %1 = "pw.launch"() {callee = @f, slice = @s0} : () -> tensor<f32>
  %2 = "pw.launch"() {callee = @f, slice = @s1} : () -> tensor<f32>
  %3 = "pw.mirror"(%1, %2) : (tensor<f32>, tensor<f32>) -> tensor<f32>
  "pw.release"(%3) : (tensor<f32>) -> ()
  // expected-error@below {{'pw.launch' op operand #0 is used after it was released}}
  %4 = "pw.launch"(%1) {callee = @g, slice = @s0} : (tensor<f32>) -> tensor<f32>
  return
}
