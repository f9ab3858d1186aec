// RUN: pw-opt %s --split-input-file --pw-infer-placement | filecheck %s

// Code between two stages, forward and backward: the derivative reads what the forward code computed, so
// both stay where the first stage is. Only the activation and its gradient cross.

!x = tensor<8x64xf32>
// CHECK-LABEL: module @activation_between_stages
module @activation_between_stages attributes {pw.form = "imported"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  "pw.slice"() {sym_name = "s1", mesh = @mesh} : () -> ()
  // CHECK: func.func @main(%{{.*}}: tensor<8x64xf32> {pw.slice = @s0}) -> (tensor<8x64xf32> {pw.slice = @s0})
  func.func @main(%x: !x) -> !x {
    %h = "pw.launch"(%x) {callee = @f, origins = [{kind = "fwd"}], slice = @s0} : (!x) -> !x
    // CHECK: stablehlo.tanh %{{.*}} {pw.slice = @s0}
    %t = stablehlo.tanh %h : !x
    // CHECK: stablehlo.multiply %{{.*}} {pw.slice = @s0}
    %tt = stablehlo.multiply %t, %t : !x
    %y = "pw.launch"(%t) {callee = @f, origins = [{kind = "fwd"}], slice = @s1} : (!x) -> !x
    %g = "pw.launch"(%y) {callee = @f, origins = [{kind = "bwd"}], slice = @s1} : (!x) -> !x
    // CHECK: stablehlo.subtract %{{.*}} {pw.slice = @s0}
    %d = stablehlo.subtract %h, %tt : !x
    // CHECK: stablehlo.multiply %{{.*}} {pw.slice = @s0}
    %gd = stablehlo.multiply %g, %d : !x
    %r = "pw.launch"(%gd) {callee = @f, origins = [{kind = "bwd"}], slice = @s0} : (!x) -> !x
    return %r : !x
  }
  func.func private @f(%x: !x) -> !x {
    return %x : !x
  }
}

// -----

// The cut weighs bytes: a reduction runs where its large operand is, and the small result crosses.

!x = tensor<8x64xf32>
// CHECK-LABEL: module @fewest_bytes_cross
module @fewest_bytes_cross attributes {pw.form = "imported"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  "pw.slice"() {sym_name = "s1", mesh = @mesh} : () -> ()
  func.func @main(%x: !x) -> tensor<8xf32> {
    %zero = stablehlo.constant dense<0.0> : tensor<f32>
    %h = "pw.launch"(%x) {callee = @f, slice = @s0} : (!x) -> !x
    // CHECK: stablehlo.reduce(%{{.*}} init: %{{.*}}) applies stablehlo.add across dimensions = [1] {pw.slice = @s0}
    %s = stablehlo.reduce(%h init: %zero) applies stablehlo.add across dimensions = [1] : (!x, tensor<f32>) -> tensor<8xf32>
    // CHECK: stablehlo.negate %{{.*}} {pw.slice = @s0}
    %n = stablehlo.negate %s : tensor<8xf32>
    %r = "pw.launch"(%n) {callee = @g, slice = @s1} : (tensor<8xf32>) -> tensor<8xf32>
    return %r : tensor<8xf32>
  }
  func.func private @f(%x: !x) -> !x {
    return %x : !x
  }
  func.func private @g(%x: tensor<8xf32>) -> tensor<8xf32> {
    return %x : tensor<8xf32>
  }
}

// -----

// A parameter lives where it is read, its optimizer state where the parameter is updated, and nobody
// said so. The learning rate follows from the step counter: both are mirrored, computed on each slice.

