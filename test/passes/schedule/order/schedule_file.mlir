// RUN: pw-opt %s -p 'pw-schedule{policy=1f1b}' --emit-schedule -o %t
// RUN: filecheck %s --input-file %t
// RUN: pw-opt %s -p "pw-schedule{file='"%t"'}" --emit-schedule | diff %t -
// RUN: printf '0F0,0F1,0F2,,,0B2,0B1,0B0\n1F0,1F1,1F2,1B2,1B1,1B0\n' >%t
// RUN: pw-opt %s -p "pw-schedule{file='"%t"'}" | filecheck %s --check-prefix=READ
// RUN: printf '0F0,0F1,0F2,0B0,0B1,0B2\n1F0,1B0,1F1,0F2,1B1,1F2,1B2\n' >%t
// RUN: not pw-opt %s -p "pw-schedule{file='"%t"'}" 2>&1 | filecheck %s --check-prefix=WRONG
// RUN: printf '\377\n' >%t
// RUN: not pw-opt %s -p "pw-schedule{file='"%t"'}" 2>&1 | filecheck %s --check-prefix=BYTES
// RUN: not pw-opt %s -p 'pw-schedule{file=no/such.csv}' 2>&1 | filecheck %s --check-prefix=NONE
// RUN: not pw-opt %s --emit-schedule 2>&1 | filecheck %s --check-prefix=UNORDERED
// RUN: pw-opt %s -p 'pw-schedule{policy=1f1b},pw-accumulate,pw-fuse-launches' --emit-schedule | filecheck %s
// RUN: not pw-opt %s -p 'pw-schedule{file=a.csv policy=1f1b}' 2>&1 | filecheck %s --check-prefix=BOTH
// RUN: not pw-opt %s -p 'pw-schedule{policy=gpipe max-live=2}' 2>&1 | filecheck %s --check-prefix=GPIPE
// RUN: not pw-opt %s -p 'pw-schedule{max-live=-1}' 2>&1 | filecheck %s --check-prefix=NEGATIVE

// A schedule is written as a file, also once launches have been fused, and read back.

// CHECK:      {{^}}0F0,0F1,,0B0,0F2,0B1,,0B2{{$}}
// CHECK-NEXT: {{^}},1F0,1B0,1F1,1B1,1F2,1B2,{{$}}

// Here the last microbatch comes back first.

// READ: callee = @b1, loop = @l, microbatch = 2 : i64, order = 3
// READ: callee = @b0, loop = @l, microbatch = 2 : i64, order = 6
// READ: callee = @b0, loop = @l, microbatch = 0 : i64, order = 8

// WRONG: error: 'pw.loop' op cannot be scheduled by '{{.*}}': row 2, column 4, 0F2: stage 0 is on @s0, row 1
// BYTES: error: 'pw.loop' op cannot be scheduled by '{{.*}}': it is not UTF-8 text
// NONE: error: 'pw.loop' op cannot be scheduled by 'no/such.csv': No such file or directory
// UNORDERED: error: 'pw.launch' op has no `order`; run pw-schedule first
// BOTH: error: pipeline:1:13: 'pw-schedule': policy and file exclude each other
// GPIPE: error: 'pw.loop' op cannot be scheduled by 'gpipe(max-live=2)', which keeps 3 microbatches of stage 0 alive at once, more than 2: use search
// NEGATIVE: error: pipeline:1:13: 'pw-schedule': max-live must not be negative, got -1

