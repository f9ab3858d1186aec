// RUN: pw-compile %s --explain | filecheck %s

// Of a program with a loop over microbatches, the bubble too: it starts in any form.

// CHECK: {{^}}program pipeline{{$}}
// CHECK-NEXT: slices 2
// CHECK: planned step time 5 units
// CHECK-NEXT: bubble 20.0 %
// CHECK: argument type
// CHECK-NEXT: args[0] f32[8,4]
// CHECK: {{^ *}}loop microbatches
// CHECK-NEXT: batch 4
// CHECK: {{^ *}}slice mesh computations launches

!x = tensor<8x4xf32>
!b = tensor<2x4xf32>
module @pipeline attributes {pw.form = "imported"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {mesh = @mesh, sym_name = "s0"} : () -> ()
  "pw.slice"() {mesh = @mesh, sym_name = "s1"} : () -> ()
  "pw.loop"() {count = 4, schedule = "gpipe", sym_name = "batch"} : () -> ()
  func.func public @main(%x: !x {pw.slice = @s0}) -> (!b {pw.slice = @s0}) {
    %b = "pw.split"(%x) {loop = @batch} : (!x) -> !b
    %h = "pw.launch"(%b) {callee = @f, loop = @batch, origins = [{kind = "fwd", stage = 0}], slice = @s0} : (!b) -> !b
    %y = "pw.launch"(%h) {callee = @f, loop = @batch, origins = [{kind = "fwd", stage = 1}], slice = @s1} : (!b) -> !b
    %s = "pw.reduce"(%y) {kind = "sum", loop = @batch} : (!b) -> !b
    return %s : !b
  }
  func.func private @f(%b: !b) -> !b {
    %y = stablehlo.tanh %b : !b
    return %y : !b
  }
}
