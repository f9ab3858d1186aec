// RUN: pw-opt %s --split-input-file -p 'pw-fuse-launches{large=1}' | filecheck %s

// A large computation that runs for each microbatch takes along what all of its launches take alike: the block of
// its own microbatch. What is done once, in front of the loop or behind it, stays apart, so that XLA compiles one
// version.

!x = tensor<4xf32>
// CHECK-LABEL: module @one_version
module @one_version attributes {pw.form = "ordered"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  "pw.loop"() {sym_name = "batch", count = 2} : () -> ()
  // CHECK: callee = @scale, order = 0
  // CHECK-NEXT: callee = @f_fused, loop = @batch, microbatch = 0 : i64, order = 1
  // CHECK-NEXT: callee = @f_fused, loop = @batch, microbatch = 1 : i64, order = 2
  // CHECK-NEXT: callee = @update, order = 3
  func.func @main(%x: !x {pw.slice = @s0}) -> (!x {pw.slice = @s0}) {
    %seed = "pw.launch"(%x) {callee = @scale, order = 0, slice = @s0} : (!x) -> !x
    %b0 = "pw.launch"(%x) {callee = @block, loop = @batch, microbatch = 0, order = 1, slice = @s0} : (!x) -> !x
    %g0 = "pw.launch"(%b0, %seed) {callee = @f, loop = @batch, microbatch = 0, order = 2, origins = [{kind = "bwd", microbatch = 0, stage = 0}], slice = @s0} : (!x, !x) -> !x
    %b1 = "pw.launch"(%x) {callee = @block, loop = @batch, microbatch = 1, order = 3, slice = @s0} : (!x) -> !x
    %g1 = "pw.launch"(%b1, %g0) {callee = @f, loop = @batch, microbatch = 1, order = 4, origins = [{kind = "bwd", microbatch = 1, stage = 0}], slice = @s0} : (!x, !x) -> !x
    %new = "pw.launch"(%g1) {callee = @update, order = 5, slice = @s0} : (!x) -> !x
    return %new : !x
  }
  func.func private @scale(%x: !x) -> !x {
    %y = stablehlo.negate %x : !x
    return %y : !x
  }
  func.func private @block(%x: !x) -> !x {
    %y = stablehlo.abs %x : !x
    return %y : !x
  }
  func.func private @f(%x: !x, %y: !x) -> !x {
    %z = stablehlo.add %x, %y : !x
    return %z : !x
  }
  func.func private @update(%x: !x) -> !x {
    %y = stablehlo.tanh %x : !x
    return %y : !x
  }
}

// -----

// A constant that all launches read becomes part of each; one that a single launch reads stays apart.

!x = tensor<4xf32>
// CHECK-LABEL: module @constants
module @constants attributes {pw.form = "ordered"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  "pw.loop"() {sym_name = "batch", count = 2} : () -> ()
  // CHECK: %[[FIRST:.*]] = "pw.launch"() {callee = @constant, order = 0
  // CHECK-NEXT: "pw.launch"(%[[FIRST]]) {callee = @f_fused, loop = @batch, microbatch = 0 : i64, order = 1
  // CHECK-NEXT: callee = @f_fused, loop = @batch, microbatch = 1 : i64, order = 2
  func.func @main() -> (!x {pw.slice = @s0}) {
    %first = "pw.launch"() {callee = @constant, order = 0, slice = @s0} : () -> !x
    %all = "pw.launch"() {callee = @constant, order = 1, slice = @s0} : () -> !x
    %g0 = "pw.launch"(%first, %all) {callee = @f, loop = @batch, microbatch = 0, order = 2, origins = [{kind = "bwd", microbatch = 0, stage = 0}], slice = @s0} : (!x, !x) -> !x
    %g1 = "pw.launch"(%g0, %all) {callee = @f, loop = @batch, microbatch = 1, order = 3, origins = [{kind = "bwd", microbatch = 1, stage = 0}], slice = @s0} : (!x, !x) -> !x
    return %g1 : !x
  }
  func.func private @constant() -> !x {
    %y = stablehlo.constant dense<1.0> : !x
    return %y : !x
  }
  func.func private @f(%x: !x, %y: !x) -> !x {
    %z = stablehlo.add %x, %y : !x
    return %z : !x
  }
}

