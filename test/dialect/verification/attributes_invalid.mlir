// RUN: pw-opt %s --split-input-file --verify-diagnostics

// An operation that the dialect does not have is named, with those it has.
// expected-error@below {{'pw.slise' op is not an operation of the pw dialect; it has pw.slice, pw.channel}}
"pw.slise"() {sym_name = "s0"} : () -> ()

// -----

// So is one that stands inside a region of another operation.
func.func @f(%p: tensor<i1>) {
  %r = "stablehlo.if"(%p) ({
    // expected-error@below {{'pw.lunch' op is not an operation of the pw dialect}}
    %x = "pw.lunch"() : () -> tensor<f32>
    stablehlo.return %x : tensor<f32>
  }, {
    %x = stablehlo.constant dense<0.0> : tensor<f32>
    stablehlo.return %x : tensor<f32>
  }) : (tensor<i1>) -> tensor<f32>
  return
}

// -----

// An operation of an unknown dialect is an error, although the context lets it pass.
func.func @f() {
  // expected-error@below {{'my.op' op is unknown: no dialect of this compiler defines it}}
  "my.op"() : () -> ()
  return
}

// -----

// The same outside functions.
// expected-error@below {{'my.op' op is unknown: no dialect of this compiler defines it}}
"my.op"() : () -> ()

// -----

// A required attribute is missing; every missing one is reported.
// expected-error@+2 {{'pw.slice' op requires attribute `sym_name`}}
// expected-error@+1 {{'pw.slice' op requires attribute `mesh`}}
"pw.slice"() : () -> ()

// -----

// An attribute that the operation does not have.
sdy.mesh @mesh = <["x"=2]>
// expected-error@below {{'pw.slice' op has no attribute `iland`; it has sym_name, mesh, island, overlap, replicas, replica, replica_of, peak_bytes}}
"pw.slice"() {iland = "left", mesh = @mesh, sym_name = "s0"} : () -> ()

// -----

// Attributes of other dialects are let be.
sdy.mesh @mesh = <["x"=2]>
"pw.slice"() {mesh = @mesh, sym_name = "s0", tool.note = "mine"} : () -> ()

// -----

// Attributes of the wrong kind, one for each kind.
sdy.mesh @mesh = <["x"=2]>
// expected-error@below {{'pw.slice' op attribute `mesh` must be a flat symbol reference to a `sdy.mesh`, got "mesh"}}
"pw.slice"() {mesh = "mesh", sym_name = "s0"} : () -> ()
// expected-error@below {{'pw.slice' op attribute `island` must be a string attribute, got 3 : i64}}
"pw.slice"() {island = 3, mesh = @mesh, sym_name = "s1"} : () -> ()
// expected-error@below {{'pw.slice' op attribute `peak_bytes` must be a 64-bit signless integer attribute of at least 0, got 3 : i32}}
"pw.slice"() {mesh = @mesh, peak_bytes = 3 : i32, sym_name = "s2"} : () -> ()
"pw.slice"() {mesh = @mesh, sym_name = "s3"} : () -> ()
"pw.slice"() {mesh = @mesh, sym_name = "s4"} : () -> ()
// expected-error@below {{'pw.channel' op attribute `value_type` must be a type attribute of a ranked tensor, got f32}}
"pw.channel"() {capacity = 1, dst = @s4, src = @s3, sym_name = "c0", value_type = f32} : () -> ()
// expected-error@below {{'pw.channel' op attribute `sharding` must be a `#sdy.sharding` attribute, got @mesh}}
"pw.channel"() {capacity = 1, dst = @s4, sharding = @mesh, src = @s3, sym_name = "c1", value_type = tensor<f32>} : () -> ()
// expected-error@below {{'pw.constant' op attribute `value` must be an elements attribute of a ranked tensor, got 1.0}}
"pw.constant"() {sym_name = "k0", value = 1.0} : () -> ()

// -----

// The same of operations in functions, which are looked at when what they refer to is sound.
sdy.mesh @mesh = <["x"=2]>
"pw.slice"() {mesh = @mesh, sym_name = "s3"} : () -> ()
func.func private @body(tensor<f32>) -> tensor<f32>
func.func @main(%x: tensor<f32>) {
  // expected-error@below {{'pw.launch' op attribute `origins` must be a non-empty array of dictionaries, each with a `kind` (one of "fwd", "bwd", "grad", "recompute") and perhaps `stage`, `microbatch`, `part`, `pieces` and `when`, got [{kind = "forward"}]}}
  %0 = "pw.launch"(%x) {callee = @body, origins = [{kind = "forward"}], slice = @s3} : (tensor<f32>) -> tensor<f32>
  return
}

// -----

// A location is an attribute too, but never one of ours.
sdy.mesh @mesh = <["x"=2]>
// expected-error@below {{'pw.slice' op attribute `island` is or contains a location or complex numbers, which is not allowed}}
"pw.slice"() {island = loc("a":1:1), mesh = @mesh, sym_name = "s0"} : () -> ()
// expected-error@below {{'pw.slice' op attribute `sym_name` is or contains a location or complex numbers, which is not allowed}}
"pw.slice"() {mesh = @mesh, sym_name = loc("a":1:1)} : () -> ()

// -----

// The form of a module is one of a list.
// expected-error@below {{'builtin.module' op expected `pw.form` to be one of "traced", "mpmd", "ifrt", "imported", "located", "outlined", "placed", "sharded", "parts", "unrolled", "ordered", "scheduled", "bound", "host", got "ready"}}
module attributes {pw.form = "ready"} {
}

