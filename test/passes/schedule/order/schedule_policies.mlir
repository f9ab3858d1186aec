// RUN: pw-opt %s --split-input-file --emit-schedule -p 'pw-schedule{policy=gpipe}' | filecheck %s --check-prefix=GPIPE
// RUN: pw-opt %s --split-input-file --emit-schedule -p 'pw-schedule{policy=1f1b}' | filecheck %s --check-prefix=1F1B
// RUN: pw-opt %s --split-input-file --emit-schedule -p 'pw-schedule{policy=interleaved-1f1b}' | filecheck %s --check-prefix=INTER
// RUN: pw-opt %s --split-input-file --emit-schedule -p 'pw-schedule{policy=eager max-live=2}' | filecheck %s --check-prefix=EAGER
// RUN: pw-opt %s --split-input-file --emit-schedule -p 'pw-schedule{policy=program}' | filecheck %s --check-prefix=PROGRAM

// Two stages on two slices.

// GPIPE:      {{^}}0F0,0F1,0F2,0F3,,,0B0,0B1,0B2,0B3{{$}}
// GPIPE-NEXT: {{^}},1F0,1F1,1F2,1F3,1B0,1B1,1B2,1B3,{{$}}
//
// 1F1B:      {{^}}0F0,0F1,,0B0,0F2,0B1,0F3,0B2,,0B3{{$}}
// 1F1B-NEXT: {{^}},1F0,1B0,1F1,1B1,1F2,1B2,1F3,1B3,{{$}}
//
// INTER:      {{^}}0F0,0F1,,0B0,0F2,0B1,0F3,0B2,,0B3{{$}}
// INTER-NEXT: {{^}},1F0,1B0,1F1,1B1,1F2,1B2,1F3,1B3,{{$}}
//
// EAGER:      {{^}}0F0,0F1,,,0B0,0F2,0B1,0F3,0B2,,0B3{{$}}
// EAGER-NEXT: {{^}},1F0,1F1,1B0,1B1,,1F2,1B2,1F3,1B3,{{$}}
//
// PROGRAM:      {{^}}0F0,,,0B0,0F1,,,0B1,0F2,,,0B2,0F3,,,0B3{{$}}
// PROGRAM-NEXT: {{^}},1F0,1B0,,,1F1,1B1,,,1F2,1B2,,,1F3,1B3,{{$}}

!x = tensor<4xf32>
module @two_slices attributes {pw.form = "unrolled"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  "pw.slice"() {sym_name = "s1", mesh = @mesh} : () -> ()
  "pw.loop"() {sym_name = "l", count = 4 : i64} : () -> ()
  func.func @main(%x0: !x {pw.slice = @s0}, %x1: !x {pw.slice = @s0}, %x2: !x {pw.slice = @s0}, %x3: !x {pw.slice = @s0}) -> (!x {pw.slice = @s0}) {
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
    %f0_3 = "pw.launch"(%x3) {callee = @f0, loop = @l, microbatch = 3 : i64, origins = [{kind = "fwd", microbatch = 3 : i64, stage = 0 : i64}], slice = @s0} : (!x) -> !x
    %t1_3 = "pw.transfer"(%f0_3) {loop = @l, microbatch = 3, slice = @s1} : (!x) -> !x
    %f1_3 = "pw.launch"(%t1_3) {callee = @f1, loop = @l, microbatch = 3 : i64, origins = [{kind = "fwd", microbatch = 3 : i64, stage = 1 : i64}], slice = @s1} : (!x) -> !x
    %b1_3 = "pw.launch"(%f1_3, %f1_3) {callee = @b1, loop = @l, microbatch = 3 : i64, origins = [{kind = "bwd", microbatch = 3 : i64, stage = 1 : i64}], slice = @s1} : (!x, !x) -> !x
    %u0_3 = "pw.transfer"(%b1_3) {loop = @l, microbatch = 3, slice = @s0} : (!x) -> !x
    %b0_3 = "pw.launch"(%f0_3, %u0_3) {callee = @b0, loop = @l, microbatch = 3 : i64, origins = [{kind = "bwd", microbatch = 3 : i64, stage = 0 : i64}], slice = @s0} : (!x, !x) -> !x
    %r = "pw.reduce"(%b0_0, %b0_1, %b0_2, %b0_3) {kind = "sum", loop = @l, slice = @s0} : (!x, !x, !x, !x) -> !x
    return %r : !x
  }
  func.func private @f0(!x) -> !x
  func.func private @b0(!x, !x) -> !x
  func.func private @f1(!x) -> !x
  func.func private @b1(!x, !x) -> !x
}

// -----

// Four stages on four slices.

