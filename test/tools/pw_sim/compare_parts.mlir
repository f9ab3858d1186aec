// RUN: pw-sim %s --compare | filecheck %s
// RUN: pw-viz %s --schedule 1f1b | filecheck %s --check-prefix=PAGE
// RUN: pw-compile %s | not pw-sim --compare 2>&1 | filecheck %s --check-prefix=FORM

// A program in parts is compared by a chunk of its loop, here of two iterations: two launches and two transfers each.

// CHECK: {{^ +}}policy            step time  s0 idle  s1 idle  s0 peak  s1 peak  transfers
// CHECK: {{^ +}}1f1b              4
// PAGE: <h1>decode_steps</h1>
// FORM: pw-sim: error: '<stdin>' is in the form 'scheduled', in which it is too late to split backwards

!x = tensor<4xf32>
module @decode attributes {pw.form = "placed"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  "pw.slice"() {sym_name = "s1", mesh = @mesh} : () -> ()
  "pw.loop"() {sym_name = "steps", chunk = 2, sequential} : () -> ()
  func.func public @main(%x: !x {pw.slice = @s0}) -> (!x {pw.slice = @s0}) {
    %end = "pw.launch"(%x) {callee = @has_ended, slice = @s0} : (!x) -> tensor<i1>
    %d = "pw.carry"(%end) {loop = @steps, slice = @s0} : (tensor<i1>) -> tensor<i1>
    %h = "pw.carry"(%x) {loop = @steps, slice = @s0} : (!x) -> !x
    %y = "pw.launch"(%h) {callee = @f, loop = @steps, origins = [{kind = "fwd", stage = 0}], slice = @s0} : (!x) -> !x
    %there = "pw.transfer"(%y) {loop = @steps, slice = @s1} : (!x) -> !x
    %z = "pw.launch"(%there) {callee = @f, loop = @steps, origins = [{kind = "fwd", stage = 1}], slice = @s1} : (!x) -> !x
    %back = "pw.transfer"(%z) {loop = @steps, slice = @s0} : (!x) -> !x
    %done = "pw.launch"(%back) {callee = @has_ended, loop = @steps, slice = @s0} : (!x) -> tensor<i1>
    %d_end = "pw.next"(%d, %done) {loop = @steps, slice = @s0} : (tensor<i1>, tensor<i1>) -> tensor<i1>
    %h_end = "pw.next"(%h, %back) {loop = @steps, slice = @s0} : (!x, !x) -> !x
    "pw.until"(%d_end) {loop = @steps, slice = @s0} : (tensor<i1>) -> ()
    return %h_end : !x
  }
  func.func private @f(%x: !x) -> !x {
    return %x : !x
  }
  func.func private @has_ended(%x: !x) -> tensor<i1> {
    %t = stablehlo.constant dense<true> : tensor<i1>
    return %t : tensor<i1>
  }
}
