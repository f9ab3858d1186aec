// RUN: not pw-opt %s -p 'pw-schedule{policy=1f1b}' 2>&1 | filecheck %s -DPOLICY=1f1b
// RUN: not pw-opt %s -p 'pw-schedule{policy="1f1b(max-live=2)"}' 2>&1 | filecheck %s -DPOLICY="1f1b(max-live=2)"
// RUN: not pw-opt %s -p 'pw-schedule{policy="eager(times=flops)"}' 2>&1 | filecheck %s -DPOLICY="eager(times=flops)"
// RUN: not pw-opt %s -p 'pw-schedule{policy="search(max-live=3)"}' 2>&1 | filecheck %s -DPOLICY="search(max-live=3)"
// RUN: pw-opt %s -p 'pw-schedule{policy=program}' | filecheck %s --check-prefix=PROGRAM

// What a stage has to do backwards for a microbatch is one action. Here the backward of stage 1 reads one launch of
// that of stage 0, and another launch of that of stage 0 reads it: no order of actions is one of the launches.

// CHECK: error: 'pw.loop' op cannot be scheduled by '[[POLICY]]', which runs all work of a stage
// CHECK-SAME: for a microbatch at once: use 'program'
// CHECK-NEXT: 0B0 waits for 1B0: it reads its result
// CHECK-NEXT: 1B0 waits for 0B0: it reads its result

// PROGRAM: callee = @f
// PROGRAM-SAME: order = 0

!x = tensor<4xf32>
module @knot attributes {pw.form = "unrolled"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  "pw.slice"() {sym_name = "s1", mesh = @mesh} : () -> ()
  "pw.loop"() {sym_name = "l", count = 1 : i64} : () -> ()
  func.func @main(%x: !x {pw.slice = @s0}) -> (!x {pw.slice = @s0}) {
    %f = "pw.launch"(%x) {callee = @f, loop = @l, microbatch = 0, origins = [{kind = "fwd", microbatch = 0, stage = 0}], slice = @s0} : (!x) -> !x
    %s = "pw.transfer"(%f) {loop = @l, microbatch = 0, slice = @s1} : (!x) -> !x
    %g = "pw.launch"(%s) {callee = @f, loop = @l, microbatch = 0, origins = [{kind = "fwd", microbatch = 0, stage = 1}], slice = @s1} : (!x) -> !x
    %t = "pw.transfer"(%g) {loop = @l, microbatch = 0, slice = @s0} : (!x) -> !x
    %b = "pw.launch"(%t) {callee = @f, loop = @l, microbatch = 0, origins = [{kind = "bwd", microbatch = 0, stage = 0}], slice = @s0} : (!x) -> !x
    %u = "pw.transfer"(%b) {loop = @l, microbatch = 0, slice = @s1} : (!x) -> !x
    %c = "pw.launch"(%u) {callee = @f, loop = @l, microbatch = 0, origins = [{kind = "bwd", microbatch = 0, stage = 1}], slice = @s1} : (!x) -> !x
    %v = "pw.transfer"(%c) {loop = @l, microbatch = 0, slice = @s0} : (!x) -> !x
    %d = "pw.launch"(%v) {callee = @f, loop = @l, microbatch = 0, origins = [{kind = "bwd", microbatch = 0, stage = 0}], slice = @s0} : (!x) -> !x
    return %d : !x
  }
  func.func private @f(%x: !x) -> !x {
    return %x : !x
  }
}
