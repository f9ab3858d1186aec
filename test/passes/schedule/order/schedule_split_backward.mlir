// RUN: pw-opt %s -p 'pw-schedule{policy=1f1b}' --emit-schedule | filecheck %s --check-prefix=POLICY
// RUN: printf '0F0,0F1,0I0,0I1,0W0,0W1\n1F0,1B0,1F1,1I1,1W1\n' >%t
// RUN: pw-opt %s -p "pw-schedule{file='"%t"'}" --emit-schedule | filecheck %s --check-prefix=FILE

// A backward in two halves: a policy keeps them together, a file may put off the gradients of weights.

// POLICY:      {{^}}0F0,0F1,,0I0,0W0,,0I1,0W1{{$}}
// POLICY-NEXT: {{^}},1F0,1I0,1W0,1F1,1I1,1W1,{{$}}

// FILE:      {{^}}0F0,0F1,,0I0,,,0I1,0W0,0W1{{$}}
// FILE-NEXT: {{^}},1F0,1I0,1W0,1F1,1I1,1W1,,{{$}}

!x = tensor<4xf32>
module @split_backward attributes {pw.form = "unrolled"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  "pw.slice"() {sym_name = "s1", mesh = @mesh} : () -> ()
  "pw.loop"() {sym_name = "l", count = 2 : i64} : () -> ()
  func.func @main(%x: !x {pw.slice = @s0}) -> (!x {pw.slice = @s0}, !x {pw.slice = @s1}) {
    %a0 = "pw.launch"(%x) {callee = @f, loop = @l, microbatch = 0, origins = [{kind = "fwd", microbatch = 0, stage = 0}], slice = @s0} : (!x) -> !x
    %t0 = "pw.transfer"(%a0) {loop = @l, microbatch = 0, slice = @s1} : (!x) -> !x
    %b0 = "pw.launch"(%t0) {callee = @f, loop = @l, microbatch = 0, origins = [{kind = "fwd", microbatch = 0, stage = 1}], slice = @s1} : (!x) -> !x
    %i0 = "pw.launch"(%b0) {callee = @f, loop = @l, microbatch = 0, origins = [{kind = "bwd", microbatch = 0, part = "input", stage = 1}], slice = @s1} : (!x) -> !x
    %u0 = "pw.transfer"(%i0) {loop = @l, microbatch = 0, slice = @s0} : (!x) -> !x
    %w0 = "pw.launch"(%i0) {callee = @f, loop = @l, microbatch = 0, origins = [{kind = "bwd", microbatch = 0, part = "weight", stage = 1}], slice = @s1} : (!x) -> !x
    %j0 = "pw.launch"(%u0) {callee = @f, loop = @l, microbatch = 0, origins = [{kind = "bwd", microbatch = 0, part = "input", stage = 0}], slice = @s0} : (!x) -> !x
    %v0 = "pw.launch"(%j0) {callee = @f, loop = @l, microbatch = 0, origins = [{kind = "bwd", microbatch = 0, part = "weight", stage = 0}], slice = @s0} : (!x) -> !x
    %a1 = "pw.launch"(%x) {callee = @f, loop = @l, microbatch = 1, origins = [{kind = "fwd", microbatch = 1, stage = 0}], slice = @s0} : (!x) -> !x
    %t1 = "pw.transfer"(%a1) {loop = @l, microbatch = 1, slice = @s1} : (!x) -> !x
    %b1 = "pw.launch"(%t1) {callee = @f, loop = @l, microbatch = 1, origins = [{kind = "fwd", microbatch = 1, stage = 1}], slice = @s1} : (!x) -> !x
    %i1 = "pw.launch"(%b1) {callee = @f, loop = @l, microbatch = 1, origins = [{kind = "bwd", microbatch = 1, part = "input", stage = 1}], slice = @s1} : (!x) -> !x
    %u1 = "pw.transfer"(%i1) {loop = @l, microbatch = 1, slice = @s0} : (!x) -> !x
    %w1 = "pw.launch"(%i1) {callee = @f, loop = @l, microbatch = 1, origins = [{kind = "bwd", microbatch = 1, part = "weight", stage = 1}], slice = @s1} : (!x) -> !x
    %j1 = "pw.launch"(%u1) {callee = @f, loop = @l, microbatch = 1, origins = [{kind = "bwd", microbatch = 1, part = "input", stage = 0}], slice = @s0} : (!x) -> !x
    %v1 = "pw.launch"(%j1) {callee = @f, loop = @l, microbatch = 1, origins = [{kind = "bwd", microbatch = 1, part = "weight", stage = 0}], slice = @s0} : (!x) -> !x
    %r = "pw.reduce"(%v0, %v1) {kind = "sum", loop = @l, slice = @s0} : (!x, !x) -> !x
    %s = "pw.reduce"(%w0, %w1) {kind = "sum", loop = @l, slice = @s1} : (!x, !x) -> !x
    return %r, %s : !x, !x
  }
  func.func private @f(!x) -> !x
}
