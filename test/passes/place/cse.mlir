// RUN: pw-opt %s --pw-cse | filecheck %s

// Equal launches become one, and then their users may be equal too. What jax.checkpoint repeats on
// purpose, what has side effects, and what runs on another slice stays.

!x = tensor<4xf32>
module attributes {pw.form = "unrolled"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  "pw.slice"() {sym_name = "s1", mesh = @mesh} : () -> ()
  // CHECK-LABEL: func.func @main
  func.func @main(%x: !x {pw.slice = [@s0, @s1]}) -> (!x {pw.slice = @s0}, !x {pw.slice = @s1}, !x {pw.slice = @s1}, !x {pw.slice = @s1}, !x {pw.slice = @s0}) {
    // CHECK-NEXT: %[[A:.*]] = "pw.launch"(%arg0) {callee = @f, slice = @s0}
    %a = "pw.launch"(%x) {callee = @f, slice = @s0} : (!x) -> !x
    %b = "pw.launch"(%x) {callee = @f, slice = @s0} : (!x) -> !x
    // CHECK-NEXT: %[[C:.*]] = "pw.transfer"(%[[A]]) {slice = @s1}
    %c = "pw.transfer"(%a) {slice = @s1} : (!x) -> !x
    %d = "pw.transfer"(%b) {slice = @s1} : (!x) -> !x
    // CHECK-NEXT: %[[E:.*]] = "pw.launch"(%arg0) {callee = @f, slice = @s1}
    %e = "pw.launch"(%x) {callee = @f, slice = @s1} : (!x) -> !x
    // CHECK-NEXT: %[[R:.*]] = "pw.launch"(%arg0) {callee = @f, origins = [{kind = "recompute"}], slice = @s0}
    %r = "pw.launch"(%x) {callee = @f, origins = [{kind = "recompute"}], slice = @s0} : (!x) -> !x
    // CHECK-NEXT: "pw.launch"(%arg0) {callee = @prints, slice = @s0}
    "pw.launch"(%x) {callee = @prints, slice = @s0} : (!x) -> ()
    // CHECK-NEXT: "pw.launch"(%arg0) {callee = @prints, slice = @s0}
    "pw.launch"(%x) {callee = @prints, slice = @s0} : (!x) -> ()
    // CHECK-NEXT: return %[[A]], %[[C]], %[[C]], %[[E]], %[[R]]
    return %b, %c, %d, %e, %r : !x, !x, !x, !x, !x
  }
  func.func private @f(%x: !x) -> !x {
    return %x : !x
  }
  func.func private @prints(%x: !x) {
    stablehlo.custom_call @print(%x) {has_side_effect = true} : (!x) -> ()
    return
  }
}
