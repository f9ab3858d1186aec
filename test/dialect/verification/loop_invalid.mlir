// RUN: pw-opt %s --split-input-file --verify-diagnostics

// A loop runs at least once.
// expected-error@below {{'pw.loop' op expected a count of 1 to 16384, got 0}}
"pw.loop"() {count = 0, sym_name = "batch"} : () -> ()

// -----

// A split takes one of `count` equal blocks of the leading dimension.
"pw.loop"() {count = 4, sym_name = "batch"} : () -> ()
func.func @main(%x: tensor<8x2xf32>, %y: tensor<f32>) {
  %0 = "pw.split"(%x) {loop = @batch} : (tensor<8x2xf32>) -> tensor<2x2xf32>
  // expected-error@below {{'pw.split' op operand has type tensor<8x2xf32>, expected tensor<16x2xf32>: 4 blocks of tensor<4x2xf32>}}
  %1 = "pw.split"(%x) {loop = @batch} : (tensor<8x2xf32>) -> tensor<4x2xf32>
  // expected-error@below {{'pw.split' op a scalar has no leading dimension to divide into microbatches}}
  %2 = "pw.split"(%y) {loop = @batch} : (tensor<f32>) -> tensor<f32>
  // expected-error@below {{'pw.split' op attribute `loop` refers to @other, which is not in the module}}
  %3 = "pw.split"(%x) {loop = @other} : (tensor<8x2xf32>) -> tensor<2x2xf32>
  return
}

// -----

// A reduction has an operand for the current microbatch, or one for each.
"pw.loop"() {count = 4, sym_name = "batch"} : () -> ()
func.func @main(%x: tensor<8xf32>) {
  %0 = "pw.split"(%x) {loop = @batch} : (tensor<8xf32>) -> tensor<2xf32>
  %1 = "pw.reduce"(%0) {kind = "sum", loop = @batch} : (tensor<2xf32>) -> tensor<2xf32>
  %2 = "pw.reduce"(%0) {kind = "concat", loop = @batch} : (tensor<2xf32>) -> tensor<8xf32>
  // expected-error@below {{'pw.reduce' op expected 1 operand or one for each of 4 microbatches, got 2}}
  %3 = "pw.reduce"(%0, %0) {kind = "sum", loop = @batch} : (tensor<2xf32>, tensor<2xf32>) -> tensor<2xf32>
  // expected-error@below {{'pw.reduce' op sums tensor<2xf32>, but the result has tensor<8xf32>}}
  %4 = "pw.reduce"(%0) {kind = "sum", loop = @batch} : (tensor<2xf32>) -> tensor<8xf32>
  // expected-error@below {{'pw.reduce' op result has type tensor<2xf32>, expected tensor<8xf32>: 4 blocks of tensor<2xf32>}}
  %5 = "pw.reduce"(%0) {kind = "concat", loop = @batch} : (tensor<2xf32>) -> tensor<2xf32>
  // expected-error@below {{'pw.reduce' op attribute `kind` must be a string attribute, one of "sum", "concat", got "mean"}}
  %6 = "pw.reduce"(%0) {kind = "mean", loop = @batch} : (tensor<2xf32>) -> tensor<2xf32>
  return
}

// -----

// Only what is of a microbatch can be reduced.
"pw.loop"() {count = 4, sym_name = "batch"} : () -> ()
func.func @main(%x: tensor<8xf32>) {
  // expected-error@below {{'pw.reduce' op reduces a value that is not of a microbatch of @batch}}
  %7 = "pw.reduce"(%x) {kind = "sum", loop = @batch} : (tensor<8xf32>) -> tensor<8xf32>
  return
}

// -----

