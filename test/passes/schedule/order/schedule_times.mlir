// RUN: pw-opt %s --split-input-file -p 'pw-schedule' | filecheck %s --check-prefixes=CHECK,UNITS
// RUN: pw-opt %s --split-input-file -p 'pw-schedule{policy="1f1b(times=flops)"}' | filecheck %s --check-prefixes=CHECK,FLOPS

// What placed calls take by their operations stands on the module, and whether the orders were made with it: the
// mean of those of one kind and stage, on each device of the slice. Glue takes nothing.

// CHECK: module @stages attributes
// CHECK-SAME: pw.times = {flops = [{kind = "fwd", loop = "l", stage = 0 : i64, time = 4.000000e+00 : f64},
// CHECK-SAME: {kind = "fwd", loop = "l", stage = 1 : i64, time = 3.200000e+01 : f64}]
// UNITS-NOT: made_with
// FLOPS-SAME: made_with = "flops"

!x = tensor<4x4xf32>
module @stages attributes {pw.form = "unrolled"} {
  sdy.mesh @four = <["x"=4]>
  "pw.slice"() {sym_name = "s0", mesh = @four} : () -> ()
  "pw.slice"() {sym_name = "s1", mesh = @four} : () -> ()
  "pw.loop"() {count = 2, sym_name = "l"} : () -> ()
  func.func @main(%x: !x {pw.slice = @s0}) -> (!x {pw.slice = @s1}) {
    %a0 = "pw.launch"(%x) {callee = @f, slice = @s0, loop = @l, microbatch = 0, origins = [{kind = "fwd", microbatch = 0, stage = 0}]} : (!x) -> !x
    %b0 = "pw.transfer"(%a0) {loop = @l, microbatch = 0, slice = @s1} : (!x) -> !x
    %a1 = "pw.launch"(%x) {callee = @f, slice = @s0, loop = @l, microbatch = 1, origins = [{kind = "fwd", microbatch = 1, stage = 0}]} : (!x) -> !x
    %b1 = "pw.transfer"(%a1) {loop = @l, microbatch = 1, slice = @s1} : (!x) -> !x
    %c0 = "pw.launch"(%b0) {callee = @g, slice = @s1, loop = @l, microbatch = 0, origins = [{kind = "fwd", microbatch = 0, stage = 1}]} : (!x) -> !x
    %c1 = "pw.launch"(%b1) {callee = @g, slice = @s1, loop = @l, microbatch = 1, origins = [{kind = "fwd", microbatch = 1, stage = 1}]} : (!x) -> !x
    %d = "pw.launch"(%c0, %c1) {callee = @glue, slice = @s1} : (!x, !x) -> !x
    return %d : !x
  }
  func.func private @f(%x: !x) -> !x {
    %0 = stablehlo.add %x, %x : !x
    return %0 : !x
  }
  func.func private @g(%x: !x) -> !x {
    %0 = stablehlo.dot_general %x, %x, contracting_dims = [1] x [0] : (!x, !x) -> !x
    return %0 : !x
  }
  func.func private @glue(%x: !x, %y: !x) -> !x {
    %0 = stablehlo.add %x, %y : !x
    return %0 : !x
  }
}
