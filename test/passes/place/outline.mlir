// RUN: pw-opt %s --split-input-file --pw-outline | filecheck %s

// Code between launches becomes a computation per slice and per set of things it waits for: what waits
// for the second launch must not hold up what waits only for the first.

!x = tensor<4xf32>
// CHECK-LABEL: module @one_computation_per_wait
module @one_computation_per_wait attributes {pw.form = "located"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  func.func @main(%x: !x {pw.slice = @s0}) -> (!x {pw.slice = @s0}, !x {pw.slice = @s0}) {
    // CHECK: %[[A:.*]] = "pw.launch"(%arg0) {callee = @f
    %a = "pw.launch"(%x) {callee = @f, slice = @s0} : (!x) -> !x
    // CHECK: %[[FIRST:.*]] = "pw.launch"(%[[A]]) {callee = @[[G0:glue.*]], slice = @s0}
    %b = stablehlo.negate %a {pw.slice = @s0} : !x
    %c = stablehlo.tanh %b {pw.slice = @s0} : !x
    // CHECK: %[[D:.*]] = "pw.launch"(%[[A]]) {callee = @f
    %d = "pw.launch"(%a) {callee = @f, slice = @s0} : (!x) -> !x
    // CHECK: %[[SECOND:.*]] = "pw.launch"(%[[D]]) {callee = @[[G1:glue.*]], slice = @s0}
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
module @joined_and_repeated attributes {pw.form = "located"} {
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
    // CHECK: %[[R0:.*]]:2 = "pw.launch"(%arg0, %{{.*}}, %arg2) {callee = @[[G0:glue.*]], slice = @s0}
    %d = stablehlo.add %c, %k {pw.slice = @s0} : !x
    // CHECK: %[[R1:.*]]:2 = "pw.launch"(%{{.*}}, %arg2) {callee = @[[G1:glue.*]], slice = @s1}
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
module @equal_glue attributes {pw.form = "located"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  "pw.slice"() {sym_name = "s1", mesh = @mesh} : () -> ()
  func.func @main(%x: !x {pw.slice = @s0}, %y: !x {pw.slice = @s1}) -> (!x {pw.slice = @s0}, !x {pw.slice = @s1}) {
    // CHECK: callee = @[[G:glue.*]], slice = @s0
    %a = stablehlo.tanh %x {pw.slice = @s0} : !x
    // CHECK: callee = @[[G]], slice = @s1
    %b = stablehlo.tanh %y {pw.slice = @s1} : !x
    return %a, %b : !x, !x
  }
}

// -----

// A value for another slice leaves before the rest is worked out: the sum has a computation of its own,
// though the update waits for nothing more.

!x = tensor<4xf32>
// CHECK-LABEL: module @leaves_first
module @leaves_first attributes {pw.form = "located"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  "pw.slice"() {sym_name = "s1", mesh = @mesh} : () -> ()
  func.func @main(%x: !x {pw.slice = @s0}) -> (!x {pw.slice = @s0}, !x {pw.slice = @s1}) {
    %a = "pw.launch"(%x) {callee = @f, slice = @s0} : (!x) -> !x
    // CHECK: %[[SUM:.*]] = "pw.launch"(%{{.*}}) {callee = @[[G0:glue.*]], slice = @s0}
    %s = stablehlo.add %a, %a {pw.slice = @s0} : !x
    // CHECK: "pw.launch"(%[[SUM]], %{{.*}}) {callee = @[[G1:glue.*]], slice = @s0}
    %t = stablehlo.tanh %s {pw.slice = @s0} : !x
    %u = stablehlo.multiply %t, %a {pw.slice = @s0} : !x
    // CHECK: "pw.launch"(%[[SUM]]) {callee = @[[G2:glue.*]], slice = @s1}
    %v = stablehlo.negate %s {pw.slice = @s1} : !x
    return %u, %v : !x, !x
  }
  func.func private @f(%x: !x) -> !x {
    return %x : !x
  }
}

// -----

// What is done for each microbatch is kept apart from what is done once: the cast of a weight, in front of the
// loop, is not repeated with the work of the loop that reads it, and the update is not part of it. What the
// microbatches begin with and what they end in counts as one thing to wait for.

!w = tensor<4xf32>
!x = tensor<8xf32>
// CHECK-LABEL: module @loop
module @loop attributes {pw.form = "located"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  "pw.loop"() {sym_name = "batch", count = 2} : () -> ()
  func.func @main(%w: !w {pw.slice = @s0}, %x: !x {pw.slice = @s0}, %y: !x {pw.slice = @s0}) -> (!w {pw.slice = @s0}, !w {pw.slice = @s0}) {
    // CHECK-DAG: %[[CAST:.*]] = "pw.launch"(%arg0) {callee = @[[BEFORE:glue.*]], slice = @s0}
    %v = stablehlo.negate %w {pw.slice = @s0} : !w
    // CHECK-DAG: %[[A:.*]] = "pw.split"(%arg1) {loop = @batch, slice = @s0}
    %a = "pw.split"(%x) {loop = @batch, slice = @s0} : (!x) -> !w
    // CHECK-DAG: %[[B:.*]] = "pw.split"(%arg2) {loop = @batch, slice = @s0}
    %b = "pw.split"(%y) {loop = @batch, slice = @s0} : (!x) -> !w
    // CHECK: %[[IN:.*]]:2 = "pw.launch"({{.*}}) {callee = @[[INSIDE:glue.*]], loop = @batch, slice = @s0}
    %c = stablehlo.multiply %a, %v {pw.loop = @batch, pw.slice = @s0} : !w
    %d = stablehlo.add %c, %b {pw.loop = @batch, pw.slice = @s0} : !w
    %s = "pw.reduce"(%c) {kind = "sum", loop = @batch, slice = @s0} : (!w) -> !w
    %t = "pw.reduce"(%d) {kind = "sum", loop = @batch, slice = @s0} : (!w) -> !w
    // CHECK: %[[OUT:.*]]:2 = "pw.launch"({{.*}}) {callee = @[[AFTER:glue.*]], slice = @s0}
    // CHECK: return %[[OUT]]#{{.}}, %[[OUT]]#{{.}}
    %m = stablehlo.subtract %w, %s {pw.slice = @s0} : !w
    %n = stablehlo.divide %w, %t {pw.slice = @s0} : !w
    return %m, %n : !w, !w
  }
  // CHECK-DAG: func.func private @[[BEFORE]]
  // CHECK-DAG: stablehlo.negate
  // CHECK-DAG: func.func private @[[INSIDE]]
  // CHECK-DAG: stablehlo.multiply
  // CHECK-DAG: func.func private @[[AFTER]]
  // CHECK-DAG: stablehlo.subtract
}

// -----

// Equal functions are merged, and whatever names one of them names the first, in arrays and dictionaries too.

!x = tensor<4xf32>
// CHECK-LABEL: module @what_names_equal_functions
module @what_names_equal_functions attributes {pw.form = "located"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  func.func @main(%x: !x {pw.slice = @s0}) -> (!x {pw.slice = @s0}, !x {pw.slice = @s0}) {
    %a = "pw.launch"(%x) {callee = @f, slice = @s0} : (!x) -> !x
    %b = stablehlo.custom_call @top(%a) {pw.slice = @s0, called_computations = [@less_again], notes = {same = [@less_again]}} : (!x) -> !x
    return %a, %b : !x, !x
  }
  // CHECK: func.func private @f
  func.func private @f(%x: !x) -> !x {
    // CHECK: stablehlo.custom_call @top(%{{.*}}) {called_computations = [@less]}
    %y = stablehlo.custom_call @top(%x) {called_computations = [@less]} : (!x) -> !x
    return %y : !x
  }
  // CHECK: func.func private @less(
  func.func private @less(%a: tensor<f32>, %b: tensor<f32>) -> tensor<i1> {
    %c = stablehlo.compare LT, %a, %b : (tensor<f32>, tensor<f32>) -> tensor<i1>
    stablehlo.return %c : tensor<i1>
  }
  // CHECK-NOT: @less_again
  // CHECK: stablehlo.custom_call @top(%{{.*}}) {called_computations = [@less], notes = {same = [@less]}}
  func.func private @less_again(%a: tensor<f32>, %b: tensor<f32>) -> tensor<i1> {
    %c = stablehlo.compare LT, %a, %b : (tensor<f32>, tensor<f32>) -> tensor<i1>
    stablehlo.return %c : tensor<i1>
  }
}

// -----

// A constant that each iteration of a loop computes for itself, and the caller gets: an iteration returns its own
// values, so that it is computed once more, outside of the loop.

!x = tensor<8xf32>
!w = tensor<4xf32>
// CHECK-LABEL: module @constant_of_a_loop_and_the_caller
module @constant_of_a_loop_and_the_caller attributes {pw.form = "located"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  "pw.loop"() {sym_name = "batch", count = 2} : () -> ()
  func.func @main(%x: !x {pw.slice = @s0}) -> (!w {pw.slice = @s0}, !w {pw.slice = @s0}) {
    // CHECK: "pw.launch"(%{{.*}}) {callee = @{{.*}}, loop = @batch, slice = @s0} : (tensor<4xf32>) -> tensor<4xf32>
    // CHECK: %[[C:.*]] = "pw.launch"() {callee = @{{.*}}, slice = @s0} : () -> tensor<4xf32>
    // CHECK: return %{{.*}}, %[[C]]
    %c = stablehlo.constant {pw.mirrored, pw.slice = @s0} dense<2.0> : !w
    %a = "pw.split"(%x) {loop = @batch, slice = @s0} : (!x) -> !w
    %d = stablehlo.multiply %a, %c {pw.loop = @batch, pw.slice = @s0} : !w
    %s = "pw.reduce"(%d) {kind = "sum", loop = @batch, slice = @s0} : (!w) -> !w
    return %s, %c : !w, !w
  }
}

// -----

// Complex constants cannot be compared: what differs in one alone is another computation.

!c = tensor<4xcomplex<f32>>
// CHECK-LABEL: module @complex_constants
module @complex_constants attributes {pw.form = "located"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  func.func @main(%x: !c {pw.slice = @s0}) -> (!c {pw.slice = @s0}, !c {pw.slice = @s0}) {
    %a = "pw.launch"(%x) {callee = @f, slice = @s0} : (!c) -> !c
    // CHECK: "pw.launch"(%{{.*}}) {callee = @[[G0:glue.*]], slice = @s0}
    %k = stablehlo.constant {pw.slice = @s0} dense<(1.0, 2.0)> : !c
    %b = stablehlo.multiply %a, %k {pw.slice = @s0} : !c
    %d = "pw.launch"(%a) {callee = @f, slice = @s0} : (!c) -> !c
    // CHECK-NOT: callee = @[[G0]],
    // CHECK: return
    %l = stablehlo.constant {pw.slice = @s0} dense<(3.0, 4.0)> : !c
    %e = stablehlo.multiply %d, %l {pw.slice = @s0} : !c
    return %b, %e : !c, !c
  }
  func.func private @f(%x: !c) -> !c {
    return %x : !c
  }
}

// -----

// An operation with two results gives values of their own: one that reads the second is another computation
// than one that reads the result of the next operation.

!x = tensor<4xf32>
// CHECK-LABEL: module @operations_of_two_results
module @operations_of_two_results attributes {pw.form = "located"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  func.func @main(%x: !x {pw.slice = @s0}) -> (!x {pw.slice = @s0}, !x {pw.slice = @s0}) {
    %a = "pw.launch"(%x) {callee = @f, slice = @s0} : (!x) -> !x
    // CHECK: "pw.launch"(%{{.*}}) {callee = @[[G0:glue.*]], slice = @s0}
    %b:2 = stablehlo.custom_call @two(%a) {pw.slice = @s0} : (!x) -> (!x, !x)
    %c = stablehlo.tanh %b#0 {pw.slice = @s0} : !x
    %o = stablehlo.negate %b#1 {pw.slice = @s0} : !x
    %p = stablehlo.add %o, %c {pw.slice = @s0} : !x
    %d = "pw.launch"(%a) {callee = @f, slice = @s0} : (!x) -> !x
    // CHECK-NOT: callee = @[[G0]],
    // CHECK: return
    %g:2 = stablehlo.custom_call @two(%d) {pw.slice = @s0} : (!x) -> (!x, !x)
    %h = stablehlo.tanh %g#0 {pw.slice = @s0} : !x
    %q = stablehlo.negate %h {pw.slice = @s0} : !x
    %r = stablehlo.add %q, %h {pw.slice = @s0} : !x
    return %p, %r : !x, !x
  }
  func.func private @f(%x: !x) -> !x {
    return %x : !x
  }
}