// GPIPE:      {{^}}0F0,0F1,0F2,0F3,,,,,,,0B0,0B1,0B2,0B3{{$}}
// GPIPE-NEXT: {{^}},1F0,1F1,1F2,1F3,,,,,1B0,1B1,1B2,1B3,{{$}}
// GPIPE-NEXT: {{^}},,2F0,2F1,2F2,2F3,,,2B0,2B1,2B2,2B3,,{{$}}
// GPIPE-NEXT: {{^}},,,3F0,3F1,3F2,3F3,3B0,3B1,3B2,3B3,,,{{$}}
//
// 1F1B:      {{^}}0F0,0F1,0F2,0F3,,,,0B0,,0B1,,0B2,,0B3{{$}}
// 1F1B-NEXT: {{^}},1F0,1F1,1F2,,,1B0,1F3,1B1,,1B2,,1B3,{{$}}
// 1F1B-NEXT: {{^}},,2F0,2F1,,2B0,2F2,2B1,2F3,2B2,,2B3,,{{$}}
// 1F1B-NEXT: {{^}},,,3F0,3B0,3F1,3B1,3F2,3B2,3F3,3B3,,,{{$}}
//
// INTER:      {{^}}0F0,0F1,0F2,0F3,,,,0B0,,0B1,,0B2,,0B3{{$}}
// INTER-NEXT: {{^}},1F0,1F1,1F2,,,1B0,1F3,1B1,,1B2,,1B3,{{$}}
// INTER-NEXT: {{^}},,2F0,2F1,,2B0,2F2,2B1,2F3,2B2,,2B3,,{{$}}
// INTER-NEXT: {{^}},,,3F0,3B0,3F1,3B1,3F2,3B2,3F3,3B3,,,{{$}}
//
// EAGER:      {{^}}0F0,0F1,,,,,,,0B0,0F2,0B1,0F3,,,,,0B2,,0B3{{$}}
// EAGER-NEXT: {{^}},1F0,1F1,,,,,1B0,1B1,,1F2,,1F3,,,1B2,,1B3,{{$}}
// EAGER-NEXT: {{^}},,2F0,2F1,,,2B0,2B1,,,,2F2,,2F3,2B2,,2B3,,{{$}}
// EAGER-NEXT: {{^}},,,3F0,3F1,3B0,3B1,,,,,,3F2,3B2,3F3,3B3,,,{{$}}
//
// PROGRAM:      {{^}}0F0,,,,,,,0B0,0F1,,,,,,,0B1,0F2,,,,,,,0B2,0F3,,,,,,,0B3{{$}}
// PROGRAM-NEXT: {{^}},1F0,,,,,1B0,,,1F1,,,,,1B1,,,1F2,,,,,1B2,,,1F3,,,,,1B3,{{$}}
// PROGRAM-NEXT: {{^}},,2F0,,,2B0,,,,,2F1,,,2B1,,,,,2F2,,,2B2,,,,,2F3,,,2B3,,{{$}}
// PROGRAM-NEXT: {{^}},,,3F0,3B0,,,,,,,3F1,3B1,,,,,,,3F2,3B2,,,,,,,3F3,3B3,,,{{$}}

