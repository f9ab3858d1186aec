// RUN: pw-opt %s --split-input-file --pw-outline | filecheck %s

// Glue is named after the innermost function from which more than half of its operations come; constants, which state
// none, do not count.

#step = loc("step"("train.py":20:4))
#call = loc(callsite(#step at "run.<locals>.main"("main.py":9:4)))
#update = loc(callsite("adam.<locals>.update_fn"("optimizers.py":7:8) at #call))
#lambda = loc(callsite("adam.<locals>.update_fn.<locals>.<lambda>"("optimizers.py":8:8) at #update))
#in_update = loc("jit(step)/add"(#update))
#in_lambda = loc("jit(step)/mul"(#lambda))
#in_step = loc("jit(step)/add"(#call))
#div_in_step = loc("jit(step)/div"(#call))
#scoped = loc("jit(step)/transpose(jvp(clip))/div"(#call))

!x = tensor<2xf32>
// CHECK-LABEL: module @step
module @step attributes {pw.form = "located"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {mesh = @mesh, sym_name = "s0"} : () -> ()
  func.func @main(%x: !x {pw.slice = @s0}) -> (!x {pw.slice = @s0}) {
    // CHECK: "pw.launch"(%arg0) {callee = @"adam/update", slice = @s0}
    %c = stablehlo.constant {pw.slice = @s0} dense<2.0> : !x loc("jit(step)")
    %0 = stablehlo.add %x, %c {pw.slice = @s0} : !x loc(#in_update)
    %1 = stablehlo.multiply %0, %c {pw.slice = @s0} : !x loc(#in_lambda)
    %2 = stablehlo.multiply %1, %c {pw.slice = @s0} : !x loc(#in_lambda)
    %3 = stablehlo.add %2, %x {pw.slice = @s0} : !x loc(#in_step)
    // CHECK: "pw.launch"(%{{.*}}) {callee = @f, slice = @s0}
    %4 = "pw.launch"(%3) {callee = @f, slice = @s0} : (!x) -> !x
    // An operation of the program itself has its own name.
    // CHECK: "pw.launch"(%{{.*}}) {callee = @"step/div", slice = @s0}
    %5 = stablehlo.divide %4, %4 {pw.slice = @s0} : !x loc(#div_in_step)
    %6 = "pw.launch"(%5) {callee = @f, slice = @s0} : (!x) -> !x
    // So has a scope of `jax.named_scope`, and a module of flax.
    // CHECK: "pw.launch"(%{{.*}}) {callee = @"step/clip", slice = @s0}
    %7 = stablehlo.subtract %6, %6 {pw.slice = @s0} : !x loc(#scoped)
    return %7 : !x
  }
  func.func private @f(!x) -> !x
}

// -----

// Without locations it is `glue`, with numbers.

!x = tensor<2xf32>
// CHECK-LABEL: module @without_locations
module @without_locations attributes {pw.form = "located"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {mesh = @mesh, sym_name = "s0"} : () -> ()
  func.func @main(%x: !x {pw.slice = @s0}) -> (!x {pw.slice = @s0}) {
    // CHECK: callee = @glue,
    %0 = stablehlo.add %x, %x {pw.slice = @s0} : !x
    %1 = "pw.launch"(%0) {callee = @f, slice = @s0} : (!x) -> !x
    // CHECK: callee = @glue_1,
    %2 = stablehlo.multiply %1, %1 {pw.slice = @s0} : !x
    return %2 : !x
  }
  func.func private @f(!x) -> !x
}