!w = tensor<64x64xf32>
// CHECK-LABEL: module @optimizer_state_follows_its_parameter
module @optimizer_state_follows_its_parameter attributes {pw.form = "imported"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  "pw.slice"() {sym_name = "s1", mesh = @mesh} : () -> ()
  // CHECK: func.func @main(
  // CHECK-SAME: %arg0: tensor<64x64xf32> {pw.donated, pw.slice = @s0}, %arg1: tensor<64x64xf32> {pw.donated, pw.slice = @s1}
  // CHECK-SAME: %arg2: tensor<64x64xf32> {pw.donated, pw.slice = @s0}, %arg3: tensor<64x64xf32> {pw.donated, pw.slice = @s1}
  // CHECK-SAME: %arg4: tensor<i32> {pw.donated, pw.slice = [@s0, @s1]}
  // CHECK-SAME: -> (tensor<64x64xf32> {pw.slice = @s0}, tensor<64x64xf32> {pw.slice = @s1}, tensor<64x64xf32> {pw.slice = @s0}, tensor<64x64xf32> {pw.slice = @s1}, tensor<i32> {pw.slice = [@s0, @s1]})
  func.func @main(%w0: !w {pw.donated}, %w1: !w {pw.donated}, %m0: !w {pw.donated}, %m1: !w {pw.donated}, %step: tensor<i32> {pw.donated}) -> (!w, !w, !w, !w, tensor<i32>) {
    %h = "pw.launch"(%w0) {callee = @f, slice = @s0} : (!w) -> !w
    %g1 = "pw.launch"(%w1, %h) {callee = @g, slice = @s1} : (!w, !w) -> !w
    %g0 = "pw.launch"(%w0, %g1) {callee = @g, slice = @s0} : (!w, !w) -> !w
    // CHECK: stablehlo.constant {pw.mirrored, pw.slice = [@s0, @s1]} dense<1>
    %one = stablehlo.constant dense<1> : tensor<i32>
    // CHECK: stablehlo.add %arg4, %{{.*}} {pw.mirrored, pw.slice = [@s0, @s1]} : tensor<i32>
    %next = stablehlo.add %step, %one : tensor<i32>
    // CHECK: stablehlo.convert %{{.*}} {pw.mirrored, pw.slice = [@s0, @s1]}
    %rate = stablehlo.convert %next : (tensor<i32>) -> tensor<f32>
    // CHECK: stablehlo.broadcast_in_dim %{{.*}}, dims = [] {pw.mirrored, pw.slice = [@s0, @s1]}
    %rates = stablehlo.broadcast_in_dim %rate, dims = [] : (tensor<f32>) -> !w
    // CHECK: stablehlo.add %arg2, %{{.*}} {pw.slice = @s0}
    %n0 = stablehlo.add %m0, %g0 : !w
    // CHECK: stablehlo.add %arg3, %{{.*}} {pw.slice = @s1}
    %n1 = stablehlo.add %m1, %g1 : !w
    %u0 = stablehlo.multiply %n0, %rates : !w
    %u1 = stablehlo.multiply %n1, %rates : !w
    // CHECK: stablehlo.subtract %arg0, %{{.*}} {pw.slice = @s0}
    %v0 = stablehlo.subtract %w0, %u0 : !w
    // CHECK: stablehlo.subtract %arg1, %{{.*}} {pw.slice = @s1}
    %v1 = stablehlo.subtract %w1, %u1 : !w
    return %v0, %v1, %n0, %n1, %next : !w, !w, !w, !w, tensor<i32>
  }
  func.func private @f(%w: !w) -> !w {
    return %w : !w
  }
  func.func private @g(%w: !w, %h: !w) -> !w {
    return %h : !w
  }
}

// -----

// Tied embedding: both slices read the table. Donated and large, it has one home, and the two gradients
// meet there; not donated, it would be mirrored.