!x = tensor<4xf32>
module @four_slices attributes {pw.form = "unrolled"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  "pw.slice"() {sym_name = "s1", mesh = @mesh} : () -> ()
  "pw.slice"() {sym_name = "s2", mesh = @mesh} : () -> ()
  "pw.slice"() {sym_name = "s3", mesh = @mesh} : () -> ()
  "pw.loop"() {sym_name = "l", count = 4 : i64} : () -> ()
  func.func @main(%x0: !x {pw.slice = @s0}, %x1: !x {pw.slice = @s0}, %x2: !x {pw.slice = @s0}, %x3: !x {pw.slice = @s0}) -> (!x {pw.slice = @s0}) {
    %f0_0 = "pw.launch"(%x0) {callee = @f0, loop = @l, microbatch = 0 : i64, origins = [{kind = "fwd", microbatch = 0 : i64, stage = 0 : i64}], slice = @s0} : (!x) -> !x
    %t1_0 = "pw.transfer"(%f0_0) {loop = @l, microbatch = 0, slice = @s1} : (!x) -> !x
    %f1_0 = "pw.launch"(%t1_0) {callee = @f1, loop = @l, microbatch = 0 : i64, origins = [{kind = "fwd", microbatch = 0 : i64, stage = 1 : i64}], slice = @s1} : (!x) -> !x
    %t2_0 = "pw.transfer"(%f1_0) {loop = @l, microbatch = 0, slice = @s2} : (!x) -> !x
    %f2_0 = "pw.launch"(%t2_0) {callee = @f2, loop = @l, microbatch = 0 : i64, origins = [{kind = "fwd", microbatch = 0 : i64, stage = 2 : i64}], slice = @s2} : (!x) -> !x
    %t3_0 = "pw.transfer"(%f2_0) {loop = @l, microbatch = 0, slice = @s3} : (!x) -> !x
    %f3_0 = "pw.launch"(%t3_0) {callee = @f3, loop = @l, microbatch = 0 : i64, origins = [{kind = "fwd", microbatch = 0 : i64, stage = 3 : i64}], slice = @s3} : (!x) -> !x
    %b3_0 = "pw.launch"(%f3_0, %f3_0) {callee = @b3, loop = @l, microbatch = 0 : i64, origins = [{kind = "bwd", microbatch = 0 : i64, stage = 3 : i64}], slice = @s3} : (!x, !x) -> !x
    %u2_0 = "pw.transfer"(%b3_0) {loop = @l, microbatch = 0, slice = @s2} : (!x) -> !x
    %b2_0 = "pw.launch"(%f2_0, %u2_0) {callee = @b2, loop = @l, microbatch = 0 : i64, origins = [{kind = "bwd", microbatch = 0 : i64, stage = 2 : i64}], slice = @s2} : (!x, !x) -> !x
    %u1_0 = "pw.transfer"(%b2_0) {loop = @l, microbatch = 0, slice = @s1} : (!x) -> !x
    %b1_0 = "pw.launch"(%f1_0, %u1_0) {callee = @b1, loop = @l, microbatch = 0 : i64, origins = [{kind = "bwd", microbatch = 0 : i64, stage = 1 : i64}], slice = @s1} : (!x, !x) -> !x
    %u0_0 = "pw.transfer"(%b1_0) {loop = @l, microbatch = 0, slice = @s0} : (!x) -> !x
    %b0_0 = "pw.launch"(%f0_0, %u0_0) {callee = @b0, loop = @l, microbatch = 0 : i64, origins = [{kind = "bwd", microbatch = 0 : i64, stage = 0 : i64}], slice = @s0} : (!x, !x) -> !x
    %f0_1 = "pw.launch"(%x1) {callee = @f0, loop = @l, microbatch = 1 : i64, origins = [{kind = "fwd", microbatch = 1 : i64, stage = 0 : i64}], slice = @s0} : (!x) -> !x
    %t1_1 = "pw.transfer"(%f0_1) {loop = @l, microbatch = 1, slice = @s1} : (!x) -> !x
    %f1_1 = "pw.launch"(%t1_1) {callee = @f1, loop = @l, microbatch = 1 : i64, origins = [{kind = "fwd", microbatch = 1 : i64, stage = 1 : i64}], slice = @s1} : (!x) -> !x
    %t2_1 = "pw.transfer"(%f1_1) {loop = @l, microbatch = 1, slice = @s2} : (!x) -> !x
    %f2_1 = "pw.launch"(%t2_1) {callee = @f2, loop = @l, microbatch = 1 : i64, origins = [{kind = "fwd", microbatch = 1 : i64, stage = 2 : i64}], slice = @s2} : (!x) -> !x
    %t3_1 = "pw.transfer"(%f2_1) {loop = @l, microbatch = 1, slice = @s3} : (!x) -> !x
    %f3_1 = "pw.launch"(%t3_1) {callee = @f3, loop = @l, microbatch = 1 : i64, origins = [{kind = "fwd", microbatch = 1 : i64, stage = 3 : i64}], slice = @s3} : (!x) -> !x
    %b3_1 = "pw.launch"(%f3_1, %f3_1) {callee = @b3, loop = @l, microbatch = 1 : i64, origins = [{kind = "bwd", microbatch = 1 : i64, stage = 3 : i64}], slice = @s3} : (!x, !x) -> !x
    %u2_1 = "pw.transfer"(%b3_1) {loop = @l, microbatch = 1, slice = @s2} : (!x) -> !x
    %b2_1 = "pw.launch"(%f2_1, %u2_1) {callee = @b2, loop = @l, microbatch = 1 : i64, origins = [{kind = "bwd", microbatch = 1 : i64, stage = 2 : i64}], slice = @s2} : (!x, !x) -> !x
    %u1_1 = "pw.transfer"(%b2_1) {loop = @l, microbatch = 1, slice = @s1} : (!x) -> !x
    %b1_1 = "pw.launch"(%f1_1, %u1_1) {callee = @b1, loop = @l, microbatch = 1 : i64, origins = [{kind = "bwd", microbatch = 1 : i64, stage = 1 : i64}], slice = @s1} : (!x, !x) -> !x
    %u0_1 = "pw.transfer"(%b1_1) {loop = @l, microbatch = 1, slice = @s0} : (!x) -> !x
    %b0_1 = "pw.launch"(%f0_1, %u0_1) {callee = @b0, loop = @l, microbatch = 1 : i64, origins = [{kind = "bwd", microbatch = 1 : i64, stage = 0 : i64}], slice = @s0} : (!x, !x) -> !x
    %f0_2 = "pw.launch"(%x2) {callee = @f0, loop = @l, microbatch = 2 : i64, origins = [{kind = "fwd", microbatch = 2 : i64, stage = 0 : i64}], slice = @s0} : (!x) -> !x
    %t1_2 = "pw.transfer"(%f0_2) {loop = @l, microbatch = 2, slice = @s1} : (!x) -> !x
    %f1_2 = "pw.launch"(%t1_2) {callee = @f1, loop = @l, microbatch = 2 : i64, origins = [{kind = "fwd", microbatch = 2 : i64, stage = 1 : i64}], slice = @s1} : (!x) -> !x
    %t2_2 = "pw.transfer"(%f1_2) {loop = @l, microbatch = 2, slice = @s2} : (!x) -> !x
    %f2_2 = "pw.launch"(%t2_2) {callee = @f2, loop = @l, microbatch = 2 : i64, origins = [{kind = "fwd", microbatch = 2 : i64, stage = 2 : i64}], slice = @s2} : (!x) -> !x
    %t3_2 = "pw.transfer"(%f2_2) {loop = @l, microbatch = 2, slice = @s3} : (!x) -> !x
    %f3_2 = "pw.launch"(%t3_2) {callee = @f3, loop = @l, microbatch = 2 : i64, origins = [{kind = "fwd", microbatch = 2 : i64, stage = 3 : i64}], slice = @s3} : (!x) -> !x
    %b3_2 = "pw.launch"(%f3_2, %f3_2) {callee = @b3, loop = @l, microbatch = 2 : i64, origins = [{kind = "bwd", microbatch = 2 : i64, stage = 3 : i64}], slice = @s3} : (!x, !x) -> !x
    %u2_2 = "pw.transfer"(%b3_2) {loop = @l, microbatch = 2, slice = @s2} : (!x) -> !x
    %b2_2 = "pw.launch"(%f2_2, %u2_2) {callee = @b2, loop = @l, microbatch = 2 : i64, origins = [{kind = "bwd", microbatch = 2 : i64, stage = 2 : i64}], slice = @s2} : (!x, !x) -> !x
    %u1_2 = "pw.transfer"(%b2_2) {loop = @l, microbatch = 2, slice = @s1} : (!x) -> !x
    %b1_2 = "pw.launch"(%f1_2, %u1_2) {callee = @b1, loop = @l, microbatch = 2 : i64, origins = [{kind = "bwd", microbatch = 2 : i64, stage = 1 : i64}], slice = @s1} : (!x, !x) -> !x
    %u0_2 = "pw.transfer"(%b1_2) {loop = @l, microbatch = 2, slice = @s0} : (!x) -> !x
    %b0_2 = "pw.launch"(%f0_2, %u0_2) {callee = @b0, loop = @l, microbatch = 2 : i64, origins = [{kind = "bwd", microbatch = 2 : i64, stage = 0 : i64}], slice = @s0} : (!x, !x) -> !x
    %f0_3 = "pw.launch"(%x3) {callee = @f0, loop = @l, microbatch = 3 : i64, origins = [{kind = "fwd", microbatch = 3 : i64, stage = 0 : i64}], slice = @s0} : (!x) -> !x
    %t1_3 = "pw.transfer"(%f0_3) {loop = @l, microbatch = 3, slice = @s1} : (!x) -> !x
    %f1_3 = "pw.launch"(%t1_3) {callee = @f1, loop = @l, microbatch = 3 : i64, origins = [{kind = "fwd", microbatch = 3 : i64, stage = 1 : i64}], slice = @s1} : (!x) -> !x
    %t2_3 = "pw.transfer"(%f1_3) {loop = @l, microbatch = 3, slice = @s2} : (!x) -> !x
    %f2_3 = "pw.launch"(%t2_3) {callee = @f2, loop = @l, microbatch = 3 : i64, origins = [{kind = "fwd", microbatch = 3 : i64, stage = 2 : i64}], slice = @s2} : (!x) -> !x
    %t3_3 = "pw.transfer"(%f2_3) {loop = @l, microbatch = 3, slice = @s3} : (!x) -> !x
    %f3_3 = "pw.launch"(%t3_3) {callee = @f3, loop = @l, microbatch = 3 : i64, origins = [{kind = "fwd", microbatch = 3 : i64, stage = 3 : i64}], slice = @s3} : (!x) -> !x
    %b3_3 = "pw.launch"(%f3_3, %f3_3) {callee = @b3, loop = @l, microbatch = 3 : i64, origins = [{kind = "bwd", microbatch = 3 : i64, stage = 3 : i64}], slice = @s3} : (!x, !x) -> !x
    %u2_3 = "pw.transfer"(%b3_3) {loop = @l, microbatch = 3, slice = @s2} : (!x) -> !x
    %b2_3 = "pw.launch"(%f2_3, %u2_3) {callee = @b2, loop = @l, microbatch = 3 : i64, origins = [{kind = "bwd", microbatch = 3 : i64, stage = 2 : i64}], slice = @s2} : (!x, !x) -> !x
    %u1_3 = "pw.transfer"(%b2_3) {loop = @l, microbatch = 3, slice = @s1} : (!x) -> !x
    %b1_3 = "pw.launch"(%f1_3, %u1_3) {callee = @b1, loop = @l, microbatch = 3 : i64, origins = [{kind = "bwd", microbatch = 3 : i64, stage = 1 : i64}], slice = @s1} : (!x, !x) -> !x
    %u0_3 = "pw.transfer"(%b1_3) {loop = @l, microbatch = 3, slice = @s0} : (!x) -> !x
    %b0_3 = "pw.launch"(%f0_3, %u0_3) {callee = @b0, loop = @l, microbatch = 3 : i64, origins = [{kind = "bwd", microbatch = 3 : i64, stage = 0 : i64}], slice = @s0} : (!x, !x) -> !x
    %r = "pw.reduce"(%b0_0, %b0_1, %b0_2, %b0_3) {kind = "sum", loop = @l, slice = @s0} : (!x, !x, !x, !x) -> !x
    return %r : !x
  }
  func.func private @f0(!x) -> !x
  func.func private @b0(!x, !x) -> !x
  func.func private @f1(!x) -> !x
  func.func private @b1(!x, !x) -> !x
  func.func private @f2(!x) -> !x
  func.func private @b2(!x, !x) -> !x
  func.func private @f3(!x) -> !x
  func.func private @b3(!x, !x) -> !x
}

