// RUN: not pw-opt %s -p 'pw-schedule{policy=eager}' 2>&1 | filecheck %s
// RUN: not pw-opt %s -p 'pw-schedule{policy="gpipe(times=units)"}' 2>&1 | filecheck %s
// RUN: pw-opt %s --emit-schedule -p 'pw-schedule{policy="search(iterations=1)"}' | filecheck %s --check-prefix=PROGRAM
// RUN: pw-opt %s --emit-schedule -p 'pw-schedule{policy=program}' | filecheck %s --check-prefix=PROGRAM

// A forward that reads the gradient of an earlier stage is nothing that policies count on.

// CHECK: error: 'pw.loop' op cannot be scheduled by '{{.*}}', which requires that no forward reads a backward
// CHECK-SAME: use 'program' or a schedule file; deadlock: the order has a cycle
// CHECK-NEXT: 0B0 waits for 2F0: @s0 runs in this order

// PROGRAM: 0F0,0B0,,2F0

!x = tensor<4xf32>
module @gradient_in_a_forward attributes {pw.form = "unrolled"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  "pw.slice"() {sym_name = "s1", mesh = @mesh} : () -> ()
  "pw.loop"() {sym_name = "l", count = 1 : i64} : () -> ()
  func.func @main(%x: !x {pw.slice = @s0}) -> (!x {pw.slice = @s0}) {
    %f = "pw.launch"(%x) {callee = @f, loop = @l, microbatch = 0, origins = [{kind = "fwd", microbatch = 0, stage = 0}], slice = @s0} : (!x) -> !x
    %b = "pw.launch"(%f) {callee = @f, loop = @l, microbatch = 0, origins = [{kind = "bwd", microbatch = 0, stage = 0}], slice = @s0} : (!x) -> !x
    %s = "pw.transfer"(%b) {loop = @l, microbatch = 0, slice = @s1} : (!x) -> !x
    %g = "pw.launch"(%s) {callee = @f, loop = @l, microbatch = 0, origins = [{kind = "fwd", microbatch = 0, stage = 1}], slice = @s1} : (!x) -> !x
    %t = "pw.transfer"(%g) {loop = @l, microbatch = 0, slice = @s0} : (!x) -> !x
    %h = "pw.launch"(%t) {callee = @f, loop = @l, microbatch = 0, origins = [{kind = "fwd", microbatch = 0, stage = 2}], slice = @s0} : (!x) -> !x
    return %h : !x
  }
  func.func private @f(%x: !x) -> !x {
    return %x : !x
  }
}
