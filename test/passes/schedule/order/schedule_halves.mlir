// RUN: pw-opt %s --emit-schedule -p 'pw-unroll-microbatches,pw-schedule{policy=1f1b}' | filecheck %s --check-prefix=1F1B
// RUN: pw-opt %s --emit-schedule -p 'pw-unroll-microbatches,pw-schedule{policy=zb-h1}' | filecheck %s --check-prefix=H1
// RUN: pw-opt %s --emit-schedule -p 'pw-unroll-microbatches,pw-schedule{policy=zb-h2}' | filecheck %s --check-prefix=H2
// RUN: pw-opt %s --emit-schedule -p 'pw-unroll-microbatches,pw-schedule{policy=zb-h2 max-live=3}' | filecheck %s --check-prefix=BOUND
// RUN: pw-opt %s --emit-schedule -p 'pw-unroll-microbatches,pw-schedule{policy=gpipe}' | filecheck %s --check-prefix=GPIPE
// RUN: pw-opt %s --emit-schedule -p 'pw-unroll-microbatches,pw-schedule{policy=eager max-live=4}' | filecheck %s --check-prefix=EAGER

// Four stages whose backwards are cut in halves. 1f1b keeps the halves together and idles for nine units of
// time between its first and its last action, zb-h1 for three, zb-h2 for none.

// 1F1B:      {{^}}0F0,0F1,0F2,0F3,,,,0I0,0W0,0F4,0I1,0W1,0F5,0I2,0W2,0F6,0I3,0W3,0F7,0I4,0W4,,0I5,0W5,,0I6,0W6,,0I7,0W7{{$}}
// 1F1B-NEXT: {{^}},1F0,1F1,1F2,,,1I0,1W0,1F3,1I1,1W1,1F4,1I2,1W2,1F5,1I3,1W3,1F6,1I4,1W4,1F7,1I5,1W5,,1I6,1W6,,1I7,1W7,{{$}}
// 1F1B-NEXT: {{^}},,2F0,2F1,,2I0,2W0,2F2,2I1,2W1,2F3,2I2,2W2,2F4,2I3,2W3,2F5,2I4,2W4,2F6,2I5,2W5,2F7,2I6,2W6,,2I7,2W7,,{{$}}
// 1F1B-NEXT: {{^}},,,3F0,3I0,3W0,3F1,3I1,3W1,3F2,3I2,3W2,3F3,3I3,3W3,3F4,3I4,3W4,3F5,3I5,3W5,3F6,3I6,3W6,3F7,3I7,3W7,,,{{$}}

// H1:      {{^}}0F0,0F1,0F2,0F3,,,,0I0,0W0,0F4,0I1,0W1,0F5,0I2,0W2,0F6,0I3,0W3,0F7,0I4,0W4,0I5,0W5,0I6,0W6,0I7,0W7{{$}}
// H1-NEXT: {{^}},1F0,1F1,1F2,,,1I0,1F3,1I1,1W0,1F4,1I2,1W1,1F5,1I3,1W2,1F6,1I4,1W3,1F7,1I5,1W4,1I6,1W5,1I7,1W6,1W7{{$}}
// H1-NEXT: {{^}},,2F0,2F1,,2I0,2F2,2I1,2F3,2I2,2W0,2F4,2I3,2W1,2F5,2I4,2W2,2F6,2I5,2W3,2F7,2I6,2W4,2I7,2W5,2W6,2W7{{$}}
// H1-NEXT: {{^}},,,3F0,3I0,3F1,3I1,3F2,3I2,3F3,3I3,3W0,3F4,3I4,3W1,3F5,3I5,3W2,3F6,3I6,3W3,3F7,3I7,3W4,3W5,3W6,3W7{{$}}

// H2:      {{^}}0F0,0F1,0F2,0F3,0F4,0F5,0F6,0I0,0W0,0F7,0I1,0W1,0I2,0W2,0I3,0W3,0I4,0W4,0I5,0W5,0I6,0W6,0I7,0W7,,,{{$}}
// H2-NEXT: {{^}},1F0,1F1,1F2,1F3,1F4,1I0,1F5,1I1,1F6,1I2,1W0,1F7,1I3,1W1,1I4,1W2,1I5,1W3,1I6,1W4,1I7,1W5,1W6,1W7,,{{$}}
// H2-NEXT: {{^}},,2F0,2F1,2F2,2I0,2F3,2I1,2F4,2I2,2F5,2I3,2F6,2I4,2W0,2F7,2I5,2W1,2I6,2W2,2I7,2W3,2W4,2W5,2W6,2W7,{{$}}
// H2-NEXT: {{^}},,,3F0,3I0,3F1,3I1,3F2,3I2,3F3,3I3,3F4,3I4,3F5,3I5,3F6,3I6,3W0,3F7,3I7,3W1,3W2,3W3,3W4,3W5,3W6,3W7{{$}}

// A bound on the microbatches that are alive holds for forwards ahead and pending halves together.

