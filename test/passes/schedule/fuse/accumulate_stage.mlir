// RUN: pw-opt %s -p 'pw-accumulate{large=4}' | filecheck %s
// RUN: pw-opt %s -p 'pw-accumulate{large=5}' | filecheck %s --check-prefix=SMALL

// A forward and a backward that are small count together: on the last stage they become one computation, of which XLA
// is to compile one version.

// CHECK: callee = @"batch/zeros"
// CHECK: callee = @b_add, loop = @batch, microbatch = 0
// CHECK: callee = @b_add, loop = @batch, microbatch = 1
// SMALL-NOT: zeros
// SMALL: callee = @b, loop = @batch, microbatch = 0
// SMALL: callee = @b_add, loop = @batch, microbatch = 1

!x = tensor<4xf32>
module @stage attributes {pw.form = "ordered"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  "pw.loop"() {sym_name = "batch", count = 2} : () -> ()
  func.func @main(%x: !x {pw.slice = @s0}) -> (!x {pw.slice = @s0}) {
    %f0 = "pw.launch"(%x) {callee = @f, loop = @batch, microbatch = 0, order = 0, origins = [{kind = "fwd", microbatch = 0, stage = 0}], slice = @s0} : (!x) -> !x
    %b0 = "pw.launch"(%f0) {callee = @b, loop = @batch, microbatch = 0, order = 1, origins = [{kind = "bwd", microbatch = 0, stage = 0}], slice = @s0} : (!x) -> !x
    %f1 = "pw.launch"(%x) {callee = @f, loop = @batch, microbatch = 1, order = 2, origins = [{kind = "fwd", microbatch = 1, stage = 0}], slice = @s0} : (!x) -> !x
    %b1 = "pw.launch"(%f1) {callee = @b, loop = @batch, microbatch = 1, order = 3, origins = [{kind = "bwd", microbatch = 1, stage = 0}], slice = @s0} : (!x) -> !x
    %sum = "pw.reduce"(%b0, %b1) {kind = "sum", loop = @batch, slice = @s0} : (!x, !x) -> !x
    return %sum : !x
  }
  func.func private @f(%x: !x) -> !x {
    %y = stablehlo.tanh %x : !x
    return %y : !x
  }
  func.func private @b(%x: !x) -> !x {
    %y = stablehlo.negate %x : !x
    return %y : !x
  }
}