!e = tensor<100x64xf32>
// CHECK-LABEL: module @tied_embedding
module @tied_embedding attributes {pw.form = "imported"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  "pw.slice"() {sym_name = "s1", mesh = @mesh} : () -> ()
  // CHECK: func.func @main(%arg0: tensor<100x64xf32> {pw.donated, pw.slice = @s0}) -> (tensor<100x64xf32> {pw.slice = @s0})
  func.func @main(%table: !e {pw.donated}) -> !e {
    %h = "pw.launch"(%table) {callee = @f, slice = @s0} : (!e) -> !e
    %g1 = "pw.launch"(%table, %h) {callee = @g, slice = @s1} : (!e, !e) -> !e
    %g0 = "pw.launch"(%h) {callee = @f, slice = @s0} : (!e) -> !e
    // CHECK: stablehlo.add %{{.*}} {pw.slice = @s0}
    %sum = stablehlo.add %g1, %g0 : !e
    // CHECK: stablehlo.subtract %arg0, %{{.*}} {pw.slice = @s0}
    %new = stablehlo.subtract %table, %sum : !e
    return %new : !e
  }
  func.func private @f(%x: !e) -> !e {
    return %x : !e
  }
  func.func private @g(%x: !e, %y: !e) -> !e {
    return %y : !e
  }
}

// -----

// What a program updates and returns stays where it was: the next call has it there. The sum is on @s1, where
// more bytes would have to leave, and so are the table and its momentum, although @s0 reads the table as well.

!e = tensor<100x64xf32>
// CHECK-LABEL: module @updated_at_home
module @updated_at_home attributes {pw.form = "imported"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  "pw.slice"() {sym_name = "s1", mesh = @mesh} : () -> ()
  // CHECK: func.func @main(%arg0: tensor<100x64xf32> {pw.donated, pw.slice = @s1}, %arg1: tensor<100x64xf32> {pw.donated, pw.slice = @s1}) -> (tensor<100x64xf32> {pw.slice = @s1}, tensor<100x64xf32> {pw.slice = @s1})
  func.func @main(%table: !e {pw.donated}, %momentum: !e {pw.donated}) -> (!e, !e) {
    %h = "pw.launch"(%table) {callee = @f, slice = @s0} : (!e) -> !e
    %g:2 = "pw.launch"(%table, %h) {callee = @g, slice = @s1} : (!e, !e) -> (!e, !e)
    %sum = stablehlo.add %g#0, %g#1 : !e
    %next = stablehlo.add %momentum, %sum : !e
    %new = stablehlo.subtract %table, %next : !e
    return %next, %new : !e, !e
  }
  func.func private @f(%x: !e) -> !e {
    return %x : !e
  }
  func.func private @g(%x: !e, %y: !e) -> (!e, !e) {
    return %x, %y : !e, !e
  }
}

// -----

// An argument that is not donated is mirrored on all slices that read it, however large.

!e = tensor<100x64xf32>
// CHECK-LABEL: module @shared_input
module @shared_input attributes {pw.form = "imported"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  "pw.slice"() {sym_name = "s1", mesh = @mesh} : () -> ()
  // CHECK: func.func @main(%arg0: tensor<100x64xf32> {pw.slice = [@s0, @s1]})
  func.func @main(%table: !e) -> (!e, !e) {
    %a = "pw.launch"(%table) {callee = @f, slice = @s0} : (!e) -> !e
    %b = "pw.launch"(%table) {callee = @f, slice = @s1} : (!e) -> !e
    return %a, %b : !e, !e
  }
  func.func private @f(%x: !e) -> !e {
    return %x : !e
  }
}

// -----

// A global norm over layers that alternate between slices: each slice adds its own terms, they exchange
// their sums, and both work out the rest. One scalar crosses each way.