// -----

// Four stages on two slices, in two rounds.

// GPIPE:      {{^}}0F0,0F1,0F2,0F3,2F0,2F1,2F2,2F3,,,2B0,2B1,2B2,2B3,0B0,0B1,0B2,0B3{{$}}
// GPIPE-NEXT: {{^}},1F0,1F1,1F2,1F3,3F0,3F1,3F2,3F3,3B0,3B1,3B2,3B3,1B0,1B1,1B2,1B3,{{$}}
//
// 1F1B:      {{^}}0F0,0F1,2F0,2F1,0F2,2B0,0F3,0B0,2B1,2F2,0B1,,2B2,2F3,0B2,,2B3,,0B3{{$}}
// 1F1B-NEXT: {{^}},1F0,1F1,3F0,3B0,3F1,1B0,3B1,1F2,1B1,3F2,3B2,1F3,1B2,3F3,3B3,,1B3,{{$}}
//
// INTER:      {{^}}0F0,0F1,2F0,2F1,0F2,2B0,0F3,2B1,2F2,0B0,2F3,0B1,,2B2,,2B3,0B2,0B3{{$}}
// INTER-NEXT: {{^}},1F0,1F1,3F0,3B0,3F1,3B1,1F2,1B0,1F3,1B1,3F2,3B2,3F3,3B3,1B2,1B3,{{$}}
//
// EAGER:      {{^}}0F0,0F1,2F0,2F1,,,2B0,2B1,0B0,0F2,0B1,0F3,2F2,2F3,,,2B2,2B3,0B2,0B3{{$}}
// EAGER-NEXT: {{^}},1F0,1F1,3F0,3F1,3B0,3B1,1B0,1B1,,1F2,,1F3,3F2,3F3,3B2,3B3,1B2,1B3,{{$}}
//
// PROGRAM:      {{^}}0F0,,2F0,,,2B0,,0B0,0F1,,2F1,,,2B1,,0B1,0F2,,2F2,,,2B2,,0B2,0F3,,2F3,,,2B3,,0B3{{$}}
// PROGRAM-NEXT: {{^}},1F0,,3F0,3B0,,1B0,,,1F1,,3F1,3B1,,1B1,,,1F2,,3F2,3B2,,1B2,,,1F3,,3F3,3B3,,1B3,{{$}}