!x = tensor<4xf32>
module @p attributes {pw.form = "unrolled"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  "pw.slice"() {sym_name = "s1", mesh = @mesh} : () -> ()
  "pw.loop"() {sym_name = "l", count = 3 : i64} : () -> ()
  func.func @main(%x0: !x {pw.slice = @s0}, %x1: !x {pw.slice = @s0}, %x2: !x {pw.slice = @s0}) -> (!x {pw.slice = @s0}) {
    %f0_0 = "pw.launch"(%x0) {callee = @f0, loop = @l, microbatch = 0 : i64, origins = [{kind = "fwd", microbatch = 0 : i64, stage = 0 : i64}], slice = @s0} : (!x) -> !x
    %t1_0 = "pw.transfer"(%f0_0) {loop = @l, microbatch = 0, slice = @s1} : (!x) -> !x
    %f1_0 = "pw.launch"(%t1_0) {callee = @f1, loop = @l, microbatch = 0 : i64, origins = [{kind = "fwd", microbatch = 0 : i64, stage = 1 : i64}], slice = @s1} : (!x) -> !x
    %b1_0 = "pw.launch"(%f1_0, %f1_0) {callee = @b1, loop = @l, microbatch = 0 : i64, origins = [{kind = "bwd", microbatch = 0 : i64, stage = 1 : i64}], slice = @s1} : (!x, !x) -> !x
    %u0_0 = "pw.transfer"(%b1_0) {loop = @l, microbatch = 0, slice = @s0} : (!x) -> !x
    %b0_0 = "pw.launch"(%f0_0, %u0_0) {callee = @b0, loop = @l, microbatch = 0 : i64, origins = [{kind = "bwd", microbatch = 0 : i64, stage = 0 : i64}], slice = @s0} : (!x, !x) -> !x
    %f0_1 = "pw.launch"(%x1) {callee = @f0, loop = @l, microbatch = 1 : i64, origins = [{kind = "fwd", microbatch = 1 : i64, stage = 0 : i64}], slice = @s0} : (!x) -> !x
    %t1_1 = "pw.transfer"(%f0_1) {loop = @l, microbatch = 1, slice = @s1} : (!x) -> !x
    %f1_1 = "pw.launch"(%t1_1) {callee = @f1, loop = @l, microbatch = 1 : i64, origins = [{kind = "fwd", microbatch = 1 : i64, stage = 1 : i64}], slice = @s1} : (!x) -> !x
    %b1_1 = "pw.launch"(%f1_1, %f1_1) {callee = @b1, loop = @l, microbatch = 1 : i64, origins = [{kind = "bwd", microbatch = 1 : i64, stage = 1 : i64}], slice = @s1} : (!x, !x) -> !x
    %u0_1 = "pw.transfer"(%b1_1) {loop = @l, microbatch = 1, slice = @s0} : (!x) -> !x
    %b0_1 = "pw.launch"(%f0_1, %u0_1) {callee = @b0, loop = @l, microbatch = 1 : i64, origins = [{kind = "bwd", microbatch = 1 : i64, stage = 0 : i64}], slice = @s0} : (!x, !x) -> !x
    %f0_2 = "pw.launch"(%x2) {callee = @f0, loop = @l, microbatch = 2 : i64, origins = [{kind = "fwd", microbatch = 2 : i64, stage = 0 : i64}], slice = @s0} : (!x) -> !x
    %t1_2 = "pw.transfer"(%f0_2) {loop = @l, microbatch = 2, slice = @s1} : (!x) -> !x
    %f1_2 = "pw.launch"(%t1_2) {callee = @f1, loop = @l, microbatch = 2 : i64, origins = [{kind = "fwd", microbatch = 2 : i64, stage = 1 : i64}], slice = @s1} : (!x) -> !x
    %b1_2 = "pw.launch"(%f1_2, %f1_2) {callee = @b1, loop = @l, microbatch = 2 : i64, origins = [{kind = "bwd", microbatch = 2 : i64, stage = 1 : i64}], slice = @s1} : (!x, !x) -> !x
    %u0_2 = "pw.transfer"(%b1_2) {loop = @l, microbatch = 2, slice = @s0} : (!x) -> !x
    %b0_2 = "pw.launch"(%f0_2, %u0_2) {callee = @b0, loop = @l, microbatch = 2 : i64, origins = [{kind = "bwd", microbatch = 2 : i64, stage = 0 : i64}], slice = @s0} : (!x, !x) -> !x
    %r = "pw.reduce"(%b0_0, %b0_1, %b0_2) {kind = "sum", loop = @l, slice = @s0} : (!x, !x, !x) -> !x
    return %r : !x
  }
  func.func private @f0(%a: !x) -> !x {
    return %a : !x
  }
  func.func private @b0(%a: !x, %b: !x) -> !x {
    return %a : !x
  }
  func.func private @f1(%a: !x) -> !x {
    return %a : !x
  }
  func.func private @b1(%a: !x, %b: !x) -> !x {
    return %a : !x
  }
}