// What is of a microbatch leaves its loop through a reduction only.
"pw.loop"() {count = 4, sym_name = "a"} : () -> ()
"pw.loop"() {count = 2, sym_name = "b"} : () -> ()
func.func @main(%x: tensor<8xf32>) -> tensor<2xf32> {
  %0 = "pw.split"(%x) {loop = @a} : (tensor<8xf32>) -> tensor<2xf32>
  %1 = stablehlo.add %0, %0 {pw.loop = @a} : tensor<2xf32>
  // expected-error@below {{'stablehlo.negate' op reads a value of a microbatch of @a, but has no `pw.loop`}}
  %n = stablehlo.negate %1 : tensor<2xf32>
  // expected-error@below {{'pw.split' op splits a value of a microbatch of @a, which @b is not inside of}}
  %2 = "pw.split"(%1) {loop = @b} : (tensor<2xf32>) -> tensor<1xf32>
  %3 = "pw.split"(%x) {loop = @b} : (tensor<8xf32>) -> tensor<4xf32>
  // expected-error@below {{'stablehlo.dot_general' op is of @a, but reads a value of a microbatch of @b}}
  %4 = stablehlo.dot_general %1, %3, contracting_dims = [] x [] {pw.loop = @a} : (tensor<2xf32>, tensor<4xf32>) -> tensor<2x4xf32>
  // expected-error@below {{'func.return' op returns a value of a microbatch of @a; only pw.reduce and pw.next may take it out}}
  return %1 : tensor<2xf32>
}

// -----

// A launch that reads a value of a microbatch names the loop.
sdy.mesh @mesh = <["x"=1]>
"pw.slice"() {mesh = @mesh, sym_name = "s0"} : () -> ()
"pw.loop"() {count = 4, sym_name = "batch"} : () -> ()
func.func private @f(tensor<2xf32>) -> tensor<2xf32>
func.func @main(%x: tensor<8xf32>) {
  %0 = "pw.split"(%x) {loop = @batch} : (tensor<8xf32>) -> tensor<2xf32>
  %1 = "pw.launch"(%0) {callee = @f, loop = @batch, slice = @s0} : (tensor<2xf32>) -> tensor<2xf32>
  // expected-error@below {{'pw.launch' op reads a value of a microbatch of @batch, but has no `loop`}}
  %2 = "pw.launch"(%1) {callee = @f, slice = @s0} : (tensor<2xf32>) -> tensor<2xf32>
  // expected-error@below {{'pw.launch' op reads a value of a microbatch of @batch; only pw.reduce and pw.next may take it out}}
  %3 = "pw.launch"(%1) {callee = @f, loop = @batch, microbatch = 0, slice = @s0} : (tensor<2xf32>) -> tensor<2xf32>
  return
}

// -----

// Loops may be inside of each other, but none is inside of itself.
// expected-error@below {{'pw.loop' op is nested in itself, by way of @a}}
"pw.loop"() {count = 4, parent = @b, sequential, sym_name = "a"} : () -> ()
// expected-error@below {{'pw.loop' op is nested in itself, by way of @b}}
"pw.loop"() {count = 2, parent = @a, sequential, sym_name = "b"} : () -> ()

// -----

// A schedule puts the microbatches of a loop in another order, so none has a loop inside.
"pw.loop"() {count = 4, schedule = "1f1b", sym_name = "a"} : () -> ()
// expected-error@below {{'pw.loop' op is nested in @a, which is not sequential}}
"pw.loop"() {count = 2, parent = @a, sym_name = "b"} : () -> ()

// -----

// What is inside of a loop may read what belongs to loop around it.
"pw.loop"() {count = 4, sequential, sym_name = "a"} : () -> ()
"pw.loop"() {count = 2, parent = @a, sym_name = "b"} : () -> ()
func.func @main(%x: tensor<8xf32>) -> tensor<2xf32> {
  %0 = "pw.split"(%x) {loop = @a} : (tensor<8xf32>) -> tensor<2xf32>
  %1 = "pw.split"(%0) {loop = @b} : (tensor<2xf32>) -> tensor<1xf32>
  %2 = stablehlo.dot_general %0, %1, contracting_dims = [] x [] {pw.loop = @b} : (tensor<2xf32>, tensor<1xf32>) -> tensor<2x1xf32>
  %3 = "pw.reduce"(%2) {kind = "sum", loop = @b, outer = @a} : (tensor<2x1xf32>) -> tensor<2x1xf32>
  // expected-error@below {{'stablehlo.reshape' op reads a value of a microbatch of @a, but has no `pw.loop`}}
  %4 = stablehlo.reshape %3 : (tensor<2x1xf32>) -> tensor<2xf32>
  return %4 : tensor<2xf32>
}

// -----

