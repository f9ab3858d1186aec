// RUN: pw-opt %s --split-input-file --pw-split-chunks | filecheck %s
// RUN: pw-opt %s --split-input-file --pw-split-chunks | pw-opt --split-input-file -p 'pw-unroll-microbatches,pw-schedule,pw-plan-memory,pw-verify-schedule' --verify-roundtrip | filecheck %s --check-prefix=SCHEDULED

// What is in front of a loop with a chunk, a chunk of its iterations, and what follows it are modules of their own, and
// @main runs them. The loop starts from %x, which the caller keeps: from a copy. What only %w says, on the other
// slice, is done in front of the loop as well: it depends on nothing of it.

!x = tensor<4xf32>
// CHECK-LABEL: module @decode attributes {pw.form = "parts"}
module @decode attributes {pw.form = "sharded"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  "pw.slice"() {sym_name = "s1", mesh = @mesh} : () -> ()
  "pw.loop"() {sym_name = "steps", chunk = 2, sequential} : () -> ()
  // CHECK: func.func public @main(%arg0: {{.*}} {pw.slice = @s0}, %arg1: {{.*}} {pw.slice = @s1})
  // CHECK-NEXT: %[[B:.*]]:3 = "pw.run"(%arg1, %arg0) {part = @before_steps}
  // CHECK-NEXT: %[[T:.*]]:2 = "pw.repeat"(%[[B]]#0, %[[B]]#1, %arg1) {part = @steps, until = 0 : i64}
  // CHECK-NEXT: %[[A:.*]] = "pw.run"(%[[T]]#1, %[[B]]#2) {part = @after_steps}
  // CHECK-NEXT: return %[[A]]
  func.func public @main(%x: !x {pw.slice = @s0}, %w: !x {pw.slice = @s1}) -> (!x {pw.slice = @s0}) {
    %k = "pw.launch"(%w) {callee = @f, slice = @s1} : (!x) -> !x
    %end = "pw.launch"(%x) {callee = @has_ended, slice = @s0} : (!x) -> tensor<i1>
    %d = "pw.carry"(%end) {loop = @steps, slice = @s0} : (tensor<i1>) -> tensor<i1>
    %h = "pw.carry"(%x) {loop = @steps, slice = @s0} : (!x) -> !x
    %there = "pw.transfer"(%h) {loop = @steps, slice = @s1} : (!x) -> !x
    %y = "pw.launch"(%there, %w) {callee = @g, loop = @steps, slice = @s1} : (!x, !x) -> !x
    %back = "pw.transfer"(%y) {loop = @steps, slice = @s0} : (!x) -> !x
    %done = "pw.launch"(%back) {callee = @has_ended, loop = @steps, slice = @s0} : (!x) -> tensor<i1>
    %d_end = "pw.next"(%d, %done) {loop = @steps, slice = @s0} : (tensor<i1>, tensor<i1>) -> tensor<i1>
    %h_end = "pw.next"(%h, %back) {loop = @steps, slice = @s0} : (!x, !x) -> !x
    "pw.until"(%d_end) {loop = @steps, slice = @s0} : (tensor<i1>) -> ()
    %k_here = "pw.transfer"(%k) {slice = @s0} : (!x) -> !x
    %z = "pw.launch"(%h_end, %k_here) {callee = @g, slice = @s0} : (!x, !x) -> !x
    return %z : !x
  }
  // CHECK: module @before_steps attributes {pw.form = "sharded"}
  // CHECK: func.func public @main(%arg0: {{.*}} {pw.slice = @s1}, %arg1: {{.*}} {pw.slice = @s0})
  // CHECK: %[[COPY:.*]] = "pw.launch"(%arg1) {callee = @copy, slice = @s0}
  // CHECK: return %{{.*}}, %[[COPY]], %{{.*}}

  // What iterations pass on is donated, and the loop has as many iterations as a chunk.
  // CHECK: module @steps attributes {pw.form = "sharded"}
  // CHECK: "pw.loop"() {count = 2 : i64, sequential, sym_name = "steps"}
  // CHECK: func.func public @main(%arg0: tensor<i1> {pw.donated, pw.slice = @s0}, %arg1: {{.*}} {pw.donated, pw.slice = @s0}, %arg2: {{.*}} {pw.slice = @s1})
  // CHECK: "pw.carry"(%arg0) {loop = @steps, slice = @s0}
  // CHECK-NOT: pw.until

  // So is what is left to the last part.
  // CHECK: module @after_steps
  // CHECK-NOT: pw.loop
  // CHECK: func.func public @main(%arg0: {{.*}} {pw.donated, pw.slice = @s0}, %arg1: {{.*}} {pw.donated, pw.slice = @s0})
  // CHECK: "pw.launch"(%arg0, %arg1) {callee = @g, slice = @s0}

  // Each part has an order and a proof of its own.
  // SCHEDULED: module @decode attributes {pw.form = "parts"}
  // SCHEDULED-COUNT-3: attributes {pw.form = "scheduled"
  func.func private @f(%x: !x) -> !x {
    return %x : !x
  }
  func.func private @g(%x: !x, %y: !x) -> !x {
    %0 = stablehlo.add %x, %y : !x
    return %0 : !x
  }
  func.func private @has_ended(%x: !x) -> tensor<i1> {
    %one = stablehlo.constant dense<1.0> : !x
    %0 = stablehlo.compare LT, %x, %one : (!x, !x) -> tensor<4xi1>
    %1 = stablehlo.slice %0 [0:1] : (tensor<4xi1>) -> tensor<1xi1>
    %2 = stablehlo.reshape %1 : (tensor<1xi1>) -> tensor<i1>
    return %2 : tensor<i1>
  }
}

