// RUN: pw-opt %s --split-input-file --pw-schedule | filecheck %s

// A loop asks for its policy. Glue runs with the action that needs it: what leaves the slice right behind what
// it reads, what stays right before its reader. The block is sorted, and channels are read in the order of the
// schedule: one serves all microbatches.

!x = tensor<4xf32>
// CHECK-LABEL: module @glue
module @glue attributes {pw.form = "unrolled"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  "pw.slice"() {sym_name = "s1", mesh = @mesh} : () -> ()
  "pw.loop"() {sym_name = "l", count = 2 : i64, schedule = "gpipe"} : () -> ()
  // CHECK: "pw.channel"() {capacity = 1 : i64, dst = @s1, src = @s0, sym_name = "c0"
  // CHECK: "pw.channel"() {capacity = 1 : i64, dst = @s0, src = @s1, sym_name = "c1"
  // CHECK-NOT: "pw.channel"
  func.func @main(%x0: !x {pw.slice = @s0}, %x1: !x {pw.slice = @s0}) -> (!x {pw.slice = @s0}) {
    // CHECK:      callee = @cut, loop = @l, microbatch = 0 : i64, order = 0
    // CHECK-NEXT: callee = @front, loop = @l, microbatch = 0 : i64, order = 1
    // CHECK-NEXT: callee = @leaves, loop = @l, microbatch = 0 : i64, order = 2
    // CHECK-NEXT: "pw.transfer"({{.*}}) {channel = @c0, {{.*}}order = 3
    // CHECK-NEXT: callee = @arrives, loop = @l, microbatch = 0 : i64, order = 0 : i64, slice = @s1
    // CHECK-NEXT: callee = @cut, loop = @l, microbatch = 1 : i64, order = 4
    // CHECK-NEXT: callee = @back, loop = @l, microbatch = 0 : i64, order = 1
    // CHECK-NEXT: callee = @front, loop = @l, microbatch = 1 : i64, order = 5
    // CHECK-NEXT: callee = @leaves, loop = @l, microbatch = 1 : i64, order = 6
    // CHECK-NEXT: "pw.transfer"({{.*}}) {channel = @c0, {{.*}}order = 7
    // CHECK-NEXT: callee = @arrives, loop = @l, microbatch = 1 : i64, order = 2
    // CHECK-NEXT: callee = @back, loop = @l, microbatch = 1 : i64, order = 3
    // CHECK-NEXT: callee = @back_bwd, loop = @l, microbatch = 0 : i64, order = 4
    // CHECK-NEXT: "pw.transfer"({{.*}}) {channel = @c1, {{.*}}order = 5
    // CHECK-NEXT: callee = @stays, loop = @l, microbatch = 0 : i64, order = 8 : i64, slice = @s0
    // CHECK-NEXT: callee = @front_bwd, loop = @l, microbatch = 0 : i64, order = 9
    // CHECK-NEXT: callee = @back_bwd, loop = @l, microbatch = 1 : i64, order = 6
    // CHECK-NEXT: "pw.transfer"({{.*}}) {channel = @c1, {{.*}}order = 7
    // CHECK-NEXT: callee = @behind, loop = @l, microbatch = 0 : i64, order = 10
    // CHECK-NEXT: callee = @stays, loop = @l, microbatch = 1 : i64, order = 11
    // CHECK-NEXT: callee = @front_bwd, loop = @l, microbatch = 1 : i64, order = 12
    // CHECK-NEXT: callee = @behind, loop = @l, microbatch = 1 : i64, order = 13
    // CHECK-NEXT: "pw.reduce"
    %a0 = "pw.launch"(%x0) {callee = @cut, loop = @l, microbatch = 0, slice = @s0} : (!x) -> !x
    %b0 = "pw.launch"(%a0) {callee = @front, loop = @l, microbatch = 0, origins = [{kind = "fwd", microbatch = 0, stage = 0}], slice = @s0} : (!x) -> !x
    %c0 = "pw.launch"(%b0) {callee = @leaves, loop = @l, microbatch = 0, slice = @s0} : (!x) -> !x
    %s0 = "pw.launch"(%b0) {callee = @stays, loop = @l, microbatch = 0, slice = @s0} : (!x) -> !x
    %d0 = "pw.transfer"(%c0) {loop = @l, microbatch = 0, slice = @s1} : (!x) -> !x
    %e0 = "pw.launch"(%d0) {callee = @arrives, loop = @l, microbatch = 0, slice = @s1} : (!x) -> !x
    %f0 = "pw.launch"(%e0) {callee = @back, loop = @l, microbatch = 0, origins = [{kind = "fwd", microbatch = 0, stage = 1}], slice = @s1} : (!x) -> !x
    %g0 = "pw.launch"(%f0) {callee = @back_bwd, loop = @l, microbatch = 0, origins = [{kind = "bwd", microbatch = 0, stage = 1}], slice = @s1} : (!x) -> !x
    %h0 = "pw.transfer"(%g0) {loop = @l, microbatch = 0, slice = @s0} : (!x) -> !x
    %i0 = "pw.launch"(%h0, %s0) {callee = @front_bwd, loop = @l, microbatch = 0, origins = [{kind = "bwd", microbatch = 0, stage = 0}], slice = @s0} : (!x, !x) -> !x
    %j0 = "pw.launch"(%i0) {callee = @behind, loop = @l, microbatch = 0, slice = @s0} : (!x) -> !x
    %a1 = "pw.launch"(%x1) {callee = @cut, loop = @l, microbatch = 1, slice = @s0} : (!x) -> !x
    %b1 = "pw.launch"(%a1) {callee = @front, loop = @l, microbatch = 1, origins = [{kind = "fwd", microbatch = 1, stage = 0}], slice = @s0} : (!x) -> !x
    %c1 = "pw.launch"(%b1) {callee = @leaves, loop = @l, microbatch = 1, slice = @s0} : (!x) -> !x
    %s1 = "pw.launch"(%b1) {callee = @stays, loop = @l, microbatch = 1, slice = @s0} : (!x) -> !x
    %d1 = "pw.transfer"(%c1) {loop = @l, microbatch = 1, slice = @s1} : (!x) -> !x
    %e1 = "pw.launch"(%d1) {callee = @arrives, loop = @l, microbatch = 1, slice = @s1} : (!x) -> !x
    %f1 = "pw.launch"(%e1) {callee = @back, loop = @l, microbatch = 1, origins = [{kind = "fwd", microbatch = 1, stage = 1}], slice = @s1} : (!x) -> !x
    %g1 = "pw.launch"(%f1) {callee = @back_bwd, loop = @l, microbatch = 1, origins = [{kind = "bwd", microbatch = 1, stage = 1}], slice = @s1} : (!x) -> !x
    %h1 = "pw.transfer"(%g1) {loop = @l, microbatch = 1, slice = @s0} : (!x) -> !x
    %i1 = "pw.launch"(%h1, %s1) {callee = @front_bwd, loop = @l, microbatch = 1, origins = [{kind = "bwd", microbatch = 1, stage = 0}], slice = @s0} : (!x, !x) -> !x
    %j1 = "pw.launch"(%i1) {callee = @behind, loop = @l, microbatch = 1, slice = @s0} : (!x) -> !x
    %r = "pw.reduce"(%j0, %j1) {kind = "sum", loop = @l, slice = @s0} : (!x, !x) -> !x
    return %r : !x
  }
  func.func private @cut(!x) -> !x
  func.func private @front(!x) -> !x
  func.func private @leaves(!x) -> !x
  func.func private @stays(!x) -> !x
  func.func private @arrives(!x) -> !x
  func.func private @back(!x) -> !x
  func.func private @back_bwd(!x) -> !x
  func.func private @front_bwd(!x, !x) -> !x
  func.func private @behind(!x) -> !x
}