// So is the microbatch of an origin; and a note that passes read is checked on operations of ours, too.
module attributes {pw.form = "unrolled"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  "pw.loop"() {sym_name = "l", count = 2} : () -> ()
  func.func @main(%x: tensor<4xf32> {pw.slice = @s0}) -> (tensor<4xf32> {pw.slice = @s0}) {
    // expected-error@below {{works on microbatch 4294967296, but @l has 2}}
    %0 = "pw.launch"(%x) {callee = @f, loop = @l, microbatch = 1, origins = [{kind = "fwd", microbatch = 4294967296, stage = 1}], slice = @s0} : (tensor<4xf32>) -> tensor<4xf32>
    return %x : tensor<4xf32>
  }
  func.func private @f(tensor<4xf32>) -> tensor<4xf32>
}

// -----

func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  // expected-error@below {{'pw.reduce' op `pw.slice` must be a slice or a list of different slices, got "s17"}}
  %0 = "pw.reduce"(%x) {kind = "sum", loop = @l, pw.slice = "s17"} : (tensor<4xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}
"pw.loop"() {sym_name = "l", count = 2} : () -> ()

// -----

// What leads out of a loop says into which one.
"pw.loop"() {count = 4, sequential, sym_name = "a"} : () -> ()
"pw.loop"() {count = 2, parent = @a, sym_name = "b"} : () -> ()
func.func @main(%x: tensor<4xf32>) -> tensor<2xf32> {
  %0 = "pw.split"(%x) {loop = @b} : (tensor<4xf32>) -> tensor<2xf32>
  // expected-error@below {{'pw.reduce' op leads out of @b into no loop, but that is nested in @a}}
  %1 = "pw.reduce"(%0) {kind = "sum", loop = @b} : (tensor<2xf32>) -> tensor<2xf32>
  return %1 : tensor<2xf32>
}

// -----

// A carried value starts outside of its loop, has one type, and is passed on once.
"pw.loop"() {count = 4, sequential, sym_name = "a"} : () -> ()
"pw.loop"() {count = 4, sequential, sym_name = "b"} : () -> ()
func.func @main(%x: tensor<2xf32>) {
  // expected-error@below {{'pw.carry' op is passed on by 0 pw.nexts, expected 1}}
  %0 = "pw.carry"(%x) {loop = @a} : (tensor<2xf32>) -> tensor<2xf32>
  // expected-error@below {{'pw.carry' op starts from a value of a microbatch of @a, which @a is not inside of}}
  // expected-error@below {{'pw.carry' op is passed on by 2 pw.nexts, expected 1}}
  %1 = "pw.carry"(%0) {loop = @a} : (tensor<2xf32>) -> tensor<2xf32>
  %2 = "pw.next"(%1, %x) {loop = @a} : (tensor<2xf32>, tensor<2xf32>) -> tensor<2xf32>
  %3 = "pw.next"(%1, %0) {loop = @a} : (tensor<2xf32>, tensor<2xf32>) -> tensor<2xf32>
  %4 = "pw.carry"(%x) {loop = @b} : (tensor<2xf32>) -> tensor<2xf32>
  // expected-error@below {{'pw.next' op passes on a value that is not of a microbatch of @b}}
  %5 = "pw.next"(%4, %0) {loop = @b} : (tensor<2xf32>, tensor<2xf32>) -> tensor<2xf32>
  return
}

// -----

"pw.loop"() {count = 4, sequential, sym_name = "a"} : () -> ()
"pw.loop"() {count = 4, sequential, sym_name = "b"} : () -> ()
func.func @main(%x: tensor<2xf32>, %y: tensor<3xf32>) {
  // expected-error@below {{'pw.carry' op starts from tensor<3xf32>, but is tensor<2xf32>}}
  %0 = "pw.carry"(%y) {loop = @a} : (tensor<3xf32>) -> tensor<2xf32>
  // expected-error@below {{'pw.next' op operand #0 is not a `pw.carry`}}
  %1 = "pw.next"(%x, %x) {loop = @a} : (tensor<2xf32>, tensor<2xf32>) -> tensor<2xf32>
  // expected-error@below {{'pw.next' op operand #0 is carried by @a, not by @b}}
  %2 = "pw.next"(%0, %x) {loop = @b} : (tensor<2xf32>, tensor<2xf32>) -> tensor<2xf32>
  // expected-error@below {{'pw.next' op operand #1 has type tensor<3xf32>, but the result has tensor<2xf32>}}
  %3 = "pw.next"(%0, %y) {loop = @a} : (tensor<2xf32>, tensor<3xf32>) -> tensor<2xf32>
  // expected-error@below {{'pw.carry' op is carried per replica, but the iterations of @a are those of all replicas}}
  %5 = "pw.carry"(%x) {loop = @a, per_replica} : (tensor<2xf32>) -> tensor<2xf32>
  // expected-error@below {{'pw.index' op expected a result of type tensor<i32>, got tensor<i64>}}
  %4 = "pw.index"() {loop = @a} : () -> tensor<i64>
  return
}

