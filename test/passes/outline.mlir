// RUN: pw-opt %s --split-input-file --pw-outline | filecheck %s

// Code between launches becomes a computation per slice and per set of things it waits for: what waits
// for the second launch must not hold up what waits only for the first.

!x = tensor<4xf32>
// CHECK-LABEL: module @one_computation_per_wait
module @one_computation_per_wait attributes {pw.form = "imported"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  func.func @main(%x: !x {pw.slice = @s0}) -> (!x {pw.slice = @s0}, !x {pw.slice = @s0}) {
    // CHECK: %[[A:.*]] = "pw.launch"(%arg0) {callee = @f
    %a = "pw.launch"(%x) {callee = @f, slice = @s0} : (!x) -> !x
    // CHECK: %[[FIRST:.*]] = "pw.launch"(%[[A]]) {callee = @[[G0:.*]], phase = "glue", slice = @s0}
    %b = stablehlo.negate %a {pw.slice = @s0} : !x
    %c = stablehlo.tanh %b {pw.slice = @s0} : !x
    // CHECK: %[[D:.*]] = "pw.launch"(%[[A]]) {callee = @f
    %d = "pw.launch"(%a) {callee = @f, slice = @s0} : (!x) -> !x
    // CHECK: %[[SECOND:.*]] = "pw.launch"(%[[D]]) {callee = @[[G1:.*]], phase = "glue", slice = @s0}
    %e = stablehlo.exponential %d {pw.slice = @s0} : !x
    // CHECK: return %[[FIRST]], %[[SECOND]]
    return %c, %e : !x, !x
  }
  func.func private @f(%x: !x) -> !x {
    return %x : !x
  }
  // CHECK: func.func private @[[G0]]
  // CHECK-NEXT: stablehlo.negate
  // CHECK-NEXT: stablehlo.tanh
  // CHECK-NEXT: return
  // CHECK: func.func private @[[G1]]
  // CHECK-NEXT: stablehlo.exponential
  // CHECK-NEXT: return
}

// -----

// Work that only one computation reads joins it, though it could run earlier; mirrored work is repeated
// in each that reads it, and what the caller gets of it comes from one of them per slice.

!x = tensor<4xf32>
// CHECK-LABEL: module @joined_and_repeated
module @joined_and_repeated attributes {pw.form = "imported"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  "pw.slice"() {sym_name = "s1", mesh = @mesh} : () -> ()
  func.func @main(%x: !x {pw.slice = @s0}, %y: !x {pw.slice = @s1}, %n: tensor<f32> {pw.slice = [@s0, @s1]}) -> (!x {pw.slice = @s0}, !x {pw.slice = @s1}, tensor<f32> {pw.slice = [@s0, @s1]}) {
    %a = "pw.launch"(%x) {callee = @f, slice = @s0} : (!x) -> !x
    %b = "pw.launch"(%y) {callee = @f, slice = @s1} : (!x) -> !x
    %m = stablehlo.negate %n {pw.mirrored, pw.slice = [@s0, @s1]} : tensor<f32>
    %k = stablehlo.broadcast_in_dim %m, dims = [] {pw.mirrored, pw.slice = [@s0, @s1]} : (tensor<f32>) -> !x
    %early = stablehlo.tanh %x {pw.slice = @s0} : !x
    %c = stablehlo.add %a, %early {pw.slice = @s0} : !x
    // CHECK: %[[R0:.*]]:2 = "pw.launch"(%arg0, %{{.*}}, %arg2) {callee = @[[G0:.*]], phase = "glue", slice = @s0}
    %d = stablehlo.add %c, %k {pw.slice = @s0} : !x
    // CHECK: %[[R1:.*]]:2 = "pw.launch"(%{{.*}}, %arg2) {callee = @[[G1:.*]], phase = "glue", slice = @s1}
    %e = stablehlo.add %b, %k {pw.slice = @s1} : !x
    // CHECK: %[[BOTH:.*]] = "pw.mirror"(%[[R0]]#1, %[[R1]]#1)
    // CHECK: return %[[R0]]#0, %[[R1]]#0, %[[BOTH]]
    return %d, %e, %m : !x, !x, tensor<f32>
  }
  func.func private @f(%x: !x) -> !x {
    return %x : !x
  }
  // CHECK: func.func private @[[G0]]
  // CHECK-DAG: stablehlo.tanh
  // CHECK-DAG: stablehlo.negate
  // CHECK: func.func private @[[G1]]
  // CHECK-NEXT: stablehlo.negate
  // CHECK-NEXT: stablehlo.broadcast_in_dim
  // CHECK-NEXT: stablehlo.add
}

// -----

// Equal computations become one.

!x = tensor<4xf32>
// CHECK-LABEL: module @equal_glue
module @equal_glue attributes {pw.form = "imported"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  "pw.slice"() {sym_name = "s1", mesh = @mesh} : () -> ()
  func.func @main(%x: !x {pw.slice = @s0}, %y: !x {pw.slice = @s1}) -> (!x {pw.slice = @s0}, !x {pw.slice = @s1}) {
    // CHECK: callee = @[[G:.*]], phase = "glue", slice = @s0
    %a = stablehlo.tanh %x {pw.slice = @s0} : !x
    // CHECK: callee = @[[G]], phase = "glue", slice = @s1
    %b = stablehlo.tanh %y {pw.slice = @s1} : !x
    return %a, %b : !x, !x
  }
}

// -----

// A value for another slice leaves before the rest is worked out: the sum has a computation of its own,
// though the update waits for nothing more.

!x = tensor<4xf32>
// CHECK-LABEL: module @leaves_first
module @leaves_first attributes {pw.form = "imported"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  "pw.slice"() {sym_name = "s1", mesh = @mesh} : () -> ()
  func.func @main(%x: !x {pw.slice = @s0}) -> (!x {pw.slice = @s0}, !x {pw.slice = @s1}) {
    %a = "pw.launch"(%x) {callee = @f, slice = @s0} : (!x) -> !x
    // CHECK: %[[SUM:.*]] = "pw.launch"(%{{.*}}) {callee = @[[G0:.*]], phase = "glue", slice = @s0}
    %s = stablehlo.add %a, %a {pw.slice = @s0} : !x
    // CHECK: "pw.launch"(%[[SUM]], %{{.*}}) {callee = @[[G1:.*]], phase = "glue", slice = @s0}
    %t = stablehlo.tanh %s {pw.slice = @s0} : !x
    %u = stablehlo.multiply %t, %a {pw.slice = @s0} : !x
    // CHECK: "pw.launch"(%[[SUM]]) {callee = @[[G2:.*]], phase = "glue", slice = @s1}
    %v = stablehlo.negate %s {pw.slice = @s1} : !x
    return %u, %v : !x, !x
  }
  func.func private @f(%x: !x) -> !x {
    return %x : !x
  }
}
