// RUN: pw-opt %s --split-input-file --pw-sink-constants --pw-dce | filecheck %s

// A mask that a forward makes from nothing is made again by its backward; a value of the argument is handed over.

!x = tensor<4xf32>
!m = tensor<4xi1>
// CHECK-LABEL: module @mask
module @mask attributes {pw.form = "outlined"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  func.func @main(%x: !x {pw.slice = @s0}) -> (!x {pw.slice = @s0}) {
    // CHECK: %[[Y:.*]] = "pw.launch"(%arg0) {callee = @front
    // CHECK-NEXT: "pw.launch"(%[[Y]]) {callee = @back
    %y, %m = "pw.launch"(%x) {callee = @front, slice = @s0, origins = [{kind = "fwd"}]} : (!x) -> (!x, !m)
    %z = "pw.launch"(%y, %m) {callee = @back, slice = @s0, origins = [{kind = "bwd"}]} : (!x, !m) -> !x
    return %z : !x
  }
  func.func private @front(%x: !x) -> (!x, !m) {
    %i = stablehlo.iota dim = 0 : tensor<4xi32>
    %two = stablehlo.constant dense<2> : tensor<4xi32>
    %m = stablehlo.compare LT, %i, %two : (tensor<4xi32>, tensor<4xi32>) -> !m
    %y = stablehlo.negate %x : !x
    return %y, %m : !x, !m
  }
  // CHECK: func.func private @back(%arg0: tensor<4xf32>)
  // CHECK-NEXT: stablehlo.iota
  // CHECK-NEXT: stablehlo.constant
  // CHECK-NEXT: %[[M:.*]] = stablehlo.compare
  // CHECK-NEXT: stablehlo.select %[[M]], %arg0, %arg0
  func.func private @back(%y: !x, %m: !m) -> !x {
    %z = stablehlo.select %m, %y, %y : !m, !x
    return %z : !x
  }
}

// -----

// One launch of @back reads the constant, the other does not: there is one @back, so it is handed over.

!x = tensor<4xf32>
// CHECK-LABEL: module @two_readers
module @two_readers attributes {pw.form = "outlined"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  func.func @main(%x: !x {pw.slice = @s0}) -> (!x {pw.slice = @s0}) {
    // CHECK: %[[ONE:.*]]:2 = "pw.launch"(%arg0) {callee = @one
    // CHECK-NEXT: %[[A:.*]] = "pw.launch"(%[[ONE]]#0, %[[ONE]]#1)
    // CHECK-NEXT: "pw.launch"(%[[A]], %arg0)
    %y, %one = "pw.launch"(%x) {callee = @one, slice = @s0, origins = [{kind = "fwd"}]} : (!x) -> (!x, !x)
    %a = "pw.launch"(%y, %one) {callee = @back, slice = @s0, origins = [{kind = "bwd"}]} : (!x, !x) -> !x
    %b = "pw.launch"(%a, %x) {callee = @back, slice = @s0, origins = [{kind = "bwd"}]} : (!x, !x) -> !x
    return %b : !x
  }
  func.func private @one(%x: !x) -> (!x, !x) {
    %y = stablehlo.tanh %x : !x
    %c = stablehlo.constant dense<1.0> : !x
    return %y, %c : !x, !x
  }
  func.func private @back(%x: !x, %y: !x) -> !x {
    %z = stablehlo.add %x, %y : !x
    return %z : !x
  }
}

// -----

// What becomes constant in one computation makes a result of it constant; a product of matrices is not repeated.