!x = tensor<4xf32>
module @two_slices_of_two_stages attributes {pw.form = "unrolled"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  "pw.slice"() {sym_name = "s1", mesh = @mesh} : () -> ()
  "pw.loop"() {sym_name = "l", count = 4 : i64} : () -> ()
  func.func @main(%x0: !x {pw.slice = @s0}, %x1: !x {pw.slice = @s0}, %x2: !x {pw.slice = @s0}, %x3: !x {pw.slice = @s0}) -> (!x {pw.slice = @s0}) {
    %f0_0 = "pw.launch"(%x0) {callee = @f0, loop = @l, microbatch = 0 : i64, origins = [{kind = "fwd", microbatch = 0 : i64, stage = 0 : i64}], slice = @s0} : (!x) -> !x
    %t1_0 = "pw.transfer"(%f0_0) {loop = @l, microbatch = 0, slice = @s1} : (!x) -> !x
    %f1_0 = "pw.launch"(%t1_0) {callee = @f1, loop = @l, microbatch = 0 : i64, origins = [{kind = "fwd", microbatch = 0 : i64, stage = 1 : i64}], slice = @s1} : (!x) -> !x
    %t2_0 = "pw.transfer"(%f1_0) {loop = @l, microbatch = 0, slice = @s0} : (!x) -> !x
    %f2_0 = "pw.launch"(%t2_0) {callee = @f2, loop = @l, microbatch = 0 : i64, origins = [{kind = "fwd", microbatch = 0 : i64, stage = 2 : i64}], slice = @s0} : (!x) -> !x
    %t3_0 = "pw.transfer"(%f2_0) {loop = @l, microbatch = 0, slice = @s1} : (!x) -> !x
    %f3_0 = "pw.launch"(%t3_0) {callee = @f3, loop = @l, microbatch = 0 : i64, origins = [{kind = "fwd", microbatch = 0 : i64, stage = 3 : i64}], slice = @s1} : (!x) -> !x
    %b3_0 = "pw.launch"(%f3_0, %f3_0) {callee = @b3, loop = @l, microbatch = 0 : i64, origins = [{kind = "bwd", microbatch = 0 : i64, stage = 3 : i64}], slice = @s1} : (!x, !x) -> !x
    %u2_0 = "pw.transfer"(%b3_0) {loop = @l, microbatch = 0, slice = @s0} : (!x) -> !x
    %b2_0 = "pw.launch"(%f2_0, %u2_0) {callee = @b2, loop = @l, microbatch = 0 : i64, origins = [{kind = "bwd", microbatch = 0 : i64, stage = 2 : i64}], slice = @s0} : (!x, !x) -> !x
    %u1_0 = "pw.transfer"(%b2_0) {loop = @l, microbatch = 0, slice = @s1} : (!x) -> !x
    %b1_0 = "pw.launch"(%f1_0, %u1_0) {callee = @b1, loop = @l, microbatch = 0 : i64, origins = [{kind = "bwd", microbatch = 0 : i64, stage = 1 : i64}], slice = @s1} : (!x, !x) -> !x
    %u0_0 = "pw.transfer"(%b1_0) {loop = @l, microbatch = 0, slice = @s0} : (!x) -> !x
    %b0_0 = "pw.launch"(%f0_0, %u0_0) {callee = @b0, loop = @l, microbatch = 0 : i64, origins = [{kind = "bwd", microbatch = 0 : i64, stage = 0 : i64}], slice = @s0} : (!x, !x) -> !x
    %f0_1 = "pw.launch"(%x1) {callee = @f0, loop = @l, microbatch = 1 : i64, origins = [{kind = "fwd", microbatch = 1 : i64, stage = 0 : i64}], slice = @s0} : (!x) -> !x
    %t1_1 = "pw.transfer"(%f0_1) {loop = @l, microbatch = 1, slice = @s1} : (!x) -> !x
    %f1_1 = "pw.launch"(%t1_1) {callee = @f1, loop = @l, microbatch = 1 : i64, origins = [{kind = "fwd", microbatch = 1 : i64, stage = 1 : i64}], slice = @s1} : (!x) -> !x
    %t2_1 = "pw.transfer"(%f1_1) {loop = @l, microbatch = 1, slice = @s0} : (!x) -> !x
    %f2_1 = "pw.launch"(%t2_1) {callee = @f2, loop = @l, microbatch = 1 : i64, origins = [{kind = "fwd", microbatch = 1 : i64, stage = 2 : i64}], slice = @s0} : (!x) -> !x
    %t3_1 = "pw.transfer"(%f2_1) {loop = @l, microbatch = 1, slice = @s1} : (!x) -> !x
    %f3_1 = "pw.launch"(%t3_1) {callee = @f3, loop = @l, microbatch = 1 : i64, origins = [{kind = "fwd", microbatch = 1 : i64, stage = 3 : i64}], slice = @s1} : (!x) -> !x
    %b3_1 = "pw.launch"(%f3_1, %f3_1) {callee = @b3, loop = @l, microbatch = 1 : i64, origins = [{kind = "bwd", microbatch = 1 : i64, stage = 3 : i64}], slice = @s1} : (!x, !x) -> !x
    %u2_1 = "pw.transfer"(%b3_1) {loop = @l, microbatch = 1, slice = @s0} : (!x) -> !x
    %b2_1 = "pw.launch"(%f2_1, %u2_1) {callee = @b2, loop = @l, microbatch = 1 : i64, origins = [{kind = "bwd", microbatch = 1 : i64, stage = 2 : i64}], slice = @s0} : (!x, !x) -> !x
    %u1_1 = "pw.transfer"(%b2_1) {loop = @l, microbatch = 1, slice = @s1} : (!x) -> !x
    %b1_1 = "pw.launch"(%f1_1, %u1_1) {callee = @b1, loop = @l, microbatch = 1 : i64, origins = [{kind = "bwd", microbatch = 1 : i64, stage = 1 : i64}], slice = @s1} : (!x, !x) -> !x
    %u0_1 = "pw.transfer"(%b1_1) {loop = @l, microbatch = 1, slice = @s0} : (!x) -> !x
    %b0_1 = "pw.launch"(%f0_1, %u0_1) {callee = @b0, loop = @l, microbatch = 1 : i64, origins = [{kind = "bwd", microbatch = 1 : i64, stage = 0 : i64}], slice = @s0} : (!x, !x) -> !x
    %f0_2 = "pw.launch"(%x2) {callee = @f0, loop = @l, microbatch = 2 : i64, origins = [{kind = "fwd", microbatch = 2 : i64, stage = 0 : i64}], slice = @s0} : (!x) -> !x
    %t1_2 = "pw.transfer"(%f0_2) {loop = @l, microbatch = 2, slice = @s1} : (!x) -> !x
    %f1_2 = "pw.launch"(%t1_2) {callee = @f1, loop = @l, microbatch = 2 : i64, origins = [{kind = "fwd", microbatch = 2 : i64, stage = 1 : i64}], slice = @s1} : (!x) -> !x
    %t2_2 = "pw.transfer"(%f1_2) {loop = @l, microbatch = 2, slice = @s0} : (!x) -> !x
    %f2_2 = "pw.launch"(%t2_2) {callee = @f2, loop = @l, microbatch = 2 : i64, origins = [{kind = "fwd", microbatch = 2 : i64, stage = 2 : i64}], slice = @s0} : (!x) -> !x
    %t3_2 = "pw.transfer"(%f2_2) {loop = @l, microbatch = 2, slice = @s1} : (!x) -> !x
    %f3_2 = "pw.launch"(%t3_2) {callee = @f3, loop = @l, microbatch = 2 : i64, origins = [{kind = "fwd", microbatch = 2 : i64, stage = 3 : i64}], slice = @s1} : (!x) -> !x
    %b3_2 = "pw.launch"(%f3_2, %f3_2) {callee = @b3, loop = @l, microbatch = 2 : i64, origins = [{kind = "bwd", microbatch = 2 : i64, stage = 3 : i64}], slice = @s1} : (!x, !x) -> !x
    %u2_2 = "pw.transfer"(%b3_2) {loop = @l, microbatch = 2, slice = @s0} : (!x) -> !x
    %b2_2 = "pw.launch"(%f2_2, %u2_2) {callee = @b2, loop = @l, microbatch = 2 : i64, origins = [{kind = "bwd", microbatch = 2 : i64, stage = 2 : i64}], slice = @s0} : (!x, !x) -> !x
    %u1_2 = "pw.transfer"(%b2_2) {loop = @l, microbatch = 2, slice = @s1} : (!x) -> !x
    %b1_2 = "pw.launch"(%f1_2, %u1_2) {callee = @b1, loop = @l, microbatch = 2 : i64, origins = [{kind = "bwd", microbatch = 2 : i64, stage = 1 : i64}], slice = @s1} : (!x, !x) -> !x
    %u0_2 = "pw.transfer"(%b1_2) {loop = @l, microbatch = 2, slice = @s0} : (!x) -> !x
    %b0_2 = "pw.launch"(%f0_2, %u0_2) {callee = @b0, loop = @l, microbatch = 2 : i64, origins = [{kind = "bwd", microbatch = 2 : i64, stage = 0 : i64}], slice = @s0} : (!x, !x) -> !x
    %f0_3 = "pw.launch"(%x3) {callee = @f0, loop = @l, microbatch = 3 : i64, origins = [{kind = "fwd", microbatch = 3 : i64, stage = 0 : i64}], slice = @s0} : (!x) -> !x
    %t1_3 = "pw.transfer"(%f0_3) {loop = @l, microbatch = 3, slice = @s1} : (!x) -> !x
    %f1_3 = "pw.launch"(%t1_3) {callee = @f1, loop = @l, microbatch = 3 : i64, origins = [{kind = "fwd", microbatch = 3 : i64, stage = 1 : i64}], slice = @s1} : (!x) -> !x
    %t2_3 = "pw.transfer"(%f1_3) {loop = @l, microbatch = 3, slice = @s0} : (!x) -> !x
    %f2_3 = "pw.launch"(%t2_3) {callee = @f2, loop = @l, microbatch = 3 : i64, origins = [{kind = "fwd", microbatch = 3 : i64, stage = 2 : i64}], slice = @s0} : (!x) -> !x
    %t3_3 = "pw.transfer"(%f2_3) {loop = @l, microbatch = 3, slice = @s1} : (!x) -> !x
    %f3_3 = "pw.launch"(%t3_3) {callee = @f3, loop = @l, microbatch = 3 : i64, origins = [{kind = "fwd", microbatch = 3 : i64, stage = 3 : i64}], slice = @s1} : (!x) -> !x
    %b3_3 = "pw.launch"(%f3_3, %f3_3) {callee = @b3, loop = @l, microbatch = 3 : i64, origins = [{kind = "bwd", microbatch = 3 : i64, stage = 3 : i64}], slice = @s1} : (!x, !x) -> !x
    %u2_3 = "pw.transfer"(%b3_3) {loop = @l, microbatch = 3, slice = @s0} : (!x) -> !x
    %b2_3 = "pw.launch"(%f2_3, %u2_3) {callee = @b2, loop = @l, microbatch = 3 : i64, origins = [{kind = "bwd", microbatch = 3 : i64, stage = 2 : i64}], slice = @s0} : (!x, !x) -> !x
    %u1_3 = "pw.transfer"(%b2_3) {loop = @l, microbatch = 3, slice = @s1} : (!x) -> !x
    %b1_3 = "pw.launch"(%f1_3, %u1_3) {callee = @b1, loop = @l, microbatch = 3 : i64, origins = [{kind = "bwd", microbatch = 3 : i64, stage = 1 : i64}], slice = @s1} : (!x, !x) -> !x
    %u0_3 = "pw.transfer"(%b1_3) {loop = @l, microbatch = 3, slice = @s0} : (!x) -> !x
    %b0_3 = "pw.launch"(%f0_3, %u0_3) {callee = @b0, loop = @l, microbatch = 3 : i64, origins = [{kind = "bwd", microbatch = 3 : i64, stage = 0 : i64}], slice = @s0} : (!x, !x) -> !x
    %r = "pw.reduce"(%b0_0, %b0_1, %b0_2, %b0_3) {kind = "sum", loop = @l, slice = @s0} : (!x, !x, !x, !x) -> !x
    return %r : !x
  }
  func.func private @f0(!x) -> !x
  func.func private @b0(!x, !x) -> !x
  func.func private @f1(!x) -> !x
  func.func private @b1(!x, !x) -> !x
  func.func private @f2(!x) -> !x
  func.func private @b2(!x, !x) -> !x
  func.func private @f3(!x) -> !x
  func.func private @b3(!x, !x) -> !x
}