!w = tensor<64x64xf32>
!s = tensor<f32>
// CHECK-LABEL: module @global_norm
module @global_norm attributes {pw.form = "imported"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  "pw.slice"() {sym_name = "s1", mesh = @mesh} : () -> ()
  func.func @main(%x: !w) -> (!w, !w) {
    %zero = stablehlo.constant dense<0.0> : !s
    %one = stablehlo.constant dense<1.0> : !s
    %g0 = "pw.launch"(%x) {callee = @f, slice = @s0} : (!w) -> !w
    %g1 = "pw.launch"(%x) {callee = @f, slice = @s1} : (!w) -> !w
    %g2 = "pw.launch"(%g0) {callee = @f, slice = @s0} : (!w) -> !w
    %g3 = "pw.launch"(%g1) {callee = @f, slice = @s1} : (!w) -> !w
    // CHECK: %[[N0:.*]] = stablehlo.reduce(%{{.*}}) {{.*}} {pw.slice = @s0}
    %n0 = stablehlo.reduce(%g0 init: %zero) applies stablehlo.add across dimensions = [0, 1] : (!w, !s) -> !s
    // CHECK: %[[N1:.*]] = stablehlo.reduce(%{{.*}}) {{.*}} {pw.slice = @s1}
    %n1 = stablehlo.reduce(%g1 init: %zero) applies stablehlo.add across dimensions = [0, 1] : (!w, !s) -> !s
    // CHECK: %[[N2:.*]] = stablehlo.reduce(%{{.*}}) {{.*}} {pw.slice = @s0}
    %n2 = stablehlo.reduce(%g2 init: %zero) applies stablehlo.add across dimensions = [0, 1] : (!w, !s) -> !s
    // CHECK: %[[N3:.*]] = stablehlo.reduce(%{{.*}}) {{.*}} {pw.slice = @s1}
    %n3 = stablehlo.reduce(%g3 init: %zero) applies stablehlo.add across dimensions = [0, 1] : (!w, !s) -> !s
    // CHECK-NEXT: %[[P0:.*]] = stablehlo.add %[[N0]], %[[N2]] {pw.slice = @s0}
    // CHECK-NEXT: %[[P1:.*]] = stablehlo.add %[[N1]], %[[N3]] {pw.slice = @s1}
    // CHECK-NEXT: %[[SUM:.*]] = stablehlo.add %[[P0]], %[[P1]] {pw.slice = [@s0, @s1]}
    %a = stablehlo.add %n0, %n1 : !s
    %b = stablehlo.add %a, %n2 : !s
    %c = stablehlo.add %b, %n3 : !s
    // CHECK-NEXT: stablehlo.sqrt %[[SUM]] {pw.slice = [@s0, @s1]}
    %norm = stablehlo.sqrt %c : !s
    // CHECK-NEXT: stablehlo.compare {{.*}} {pw.slice = [@s0, @s1]}
    %small = stablehlo.compare LT, %norm, %one : (!s, !s) -> tensor<i1>
    %norms = stablehlo.broadcast_in_dim %norm, dims = [] : (!s) -> !w
    %d0 = stablehlo.divide %g0, %norms : !w
    %d1 = stablehlo.divide %g1, %norms : !w
    // CHECK: stablehlo.select %{{.*}} {pw.slice = @s0}
    %r0 = stablehlo.select %small, %g0, %d0 : tensor<i1>, !w
    // CHECK: stablehlo.select %{{.*}} {pw.slice = @s1}
    %r1 = stablehlo.select %small, %g1, %d1 : tensor<i1>, !w
    return %r0, %r1 : !w, !w
  }
  func.func private @f(%x: !w) -> !w {
    return %x : !w
  }
}

// -----

// A small value whose inputs cross anyway is worked out where it is read: the norm crosses for the
// division, so the comparison need not.

!w = tensor<64x64xf32>
!s = tensor<f32>
// CHECK-LABEL: module @inputs_cross_anyway
module @inputs_cross_anyway attributes {pw.form = "imported"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  "pw.slice"() {sym_name = "s1", mesh = @mesh} : () -> ()
  func.func @main(%x: !w) -> !w {
    %one = stablehlo.constant dense<1.0> : !s
    %norm = "pw.launch"(%x) {callee = @norm, slice = @s0} : (!w) -> !s
    %g = "pw.launch"(%x) {callee = @f, slice = @s1} : (!w) -> !w
    // CHECK: stablehlo.compare {{.*}} {pw.slice = @s1}
    %small = stablehlo.compare LT, %norm, %one : (!s, !s) -> tensor<i1>
    %norms = stablehlo.broadcast_in_dim %norm, dims = [] : (!s) -> !w
    %d = stablehlo.divide %g, %norms : !w
    %r = stablehlo.select %small, %g, %d : tensor<i1>, !w
    // Read on s0 as well, the comparison would cross alone: both slices make it.
    // CHECK: stablehlo.compare {{.*}} {pw.slice = [@s0, @s1]}
    %large = stablehlo.compare GT, %norm, %one : (!s, !s) -> tensor<i1>
    %q = stablehlo.select %large, %r, %g : tensor<i1>, !w
    %z = "pw.launch"(%large) {callee = @h, slice = @s0} : (tensor<i1>) -> tensor<i1>
    %a = stablehlo.select %z, %q, %r : tensor<i1>, !w
    return %a : !w
  }
  func.func private @norm(%x: !w) -> !s {
    %zero = stablehlo.constant dense<0.0> : !s
    return %zero : !s
  }
  func.func private @f(%x: !w) -> !w {
    return %x : !w
  }
  func.func private @h(%x: tensor<i1>) -> tensor<i1> {
    return %x : tensor<i1>
  }
}

