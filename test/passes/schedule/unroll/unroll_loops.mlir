// RUN: pw-opt %s --split-input-file --pw-unroll-microbatches | filecheck %s

// What an iteration hands on is what the next one carries, and what stands behind the loop gets the last. The number
// of an iteration is a hidden argument on the slices that read it.

!x = tensor<4xf32>
// CHECK-LABEL: module @decode
module @decode attributes {pw.form = "sharded"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  "pw.slice"() {sym_name = "s1", mesh = @mesh} : () -> ()
  "pw.loop"() {sym_name = "loop", count = 2, sequential} : () -> ()
  // CHECK: func.func @main(%[[X:.*]]: tensor<4xf32> {pw.slice = @s0}, %[[N0:.*]]: tensor<i32> {pw.constant = @microbatch_0, pw.slice = @s1}, %[[N1:.*]]: tensor<i32> {pw.constant = @microbatch_1, pw.slice = @s1})
  func.func @main(%x: !x {pw.slice = @s0}) -> (!x {pw.slice = @s0}, !x {pw.slice = @s0}) {
    // CHECK-NEXT: %[[A0:.*]] = "pw.launch"(%[[X]]) {callee = @f, loop = @loop, microbatch = 0
    // CHECK-NEXT: %[[T0:.*]] = "pw.transfer"(%[[A0]]) {loop = @loop, microbatch = 0 : i64, slice = @s1}
    // CHECK-NEXT: %[[B0:.*]] = "pw.launch"(%[[T0]], %[[N0]]) {callee = @g, loop = @loop, microbatch = 0
    // CHECK-NEXT: %[[U0:.*]] = "pw.transfer"(%[[B0]]) {loop = @loop, microbatch = 0 : i64, slice = @s0}
    // CHECK-NEXT: %[[A1:.*]] = "pw.launch"(%[[U0]]) {callee = @f, loop = @loop, microbatch = 1
    // CHECK-NEXT: %[[T1:.*]] = "pw.transfer"(%[[A1]]) {loop = @loop, microbatch = 1 : i64, slice = @s1}
    // CHECK-NEXT: %[[B1:.*]] = "pw.launch"(%[[T1]], %[[N1]]) {callee = @g, loop = @loop, microbatch = 1
    // CHECK-NEXT: %[[U1:.*]] = "pw.transfer"(%[[B1]]) {loop = @loop, microbatch = 1 : i64, slice = @s0}
    // CHECK-NEXT: return %[[U1]], %[[U0]]
    %i = "pw.index"() {loop = @loop} : () -> tensor<i32>
    %h = "pw.carry"(%x) {loop = @loop, slice = @s0} : (!x) -> !x
    %before = "pw.carry"(%x) {loop = @loop, slice = @s0} : (!x) -> !x
    %a = "pw.launch"(%h) {callee = @f, loop = @loop, origins = [{kind = "fwd", stage = 0}], slice = @s0} : (!x) -> !x
    %t = "pw.transfer"(%a) {loop = @loop, slice = @s1} : (!x) -> !x
    %b = "pw.launch"(%t, %i) {callee = @g, loop = @loop, origins = [{kind = "fwd", stage = 1}], slice = @s1} : (!x, tensor<i32>) -> !x
    %u = "pw.transfer"(%b) {loop = @loop, slice = @s0} : (!x) -> !x
    %last = "pw.next"(%h, %u) {loop = @loop, slice = @s0} : (!x, !x) -> !x
    %last_but_one = "pw.next"(%before, %h) {loop = @loop, slice = @s0} : (!x, !x) -> !x
    return %last, %last_but_one : !x, !x
  }
  func.func private @f(%x: !x) -> !x {
    return %x : !x
  }
  func.func private @g(%x: !x, %i: tensor<i32>) -> !x {
    return %x : !x
  }
}

// -----

// Training steps: the outer loop is unrolled first, and there is a loop over microbatches for each of its iterations.