// -----

// Two loops, one right after the other: the second starts from what the first ends with, and nothing is between
// them. The donated argument is given up to the loop that starts from it; the constant is in the part that reads it.

!x = tensor<4xf32>
// CHECK-LABEL: module @twice attributes {pw.form = "parts"}
module @twice attributes {pw.form = "sharded"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  "pw.constant"() {sym_name = "start", value = dense<false> : tensor<i1>} : () -> ()
  "pw.loop"() {sym_name = "one", chunk = 4, sequential} : () -> ()
  "pw.loop"() {sym_name = "two", chunk = 8, sequential} : () -> ()
  // CHECK: func.func public @main(%arg0: tensor<4xf32> {pw.donated, pw.slice = @s0}) -> (tensor<4xf32> {pw.slice = @s0})
  // CHECK-NEXT: %[[B:.*]] = "pw.run"() {part = @before_one}
  // CHECK-NEXT: %[[ONE:.*]]:2 = "pw.repeat"(%[[B]], %arg0) {part = @one, until = 0 : i64}
  // CHECK-NEXT: %[[M:.*]] = "pw.run"() {part = @before_two}
  // CHECK-NEXT: %[[TWO:.*]]:2 = "pw.repeat"(%[[M]], %[[ONE]]#1) {part = @two, until = 0 : i64}
  // CHECK-NEXT: %[[A:.*]] = "pw.run"(%[[TWO]]#1) {part = @after_two}
  // CHECK: module @before_one
  // CHECK: "pw.constant"() {sym_name = "start"
  // CHECK: module @one
  // CHECK-NOT: pw.constant
  // CHECK: module @before_two
  func.func public @main(%x: !x {pw.slice = @s0, pw.donated}, %start: tensor<i1> {pw.slice = @s0, pw.constant = @start}) -> (!x {pw.slice = @s0}) {
    %d = "pw.carry"(%start) {loop = @one, slice = @s0} : (tensor<i1>) -> tensor<i1>
    %h = "pw.carry"(%x) {loop = @one, slice = @s0} : (!x) -> !x
    %y, %done = "pw.launch"(%h, %d) {callee = @step, loop = @one, slice = @s0} : (!x, tensor<i1>) -> (!x, tensor<i1>)
    %d_end = "pw.next"(%d, %done) {loop = @one, slice = @s0} : (tensor<i1>, tensor<i1>) -> tensor<i1>
    %h_end = "pw.next"(%h, %y) {loop = @one, slice = @s0} : (!x, !x) -> !x
    "pw.until"(%d_end) {loop = @one, slice = @s0} : (tensor<i1>) -> ()
    %d2 = "pw.carry"(%start) {loop = @two, slice = @s0} : (tensor<i1>) -> tensor<i1>
    %h2 = "pw.carry"(%h_end) {loop = @two, slice = @s0} : (!x) -> !x
    %y2, %done2 = "pw.launch"(%h2, %d2) {callee = @step, loop = @two, slice = @s0} : (!x, tensor<i1>) -> (!x, tensor<i1>)
    %d2_end = "pw.next"(%d2, %done2) {loop = @two, slice = @s0} : (tensor<i1>, tensor<i1>) -> tensor<i1>
    %h2_end = "pw.next"(%h2, %y2) {loop = @two, slice = @s0} : (!x, !x) -> !x
    "pw.until"(%d2_end) {loop = @two, slice = @s0} : (tensor<i1>) -> ()
    return %h2_end : !x
  }
  func.func private @step(%x: !x, %d: tensor<i1>) -> (!x, tensor<i1>) {
    %0 = stablehlo.not %d : tensor<i1>
    return %x, %0 : !x, tensor<i1>
  }
}
// SCHEDULED: module @twice
// SCHEDULED-COUNT-5: attributes {pw.form = "scheduled"