// BOUND:      {{^}}0F0,0F1,0F2,,,,,0I0,0W0,0F3,,,,,0I1,0W1,0F4,,,,,0I2,0W2,0F5,,,,,0I3,0W3,0F6,,,,,0I4,0W4,0F7,,,,,0I5,0W5,0I6,0W6,0I7,0W7{{$}}
// BOUND-NEXT: {{^}},1F0,1F1,1F2,,,1I0,1W0,,,1F3,,,1I1,1W1,,,1F4,,,1I2,1W2,,,1F5,,,1I3,1W3,,,1F6,,,1I4,1W4,,,1F7,,,1I5,1W5,1I6,1W6,1I7,1W7,{{$}}
// BOUND-NEXT: {{^}},,2F0,2F1,2F2,2I0,2W0,,,,,2F3,2I1,2W1,,,,,2F4,2I2,2W2,,,,,2F5,2I3,2W3,,,,,2F6,2I4,2W4,,,,,2F7,2I5,2W5,2I6,2W6,2I7,2W7,,{{$}}
// BOUND-NEXT: {{^}},,,3F0,3I0,3F1,3I1,3F2,3I2,3W0,,,3F3,3I3,3W1,,,,,3F4,3I4,3W2,,,,,3F5,3I5,3W3,,,,,3F6,3I6,3W4,,,,,3F7,3I7,3W5,3W6,3W7,,,{{$}}

// Policies that know no halves run both where the backward would: all behind the forwards, or of four at a time.

// GPIPE:      {{^}}0F0,0F1,0F2,0F3,0F4,0F5,0F6,0F7,,,,,,,0I0,0W0,0I1,0W1,0I2,0W2,0I3,0W3,0I4,0W4,0I5,0W5,0I6,0W6,0I7,0W7{{$}}
// GPIPE-NEXT: {{^}},1F0,1F1,1F2,1F3,1F4,1F5,1F6,1F7,,,,,1I0,1W0,1I1,1W1,1I2,1W2,1I3,1W3,1I4,1W4,1I5,1W5,1I6,1W6,1I7,1W7,{{$}}
// GPIPE-NEXT: {{^}},,2F0,2F1,2F2,2F3,2F4,2F5,2F6,2F7,,,2I0,2W0,2I1,2W1,2I2,2W2,2I3,2W3,2I4,2W4,2I5,2W5,2I6,2W6,2I7,2W7,,{{$}}
// GPIPE-NEXT: {{^}},,,3F0,3F1,3F2,3F3,3F4,3F5,3F6,3F7,3I0,3W0,3I1,3W1,3I2,3W2,3I3,3W3,3I4,3W4,3I5,3W5,3I6,3W6,3I7,3W7,,,{{$}}

// EAGER:      {{^}}0F0,0F1,0F2,0F3,,,,,,,0I0,0W0,0F4,0I1,0W1,0F5,0I2,0W2,0F6,0I3,0W3,0F7,0I4,0W4,,0I5,0W5,,0I6,0W6,0I7,0W7{{$}}
// EAGER-NEXT: {{^}},1F0,1F1,1F2,1F3,,,,,1I0,1W0,1I1,1W1,1I2,1W2,1F4,1I3,1W3,1F5,1F6,,1I4,1W4,1F7,1I5,1W5,,1I6,1W6,1I7,1W7,{{$}}
// EAGER-NEXT: {{^}},,2F0,2F1,2F2,2F3,,,2I0,2W0,2I1,2W1,2I2,2W2,2I3,2W3,2F4,,,2F5,2I4,2W4,2F6,2I5,2W5,2F7,2I6,2W6,2I7,2W7,,{{$}}
// EAGER-NEXT: {{^}},,,3F0,3F1,3F2,3F3,3I0,3W0,3I1,3W1,3I2,3W2,3I3,3W3,,,3F4,3I4,3W4,3F5,3I5,3W5,3F6,3I6,3W6,3F7,3I7,3W7,,,{{$}}

!x = tensor<4xf32>
module @four_slices attributes {pw.form = "sharded"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  "pw.slice"() {sym_name = "s1", mesh = @mesh} : () -> ()
  "pw.slice"() {sym_name = "s2", mesh = @mesh} : () -> ()
  "pw.slice"() {sym_name = "s3", mesh = @mesh} : () -> ()
  "pw.loop"() {sym_name = "l", count = 8 : i64} : () -> ()
  func.func @main(%x: tensor<32xf32> {pw.slice = @s0})
      -> (!x {pw.slice = @s0}, !x {pw.slice = @s1}, !x {pw.slice = @s2}, !x {pw.slice = @s3}) {
    %t0 = "pw.split"(%x) {loop = @l, slice = @s0} : (tensor<32xf32>) -> !x
    %f0 = "pw.launch"(%t0) {callee = @f, loop = @l, origins = [{kind = "fwd", stage = 0}], slice = @s0} : (!x) -> !x
    %t1 = "pw.transfer"(%f0) {loop = @l, slice = @s1} : (!x) -> !x
    %f1 = "pw.launch"(%t1) {callee = @f, loop = @l, origins = [{kind = "fwd", stage = 1}], slice = @s1} : (!x) -> !x
    %t2 = "pw.transfer"(%f1) {loop = @l, slice = @s2} : (!x) -> !x
    %f2 = "pw.launch"(%t2) {callee = @f, loop = @l, origins = [{kind = "fwd", stage = 2}], slice = @s2} : (!x) -> !x
    %t3 = "pw.transfer"(%f2) {loop = @l, slice = @s3} : (!x) -> !x
    %f3 = "pw.launch"(%t3) {callee = @f, loop = @l, origins = [{kind = "fwd", stage = 3}], slice = @s3} : (!x) -> !x
    %i3 = "pw.launch"(%f3, %f3) {callee = @b, loop = @l, origins = [{kind = "bwd", part = "input", stage = 3}], slice = @s3} : (!x, !x) -> !x
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
    return %r0, %r1, %r2, %r3 : !x, !x, !x, !x
  }
  func.func private @f(!x) -> !x
  func.func private @b(!x, !x) -> !x
}
