// RUN: pw-opt %s --emit-schedule -p 'pw-unroll-microbatches,pw-schedule{policy=interleaved-1f1b}' | filecheck %s --check-prefix=INTER
// RUN: pw-opt %s --emit-schedule -p 'pw-unroll-microbatches,pw-schedule{policy=interleaved-zb}' | filecheck %s --check-prefix=ZB
// RUN: pw-opt %s --emit-schedule -p 'pw-unroll-microbatches,pw-schedule{policy=looped-bfs}' | filecheck %s --check-prefix=BFS

// Four slices with two stages each, in rounds, and eight microbatches. Halves fill the gaps of 1f1b.

// INTER:      {{^}}0F0,0F1,0F2,0F3,4F0,4F1,4F2,4F3,0F4,0F5,0F6,4I0,4W0,0F7,4I1,4W1,,,,,4F4,4I2,4W2,4F5,4I3,4W3,4F6,0I0,0W0,4F7,0I1,0W1,0I2,0W2,0I3,0W3,4I4,4W4,4I5,4W5,,4I6,4W6,,4I7,4W7,0I4,0W4,0I5,0W5,0I6,0W6,0I7,0W7{{$}}
// INTER-NEXT: {{^}},1F0,1F1,1F2,1F3,5F0,5F1,5F2,5F3,1F4,5I0,5W0,1F5,5I1,5W1,1F6,5I2,5W2,1F7,5I3,5W3,5F4,1I0,1W0,5F5,1I1,1W1,5F6,1I2,1W2,5F7,1I3,1W3,,5I4,5W4,,5I5,5W5,,5I6,5W6,,5I7,5W7,1I4,1W4,1I5,1W5,1I6,1W6,1I7,1W7,{{$}}
// INTER-NEXT: {{^}},,2F0,2F1,2F2,2F3,6F0,6F1,6F2,6I0,6W0,6F3,6I1,6W1,2F4,6I2,6W2,2F5,6I3,6W3,2F6,2I0,2W0,2F7,2I1,2W1,6F4,2I2,2W2,6F5,2I3,2W3,6F6,6I4,6W4,6F7,6I5,6W5,,6I6,6W6,,6I7,6W7,2I4,2W4,2I5,2W5,2I6,2W6,2I7,2W7,,{{$}}
// INTER-NEXT: {{^}},,,3F0,3F1,3F2,3F3,7F0,7I0,7W0,7F1,7I1,7W1,7F2,7I2,7W2,7F3,7I3,7W3,3F4,3I0,3W0,3F5,3I1,3W1,3F6,3I2,3W2,3F7,3I3,3W3,7F4,7I4,7W4,7F5,7I5,7W5,7F6,7I6,7W6,7F7,7I7,7W7,3I4,3W4,3I5,3W5,3I6,3W6,3I7,3W7,,,{{$}}

// ZB:      {{^}}0F0,0F1,0F2,0F3,4F0,4F1,4F2,4F3,0F4,0F5,0F6,4I0,4W0,0F7,4I1,4W1,4F4,4I2,4W2,4F5,4I3,4W3,4F6,0I0,0W0,4F7,0I1,0W1,0I2,0W2,0I3,0W3,4I4,4W4,4I5,4W5,4I6,4W6,4I7,4W7,0I4,0W4,0I5,0W5,0I6,0W6,0I7,0W7,,,{{$}}
// ZB-NEXT: {{^}},1F0,1F1,1F2,1F3,5F0,5F1,5F2,5F3,1F4,5I0,1F5,5I1,1F6,5I2,5W0,1F7,5I3,5W1,5F4,1I0,5W2,5F5,1I1,5W3,5F6,1I2,1W0,5F7,1I3,1W1,5I4,1W2,5I5,1W3,5I6,5W4,5I7,5W5,1I4,5W6,1I5,5W7,1I6,1W4,1I7,1W5,1W6,1W7,,{{$}}
// ZB-NEXT: {{^}},,2F0,2F1,2F2,2F3,6F0,6F1,6F2,6I0,6F3,6I1,2F4,6I2,2F5,6I3,2F6,2I0,6W0,2F7,2I1,6W1,6F4,2I2,6W2,6F5,2I3,6W3,6F6,6I4,2W0,6F7,6I5,2W1,6I6,2W2,6I7,2W3,2I4,6W4,2I5,6W5,2I6,6W6,2I7,6W7,2W4,2W5,2W6,2W7,{{$}}
// ZB-NEXT: {{^}},,,3F0,3F1,3F2,3F3,7F0,7I0,7F1,7I1,7F2,7I2,7F3,7I3,3F4,3I0,3F5,3I1,3F6,3I2,7W0,3F7,3I3,7W1,7F4,7I4,7W2,7F5,7I5,7W3,7F6,7I6,3W0,7F7,7I7,3W1,3I4,3W2,3I5,3W3,3I6,7W4,3I7,7W5,7W6,7W7,3W4,3W5,3W6,3W7{{$}}

