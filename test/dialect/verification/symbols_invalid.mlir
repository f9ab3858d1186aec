// RUN: pw-opt %s --split-input-file --verify-diagnostics

// A symbol that is not in the module.
// expected-error@below {{'pw.slice' op attribute `mesh` refers to @mesh, which is not in the module}}
"pw.slice"() {mesh = @mesh, sym_name = "s0"} : () -> ()

// -----

// A symbol of the wrong kind.
sdy.mesh @mesh = <["x"=2]>
"pw.slice"() {mesh = @mesh, sym_name = "s0"} : () -> ()
func.func private @f(tensor<f32>) -> tensor<f32>
func.func @main(%x: tensor<f32>) {
  // expected-error@below {{'pw.launch' op attribute `slice` refers to @mesh, a sdy.mesh, not a pw.slice}}
  %0 = "pw.launch"(%x) {callee = @f, slice = @mesh} : (tensor<f32>) -> tensor<f32>
  // expected-error@below {{'pw.launch' op attribute `callee` refers to @s0, a pw.slice, not a func.func}}
  %1 = "pw.launch"(%x) {callee = @s0, slice = @s0} : (tensor<f32>) -> tensor<f32>
  // expected-error@below {{'pw.transfer' op attribute `channel` refers to @f, a func.func, not a pw.channel}}
  %2 = "pw.transfer"(%x) {channel = @f, slice = @s0} : (tensor<f32>) -> tensor<f32>
  return
}

// -----

// Two symbols of one name, of one kind or of two.
sdy.mesh @mesh = <["x"=2]>
"pw.slice"() {mesh = @mesh, sym_name = "s0"} : () -> ()
// expected-error@below {{'pw.slice' op redefines the symbol @s0}}
"pw.slice"() {mesh = @mesh, sym_name = "s0"} : () -> ()
// expected-error@below {{'func.func' op redefines the symbol @s0}}
func.func private @s0()

// -----

// Placements name slices.
sdy.mesh @mesh = <["x"=2]>
// expected-error@+3 {{'func.func' op argument #0: `pw.slice` refers to @mesh, a sdy.mesh, not a pw.slice}}
// expected-error@+2 {{'func.func' op result #0: `pw.slice` refers to @s7, which is not in the module}}
// expected-error@+1 {{'func.func' op argument #0: `pw.constant` refers to @k0, which is not in the module}}
func.func private @main(tensor<f32> {pw.constant = @k0, pw.slice = @mesh}) -> (tensor<f32> {pw.slice = @s7})

// -----

// A placement is a slice or a list of different slices.
sdy.mesh @mesh = <["x"=2]>
"pw.slice"() {mesh = @mesh, sym_name = "s0"} : () -> ()
// expected-error@+3 {{'func.func' op argument #0: `pw.slice` must be a slice or a list of different slices, got "s0"}}
// expected-error@+2 {{'func.func' op argument #1: `pw.slice` must be a slice or a list of different slices, got [@s0, @s0]}}
// expected-error@+1 {{'func.func' op result #0: `pw.slice` must be a slice or a list of different slices, got []}}
func.func private @main(tensor<f32> {pw.slice = "s0"}, tensor<f32> {pw.slice = [@s0, @s0]}) -> (tensor<f32> {pw.slice = []})

// -----

// The same on an operation that is not placed by its own attributes.
module attributes {pw.form = "imported"} {
  func.func @main(%x: tensor<f32>) {
    // expected-error@below {{'stablehlo.add' op `pw.slice` refers to @s0, which is not in the module}}
    %0 = stablehlo.add %x, %x {pw.slice = @s0} : tensor<f32>
    // expected-error@below {{'stablehlo.add' op `pw.slice` must be a slice or a list of different slices, got 0}}
    %1 = stablehlo.add %x, %x {pw.slice = 0} : tensor<f32>
    return
  }
}

// -----

// MLIR prints an empty name as one that it cannot read.
// expected-error@below {{'func.func' op has an empty name}}
func.func @""() {
  return
}

// -----

// expected-error@below {{'builtin.module' op has an empty name}}
module @"" {
}

// -----

// A program is one module: Shardy crashes on those inside of it.
module attributes {pw.form = "placed"} {
  // expected-error@below {{'builtin.module' op is inside another: a program is one module}}
  module @inside {
  }
  func.func @main() {
    return
  }
}

// -----

// A name that is not UTF-8: the bindings cannot return it.
// expected-error@below {{'builtin.module' op holds a name or a string that is not UTF-8 text}}
module {
  func.func @"\E9"() {
    %0 = "test.value"() : () -> tensor<f32>
    return
  }
}