// -----

// The wrong number of operands or results.
sdy.mesh @mesh = <["x"=2]>
"pw.slice"() {mesh = @mesh, sym_name = "s0"} : () -> ()
func.func @main(%x: tensor<f32>) {
  // expected-error@below {{'pw.transfer' op expected 1 operand without `routes`, got 2}}
  %0 = "pw.transfer"(%x, %x) {slice = @s0} : (tensor<f32>, tensor<f32>) -> tensor<f32>
  // expected-error@below {{'pw.transfer' op expected 1 result without `routes`, got 0}}
  "pw.transfer"(%x) {slice = @s0} : (tensor<f32>) -> ()
  // expected-error@below {{'pw.release' op expected 0 results, got 1}}
  %1 = "pw.release"(%x) : (tensor<f32>) -> tensor<f32>
  return
}

// -----

// Declarations stand in the module.
sdy.mesh @mesh = <["x"=2]>
func.func @main() {
  // expected-error@below {{'pw.slice' op must be directly in the module}}
  "pw.slice"() {mesh = @mesh, sym_name = "s0"} : () -> ()
  return
}

// -----

// Launches stand in functions, not in the module ...
sdy.mesh @mesh = <["x"=2]>
"pw.slice"() {mesh = @mesh, sym_name = "s0"} : () -> ()
func.func private @f()
// expected-error@below {{'pw.launch' op must be directly in a function}}
"pw.launch"() {callee = @f, slice = @s0} : () -> ()

// -----

// ... and not inside other operations.
sdy.mesh @mesh = <["x"=2]>
"pw.slice"() {mesh = @mesh, sym_name = "s0"} : () -> ()
func.func private @f() -> tensor<f32>
func.func @main(%p: tensor<i1>) {
  %r = "stablehlo.if"(%p) ({
    // expected-error@below {{'pw.launch' op must be directly in a function, not inside 'stablehlo.if'}}
    %x = "pw.launch"() {callee = @f, slice = @s0} : () -> tensor<f32>
    stablehlo.return %x : tensor<f32>
  }, {
    %x = stablehlo.constant dense<0.0> : tensor<f32>
    stablehlo.return %x : tensor<f32>
  }) : (tensor<i1>) -> tensor<f32>
  return
}

// -----

// A location, which the bindings cannot hand out, is no form.
// expected-error@below {{'builtin.module' op expected `pw.form` to be one of "traced", "mpmd", "ifrt", "imported", "located", "outlined", "placed", "sharded", "parts", "unrolled", "ordered", "scheduled", "bound", "host", got a location}}
module attributes {pw.form = loc("placed")} {
}

// -----

// Times of placed calls are lists by unit; what the orders were made with is one of them.
// expected-error@below {{'builtin.module' op attribute `pw.times` must be a dictionary of lists of times of placed calls}}
module attributes {pw.times = {flops = [{kind = "fwd", time = 2.0 : f64}], made_with = "s"}} {
}

// -----

// A call takes some time, from nothing up.
// expected-error@below {{'builtin.module' op attribute `pw.times` must be a dictionary of lists of times of placed calls}}
module attributes {pw.times = {s = [{kind = "fwd", stage = 0, time = -2.0 : f64}]}} {
}

// -----

// A location in a list is no call.
// expected-error@below {{'builtin.module' op attribute `pw.times` must be a dictionary of lists of times of placed calls}}
module attributes {pw.times = {flops = [loc("f")]}} {
}

// -----

// A location is none.
// expected-error@below {{'builtin.module' op attribute `pw.times` is or contains a location}}
module attributes {pw.times = loc("flops")} {
}

// -----

// The program is seen from outside.
module attributes {pw.form = "placed"} {
  // expected-error@below {{'func.func' op must be public: it is the program}}
  func.func private @main() {
    return
  }
}

// -----

// What the bindings cannot hand out is refused wherever passes read: on ports, in dictionaries, on operations of ours.
// expected-error@below {{'func.func' op result #0: `my.number` is or contains a location or complex numbers}}
func.func @main(%x: tensor<4xf32>) -> (tensor<4xf32> {my.number = dense<(1.0, 2.0)> : tensor<2xcomplex<f32>>}) {
  return %x : tensor<4xf32>
}

// -----

func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  // expected-error@below {{attribute `slice` refers to @s0, which is not in the module}}
  // expected-error@below {{attribute `my.place` is or contains a location}}
  // expected-error@below {{attribute `origins` must be a non-empty array}}
  %0 = "pw.launch"(%x) {callee = @f, my.place = loc("x"), origins = [{kind = loc("placed")}], slice = @s0} : (tensor<4xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}
func.func private @f(tensor<4xf32>) -> tensor<4xf32>

// -----

// Nor do they hand out a location in a list.
func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  // expected-error@below {{attribute `slice` refers to @s0, which is not in the module}}
  // expected-error@below {{attribute `origins` must be a non-empty array}}
  %0 = "pw.launch"(%x) {callee = @f, origins = [loc("placed")], slice = @s0} : (tensor<4xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}
func.func private @f(tensor<4xf32>) -> tensor<4xf32>

// -----

// Devices are chosen when a program is loaded, in the order of the axes. A mesh without axes stands for one device.
sdy.mesh @first = <[], device_ids=[0]>
// expected-error@below {{'sdy.mesh' op orders its devices itself: leave out device_ids=[3, 1, 2, 0]}}
sdy.mesh @mesh = <["x"=2, "y"=2], device_ids=[3, 1, 2, 0]>
