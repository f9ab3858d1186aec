// RUN: pw-opt %s --split-input-file --verify-diagnostics

// A transfer without routes moves one value, of one type.
sdy.mesh @mesh = <["x"=2]>
"pw.slice"() {mesh = @mesh, sym_name = "s0"} : () -> ()
"pw.slice"() {mesh = @mesh, sym_name = "s1"} : () -> ()
func.func @main(%x: tensor<4xf32> {pw.slice = @s0}, %y: tensor<4xf32> {pw.slice = @s0}) {
  // expected-error@below {{'pw.transfer' op expected 1 operand without `routes`, got 2}}
  %0 = "pw.transfer"(%x, %y) {slice = @s1} : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  // expected-error@below {{'pw.transfer' op expected 1 result without `routes`, got 2}}
  %1:2 = "pw.transfer"(%x) {slice = @s1} : (tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>)
  // expected-error@below {{'pw.transfer' op expected operand and result of one type, got tensor<4xf32> and tensor<8xf32>}}
  %2 = "pw.transfer"(%x) {slice = @s1} : (tensor<4xf32>) -> tensor<8xf32>
  return
}

// -----

// With routes, pieces have one type on each side, and every device of the target gets one of each result.
sdy.mesh @mesh = <["x"=2]>
"pw.slice"() {mesh = @mesh, sym_name = "s0"} : () -> ()
"pw.slice"() {mesh = @mesh, sym_name = "s1"} : () -> ()
func.func @main(%x: tensor<4xf32> {pw.slice = @s0}, %y: tensor<8xf32> {pw.slice = @s0}) {
  // expected-error@below {{'pw.transfer' op expected operands of one type with `routes`, got 2}}
  %0 = "pw.transfer"(%x, %y) {routes = array<i64: 0, 0, 1, 0>, slice = @s1} : (tensor<4xf32>, tensor<8xf32>) -> tensor<4xf32>
  // expected-error@below {{'pw.transfer' op expected results of one type with `routes`, got 2}}
  %1:2 = "pw.transfer"(%x) {routes = array<i64: 0, 0, 0, 0, 0, 0, 0, 0>, slice = @s1} : (tensor<4xf32>) -> (tensor<4xf32>, tensor<8xf32>)
  // expected-error@below {{'pw.transfer' op attribute `routes` must be an array of pairs of 64-bit integers, got array<i64: 0, 0, 0>}}
  %2 = "pw.transfer"(%x) {routes = array<i64: 0, 0, 0>, slice = @s1} : (tensor<4xf32>) -> tensor<4xf32>
  // expected-error@below {{'pw.transfer' op `routes` names an operand it does not have; it has 1}}
  %3 = "pw.transfer"(%x) {routes = array<i64: 0, 0, 1, 0>, slice = @s1} : (tensor<4xf32>) -> tensor<4xf32>
  // expected-error@below {{'pw.transfer' op attribute `routes` must be an array of pairs of 64-bit integers, got array<i32: 0, 0, 0, 0>}}
  %5 = "pw.transfer"(%x) {routes = array<i32: 0, 0, 0, 0>, slice = @s1} : (tensor<4xf32>) -> tensor<4xf32>
  return
}

// -----

// Pieces come from devices that there are.
sdy.mesh @mesh = <["x"=2]>
"pw.slice"() {mesh = @mesh, sym_name = "s0"} : () -> ()
"pw.slice"() {mesh = @mesh, sym_name = "s1"} : () -> ()
func.func @main(%x: tensor<4xf32> {pw.slice = @s0}) {
  // expected-error@below {{'pw.transfer' op `routes` names device 2, but @s0 has 2}}
  %4 = "pw.transfer"(%x) {routes = array<i64: 0, 0, 0, 2>, slice = @s1} : (tensor<4xf32>) -> tensor<4xf32>
  return
}