// BFS:      {{^}}0F0,0F1,0F2,0F3,0F4,0F5,0F6,0F7,4F0,4F1,4F2,4F3,4F4,4F5,4F6,4F7,,,,,,,4I0,4W0,4I1,4W1,4I2,4W2,4I3,4W3,4I4,4W4,4I5,4W5,4I6,4W6,4I7,4W7,0I0,0W0,0I1,0W1,0I2,0W2,0I3,0W3,0I4,0W4,0I5,0W5,0I6,0W6,0I7,0W7{{$}}
// BFS-NEXT: {{^}},1F0,1F1,1F2,1F3,1F4,1F5,1F6,1F7,5F0,5F1,5F2,5F3,5F4,5F5,5F6,5F7,,,,,5I0,5W0,5I1,5W1,5I2,5W2,5I3,5W3,5I4,5W4,5I5,5W5,5I6,5W6,5I7,5W7,1I0,1W0,1I1,1W1,1I2,1W2,1I3,1W3,1I4,1W4,1I5,1W5,1I6,1W6,1I7,1W7,{{$}}
// BFS-NEXT: {{^}},,2F0,2F1,2F2,2F3,2F4,2F5,2F6,2F7,6F0,6F1,6F2,6F3,6F4,6F5,6F6,6F7,,,6I0,6W0,6I1,6W1,6I2,6W2,6I3,6W3,6I4,6W4,6I5,6W5,6I6,6W6,6I7,6W7,2I0,2W0,2I1,2W1,2I2,2W2,2I3,2W3,2I4,2W4,2I5,2W5,2I6,2W6,2I7,2W7,,{{$}}
// BFS-NEXT: {{^}},,,3F0,3F1,3F2,3F3,3F4,3F5,3F6,3F7,7F0,7F1,7F2,7F3,7F4,7F5,7F6,7F7,7I0,7W0,7I1,7W1,7I2,7W2,7I3,7W3,7I4,7W4,7I5,7W5,7I6,7W6,7I7,7W7,3I0,3W0,3I1,3W1,3I2,3W2,3I3,3W3,3I4,3W4,3I5,3W5,3I6,3W6,3I7,3W7,,,{{$}}