// -----

// What is wrong with one operation does not keep others from being checked.
module {
  "pw.loop"() {count = 4, sym_name = "batch"} : () -> ()
  func.func public @main(%x: tensor<4xf32>) -> (tensor<4xf32>) {
    // expected-error@below {{attribute `loop` must be a flat symbol reference to a `pw.loop`, got 3}}
    %c = "pw.carry"(%x) {loop = 3} : (tensor<4xf32>) -> tensor<4xf32>
    // expected-error@below {{operand #0 is carried by 3 : i64, not by @batch}}
    %l = "pw.next"(%c, %x) {loop = @batch} : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
    return %l : tensor<4xf32>
  }
}

// -----

"pw.loop"() {count = 4, sym_name = "batch"} : () -> ()
func.func @main(%x: tensor<4xf32>) {
  // expected-error@below {{'pw.carry' op requires attribute `loop`}}
  %c = "pw.carry"(%x) : (tensor<4xf32>) -> tensor<4xf32>
  // expected-error@below {{operand #0 is carried by no loop, not by @batch}}
  %l = "pw.next"(%c, %x) {loop = @batch} : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  return
}

// -----

// A loop says how many turns it has, or how many of them are a chunk; a chunk needs a `pw.until`, which names it.
module attributes {pw.form = "imported"} {
  // expected-error@below {{'pw.loop' op expected `count` or `chunk`, got both}}
  "pw.loop"() {sym_name = "both", count = 2, chunk = 2, sequential} : () -> ()
  // expected-error@below {{'pw.loop' op expected `count` or `chunk`, got neither}}
  "pw.loop"() {sym_name = "neither", sequential} : () -> ()
  // expected-error@below {{'pw.loop' op expected a chunk of 1 to 16384, got 0}}
  "pw.loop"() {sym_name = "empty", chunk = 0, sequential} : () -> ()
  // expected-error@below {{'pw.loop' op has a `chunk`, but is not sequential}}
  "pw.loop"() {sym_name = "parallel", chunk = 2} : () -> ()
  "pw.loop"() {sym_name = "around", count = 2, sequential} : () -> ()
  // expected-error@below {{'pw.loop' op has a `chunk`, but is nested in @around}}
  "pw.loop"() {sym_name = "inside", chunk = 2, sequential, parent = @around} : () -> ()
  func.func @main() {
    return
  }
}

// -----

module attributes {pw.form = "imported"} {
  // expected-error@below {{'pw.loop' op has a `chunk` and 0 pw.untils, expected 1}}
  "pw.loop"() {sym_name = "endless", chunk = 2, sequential} : () -> ()
  func.func @main() {
    return
  }
}

// -----

module attributes {pw.form = "imported"} {
  "pw.loop"() {sym_name = "counted", count = 2, sequential} : () -> ()
  "pw.loop"() {sym_name = "chunked", chunk = 2, sequential} : () -> ()
  func.func @main(%p: tensor<i1>, %x: tensor<f32>) {
    // expected-error@below {{'pw.until' op ends @counted, which has a `count` and no `chunk`}}
    "pw.until"(%p) {loop = @counted} : (tensor<i1>) -> ()
    // expected-error@below {{'pw.until' op expected an operand of type tensor<i1>, got tensor<f32>}}
    "pw.until"(%x) {loop = @chunked} : (tensor<f32>) -> ()
    return
  }
}