// -----

// Labels that wait on the first slice for the last stage: needed there before the backward that reads them here
// too, they are prepared with the first action of their microbatch. Right before that backward would be too late:
// all forwards come first.

!x = tensor<4xf32>
// CHECK-LABEL: module @labels
module @labels attributes {pw.form = "unrolled"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  "pw.slice"() {sym_name = "s1", mesh = @mesh} : () -> ()
  "pw.loop"() {sym_name = "l", count = 2 : i64, schedule = "gpipe"} : () -> ()
  func.func @main(%x: !x {pw.slice = @s0}, %y: !x {pw.slice = @s0}) -> (!x {pw.slice = @s0}) {
    // CHECK: callee = @labels, loop = @l, microbatch = 0 : i64, order = 0
    // CHECK: callee = @front, loop = @l, microbatch = 0 : i64, order = 2
    // CHECK: callee = @labels, loop = @l, microbatch = 1 : i64, order = 4
    // CHECK: callee = @front, loop = @l, microbatch = 1 : i64, order = 6
    %y0 = "pw.launch"(%y) {callee = @labels, loop = @l, microbatch = 0, slice = @s0} : (!x) -> !x
    %l0 = "pw.transfer"(%y0) {loop = @l, microbatch = 0, slice = @s1} : (!x) -> !x
    %a0 = "pw.launch"(%x) {callee = @front, loop = @l, microbatch = 0, origins = [{kind = "fwd", microbatch = 0, stage = 0}], slice = @s0} : (!x) -> !x
    %t0 = "pw.transfer"(%a0) {loop = @l, microbatch = 0, slice = @s1} : (!x) -> !x
    %b0 = "pw.launch"(%t0, %l0) {callee = @back, loop = @l, microbatch = 0, origins = [{kind = "fwd", microbatch = 0, stage = 1}], slice = @s1} : (!x, !x) -> !x
    %c0 = "pw.launch"(%b0, %b0) {callee = @back, loop = @l, microbatch = 0, origins = [{kind = "bwd", microbatch = 0, stage = 1}], slice = @s1} : (!x, !x) -> !x
    %u0 = "pw.transfer"(%c0) {loop = @l, microbatch = 0, slice = @s0} : (!x) -> !x
    %d0 = "pw.launch"(%u0, %y0) {callee = @back, loop = @l, microbatch = 0, origins = [{kind = "bwd", microbatch = 0, stage = 0}], slice = @s0} : (!x, !x) -> !x
    %y1 = "pw.launch"(%y) {callee = @labels, loop = @l, microbatch = 1, slice = @s0} : (!x) -> !x
    %l1 = "pw.transfer"(%y1) {loop = @l, microbatch = 1, slice = @s1} : (!x) -> !x
    %a1 = "pw.launch"(%x) {callee = @front, loop = @l, microbatch = 1, origins = [{kind = "fwd", microbatch = 1, stage = 0}], slice = @s0} : (!x) -> !x
    %t1 = "pw.transfer"(%a1) {loop = @l, microbatch = 1, slice = @s1} : (!x) -> !x
    %b1 = "pw.launch"(%t1, %l1) {callee = @back, loop = @l, microbatch = 1, origins = [{kind = "fwd", microbatch = 1, stage = 1}], slice = @s1} : (!x, !x) -> !x
    %c1 = "pw.launch"(%b1, %b1) {callee = @back, loop = @l, microbatch = 1, origins = [{kind = "bwd", microbatch = 1, stage = 1}], slice = @s1} : (!x, !x) -> !x
    %u1 = "pw.transfer"(%c1) {loop = @l, microbatch = 1, slice = @s0} : (!x) -> !x
    %d1 = "pw.launch"(%u1, %y1) {callee = @back, loop = @l, microbatch = 1, origins = [{kind = "bwd", microbatch = 1, stage = 0}], slice = @s0} : (!x, !x) -> !x
    %r = "pw.reduce"(%d0, %d1) {kind = "sum", loop = @l, slice = @s0} : (!x, !x) -> !x
    return %r : !x
  }
  func.func private @front(!x) -> !x
  func.func private @labels(!x) -> !x
  func.func private @back(!x, !x) -> !x
}