!x = tensor<4xf32>
module attributes {pw.form = "sharded"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  "pw.slice"() {sym_name = "s1", mesh = @mesh} : () -> ()
  "pw.slice"() {sym_name = "s2", mesh = @mesh} : () -> ()
  "pw.slice"() {sym_name = "s3", mesh = @mesh} : () -> ()
  "pw.loop"() {sym_name = "l", count = 8 : i64} : () -> ()
  func.func @main(%x: tensor<32xf32> {pw.slice = @s0}) -> (!x {pw.slice = @s0}, !x {pw.slice = @s1}, !x {pw.slice = @s2}, !x {pw.slice = @s3}, !x {pw.slice = @s0}, !x {pw.slice = @s1}, !x {pw.slice = @s2}, !x {pw.slice = @s3}) {
    %t0 = "pw.split"(%x) {loop = @l, slice = @s0} : (tensor<32xf32>) -> !x
    %f0 = "pw.launch"(%t0) {callee = @f, loop = @l, origins = [{kind = "fwd", stage = 0}], slice = @s0} : (!x) -> !x
    %t1 = "pw.transfer"(%f0) {loop = @l, slice = @s1} : (!x) -> !x
    %f1 = "pw.launch"(%t1) {callee = @f, loop = @l, origins = [{kind = "fwd", stage = 1}], slice = @s1} : (!x) -> !x
    %t2 = "pw.transfer"(%f1) {loop = @l, slice = @s2} : (!x) -> !x
    %f2 = "pw.launch"(%t2) {callee = @f, loop = @l, origins = [{kind = "fwd", stage = 2}], slice = @s2} : (!x) -> !x
    %t3 = "pw.transfer"(%f2) {loop = @l, slice = @s3} : (!x) -> !x
    %f3 = "pw.launch"(%t3) {callee = @f, loop = @l, origins = [{kind = "fwd", stage = 3}], slice = @s3} : (!x) -> !x
    %t4 = "pw.transfer"(%f3) {loop = @l, slice = @s0} : (!x) -> !x
    %f4 = "pw.launch"(%t4) {callee = @f, loop = @l, origins = [{kind = "fwd", stage = 4}], slice = @s0} : (!x) -> !x
    %t5 = "pw.transfer"(%f4) {loop = @l, slice = @s1} : (!x) -> !x
    %f5 = "pw.launch"(%t5) {callee = @f, loop = @l, origins = [{kind = "fwd", stage = 5}], slice = @s1} : (!x) -> !x
    %t6 = "pw.transfer"(%f5) {loop = @l, slice = @s2} : (!x) -> !x
    %f6 = "pw.launch"(%t6) {callee = @f, loop = @l, origins = [{kind = "fwd", stage = 6}], slice = @s2} : (!x) -> !x
    %t7 = "pw.transfer"(%f6) {loop = @l, slice = @s3} : (!x) -> !x
    %f7 = "pw.launch"(%t7) {callee = @f, loop = @l, origins = [{kind = "fwd", stage = 7}], slice = @s3} : (!x) -> !x
    %i7 = "pw.launch"(%f7, %f7) {callee = @b, loop = @l, origins = [{kind = "bwd", part = "input", stage = 7}], slice = @s3} : (!x, !x) -> !x
    %w7 = "pw.launch"(%f7, %i7) {callee = @b, loop = @l, origins = [{kind = "bwd", part = "weight", stage = 7}], slice = @s3} : (!x, !x) -> !x
    %u6 = "pw.transfer"(%i7) {loop = @l, slice = @s2} : (!x) -> !x
    %i6 = "pw.launch"(%f6, %u6) {callee = @b, loop = @l, origins = [{kind = "bwd", part = "input", stage = 6}], slice = @s2} : (!x, !x) -> !x
    %w6 = "pw.launch"(%f6, %i6) {callee = @b, loop = @l, origins = [{kind = "bwd", part = "weight", stage = 6}], slice = @s2} : (!x, !x) -> !x
    %u5 = "pw.transfer"(%i6) {loop = @l, slice = @s1} : (!x) -> !x
    %i5 = "pw.launch"(%f5, %u5) {callee = @b, loop = @l, origins = [{kind = "bwd", part = "input", stage = 5}], slice = @s1} : (!x, !x) -> !x
    %w5 = "pw.launch"(%f5, %i5) {callee = @b, loop = @l, origins = [{kind = "bwd", part = "weight", stage = 5}], slice = @s1} : (!x, !x) -> !x
    %u4 = "pw.transfer"(%i5) {loop = @l, slice = @s0} : (!x) -> !x
    %i4 = "pw.launch"(%f4, %u4) {callee = @b, loop = @l, origins = [{kind = "bwd", part = "input", stage = 4}], slice = @s0} : (!x, !x) -> !x
    %w4 = "pw.launch"(%f4, %i4) {callee = @b, loop = @l, origins = [{kind = "bwd", part = "weight", stage = 4}], slice = @s0} : (!x, !x) -> !x
    %u3 = "pw.transfer"(%i4) {loop = @l, slice = @s3} : (!x) -> !x
    %i3 = "pw.launch"(%f3, %u3) {callee = @b, loop = @l, origins = [{kind = "bwd", part = "input", stage = 3}], slice = @s3} : (!x, !x) -> !x
    %w3 = "pw.launch"(%f3, %i3) {callee = @b, loop = @l, origins = [{kind = "bwd", part = "weight", stage = 3}], slice = @s3} : (!x, !x) -> !x
    %u2 = "pw.transfer"(%i3) {loop = @l, slice = @s2} : (!x) -> !x
    %i2 = "pw.launch"(%f2, %u2) {callee = @b, loop = @l, origins = [{kind = "bwd", part = "input", stage = 2}], slice = @s2} : (!x, !x) -> !x
    %w2 = "pw.launch"(%f2, %i2) {callee = @b, loop = @l, origins = [{kind = "bwd", part = "weight", stage = 2}], slice = @s2} : (!x, !x) -> !x
    %u1 = "pw.transfer"(%i2) {loop = @l, slice = @s1} : (!x) -> !x
    %i1 = "pw.launch"(%f1, %u1) {callee = @b, loop = @l, origins = [{kind = "bwd", part = "input", stage = 1}], slice = @s1} : (!x, !x) -> !x
    %w1 = "pw.launch"(%f1, %i1) {callee = @b, loop = @l, origins = [{kind = "bwd", part = "weight", stage = 1}], slice = @s1} : (!x, !x) -> !x
    %u0 = "pw.transfer"(%i1) {loop = @l, slice = @s0} : (!x) -> !x
    %i0 = "pw.launch"(%f0, %u0) {callee = @b, loop = @l, origins = [{kind = "bwd", part = "input", stage = 0}], slice = @s0} : (!x, !x) -> !x
    %w0 = "pw.launch"(%f0, %i0) {callee = @b, loop = @l, origins = [{kind = "bwd", part = "weight", stage = 0}], slice = @s0} : (!x, !x) -> !x
    %r0 = "pw.reduce"(%w0) {kind = "sum", loop = @l, slice = @s0} : (!x) -> !x
    %r1 = "pw.reduce"(%w1) {kind = "sum", loop = @l, slice = @s1} : (!x) -> !x
    %r2 = "pw.reduce"(%w2) {kind = "sum", loop = @l, slice = @s2} : (!x) -> !x
    %r3 = "pw.reduce"(%w3) {kind = "sum", loop = @l, slice = @s3} : (!x) -> !x
    %r4 = "pw.reduce"(%w4) {kind = "sum", loop = @l, slice = @s0} : (!x) -> !x
    %r5 = "pw.reduce"(%w5) {kind = "sum", loop = @l, slice = @s1} : (!x) -> !x
    %r6 = "pw.reduce"(%w6) {kind = "sum", loop = @l, slice = @s2} : (!x) -> !x
    %r7 = "pw.reduce"(%w7) {kind = "sum", loop = @l, slice = @s3} : (!x) -> !x
    return %r0, %r1, %r2, %r3, %r4, %r5, %r6, %r7 : !x, !x, !x, !x, !x, !x, !x, !x
  }
  func.func private @f(!x) -> !x
  func.func private @b(!x, !x) -> !x
}