// -----

// A batch that the caller passes is split where its microbatches are read, on two slices here: it is brought
// to both, and no block crosses. One that a launch makes is split where it is made, and one that is donated
// has one home.

!x = tensor<4096x64xf32>
!b = tensor<1024x64xf32>
// CHECK-LABEL: module @batch
module @batch attributes {pw.form = "imported"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  "pw.slice"() {sym_name = "s1", mesh = @mesh} : () -> ()
  "pw.loop"() {sym_name = "batch", count = 4} : () -> ()
  // CHECK: func.func @main(%arg0: tensor<4096x64xf32> {pw.slice = [@s0, @s1]}, %arg1: tensor<4096x64xf32> {pw.donated, pw.slice = @s0})
  func.func @main(%x: !x, %given: !x {pw.donated}) -> (!b, !b, !b) {
    // CHECK-DAG: %[[ON0:.*]] = "pw.split"(%arg0) {loop = @batch, slice = @s0}
    // CHECK-DAG: %[[ON1:.*]] = "pw.split"(%arg0) {loop = @batch, slice = @s1}
    // CHECK-DAG: %[[GIVEN:.*]] = "pw.split"(%arg1) {loop = @batch, slice = @s0}
    // CHECK-NOT: "pw.split"(%arg{{.}})
    %b = "pw.split"(%x) {loop = @batch} : (!x) -> !b
    %g = "pw.split"(%given) {loop = @batch} : (!x) -> !b
    // CHECK: "pw.launch"(%[[ON0]], %[[GIVEN]]) {callee = @f, loop = @batch, slice = @s0}
    %h = "pw.launch"(%b, %g) {callee = @f, loop = @batch, slice = @s0} : (!b, !b) -> !b
    // CHECK: "pw.launch"(%[[ON1]], %[[GIVEN]]) {callee = @f, loop = @batch, slice = @s1}
    %y = "pw.launch"(%b, %g) {callee = @f, loop = @batch, slice = @s1} : (!b, !b) -> !b
    %made = "pw.launch"(%x) {callee = @make, slice = @s0} : (!x) -> !x
    // CHECK: %[[MADE:.*]] = "pw.split"(%{{.*}}) {loop = @batch, slice = @s0}
    %m = "pw.split"(%made) {loop = @batch} : (!x) -> !b
    // CHECK: "pw.launch"(%[[MADE]], %{{.*}}) {callee = @f, loop = @batch, slice = @s1}
    %z = "pw.launch"(%m, %y) {callee = @f, loop = @batch, slice = @s1} : (!b, !b) -> !b
    // A reduction is where its terms are.
    // CHECK: "pw.reduce"({{.*}}) {kind = "sum", loop = @batch, slice = @s0}
    %s = "pw.reduce"(%h) {kind = "sum", loop = @batch} : (!b) -> !b
    // CHECK: "pw.reduce"({{.*}}) {kind = "sum", loop = @batch, slice = @s1}
    %t = "pw.reduce"(%y) {kind = "sum", loop = @batch} : (!b) -> !b
    %u = "pw.reduce"(%z) {kind = "sum", loop = @batch} : (!b) -> !b
    return %s, %t, %u : !b, !b, !b
  }
  func.func private @f(%x: !b, %y: !b) -> !b {
    return %x : !b
  }
  func.func private @make(%x: !x) -> !x {
    return %x : !x
  }
}