// -----

// Forwards that are repeated run as late as they can: right before the backward of their stage, or, where
// `jax.checkpoint` spans both stages, before that of the last.

!x = tensor<4xf32>
// CHECK-LABEL: module @recompute
module @recompute attributes {pw.form = "unrolled"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  "pw.slice"() {sym_name = "s1", mesh = @mesh} : () -> ()
  "pw.loop"() {sym_name = "l", count = 2 : i64, schedule = "1f1b"} : () -> ()
  func.func @main(%x: !x {pw.slice = @s0}) -> (!x {pw.slice = @s0}) {
    // CHECK:     callee = @front, loop = @l, microbatch = 0 : i64, order = 0 : i64, origins = [{kind = "fwd"
    // CHECK:     callee = @front, loop = @l, microbatch = 1 : i64, order = 2 : i64, origins = [{kind = "fwd"
    // CHECK:     callee = @front, loop = @l, microbatch = 0 : i64, order = 4 : i64, origins = [{kind = "recompute"
    // CHECK:     callee = @back, loop = @l, microbatch = 0 : i64, order = 1 : i64, origins = [{kind = "recompute"
    // CHECK:     callee = @back_bwd, loop = @l, microbatch = 0 : i64, order = 2 : i64, origins = [{kind = "bwd"
    // CHECK:     callee = @front_bwd, loop = @l, microbatch = 0 : i64, order = 6 : i64, origins = [{kind = "bwd"
    %a0 = "pw.launch"(%x) {callee = @front, loop = @l, microbatch = 0, origins = [{kind = "fwd", microbatch = 0, stage = 0}], slice = @s0} : (!x) -> !x
    %t0 = "pw.transfer"(%a0) {loop = @l, microbatch = 0, slice = @s1} : (!x) -> !x
    %b0 = "pw.launch"(%t0) {callee = @back, loop = @l, microbatch = 0, origins = [{kind = "fwd", microbatch = 0, stage = 1}], slice = @s1} : (!x) -> !x
    %p0 = "pw.launch"(%x) {callee = @front, loop = @l, microbatch = 0, origins = [{kind = "recompute", microbatch = 0, stage = 0}], slice = @s0} : (!x) -> !x
    %v0 = "pw.transfer"(%p0) {loop = @l, microbatch = 0, slice = @s1} : (!x) -> !x
    %q0 = "pw.launch"(%v0) {callee = @back, loop = @l, microbatch = 0, origins = [{kind = "recompute", microbatch = 0, stage = 1}], slice = @s1} : (!x) -> !x
    %c0 = "pw.launch"(%b0, %q0) {callee = @back_bwd, loop = @l, microbatch = 0, origins = [{kind = "bwd", microbatch = 0, stage = 1}], slice = @s1} : (!x, !x) -> !x
    %u0 = "pw.transfer"(%c0) {loop = @l, microbatch = 0, slice = @s0} : (!x) -> !x
    %d0 = "pw.launch"(%u0, %p0) {callee = @front_bwd, loop = @l, microbatch = 0, origins = [{kind = "bwd", microbatch = 0, stage = 0}], slice = @s0} : (!x, !x) -> !x
    %a1 = "pw.launch"(%x) {callee = @front, loop = @l, microbatch = 1, origins = [{kind = "fwd", microbatch = 1, stage = 0}], slice = @s0} : (!x) -> !x
    %t1 = "pw.transfer"(%a1) {loop = @l, microbatch = 1, slice = @s1} : (!x) -> !x
    %b1 = "pw.launch"(%t1) {callee = @back, loop = @l, microbatch = 1, origins = [{kind = "fwd", microbatch = 1, stage = 1}], slice = @s1} : (!x) -> !x
    %p1 = "pw.launch"(%x) {callee = @front, loop = @l, microbatch = 1, origins = [{kind = "recompute", microbatch = 1, stage = 0}], slice = @s0} : (!x) -> !x
    %v1 = "pw.transfer"(%p1) {loop = @l, microbatch = 1, slice = @s1} : (!x) -> !x
    %q1 = "pw.launch"(%v1) {callee = @back, loop = @l, microbatch = 1, origins = [{kind = "recompute", microbatch = 1, stage = 1}], slice = @s1} : (!x) -> !x
    %c1 = "pw.launch"(%b1, %q1) {callee = @back_bwd, loop = @l, microbatch = 1, origins = [{kind = "bwd", microbatch = 1, stage = 1}], slice = @s1} : (!x, !x) -> !x
    %u1 = "pw.transfer"(%c1) {loop = @l, microbatch = 1, slice = @s0} : (!x) -> !x
    %d1 = "pw.launch"(%u1, %p1) {callee = @front_bwd, loop = @l, microbatch = 1, origins = [{kind = "bwd", microbatch = 1, stage = 0}], slice = @s0} : (!x, !x) -> !x
    %r = "pw.reduce"(%d0, %d1) {kind = "sum", loop = @l, slice = @s0} : (!x, !x) -> !x
    return %r : !x
  }
  func.func private @front(!x) -> !x
  func.func private @back(!x) -> !x
  func.func private @back_bwd(!x, !x) -> !x
  func.func private @front_bwd(!x, !x) -> !x
}

