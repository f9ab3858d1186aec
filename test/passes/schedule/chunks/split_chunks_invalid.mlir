// RUN: pw-opt %s --split-input-file --verify-diagnostics --pw-split-chunks

// Of a loop with a count one operation waits for the end of @steps, and @steps starts from what another one makes.

!x = tensor<4xf32>
module @each_waits_for_the_other attributes {pw.form = "sharded"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  "pw.loop"() {sym_name = "steps", chunk = 2, sequential} : () -> ()
  "pw.loop"() {sym_name = "counted", count = 3, sequential} : () -> ()
  func.func public @main(%x: !x {pw.slice = @s0}, %end: tensor<i1> {pw.slice = @s0}) -> (!x {pw.slice = @s0}) {
    %c = "pw.carry"(%x) {loop = @counted, slice = @s0} : (!x) -> !x
    %f = "pw.launch"(%c) {callee = @f, loop = @counted, slice = @s0} : (!x) -> !x
    %c_end = "pw.next"(%c, %f) {loop = @counted, slice = @s0} : (!x, !x) -> !x
    %d = "pw.carry"(%end) {loop = @steps, slice = @s0} : (tensor<i1>) -> tensor<i1>
    // expected-error@+1 {{'pw.carry' op reads, in loop @steps, what is made in a loop that waits for its end}}
    %h = "pw.carry"(%c_end) {loop = @steps, slice = @s0} : (!x) -> !x
    %y, %done = "pw.launch"(%h) {callee = @step, loop = @steps, slice = @s0} : (!x) -> (!x, tensor<i1>)
    %d_end = "pw.next"(%d, %done) {loop = @steps, slice = @s0} : (tensor<i1>, tensor<i1>) -> tensor<i1>
    %h_end = "pw.next"(%h, %y) {loop = @steps, slice = @s0} : (!x, !x) -> !x
    "pw.until"(%d_end) {loop = @steps, slice = @s0} : (tensor<i1>) -> ()
    %late = "pw.launch"(%h_end) {callee = @f, loop = @counted, slice = @s0} : (!x) -> !x
    return %h_end : !x
  }
  func.func private @f(%x: !x) -> !x {
    return %x : !x
  }
  func.func private @step(%x: !x) -> (!x, tensor<i1>) {
    %0 = stablehlo.constant dense<true> : tensor<i1>
    return %x, %0 : !x, tensor<i1>
  }
}