// -----

// Without a backward every policy is a pipeline of forwards.

// GPIPE:      {{^}}0F0,0F1,0F2,0F3,{{$}}
// GPIPE-NEXT: {{^}},1F0,1F1,1F2,1F3{{$}}
//
// 1F1B:      {{^}}0F0,0F1,0F2,0F3,{{$}}
// 1F1B-NEXT: {{^}},1F0,1F1,1F2,1F3{{$}}
//
// INTER:      {{^}}0F0,0F1,0F2,0F3,{{$}}
// INTER-NEXT: {{^}},1F0,1F1,1F2,1F3{{$}}
//
// EAGER:      {{^}}0F0,0F1,0F2,0F3,{{$}}
// EAGER-NEXT: {{^}},1F0,1F1,1F2,1F3{{$}}
//
// PROGRAM:      {{^}}0F0,0F1,0F2,0F3,{{$}}
// PROGRAM-NEXT: {{^}},1F0,1F1,1F2,1F3{{$}}

!x = tensor<4xf32>
module @forward_only attributes {pw.form = "unrolled"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  "pw.slice"() {sym_name = "s1", mesh = @mesh} : () -> ()
  "pw.loop"() {sym_name = "l", count = 4 : i64} : () -> ()
  func.func @main(%x0: !x {pw.slice = @s0}, %x1: !x {pw.slice = @s0}, %x2: !x {pw.slice = @s0}, %x3: !x {pw.slice = @s0}) -> (!x {pw.slice = @s1}) {
    %f0_0 = "pw.launch"(%x0) {callee = @f0, loop = @l, microbatch = 0 : i64, origins = [{kind = "fwd", microbatch = 0 : i64, stage = 0 : i64}], slice = @s0} : (!x) -> !x
    %t1_0 = "pw.transfer"(%f0_0) {loop = @l, microbatch = 0, slice = @s1} : (!x) -> !x
    %f1_0 = "pw.launch"(%t1_0) {callee = @f1, loop = @l, microbatch = 0 : i64, origins = [{kind = "fwd", microbatch = 0 : i64, stage = 1 : i64}], slice = @s1} : (!x) -> !x
    %f0_1 = "pw.launch"(%x1) {callee = @f0, loop = @l, microbatch = 1 : i64, origins = [{kind = "fwd", microbatch = 1 : i64, stage = 0 : i64}], slice = @s0} : (!x) -> !x
    %t1_1 = "pw.transfer"(%f0_1) {loop = @l, microbatch = 1, slice = @s1} : (!x) -> !x
    %f1_1 = "pw.launch"(%t1_1) {callee = @f1, loop = @l, microbatch = 1 : i64, origins = [{kind = "fwd", microbatch = 1 : i64, stage = 1 : i64}], slice = @s1} : (!x) -> !x
    %f0_2 = "pw.launch"(%x2) {callee = @f0, loop = @l, microbatch = 2 : i64, origins = [{kind = "fwd", microbatch = 2 : i64, stage = 0 : i64}], slice = @s0} : (!x) -> !x
    %t1_2 = "pw.transfer"(%f0_2) {loop = @l, microbatch = 2, slice = @s1} : (!x) -> !x
    %f1_2 = "pw.launch"(%t1_2) {callee = @f1, loop = @l, microbatch = 2 : i64, origins = [{kind = "fwd", microbatch = 2 : i64, stage = 1 : i64}], slice = @s1} : (!x) -> !x
    %f0_3 = "pw.launch"(%x3) {callee = @f0, loop = @l, microbatch = 3 : i64, origins = [{kind = "fwd", microbatch = 3 : i64, stage = 0 : i64}], slice = @s0} : (!x) -> !x
    %t1_3 = "pw.transfer"(%f0_3) {loop = @l, microbatch = 3, slice = @s1} : (!x) -> !x
    %f1_3 = "pw.launch"(%t1_3) {callee = @f1, loop = @l, microbatch = 3 : i64, origins = [{kind = "fwd", microbatch = 3 : i64, stage = 1 : i64}], slice = @s1} : (!x) -> !x
    %r = "pw.reduce"(%f1_0, %f1_1, %f1_2, %f1_3) {kind = "sum", loop = @l, slice = @s1} : (!x, !x, !x, !x) -> !x
    return %r : !x
  }
  func.func private @f0(!x) -> !x
  func.func private @f1(!x) -> !x
}
