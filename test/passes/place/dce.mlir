// RUN: pw-opt %s --split-input-file --pw-dce | filecheck %s

// Launches and transfers that nothing needs go, with what only they needed; side effects stay.

!x = tensor<4xf32>
// CHECK-LABEL: module @dead_operations
module @dead_operations attributes {pw.form = "unrolled"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  "pw.slice"() {sym_name = "s1", mesh = @mesh} : () -> ()
  // CHECK-NOT: "pw.constant"
  "pw.constant"() {sym_name = "k0", value = dense<1.0> : !x} : () -> ()
  // CHECK: func.func @main(%arg0: tensor<4xf32> {pw.slice = @s0})
  func.func @main(%x: !x {pw.slice = @s0}, %k: !x {pw.slice = @s0, pw.constant = @k0}) -> (!x {pw.slice = @s0}) {
    // CHECK-NEXT: %[[A:.*]] = "pw.launch"(%arg0) {callee = @f, slice = @s0}
    %a = "pw.launch"(%x) {callee = @f, slice = @s0} : (!x) -> !x
    %b = "pw.launch"(%k) {callee = @f, slice = @s0} : (!x) -> !x
    %c = "pw.transfer"(%b) {slice = @s1} : (!x) -> !x
    // CHECK-NEXT: "pw.launch"(%arg0) {callee = @prints, slice = @s0}
    "pw.launch"(%x) {callee = @prints, slice = @s0} : (!x) -> ()
    // CHECK-NEXT: return %[[A]]
    return %a : !x
  }
  func.func private @f(%x: !x) -> !x {
    return %x : !x
  }
  func.func private @prints(%x: !x) {
    stablehlo.custom_call @print(%x) {has_side_effect = true} : (!x) -> ()
    return
  }
  // CHECK-NOT: @unused
  func.func private @unused(%x: !x) -> !x {
    return %x : !x
  }
}

// -----

// A computation loses results that nothing reads, the work behind them, and then the arguments of that
// work. A launch that reads them keeps the whole computation.

!x = tensor<4xf32>
// CHECK-LABEL: module @dead_results
module @dead_results attributes {pw.form = "unrolled"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  // CHECK: func.func @main
  func.func @main(%x: !x {pw.slice = @s0}, %y: !x {pw.slice = @s0}) -> (!x {pw.slice = @s0}, !x {pw.slice = @s0}, !x {pw.slice = @s0}) {
    // CHECK-NEXT: "pw.launch"(%arg0) {callee = @f_1, slice = @s0} : (tensor<4xf32>) -> tensor<4xf32>
    %a:2 = "pw.launch"(%x, %y) {callee = @f, slice = @s0} : (!x, !x) -> (!x, !x)
    // CHECK-NEXT: "pw.launch"(%arg0, %arg1) {callee = @f, slice = @s0} : (tensor<4xf32>, tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>)
    %b:2 = "pw.launch"(%x, %y) {callee = @f, slice = @s0} : (!x, !x) -> (!x, !x)
    return %a#0, %b#0, %b#1 : !x, !x, !x
  }
  // CHECK: func.func private @f_1(%arg0: tensor<4xf32>) -> tensor<4xf32>
  // CHECK-NEXT: stablehlo.negate
  // CHECK-NEXT: return
  func.func private @f(%x: !x, %y: !x) -> (!x, !x) {
    %a = stablehlo.negate %x : !x
    %b = stablehlo.tanh %y : !x
    return %a, %b : !x, !x
  }
}
