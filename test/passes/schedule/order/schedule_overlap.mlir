// RUN: pw-opt %s --pw-schedule --pw-verify-schedule | filecheck %s

// Slices that may share devices stand in one queue: their launches have one order together, so that
// computations with collectives reach every device in the same order.

!x = tensor<4xf32>
module @one_queue attributes {pw.form = "unrolled"} {
  sdy.mesh @mesh = <["x"=1]>
  // CHECK: "pw.slice"() {mesh = @mesh, overlap, sym_name = "s0"}
  "pw.slice"() {sym_name = "s0", mesh = @mesh, overlap} : () -> ()
  "pw.slice"() {sym_name = "s1", mesh = @mesh, overlap} : () -> ()
  "pw.slice"() {sym_name = "s2", mesh = @mesh} : () -> ()
  func.func @main(%x: !x {pw.slice = @s0}, %y: !x {pw.slice = @s1}, %z: !x {pw.slice = @s2}) -> (!x {pw.slice = @s0}, !x {pw.slice = @s1}, !x {pw.slice = @s2}) {
    // CHECK: order = 0 : i64, slice = @s0
    %a = "pw.launch"(%x) {callee = @f, slice = @s0} : (!x) -> !x
    // CHECK: order = 1 : i64, slice = @s1
    %b = "pw.launch"(%y) {callee = @f, slice = @s1} : (!x) -> !x
    // CHECK: order = 0 : i64, slice = @s2
    %c = "pw.launch"(%z) {callee = @f, slice = @s2} : (!x) -> !x
    return %a, %b, %c : !x, !x, !x
  }
  func.func private @f(%x: !x) -> !x {
    return %x : !x
  }
}
