// RUN: pw-opt %s --split-input-file --pw-merge-residuals --pw-sink-constants --pw-dce | filecheck %s

// A forward that computes a value twice hands it over once, and the backward has one argument for it. What a small
// function returns is compared as well; what that makes of nothing is worked out in the backward.

!x = tensor<4xf32>
// CHECK-LABEL: module @residuals
module @residuals attributes {pw.form = "outlined"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  // CHECK: func.func public @main
  func.func public @main(%x: !x {pw.slice = @s0}) -> (!x {pw.slice = @s0}) {
    // CHECK: %[[R:.*]] = "pw.launch"(%arg0) {callee = @f_1, slice = @s0} : (tensor<4xf32>) -> tensor<4xf32>
    %r:4 = "pw.launch"(%x) {callee = @f, slice = @s0} : (!x) -> (!x, !x, !x, tensor<f32>)
    // CHECK: "pw.launch"(%[[R]]) {callee = @f_bwd, slice = @s0} : (tensor<4xf32>) -> tensor<4xf32>
    %g = "pw.launch"(%r#0, %r#1, %r#2, %r#3) {callee = @f_bwd, slice = @s0} : (!x, !x, !x, tensor<f32>) -> !x
    return %g : !x
  }
  // CHECK: func.func private @f_1(%arg0: tensor<4xf32>) -> tensor<4xf32>
  func.func private @f(%x: !x) -> (!x, !x, !x, tensor<f32>) {
    %0 = stablehlo.tanh %x : !x
    %1 = stablehlo.tanh %x : !x
    %2:2 = call @helper(%x) : (!x) -> (!x, tensor<f32>)
    return %0, %1, %2#0, %2#1 : !x, !x, !x, tensor<f32>
  }
  // CHECK-NOT: @helper
  func.func private @helper(%x: !x) -> (!x, tensor<f32>) {
    %0 = stablehlo.tanh %x : !x
    %1 = stablehlo.constant dense<2.0> : tensor<f32>
    return %0, %1 : !x, tensor<f32>
  }
  // CHECK: func.func private @f_bwd(%[[A:.*]]: tensor<4xf32>)
  // CHECK-NEXT: %[[TWO:.*]] = stablehlo.constant dense<2.0{{.*}}>
  // CHECK-NEXT: %[[B:.*]] = stablehlo.broadcast_in_dim %[[TWO]]
  // CHECK-NEXT: stablehlo.multiply %[[A]], %[[A]]
  // CHECK-NEXT: stablehlo.multiply %{{.*}}, %[[A]]
  func.func private @f_bwd(%a: !x, %b: !x, %c: !x, %d: tensor<f32>) -> !x {
    %0 = stablehlo.broadcast_in_dim %d, dims = [] : (tensor<f32>) -> !x
    %1 = stablehlo.multiply %a, %b : !x
    %2 = stablehlo.multiply %1, %c : !x
    %3 = stablehlo.multiply %2, %0 : !x
    return %3 : !x
  }
}

// -----

// Reductions are equal when the code inside of them is; random numbers never are. What the caller gets stays as it is.

!x = tensor<4xf32>
!s = tensor<f32>
// CHECK-LABEL: module @unlike
module @unlike attributes {pw.form = "outlined"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  func.func public @main(%x: !x {pw.slice = @s0}, %zero: !s {pw.slice = @s0}) -> (!s {pw.slice = @s0}, !s {pw.slice = @s0}, !s {pw.slice = @s0}) {
    // CHECK: %[[R:.*]]:5 = "pw.launch"(%arg0, %arg1) {callee = @f
    %r:5 = "pw.launch"(%x, %zero) {callee = @f, slice = @s0} : (!x, !s) -> (!s, !s, !s, !x, !x)
    // CHECK: "pw.launch"(%[[R]]#0, %[[R]]#2, %[[R]]#3, %[[R]]#4) {callee = @g
    %g = "pw.launch"(%r#0, %r#1, %r#2, %r#3, %r#4) {callee = @g, slice = @s0} : (!s, !s, !s, !x, !x) -> !s
    // CHECK: return %{{.*}}, %[[R]]#0, %[[R]]#1
    return %g, %r#0, %r#1 : !s, !s, !s
  }
  func.func private @f(%x: !x, %zero: !s) -> (!s, !s, !s, !x, !x) {
    %0 = stablehlo.reduce(%x init: %zero) applies stablehlo.add across dimensions = [0] : (!x, !s) -> !s
    %1 = stablehlo.reduce(%x init: %zero) applies stablehlo.add across dimensions = [0] : (!x, !s) -> !s
    %2 = stablehlo.reduce(%x init: %zero) applies stablehlo.maximum across dimensions = [0] : (!x, !s) -> !s
    %shape = stablehlo.constant dense<4> : tensor<1xi64>
    %3 = stablehlo.rng %zero, %zero, %shape, distribution = UNIFORM : (!s, !s, tensor<1xi64>) -> !x
    %4 = stablehlo.rng %zero, %zero, %shape, distribution = UNIFORM : (!s, !s, tensor<1xi64>) -> !x
    return %0, %1, %2, %3, %4 : !s, !s, !s, !x, !x
  }
  func.func private @g(%a: !s, %b: !s, %c: !s, %d: !x, %e: !x) -> !s {
    %0 = stablehlo.add %a, %b : !s
    %1 = stablehlo.add %0, %c : !s
    %2 = stablehlo.add %d, %e : !x
    %3 = stablehlo.reduce(%2 init: %1) applies stablehlo.add across dimensions = [0] : (!x, !s) -> !s
    return %3 : !s
  }
}