// -----

// What crosses in a loop does so for each microbatch: the small value would cross once, but four times it is
// more than the large one.

!w = tensor<64x64xf32>
!v = tensor<32x64xf32>
!x = tensor<8xf32>
!b = tensor<2xf32>
// CHECK-LABEL: module @costs
module @costs attributes {pw.form = "imported"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  "pw.slice"() {sym_name = "s1", mesh = @mesh} : () -> ()
  "pw.loop"() {sym_name = "batch", count = 4} : () -> ()
  func.func @main(%x: !x) -> (!v, !v) {
    %zero = stablehlo.constant dense<0.0> : tensor<f32>
    %w = "pw.launch"() {callee = @weights, slice = @s0} : () -> !w
    %u = "pw.launch"() {callee = @weights, slice = @s0} : () -> !w
    %b = "pw.split"(%x) {loop = @batch} : (!x) -> !b
    %h = "pw.launch"(%b) {callee = @front, loop = @batch, slice = @s1} : (!b) -> !v
    // CHECK: stablehlo.dot_general %{{.*}} {pw.loop = @batch, pw.slice = @s1}
    %y = stablehlo.dot_general %h, %w, contracting_dims = [1] x [0] {pw.loop = @batch} : (!v, !w) -> !v
    %s = "pw.reduce"(%y) {kind = "sum", loop = @batch} : (!v) -> !v
    %k = "pw.launch"() {callee = @once, slice = @s1} : () -> !v
    // CHECK: stablehlo.dot_general %{{.*}} {pw.slice = @s0}
    %z = stablehlo.dot_general %k, %u, contracting_dims = [1] x [0] : (!v, !w) -> !v
    %r = "pw.launch"(%z) {callee = @keep, slice = @s0} : (!v) -> !v
    return %s, %r : !v, !v
  }
  func.func private @weights() -> !w {
    %c = stablehlo.constant dense<0.0> : !w
    return %c : !w
  }
  func.func private @once() -> !v {
    %c = stablehlo.constant dense<0.0> : !v
    return %c : !v
  }
  func.func private @front(%b: !b) -> !v {
    %c = stablehlo.constant dense<0.0> : !v
    return %c : !v
  }
  func.func private @keep(%v: !v) -> !v {
    return %v : !v
  }
}

// -----

// Two chains alternate, and the first begins with mirrored terms. Its mirrored link is gone once it is regrouped;
// what comes to lie where that was is no mirrored work.

!x = tensor<4xf32>
// CHECK-LABEL: module @chains_with_mirrored_links
module @chains_with_mirrored_links attributes {pw.form = "imported"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  "pw.slice"() {sym_name = "s1", mesh = @mesh} : () -> ()
  func.func @main() -> (!x, !x) {
    %m = stablehlo.constant dense<1.0> : !x
    %a, %b = "pw.launch"() {callee = @f, origins = [{kind = "fwd"}], slice = @s0} : () -> (!x, !x)
    %c, %d = "pw.launch"() {callee = @f, origins = [{kind = "fwd"}], slice = @s1} : () -> (!x, !x)
    %0 = stablehlo.add %m, %m : !x
    %1 = stablehlo.add %0, %m : !x
    %2 = stablehlo.add %1, %a : !x
    %3 = stablehlo.add %2, %c : !x
    %4 = stablehlo.add %3, %b : !x
    %5 = stablehlo.add %4, %d : !x
    // CHECK: stablehlo.multiply %{{.*}} {pw.slice = @s0}
    %6 = stablehlo.multiply %a, %c : !x
    // CHECK: stablehlo.multiply %{{.*}} {pw.slice = @s1}
    %7 = stablehlo.multiply %6, %b : !x
    // CHECK: stablehlo.multiply %{{.*}} {pw.slice = @s0}
    %8 = stablehlo.multiply %7, %d : !x
    return %5, %8 : !x, !x
  }
  func.func private @f() -> (!x, !x) {
    %0 = stablehlo.constant dense<0.0> : !x
    return %0, %0 : !x, !x
  }
}