// -----

// Two loops in sequence, the second of which is declared first. What the first needs runs before it, what
// reads its sum between them, and what has nothing to do with either behind both. Arguments are sent right before
// they are read.

!x = tensor<4xf32>
// CHECK-LABEL: module @two_loops
module @two_loops attributes {pw.form = "unrolled"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  "pw.slice"() {sym_name = "s1", mesh = @mesh} : () -> ()
  "pw.loop"() {sym_name = "second", count = 2 : i64, schedule = "1f1b"} : () -> ()
  "pw.loop"() {sym_name = "first", count = 2 : i64, schedule = "1f1b"} : () -> ()
  func.func @main(%x: !x {pw.slice = @s0}, %y: !x {pw.slice = @s0}) -> (!x {pw.slice = @s1}, !x {pw.slice = @s0}) {
    // CHECK:      callee = @cast, order = 0 : i64, slice = @s0
    // CHECK-NEXT: callee = @f, loop = @first, microbatch = 0 : i64, order = 1 : i64, {{.*}} slice = @s0
    // CHECK-NEXT: "pw.transfer"(%{{[0-9]+}}) {channel = @c0, {{.*}}order = 2
    // CHECK-NEXT: "pw.transfer"(%arg1) {channel = @c0, {{.*}}order = 3
    // CHECK-NEXT: callee = @g, loop = @first, microbatch = 0 : i64, order = 0 : i64, {{.*}} slice = @s1
    // CHECK-NEXT: callee = @f, loop = @first, microbatch = 1 : i64, order = 4
    // CHECK-NEXT: "pw.transfer"(%{{[0-9]+}}) {channel = @c0, {{.*}}order = 5
    // CHECK-NEXT: callee = @g, loop = @first, microbatch = 1 : i64, order = 1
    // CHECK-NEXT: "pw.reduce"
    // CHECK-NEXT: callee = @between, order = 2 : i64, slice = @s1
    // CHECK-NEXT: "pw.transfer"({{.*}}) {channel = @c1, {{.*}}order = 3
    // CHECK-NEXT: callee = @h, loop = @second, microbatch = 0 : i64, order = 6 : i64, {{.*}} slice = @s0
    // CHECK-NEXT: "pw.transfer"({{.*}}) {channel = @c0, {{.*}}order = 7
    // CHECK-NEXT: callee = @f, loop = @second, microbatch = 0 : i64, order = 4 : i64, {{.*}} slice = @s1
    // CHECK-NEXT: callee = @h, loop = @second, microbatch = 1 : i64, order = 8
    // CHECK-NEXT: "pw.transfer"({{.*}}) {channel = @c0, {{.*}}order = 9
    // CHECK-NEXT: callee = @f, loop = @second, microbatch = 1 : i64, order = 5
    // CHECK-NEXT: "pw.reduce"
    // CHECK-NEXT: callee = @after, order = 6 : i64, slice = @s1
    // CHECK-NEXT: callee = @free, order = 10 : i64, slice = @s0
    %t = "pw.transfer"(%y) {slice = @s1} : (!x) -> !x
    %k = "pw.launch"(%x) {callee = @cast, slice = @s0} : (!x) -> !x
    %a0 = "pw.launch"(%k) {callee = @f, loop = @first, microbatch = 0, origins = [{kind = "fwd", microbatch = 0, stage = 0}], slice = @s0} : (!x) -> !x
    %t0 = "pw.transfer"(%a0) {loop = @first, microbatch = 0, slice = @s1} : (!x) -> !x
    %b0 = "pw.launch"(%t0, %t) {callee = @g, loop = @first, microbatch = 0, origins = [{kind = "fwd", microbatch = 0, stage = 1}], slice = @s1} : (!x, !x) -> !x
    %a1 = "pw.launch"(%k) {callee = @f, loop = @first, microbatch = 1, origins = [{kind = "fwd", microbatch = 1, stage = 0}], slice = @s0} : (!x) -> !x
    %t1 = "pw.transfer"(%a1) {loop = @first, microbatch = 1, slice = @s1} : (!x) -> !x
    %b1 = "pw.launch"(%t1, %t) {callee = @g, loop = @first, microbatch = 1, origins = [{kind = "fwd", microbatch = 1, stage = 1}], slice = @s1} : (!x, !x) -> !x
    %r = "pw.reduce"(%b0, %b1) {kind = "sum", loop = @first, slice = @s1} : (!x, !x) -> !x
    %m = "pw.launch"(%r) {callee = @between, slice = @s1} : (!x) -> !x
    %u = "pw.transfer"(%m) {slice = @s0} : (!x) -> !x
    %c0 = "pw.launch"(%x, %u) {callee = @h, loop = @second, microbatch = 0, origins = [{kind = "fwd", microbatch = 0, stage = 2}], slice = @s0} : (!x, !x) -> !x
    %v0 = "pw.transfer"(%c0) {loop = @second, microbatch = 0, slice = @s1} : (!x) -> !x
    %d0 = "pw.launch"(%v0) {callee = @f, loop = @second, microbatch = 0, origins = [{kind = "fwd", microbatch = 0, stage = 3}], slice = @s1} : (!x) -> !x
    %c1 = "pw.launch"(%x, %u) {callee = @h, loop = @second, microbatch = 1, origins = [{kind = "fwd", microbatch = 1, stage = 2}], slice = @s0} : (!x, !x) -> !x
    %v1 = "pw.transfer"(%c1) {loop = @second, microbatch = 1, slice = @s1} : (!x) -> !x
    %d1 = "pw.launch"(%v1) {callee = @f, loop = @second, microbatch = 1, origins = [{kind = "fwd", microbatch = 1, stage = 3}], slice = @s1} : (!x) -> !x
    %s = "pw.reduce"(%d0, %d1) {kind = "sum", loop = @second, slice = @s1} : (!x, !x) -> !x
    %n = "pw.launch"(%s) {callee = @after, slice = @s1} : (!x) -> !x
    %o = "pw.launch"(%x) {callee = @free, slice = @s0} : (!x) -> !x
    return %n, %o : !x, !x
  }
  func.func private @cast(!x) -> !x
  func.func private @free(!x) -> !x
  func.func private @between(!x) -> !x
  func.func private @after(!x) -> !x
  func.func private @f(!x) -> !x
  func.func private @g(!x, !x) -> !x
  func.func private @h(!x, !x) -> !x
}

