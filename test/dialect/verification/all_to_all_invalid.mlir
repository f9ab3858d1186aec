// RUN: pw-opt %s --split-input-file --verify-diagnostics

// There are two or more slices, all different, with an operand and a result for each of them.
sdy.mesh @mesh = <["x"=1]>
"pw.slice"() {mesh = @mesh, sym_name = "s0"} : () -> ()
"pw.slice"() {mesh = @mesh, sym_name = "s1"} : () -> ()
func.func @main(%x: tensor<2x4xf32> {pw.slice = @s0}, %y: tensor<2x4xf32> {pw.slice = @s1}) {
  // expected-error@below {{'pw.all_to_all' op expected at least 2 slices, got 1}}
  %0 = "pw.all_to_all"(%x) {slices = [@s0]} : (tensor<2x4xf32>) -> tensor<2x4xf32>
  // expected-error@below {{'pw.all_to_all' op expected different slices, got @s0 2 times}}
  %1:2 = "pw.all_to_all"(%x, %x) {slices = [@s0, @s0]} : (tensor<2x4xf32>, tensor<2x4xf32>) -> (tensor<2x4xf32>, tensor<2x4xf32>)
  // expected-error@below {{'pw.all_to_all' op expected 2 operands, one for each slice, got 1}}
  %2:2 = "pw.all_to_all"(%x) {slices = [@s0, @s1]} : (tensor<2x4xf32>) -> (tensor<2x4xf32>, tensor<2x4xf32>)
  // expected-error@below {{'pw.all_to_all' op expected 2 results, one for each slice, got 1}}
  %3 = "pw.all_to_all"(%x, %y) {slices = [@s0, @s1]} : (tensor<2x4xf32>, tensor<2x4xf32>) -> tensor<2x4xf32>
  // expected-error@below {{'pw.all_to_all' op requires attribute `slices`}}
  %4:2 = "pw.all_to_all"(%x, %y) : (tensor<2x4xf32>, tensor<2x4xf32>) -> (tensor<2x4xf32>, tensor<2x4xf32>)
  // expected-error@below {{'pw.all_to_all' op attribute `slices` must be an array of flat symbol references to a `pw.slice`, got @s0}}
  %5:2 = "pw.all_to_all"(%x, %y) {slices = @s0} : (tensor<2x4xf32>, tensor<2x4xf32>) -> (tensor<2x4xf32>, tensor<2x4xf32>)
  // expected-error@below {{'pw.all_to_all' op attribute `slices` refers to @s9, which is not in the module}}
  %6:2 = "pw.all_to_all"(%x, %y) {slices = [@s0, @s9]} : (tensor<2x4xf32>, tensor<2x4xf32>) -> (tensor<2x4xf32>, tensor<2x4xf32>)
  // expected-error@below {{'pw.all_to_all' op attribute `slices` refers to @mesh, a sdy.mesh, not a pw.slice}}
  %7:2 = "pw.all_to_all"(%x, %y) {slices = [@s0, @mesh]} : (tensor<2x4xf32>, tensor<2x4xf32>) -> (tensor<2x4xf32>, tensor<2x4xf32>)
  // expected-error@below {{'pw.all_to_all' op expected 2 numbers in `orders`, one for each slice, got 3}}
  %8:2 = "pw.all_to_all"(%x, %y) {orders = array<i64: 0, 1, 2>, slices = [@s0, @s1]} : (tensor<2x4xf32>, tensor<2x4xf32>) -> (tensor<2x4xf32>, tensor<2x4xf32>)
  // expected-error@below {{'pw.all_to_all' op attribute `orders` must be an array of 64-bit integers of at least 0, got array<i64: 0, -1>}}
  %9:2 = "pw.all_to_all"(%x, %y) {orders = array<i64: 0, -1>, slices = [@s0, @s1]} : (tensor<2x4xf32>, tensor<2x4xf32>) -> (tensor<2x4xf32>, tensor<2x4xf32>)
  return
}

// -----

// All blocks have one type; each operand and result holds one for each slice.
sdy.mesh @mesh = <["x"=1]>
"pw.slice"() {mesh = @mesh, sym_name = "s0"} : () -> ()
"pw.slice"() {mesh = @mesh, sym_name = "s1"} : () -> ()
func.func @main(%x: tensor<2x4xf32> {pw.slice = @s0}, %y: tensor<2x5xf32> {pw.slice = @s1}, %z: tensor<2x4xf32> {pw.slice = @s1}, %u: tensor<3x4xf32> {pw.slice = @s0}, %v: tensor<3x4xf32> {pw.slice = @s1}) {
  // expected-error@below {{'pw.all_to_all' op operand #1 on @s1 has type tensor<2x5xf32>, but operand #0 has tensor<2x4xf32>}}
  %0:2 = "pw.all_to_all"(%x, %y) {slices = [@s0, @s1]} : (tensor<2x4xf32>, tensor<2x5xf32>) -> (tensor<2x4xf32>, tensor<2x5xf32>)
  // expected-error@below {{'pw.all_to_all' op result #0 on @s0 has type tensor<4x2xf32>, but operand #0 has tensor<2x4xf32>}}
  %1:2 = "pw.all_to_all"(%x, %z) {slices = [@s0, @s1]} : (tensor<2x4xf32>, tensor<2x4xf32>) -> (tensor<4x2xf32>, tensor<4x2xf32>)
  // expected-error@below {{'pw.all_to_all' op expected a leading dimension of 2, one block for each slice, got tensor<3x4xf32>}}
  %2:2 = "pw.all_to_all"(%u, %v) {slices = [@s0, @s1]} : (tensor<3x4xf32>, tensor<3x4xf32>) -> (tensor<3x4xf32>, tensor<3x4xf32>)
  return
}

