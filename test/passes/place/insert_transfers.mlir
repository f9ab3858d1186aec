// RUN: pw-opt %s --pw-insert-transfers | filecheck %s

// A value that several launches of another slice read moves there once, right behind its producer. A
// mirrored argument is there already. What a caller gets on another slice moves too.

!x = tensor<4xf32>
module attributes {pw.form = "outlined"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  "pw.slice"() {sym_name = "s1", mesh = @mesh} : () -> ()
  // CHECK-LABEL: func.func @main
  func.func @main(%x: !x {pw.slice = @s0}, %both: !x {pw.slice = [@s0, @s1]}) -> (!x {pw.slice = @s1}, !x {pw.slice = @s1}, !x {pw.slice = @s0}) {
    // CHECK-NEXT: %[[X1:.*]] = "pw.transfer"(%arg0) {slice = @s1}
    // CHECK-NEXT: %[[A:.*]] = "pw.launch"(%arg0, %arg1) {callee = @f, slice = @s0}
    %a = "pw.launch"(%x, %both) {callee = @f, slice = @s0} : (!x, !x) -> !x
    // CHECK-NEXT: %[[A1:.*]] = "pw.transfer"(%[[A]]) {slice = @s1}
    // CHECK-NEXT: %[[B:.*]] = "pw.launch"(%[[A1]], %arg1) {callee = @f, slice = @s1}
    %b = "pw.launch"(%a, %both) {callee = @f, slice = @s1} : (!x, !x) -> !x
    // CHECK-NEXT: %[[B0:.*]] = "pw.transfer"(%[[B]]) {slice = @s0}
    // CHECK-NEXT: %[[C:.*]] = "pw.launch"(%[[A1]], %[[X1]]) {callee = @f, slice = @s1}
    %c = "pw.launch"(%a, %x) {callee = @f, slice = @s1} : (!x, !x) -> !x
    // CHECK-NEXT: return %[[C]], %[[A1]], %[[B0]]
    return %c, %a, %b : !x, !x, !x
  }
  func.func private @f(%x: !x, %y: !x) -> !x {
    return %x : !x
  }
}