// -----

// Without placed calls work is done where arguments live, also on small ones: each value is cast on its slice,
// and of two that are added the smaller one crosses.

!x = tensor<4xf32>
!big = tensor<64x64xf32>
!small = tensor<64xf32>
// CHECK-LABEL: module @where_arguments_live
module @where_arguments_live attributes {pw.form = "imported"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  "pw.slice"() {sym_name = "s1", mesh = @mesh} : () -> ()
  // CHECK: func.func @main(
  // CHECK-SAME: %arg0: tensor<4xf32> {pw.slice = @s0}, %arg1: tensor<4xf32> {pw.slice = @s1}
  // CHECK-SAME: %arg2: tensor<64xf32> {pw.slice = @s0}, %arg3: tensor<64x64xf32> {pw.slice = @s1}
  // CHECK-SAME: %arg4: tensor<f32> {pw.slice = @s1}
  func.func @main(%x: !x {pw.slice = @s0}, %y: !x {pw.slice = @s1}, %small: !small {pw.slice = @s0}, %big: !big {pw.slice = @s1}, %scale: tensor<f32>) -> (tensor<4xbf16>, tensor<4xbf16>, !big) {
    // CHECK: stablehlo.convert %arg0 {pw.slice = @s0}
    %0 = stablehlo.convert %x : (!x) -> tensor<4xbf16>
    // CHECK: stablehlo.convert %arg1 {pw.slice = @s1}
    %1 = stablehlo.convert %y : (!x) -> tensor<4xbf16>
    // CHECK: stablehlo.broadcast_in_dim %arg2, dims = [1] {pw.slice = @s1}
    %2 = stablehlo.broadcast_in_dim %small, dims = [1] : (!small) -> !big
    // CHECK: stablehlo.broadcast_in_dim %arg4, dims = [] {pw.mirrored, pw.slice = @s1}
    %3 = stablehlo.broadcast_in_dim %scale, dims = [] : (tensor<f32>) -> !big
    // CHECK: stablehlo.add %{{.*}} {pw.slice = @s1}
    %4 = stablehlo.add %2, %big : !big
    // CHECK: stablehlo.multiply %{{.*}} {pw.slice = @s1}
    %5 = stablehlo.multiply %4, %3 : !big
    return %0, %1, %5 : tensor<4xbf16>, tensor<4xbf16>, !big
  }
}

// -----

// Launches decide where a state is read and where it is returned. Its argument names the result that replaces it, so
// that what each call moves first can be counted. Where both are on one slice, nothing does.

!x = tensor<16x64xf32>
// CHECK-LABEL: module @replaced_from_elsewhere
module @replaced_from_elsewhere attributes {pw.form = "imported"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  "pw.slice"() {sym_name = "s1", mesh = @mesh} : () -> ()
  // CHECK: func.func @main(%arg0: tensor<16x64xf32> {pw.donated, pw.slice = @s1}, %arg1: tensor<16x64xf32> {pw.donated, pw.replaced_by = 1 : i64, pw.slice = @s0}, %arg2: tensor<16x64xf32> {pw.slice = @s0})
  func.func @main(%cache: !x {pw.donated}, %state: !x {pw.donated}, %w: !x) -> (!x, !x) {
    %h = "pw.launch"(%state, %w) {callee = @f, slice = @s0} : (!x, !x) -> !x
    %next = "pw.launch"(%cache, %h) {callee = @f, slice = @s1} : (!x, !x) -> !x
    %new = "pw.launch"(%next, %h) {callee = @f, slice = @s1} : (!x, !x) -> !x
    return %next, %new : !x, !x
  }
  func.func private @f(%x: !x, %y: !x) -> !x {
    return %x : !x
  }
}