// -----

// A loop with a count is all in one part, here the last one, which what it starts from comes from; though the launch
// in it that reads %w alone waits for nothing.

!x = tensor<4xf32>
// CHECK-LABEL: module @then_counted attributes {pw.form = "parts"}
module @then_counted attributes {pw.form = "sharded"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  "pw.loop"() {sym_name = "steps", chunk = 2, sequential} : () -> ()
  "pw.loop"() {sym_name = "counted", count = 3, sequential} : () -> ()
  func.func public @main(%x: !x {pw.slice = @s0, pw.donated}, %w: !x {pw.slice = @s0}) -> (!x {pw.slice = @s0}) {
    %end = "pw.launch"(%x) {callee = @has_ended, slice = @s0} : (!x) -> tensor<i1>
    %d = "pw.carry"(%end) {loop = @steps, slice = @s0} : (tensor<i1>) -> tensor<i1>
    %h = "pw.carry"(%x) {loop = @steps, slice = @s0} : (!x) -> !x
    %y, %done = "pw.launch"(%h) {callee = @step, loop = @steps, slice = @s0} : (!x) -> (!x, tensor<i1>)
    %d_end = "pw.next"(%d, %done) {loop = @steps, slice = @s0} : (tensor<i1>, tensor<i1>) -> tensor<i1>
    %h_end = "pw.next"(%h, %y) {loop = @steps, slice = @s0} : (!x, !x) -> !x
    "pw.until"(%d_end) {loop = @steps, slice = @s0} : (tensor<i1>) -> ()
    %c = "pw.carry"(%h_end) {loop = @counted, slice = @s0} : (!x) -> !x
    %alone = "pw.launch"(%w) {callee = @f, loop = @counted, slice = @s0} : (!x) -> !x
    %sum = "pw.launch"(%c, %alone) {callee = @g, loop = @counted, slice = @s0} : (!x, !x) -> !x
    %z = "pw.next"(%c, %sum) {loop = @counted, slice = @s0} : (!x, !x) -> !x
    return %z : !x
  }
  // CHECK: module @before_steps
  // CHECK-NOT: @f
  // CHECK: module @after_steps
  // CHECK: "pw.loop"() {count = 3 : i64, sequential, sym_name = "counted"}
  // CHECK: %[[C:.*]] = "pw.carry"(%arg0) {loop = @counted
  // CHECK: %[[A:.*]] = "pw.launch"(%arg1) {callee = @f, loop = @counted
  // CHECK: "pw.launch"(%[[C]], %[[A]]) {callee = @g, loop = @counted
  func.func private @f(%x: !x) -> !x {
    return %x : !x
  }
  func.func private @g(%x: !x, %y: !x) -> !x {
    %0 = stablehlo.add %x, %y : !x
    return %0 : !x
  }
  func.func private @has_ended(%x: !x) -> tensor<i1> {
    %0 = stablehlo.constant dense<false> : tensor<i1>
    return %0 : tensor<i1>
  }
  func.func private @step(%x: !x) -> (!x, tensor<i1>) {
    %0 = stablehlo.constant dense<true> : tensor<i1>
    return %x, %0 : !x, tensor<i1>
  }
}
// SCHEDULED: module @then_counted
// SCHEDULED-COUNT-3: attributes {pw.form = "scheduled"
