// RUN: pw-opt %s --pw-split-chunks | filecheck %s
// RUN: pw-opt %s --pw-split-chunks | pw-opt -p 'pw-unroll-microbatches,pw-schedule,pw-lower-all-to-alls,pw-plan-memory,pw-verify-schedule' | filecheck %s --check-prefix=SCHEDULED

// An exchange in front of a loop with a chunk is in the sub-program before it, which hands each of its results on;
// one inside of the loop is in the chunk, once for each iteration.

!x = tensor<2x4xf32>
// CHECK: module @decode attributes {pw.form = "parts"}
module @decode attributes {pw.form = "sharded"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {mesh = @mesh, sym_name = "s0"} : () -> ()
  "pw.slice"() {mesh = @mesh, sym_name = "s1"} : () -> ()
  "pw.loop"() {chunk = 2, sequential, sym_name = "steps"} : () -> ()
  // CHECK: %[[BEFORE:.*]]:3 = "pw.run"(%arg0, %arg1) {part = @before_steps}
  // CHECK: "pw.repeat"(%[[BEFORE]]#0, %[[BEFORE]]#1, %[[BEFORE]]#2) {part = @steps, until = 0 : i64}
  func.func public @main(%x: !x {pw.slice = @s0}, %y: !x {pw.slice = @s1}) -> (!x {pw.slice = @s0}, !x {pw.slice = @s1}) {
    // CHECK: module @before_steps
    // CHECK: "pw.all_to_all"(%arg0, %arg1) {slices = [@s0, @s1]}
    %0:2 = "pw.all_to_all"(%x, %y) {slices = [@s0, @s1]} : (!x, !x) -> (!x, !x)
    %end = "pw.launch"(%0#0) {callee = @has_ended, slice = @s0} : (!x) -> tensor<i1>
    %d = "pw.carry"(%end) {loop = @steps, slice = @s0} : (tensor<i1>) -> tensor<i1>
    %a = "pw.carry"(%0#0) {loop = @steps, slice = @s0} : (!x) -> !x
    %b = "pw.carry"(%0#1) {loop = @steps, slice = @s1} : (!x) -> !x
    // CHECK: module @steps
    // CHECK: "pw.all_to_all"({{.*}}) {loop = @steps, slices = [@s0, @s1]}
    %1:2 = "pw.all_to_all"(%a, %b) {loop = @steps, slices = [@s0, @s1]} : (!x, !x) -> (!x, !x)
    %done = "pw.launch"(%1#0) {callee = @has_ended, loop = @steps, slice = @s0} : (!x) -> tensor<i1>
    %d_end = "pw.next"(%d, %done) {loop = @steps, slice = @s0} : (tensor<i1>, tensor<i1>) -> tensor<i1>
    %a_end = "pw.next"(%a, %1#0) {loop = @steps, slice = @s0} : (!x, !x) -> !x
    %b_end = "pw.next"(%b, %1#1) {loop = @steps, slice = @s1} : (!x, !x) -> !x
    "pw.until"(%d_end) {loop = @steps, slice = @s0} : (tensor<i1>) -> ()
    return %a_end, %b_end : !x, !x
  }
  // Of an exchange between two slices two transfers in front of the loop, and four in a chunk of two iterations.
  // SCHEDULED: module @before_steps
  // SCHEDULED-COUNT-2: "pw.transfer"
  // SCHEDULED-NOT: "pw.transfer"
  // SCHEDULED: module @steps
  // SCHEDULED-COUNT-4: "pw.transfer"
  // SCHEDULED-NOT: "pw.transfer"
  func.func private @has_ended(%x: !x) -> tensor<i1> {
    %0 = stablehlo.constant dense<true> : tensor<i1>
    return %0 : tensor<i1>
  }
}