!x = tensor<4x4xf32>
// CHECK-LABEL: module @chain
module @chain attributes {pw.form = "outlined"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  func.func @main(%x: !x {pw.slice = @s0}) -> (!x {pw.slice = @s0}) {
    // CHECK: %[[T:.*]] = "pw.launch"(%arg0) {callee = @ones
    // CHECK-NEXT: %[[P:.*]]:2 = "pw.launch"(%[[T]]) {callee = @square
    // CHECK-NEXT: "pw.launch"(%[[P]]#0, %[[P]]#1) {callee = @last
    %t, %a = "pw.launch"(%x) {callee = @ones, slice = @s0, origins = [{kind = "fwd"}]} : (!x) -> (!x, !x)
    %u, %n, %p = "pw.launch"(%t, %a) {callee = @square, slice = @s0, origins = [{kind = "fwd"}]} : (!x, !x) -> (!x, !x, !x)
    %z = "pw.launch"(%u, %n, %p) {callee = @last, slice = @s0, origins = [{kind = "fwd"}]} : (!x, !x, !x) -> !x
    return %z : !x
  }
  func.func private @ones(%x: !x) -> (!x, !x) {
    %t = stablehlo.tanh %x : !x
    %c = stablehlo.constant dense<1.0> : !x
    return %t, %c : !x, !x
  }
  func.func private @square(%t: !x, %a: !x) -> (!x, !x, !x) {
    %u = stablehlo.add %t, %a : !x
    %n = stablehlo.negate %a : !x
    %p = stablehlo.dot_general %a, %a, contracting_dims = [1] x [0] : (!x, !x) -> !x
    return %u, %n, %p : !x, !x, !x
  }
  // CHECK: func.func private @last(%arg0: tensor<4x4xf32>, %arg1: tensor<4x4xf32>)
  // CHECK-NEXT: stablehlo.constant
  // CHECK-NEXT: %[[N:.*]] = stablehlo.negate
  // CHECK-NEXT: stablehlo.add %arg0, %[[N]]
  func.func private @last(%u: !x, %n: !x, %p: !x) -> !x {
    %s = stablehlo.add %u, %n : !x
    %z = stablehlo.add %s, %p : !x
    return %z : !x
  }
}

// -----

// A call that makes nothing but a constant stays a call.

!x = tensor<4xf32>
// CHECK-LABEL: module @only_constants
module @only_constants attributes {pw.form = "outlined"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  func.func @main() -> (!x {pw.slice = @s0}) {
    // CHECK: %[[ONE:.*]] = "pw.launch"() {callee = @one
    // CHECK-NEXT: "pw.launch"(%[[ONE]]) {callee = @f
    %one = "pw.launch"() {callee = @one, slice = @s0, origins = [{kind = "fwd"}]} : () -> !x
    %y = "pw.launch"(%one) {callee = @f, slice = @s0, origins = [{kind = "fwd"}]} : (!x) -> !x
    return %y : !x
  }
  func.func private @one() -> !x {
    %c = stablehlo.constant dense<1.0> : !x
    return %c : !x
  }
  func.func private @f(%x: !x) -> !x {
    %y = stablehlo.negate %x : !x
    return %y : !x
  }
}

// -----

// A constant with a constraint is taken to another slice without it: it names the mesh of the first.

!x = tensor<4xf32>
// CHECK-LABEL: module @constraint
module @constraint attributes {pw.form = "outlined"} {
  sdy.mesh @mesh = <["x"=4]>
  sdy.mesh @other = <["x"=2]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  "pw.slice"() {sym_name = "s1", mesh = @other} : () -> ()
  func.func @main(%x: !x {pw.slice = @s0}) -> (!x {pw.slice = @s1}) {
    %y, %c = "pw.launch"(%x) {callee = @front, slice = @s0, origins = [{kind = "fwd"}]} : (!x) -> (!x, !x)
    %z = "pw.launch"(%y, %c) {callee = @back, slice = @s1, origins = [{kind = "bwd"}]} : (!x, !x) -> !x
    return %z : !x
  }
  func.func private @front(%x: !x) -> (!x, !x) {
    %y = stablehlo.negate %x : !x
    %one = stablehlo.constant dense<1.0> : !x
    %c = sdy.sharding_constraint %one <@mesh, [{"x"}]> : !x
    %d = stablehlo.negate %c : !x
    return %y, %d : !x, !x
  }
  // CHECK: func.func private @back(%arg0: tensor<4xf32>)
  // CHECK-NEXT: %[[ONE:.*]] = stablehlo.constant
  // CHECK-NEXT: %[[C:.*]] = stablehlo.negate %[[ONE]]
  // CHECK-NEXT: stablehlo.add %arg0, %[[C]]
  func.func private @back(%y: !x, %c: !x) -> !x {
    %z = stablehlo.add %y, %c : !x
    return %z : !x
  }
}