// -----

// Once placed, operand n is on slice n.
sdy.mesh @mesh = <["x"=1]>
"pw.slice"() {mesh = @mesh, sym_name = "s0"} : () -> ()
"pw.slice"() {mesh = @mesh, sym_name = "s1"} : () -> ()
func.func @main(%x: tensor<2x4xf32> {pw.slice = @s0}, %y: tensor<2x4xf32> {pw.slice = @s1}) {
  // expected-error@below {{'pw.all_to_all' op operand #0 lives on @s0, but is exchanged on @s1: a pw.transfer of it to @s1 is missing}}
  // expected-error@below {{'pw.all_to_all' op operand #1 lives on @s1, but is exchanged on @s0: a pw.transfer of it to @s0 is missing}}
  %0:2 = "pw.all_to_all"(%x, %y) {slices = [@s1, @s0]} : (tensor<2x4xf32>, tensor<2x4xf32>) -> (tensor<2x4xf32>, tensor<2x4xf32>)
  return
}

// -----

// Devices do not split the dimension of the slices.
module attributes {pw.form = "sharded"} {
  sdy.mesh @mesh = <["x"=2]>
  "pw.slice"() {mesh = @mesh, sym_name = "s0"} : () -> ()
  "pw.slice"() {mesh = @mesh, sym_name = "s1"} : () -> ()
  func.func @main(%x: tensor<2x4xf32> {pw.slice = @s0, sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}, %y: tensor<2x4xf32> {pw.slice = @s1}) {
    // expected-error@below {{'pw.all_to_all' op operand #0 has the sharding [{"x"}, {}] on @s0, which splits blocks}}
    %0:2 = "pw.all_to_all"(%x, %y) {slices = [@s0, @s1]} : (tensor<2x4xf32>, tensor<2x4xf32>) -> (tensor<2x4xf32>, tensor<2x4xf32>)
    return
  }
}

// -----

// Before the program is scheduled it has no positions; afterwards one on each slice, that nothing else has.
module attributes {pw.form = "unrolled"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {mesh = @mesh, sym_name = "s0"} : () -> ()
  "pw.slice"() {mesh = @mesh, sym_name = "s1"} : () -> ()
  func.func @main(%x: tensor<2x4xf32> {pw.slice = @s0}, %y: tensor<2x4xf32> {pw.slice = @s1}) {
    // expected-error@below {{'pw.all_to_all' op has a `orders`, which form 'unrolled' does not have yet}}
    %0:2 = "pw.all_to_all"(%x, %y) {orders = array<i64: 0, 0>, slices = [@s0, @s1]} : (tensor<2x4xf32>, tensor<2x4xf32>) -> (tensor<2x4xf32>, tensor<2x4xf32>)
    return
  }
}

// -----

module attributes {pw.form = "ordered"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {mesh = @mesh, sym_name = "s0"} : () -> ()
  "pw.slice"() {mesh = @mesh, sym_name = "s1"} : () -> ()
  func.func @main(%x: tensor<2x4xf32> {pw.slice = @s0}, %y: tensor<2x4xf32> {pw.slice = @s1}) {
    // expected-error@below {{'pw.all_to_all' op has no `orders`, which form 'ordered' requires}}
    %0:2 = "pw.all_to_all"(%x, %y) {slices = [@s0, @s1]} : (tensor<2x4xf32>, tensor<2x4xf32>) -> (tensor<2x4xf32>, tensor<2x4xf32>)
    return
  }
}

// -----

module attributes {pw.form = "ordered"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {mesh = @mesh, sym_name = "s0"} : () -> ()
  "pw.slice"() {mesh = @mesh, sym_name = "s1"} : () -> ()
  func.func @main(%x: tensor<2x4xf32> {pw.slice = @s0}, %y: tensor<2x4xf32> {pw.slice = @s1}) {
    %0:2 = "pw.all_to_all"(%x, %y) {orders = array<i64: 0, 0>, slices = [@s0, @s1]} : (tensor<2x4xf32>, tensor<2x4xf32>) -> (tensor<2x4xf32>, tensor<2x4xf32>)
    // expected-error@below {{'pw.all_to_all' op has order 0 on @s1, which the exchange of blocks has too}}
    %1:2 = "pw.all_to_all"(%x, %y) {orders = array<i64: 1, 0>, slices = [@s0, @s1]} : (tensor<2x4xf32>, tensor<2x4xf32>) -> (tensor<2x4xf32>, tensor<2x4xf32>)
    return
  }
}

// -----

// What runs has no exchanges left.
module attributes {pw.form = "scheduled"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {mesh = @mesh, sym_name = "s0"} : () -> ()
  "pw.slice"() {mesh = @mesh, sym_name = "s1"} : () -> ()
  func.func @main(%x: tensor<2x4xf32> {pw.slice = @s0}, %y: tensor<2x4xf32> {pw.slice = @s1}) {
    // expected-error@below {{'pw.all_to_all' op is not legal in form 'scheduled'; run pw-lower-all-to-alls}}
    %0:2 = "pw.all_to_all"(%x, %y) {orders = array<i64: 0, 0>, slices = [@s0, @s1]} : (tensor<2x4xf32>, tensor<2x4xf32>) -> (tensor<2x4xf32>, tensor<2x4xf32>)
    return
  }
}