// -----

// With one microbatch there is one launch of it, which takes everything along.

!x = tensor<4xf32>
// CHECK-LABEL: module @one_microbatch
module @one_microbatch attributes {pw.form = "ordered"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  "pw.loop"() {sym_name = "batch", count = 1} : () -> ()
  // CHECK: "pw.launch"(%arg0) {callee = @f_fused, loop = @batch, microbatch = 0 : i64, order = 0
  // CHECK-NEXT: return
  func.func @main(%x: !x {pw.slice = @s0}) -> (!x {pw.slice = @s0}) {
    %g0 = "pw.launch"(%x) {callee = @f, loop = @batch, microbatch = 0, order = 0, origins = [{kind = "bwd", microbatch = 0, stage = 0}], slice = @s0} : (!x) -> !x
    %new = "pw.launch"(%g0) {callee = @update, order = 1, slice = @s0} : (!x) -> !x
    return %new : !x
  }
  func.func private @f(%x: !x) -> !x {
    %z = stablehlo.negate %x : !x
    return %z : !x
  }
  func.func private @update(%x: !x) -> !x {
    %y = stablehlo.tanh %x : !x
    return %y : !x
  }
}

// -----

// The update of equal stages is compiled once: on the slice where something else stands next to it, it does not take
// that along.

!x = tensor<4xf32>
// CHECK-LABEL: module @equal_updates
module @equal_updates attributes {pw.form = "ordered"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  "pw.slice"() {sym_name = "s1", mesh = @mesh} : () -> ()
  // CHECK-DAG: callee = @update, order = 0 : i64, slice = @s0
  // CHECK-DAG: callee = @mean, order = 0 : i64, slice = @s1
  // CHECK-DAG: callee = @update, order = 1 : i64, slice = @s1
  // CHECK-NOT: _fused
  func.func @main(%x: !x {pw.slice = @s0}, %y: !x {pw.slice = @s1}, %l: !x {pw.slice = @s1})
      -> (!x {pw.slice = @s0}, !x {pw.slice = @s1}, !x {pw.slice = @s1}) {
    %a = "pw.launch"(%x) {callee = @update, order = 0, slice = @s0} : (!x) -> !x
    %m = "pw.launch"(%l) {callee = @mean, order = 0, slice = @s1} : (!x) -> !x
    %b = "pw.launch"(%y) {callee = @update, order = 1, slice = @s1} : (!x) -> !x
    return %a, %b, %m : !x, !x, !x
  }
  func.func private @update(%x: !x) -> !x {
    %y = stablehlo.tanh %x : !x
    return %y : !x
  }
  func.func private @mean(%x: !x) -> !x {
    %y = stablehlo.negate %x : !x
    return %y : !x
  }
}

// -----

// What all of its launches take along stays with it.

!x = tensor<4xf32>
// CHECK-LABEL: module @equal_neighbours
module @equal_neighbours attributes {pw.form = "ordered"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  "pw.slice"() {sym_name = "s1", mesh = @mesh} : () -> ()
  // CHECK-DAG: callee = @[[BOTH:.*_fused]], order = 0 : i64, slice = @s0
  // CHECK-DAG: callee = @[[BOTH]], order = 0 : i64, slice = @s1
  func.func @main(%x: !x {pw.slice = @s0}, %y: !x {pw.slice = @s1}) -> (!x {pw.slice = @s0}, !x {pw.slice = @s1}) {
    %a = "pw.launch"(%x) {callee = @mean, order = 0, slice = @s0} : (!x) -> !x
    %b = "pw.launch"(%a) {callee = @update, order = 1, slice = @s0} : (!x) -> !x
    %c = "pw.launch"(%y) {callee = @mean, order = 0, slice = @s1} : (!x) -> !x
    %d = "pw.launch"(%c) {callee = @update, order = 1, slice = @s1} : (!x) -> !x
    return %b, %d : !x, !x
  }
  func.func private @update(%x: !x) -> !x {
    %y = stablehlo.tanh %x : !x
    return %y : !x
  }
  func.func private @mean(%x: !x) -> !x {
    %y = stablehlo.negate %x : !x
    return %y : !x
  }
}