// -----

// Slices that share devices share one queue, ordered by when their actions would run.

!x = tensor<4xf32>
// CHECK-LABEL: module @overlap
module @overlap attributes {pw.form = "unrolled"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh, overlap} : () -> ()
  "pw.slice"() {sym_name = "s1", mesh = @mesh, overlap} : () -> ()
  "pw.loop"() {sym_name = "l", count = 2 : i64, schedule = "gpipe"} : () -> ()
  func.func @main(%x: !x {pw.slice = @s0}) -> (!x {pw.slice = @s1}) {
    // CHECK:      microbatch = 0 : i64, order = 0 : i64, origins = [{kind = "fwd"{{.*}}}], slice = @s0
    // CHECK-NEXT: "pw.transfer"({{.*}}) {channel = @c0, {{.*}}order = 1
    // CHECK-NEXT: microbatch = 0 : i64, order = 2 : i64, origins = [{kind = "fwd"{{.*}}}], slice = @s1
    // CHECK-NEXT: microbatch = 1 : i64, order = 3 : i64, origins = [{kind = "fwd"{{.*}}}], slice = @s0
    // CHECK-NEXT: "pw.transfer"({{.*}}) {channel = @c0, {{.*}}order = 4
    // CHECK-NEXT: microbatch = 1 : i64, order = 5 : i64, origins = [{kind = "fwd"{{.*}}}], slice = @s1
    // CHECK-NEXT: microbatch = 0 : i64, order = 6 : i64, origins = [{kind = "bwd"{{.*}}}], slice = @s1
    // CHECK-NEXT: microbatch = 1 : i64, order = 7 : i64, origins = [{kind = "bwd"{{.*}}}], slice = @s1
    %a0 = "pw.launch"(%x) {callee = @f, loop = @l, microbatch = 0, origins = [{kind = "fwd", microbatch = 0, stage = 0}], slice = @s0} : (!x) -> !x
    %t0 = "pw.transfer"(%a0) {loop = @l, microbatch = 0, slice = @s1} : (!x) -> !x
    %b0 = "pw.launch"(%t0) {callee = @f, loop = @l, microbatch = 0, origins = [{kind = "fwd", microbatch = 0, stage = 1}], slice = @s1} : (!x) -> !x
    %c0 = "pw.launch"(%b0) {callee = @f, loop = @l, microbatch = 0, origins = [{kind = "bwd", microbatch = 0, stage = 1}], slice = @s1} : (!x) -> !x
    %a1 = "pw.launch"(%x) {callee = @f, loop = @l, microbatch = 1, origins = [{kind = "fwd", microbatch = 1, stage = 0}], slice = @s0} : (!x) -> !x
    %t1 = "pw.transfer"(%a1) {loop = @l, microbatch = 1, slice = @s1} : (!x) -> !x
    %b1 = "pw.launch"(%t1) {callee = @f, loop = @l, microbatch = 1, origins = [{kind = "fwd", microbatch = 1, stage = 1}], slice = @s1} : (!x) -> !x
    %c1 = "pw.launch"(%b1) {callee = @f, loop = @l, microbatch = 1, origins = [{kind = "bwd", microbatch = 1, stage = 1}], slice = @s1} : (!x) -> !x
    %r = "pw.reduce"(%c0, %c1) {kind = "sum", loop = @l, slice = @s1} : (!x, !x) -> !x
    return %r : !x
  }
  func.func private @f(!x) -> !x
}