!x = tensor<4xf32>
!b = tensor<2xf32>
// CHECK-LABEL: module @steps
module @steps attributes {pw.form = "sharded"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  // CHECK: "pw.loop"() {count = 2 : i64, sequential, sym_name = "steps"}
  // CHECK-NOT: sym_name = "batch"
  // CHECK: "pw.loop"() {count = 2 : i64, schedule = "1f1b", sym_name = "batch_0"}
  // CHECK: "pw.loop"() {count = 2 : i64, schedule = "1f1b", sym_name = "batch_1"}
  "pw.loop"() {sym_name = "steps", count = 2, sequential} : () -> ()
  "pw.loop"() {sym_name = "batch", count = 2, parent = @steps, schedule = "1f1b"} : () -> ()
  // CHECK: func.func @main(%[[W:.*]]: tensor<2xf32> {{{.*}}}, %[[X:.*]]: tensor<4xf32>
  func.func @main(%w: !b {pw.slice = @s0}, %x: !x {pw.slice = @s0}) -> (!b {pw.slice = @s0}) {
    // CHECK: %[[G0:.*]] = "pw.launch"(%[[W]], {{.*}}) {callee = @grad, loop = @batch_0, microbatch = 0
    // CHECK: %[[G1:.*]] = "pw.launch"(%[[W]], {{.*}}) {callee = @grad, loop = @batch_0, microbatch = 1
    // CHECK: %[[S0:.*]] = "pw.reduce"(%[[G0]], %[[G1]]) {kind = "sum", loop = @batch_0, slice = @s0}
    // CHECK: %[[W1:.*]] = "pw.launch"(%[[W]], %[[S0]]) {callee = @update, loop = @steps, microbatch = 0
    // CHECK: %[[G2:.*]] = "pw.launch"(%[[W1]], {{.*}}) {callee = @grad, loop = @batch_1, microbatch = 0
    // CHECK: %[[G3:.*]] = "pw.launch"(%[[W1]], {{.*}}) {callee = @grad, loop = @batch_1, microbatch = 1
    // CHECK: %[[S1:.*]] = "pw.reduce"(%[[G2]], %[[G3]]) {kind = "sum", loop = @batch_1, slice = @s0}
    // CHECK: %[[W2:.*]] = "pw.launch"(%[[W1]], %[[S1]]) {callee = @update, loop = @steps, microbatch = 1
    // CHECK: return %[[W2]]
    %p = "pw.carry"(%w) {loop = @steps, slice = @s0} : (!b) -> !b
    %b = "pw.split"(%x) {loop = @batch, slice = @s0} : (!x) -> !b
    %g = "pw.launch"(%p, %b) {callee = @grad, loop = @batch, origins = [{kind = "bwd", stage = 0}], slice = @s0} : (!b, !b) -> !b
    %s = "pw.reduce"(%g) {kind = "sum", loop = @batch, outer = @steps, slice = @s0} : (!b) -> !b
    %q = "pw.launch"(%p, %s) {callee = @update, loop = @steps, slice = @s0} : (!b, !b) -> !b
    %last = "pw.next"(%p, %q) {loop = @steps, slice = @s0} : (!b, !b) -> !b
    return %last : !b
  }
  func.func private @grad(%w: !b, %x: !b) -> !b {
    %0 = stablehlo.add %w, %x : !b
    return %0 : !b
  }
  func.func private @update(%w: !b, %g: !b) -> !b {
    %0 = stablehlo.subtract %w, %g : !b
    return %0 : !b
  }
}

// -----

// What a loop starts from may be on more slices than what iterations pass on: a transfer that would move it to where it
// is already, and a mirror that would have it twice there, get a copy. Where nobody minds, it is taken as it is.

!x = tensor<4xf32>
// CHECK-LABEL: module @starts_from_a_mirror
module @starts_from_a_mirror attributes {pw.form = "sharded"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  "pw.slice"() {sym_name = "s1", mesh = @mesh} : () -> ()
  "pw.loop"() {sym_name = "moved", count = 1, sequential} : () -> ()
  "pw.loop"() {sym_name = "mirrored", count = 1, sequential} : () -> ()
  "pw.loop"() {sym_name = "read", count = 1, sequential} : () -> ()
  // CHECK: func.func @main(%[[X:.*]]: tensor<4xf32> {pw.slice = [@s0, @s1]})
  func.func @main(%x: !x {pw.slice = [@s0, @s1]}) -> (!x {pw.slice = @s1}, !x {pw.slice = [@s0, @s1]}, !x {pw.slice = @s0}) {
    // CHECK: %[[R:.*]] = "pw.launch"(%[[X]]) {callee = @reshard, loop = @moved, microbatch = 0 : i64, slice = @s0}
    // CHECK-NEXT: %[[T:.*]] = "pw.transfer"(%[[R]]) {loop = @moved, microbatch = 0 : i64, slice = @s1}
    %h = "pw.carry"(%x) {loop = @moved, slice = @s0} : (!x) -> !x
    %k = "pw.carry"(%x) {loop = @moved, slice = @s1} : (!x) -> !x
    %t = "pw.transfer"(%h) {loop = @moved, slice = @s1} : (!x) -> !x
    %a = "pw.next"(%k, %t) {loop = @moved, slice = @s1} : (!x, !x) -> !x
    %a_not = "pw.next"(%h, %h) {loop = @moved, slice = @s0} : (!x, !x) -> !x

    // CHECK: %[[L:.*]] = "pw.launch"(%[[X]]) {callee = @reshard, slice = @s0}
    // CHECK-NEXT: %[[M:.*]] = "pw.launch"(%[[X]]) {callee = @reshard{{.*}}, slice = @s1}
    // CHECK-NEXT: %[[B:.*]] = "pw.mirror"(%[[L]], %[[M]])
    %p = "pw.carry"(%x) {loop = @mirrored, slice = @s0} : (!x) -> !x
    %q = "pw.carry"(%x) {loop = @mirrored, slice = @s1} : (!x) -> !x
    %p_end = "pw.next"(%p, %p) {loop = @mirrored, slice = @s0} : (!x, !x) -> !x
    %q_end = "pw.next"(%q, %q) {loop = @mirrored, slice = @s1} : (!x, !x) -> !x
    %b = "pw.mirror"(%p_end, %q_end) : (!x, !x) -> !x

    // CHECK: %[[C:.*]] = "pw.launch"(%[[X]]) {callee = @f, loop = @read, microbatch = 0
    // CHECK-NEXT: return %[[T]], %[[B]], %[[C]]
    %r = "pw.carry"(%x) {loop = @read, slice = @s0} : (!x) -> !x
    %f = "pw.launch"(%r) {callee = @f, loop = @read, slice = @s0} : (!x) -> !x
    %c = "pw.next"(%r, %f) {loop = @read, slice = @s0} : (!x, !x) -> !x
    return %a, %b, %c : !x, !x, !x
  }
  func.func private @f(%x: !x) -> !x {
    return %x : !x
  }
}
