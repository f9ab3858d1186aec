// RUN: pw-opt %s --emit-schedule -p 'pw-unroll-microbatches,pw-schedule{policy=zb-v}' | filecheck %s --check-prefix=ZBV
// RUN: pw-opt %s --emit-schedule -p 'pw-unroll-microbatches,pw-schedule{policy=1f1b}' | filecheck %s --check-prefix=1F1B
// RUN: not pw-opt %s -p 'pw-unroll-microbatches,pw-schedule{policy=interleaved-zb}' 2>&1 | filecheck %s --check-prefix=ROUNDS

// A V: the stages 1 and 2 follow each other on the second slice and stay two stages. By zb-v no slice idles between
// its first and its last action.

// ZBV:      {{^}}0F0,0F1,0F2,3F0,3I0,3W0,3F1,3I1,3W1,0F3,0I0,0W0,3F2,3I2,3W2,0I1,0W1,3F3,3I3,3W3,0I2,0W2,0I3,0W3,{{$}}
// ZBV-NEXT: {{^}},1F0,2F0,1F1,2F1,2I0,2W0,1F2,1I0,1W0,2F2,2I1,2W1,1F3,1I1,1W1,2F3,2I2,2W2,1I2,2I3,1I3,1W2,1W3,2W3{{$}}

// 1F1B:      {{^}}0F0,0F1,0F2,3F0,3I0,3W0,3F1,3I1,3W1,0I0,0W0,0F3,0I1,0W1,,3F2,3I2,3W2,3F3,3I3,3W3,0I2,0W2,,0I3,0W3{{$}}
// 1F1B-NEXT: {{^}},1F0,2F0,1F1,2F1,2I0,2W0,1I0,1W0,2I1,2W1,1I1,1W1,1F2,2F2,1F3,2F3,2I2,2W2,1I2,1W2,2I3,2W3,1I3,1W3,{{$}}

// ROUNDS: 'pw.loop' op cannot be scheduled by 'interleaved-zb', which needs slices in round-robin order

!x = tensor<4xf32>
module @in_a_v attributes {pw.form = "sharded"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  "pw.slice"() {sym_name = "s1", mesh = @mesh} : () -> ()
  "pw.loop"() {sym_name = "l", count = 4 : i64} : () -> ()
  func.func @main(%x: tensor<16xf32> {pw.slice = @s0}) -> (!x {pw.slice = @s0}) {
    %t0 = "pw.split"(%x) {loop = @l, slice = @s0} : (tensor<16xf32>) -> !x
    %f0 = "pw.launch"(%t0) {callee = @f, loop = @l, origins = [{kind = "fwd", stage = 0}], slice = @s0} : (!x) -> !x
    %t1 = "pw.transfer"(%f0) {loop = @l, slice = @s1} : (!x) -> !x
    %f1 = "pw.launch"(%t1) {callee = @f, loop = @l, origins = [{kind = "fwd", stage = 1}], slice = @s1} : (!x) -> !x
    %f2 = "pw.launch"(%f1) {callee = @f, loop = @l, origins = [{kind = "fwd", stage = 2}], slice = @s1} : (!x) -> !x
    %t3 = "pw.transfer"(%f2) {loop = @l, slice = @s0} : (!x) -> !x
    %f3 = "pw.launch"(%t3) {callee = @f, loop = @l, origins = [{kind = "fwd", stage = 3}], slice = @s0} : (!x) -> !x
    %i3 = "pw.launch"(%f3, %f3) {callee = @b, loop = @l, origins = [{kind = "bwd", part = "input", stage = 3}], slice = @s0} : (!x, !x) -> !x
    %w3 = "pw.launch"(%f3, %i3) {callee = @b, loop = @l, origins = [{kind = "bwd", part = "weight", stage = 3}], slice = @s0} : (!x, !x) -> !x
    %u2 = "pw.transfer"(%i3) {loop = @l, slice = @s1} : (!x) -> !x
    %i2 = "pw.launch"(%f2, %u2) {callee = @b, loop = @l, origins = [{kind = "bwd", part = "input", stage = 2}], slice = @s1} : (!x, !x) -> !x
    %w2 = "pw.launch"(%f2, %i2) {callee = @b, loop = @l, origins = [{kind = "bwd", part = "weight", stage = 2}], slice = @s1} : (!x, !x) -> !x
    %i1 = "pw.launch"(%f1, %i2) {callee = @b, loop = @l, origins = [{kind = "bwd", part = "input", stage = 1}], slice = @s1} : (!x, !x) -> !x
    %w1 = "pw.launch"(%f1, %i1) {callee = @b, loop = @l, origins = [{kind = "bwd", part = "weight", stage = 1}], slice = @s1} : (!x, !x) -> !x
    %u0 = "pw.transfer"(%i1) {loop = @l, slice = @s0} : (!x) -> !x
    %i0 = "pw.launch"(%f0, %u0) {callee = @b, loop = @l, origins = [{kind = "bwd", part = "input", stage = 0}], slice = @s0} : (!x, !x) -> !x
    %w0 = "pw.launch"(%f0, %i0) {callee = @b, loop = @l, origins = [{kind = "bwd", part = "weight", stage = 0}], slice = @s0} : (!x, !x) -> !x
    %r = "pw.reduce"(%w0) {kind = "sum", loop = @l, slice = @s0} : (!x) -> !x
    return %r : !x
  }
  func.func private @f(!x) -> !x
  func.func private @b(!x, !x) -> !x
}