// -----

// A skip connection from the first stage to the last, and two values from the second to the third.

!x = tensor<4xf32>
// CHECK-LABEL: module @skip
module @skip attributes {pw.form = "unrolled"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  "pw.slice"() {sym_name = "s1", mesh = @mesh} : () -> ()
  "pw.slice"() {sym_name = "s2", mesh = @mesh} : () -> ()
  "pw.loop"() {sym_name = "l", count = 2 : i64, schedule = "1f1b"} : () -> ()
  // CHECK: "pw.channel"() {capacity = 2 : i64, dst = @s2, src = @s0, sym_name = "c1"
  // CHECK: "pw.channel"() {capacity = 2 : i64, dst = @s2, src = @s1, sym_name = "c2"
  func.func @main(%x: !x {pw.slice = @s0}) -> (!x {pw.slice = @s2}) {
    // CHECK:      microbatch = 0 : i64, order = 0 : i64, origins = [{kind = "fwd"{{.*}}}], slice = @s0
    // CHECK-NEXT: "pw.transfer"({{.*}}) {channel = @c0, {{.*}}order = 1
    // CHECK-NEXT: "pw.transfer"({{.*}}) {channel = @c1, {{.*}}order = 2
    // CHECK-NEXT: microbatch = 0 : i64, order = 0 : i64, origins = [{kind = "fwd"{{.*}}}], slice = @s1
    // CHECK-NEXT: "pw.transfer"({{.*}}) {channel = @c2, {{.*}}order = 1
    // CHECK-NEXT: "pw.transfer"({{.*}}) {channel = @c2, {{.*}}order = 2
    // CHECK-NEXT: microbatch = 1 : i64, order = 3 : i64, origins = [{kind = "fwd"{{.*}}}], slice = @s0
    // CHECK-NEXT: "pw.transfer"({{.*}}) {channel = @c0, {{.*}}order = 4
    // CHECK-NEXT: "pw.transfer"({{.*}}) {channel = @c1, {{.*}}order = 5
    // CHECK-NEXT: microbatch = 0 : i64, order = 0 : i64, origins = [{kind = "fwd"{{.*}}}], slice = @s2
    %a0 = "pw.launch"(%x) {callee = @f, loop = @l, microbatch = 0, origins = [{kind = "fwd", microbatch = 0, stage = 0}], slice = @s0} : (!x) -> !x
    %t0 = "pw.transfer"(%a0) {loop = @l, microbatch = 0, slice = @s1} : (!x) -> !x
    %u0 = "pw.transfer"(%a0) {loop = @l, microbatch = 0, slice = @s2} : (!x) -> !x
    %b0:2 = "pw.launch"(%t0) {callee = @g, loop = @l, microbatch = 0, origins = [{kind = "fwd", microbatch = 0, stage = 1}], slice = @s1} : (!x) -> (!x, !x)
    %v0 = "pw.transfer"(%b0#0) {loop = @l, microbatch = 0, slice = @s2} : (!x) -> !x
    %w0 = "pw.transfer"(%b0#1) {loop = @l, microbatch = 0, slice = @s2} : (!x) -> !x
    %c0 = "pw.launch"(%u0, %v0, %w0) {callee = @h, loop = @l, microbatch = 0, origins = [{kind = "fwd", microbatch = 0, stage = 2}], slice = @s2} : (!x, !x, !x) -> !x
    %a1 = "pw.launch"(%x) {callee = @f, loop = @l, microbatch = 1, origins = [{kind = "fwd", microbatch = 1, stage = 0}], slice = @s0} : (!x) -> !x
    %t1 = "pw.transfer"(%a1) {loop = @l, microbatch = 1, slice = @s1} : (!x) -> !x
    %u1 = "pw.transfer"(%a1) {loop = @l, microbatch = 1, slice = @s2} : (!x) -> !x
    %b1:2 = "pw.launch"(%t1) {callee = @g, loop = @l, microbatch = 1, origins = [{kind = "fwd", microbatch = 1, stage = 1}], slice = @s1} : (!x) -> (!x, !x)
    %v1 = "pw.transfer"(%b1#0) {loop = @l, microbatch = 1, slice = @s2} : (!x) -> !x
    %w1 = "pw.transfer"(%b1#1) {loop = @l, microbatch = 1, slice = @s2} : (!x) -> !x
    %c1 = "pw.launch"(%u1, %v1, %w1) {callee = @h, loop = @l, microbatch = 1, origins = [{kind = "fwd", microbatch = 1, stage = 2}], slice = @s2} : (!x, !x, !x) -> !x
    %r = "pw.reduce"(%c0, %c1) {kind = "sum", loop = @l, slice = @s2} : (!x, !x) -> !x
    return %r : !x
  }
  func.func private @f(!x) -> !x
  func.func private @g(!x) -> (!x, !x)
  func.func private @h(!x, !x, !x) -> !x
}
