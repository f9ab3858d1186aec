// RUN: pw-opt %s --split-input-file --verify-diagnostics -p pw-split-updates

// An update that mixes what would lie in blocks is refused, by the operation and the argument.
module attributes {pw.form = "sharded"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {mesh = @mesh, replicas = 2, sym_name = "s0"} : () -> ()
  func.func public @main(%m: tensor<4xf32> {jax.arg_info = "state['m']", pw.slice = @s0}, %s: tensor<4xf32> {pw.slice = @s0})
      -> (tensor<4xf32> {pw.slice = @s0}) {
    %g = "pw.all_reduce"(%s) {slice = @s0} : (tensor<4xf32>) -> tensor<4xf32>
    %n = "pw.launch"(%m, %g) {callee = @update, slice = @s0} : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
    return %n : tensor<4xf32>
  }
  func.func private @update(%m: tensor<4xf32>, %g: tensor<4xf32>) -> tensor<4xf32> {
    // expected-error@below {{needs all of what 2 replicas would have blocks of: zero1 cannot split the update of argument state['m']; make the update elementwise, or do not use zero1}}
    %r = stablehlo.reverse %g, dims = [0] : tensor<4xf32>
    %t = stablehlo.add %r, %g : tensor<4xf32>
    %n = stablehlo.add %m, %t : tensor<4xf32>
    return %n : tensor<4xf32>
  }
}

// -----

// What does not divide stays whole.
module attributes {pw.form = "sharded"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {mesh = @mesh, replicas = 2, sym_name = "s0"} : () -> ()
  // expected-remark@below {{leaves argument #0 whole on all 2 replicas: dimension 0 of size 3 is not divisible by 2 replicas}}
  // expected-remark@below {{has no state that can be sharded over replicas: nothing is split}}
  func.func public @main(%m: tensor<3xf32> {pw.slice = @s0}, %s: tensor<3xf32> {pw.slice = @s0}) -> (tensor<3xf32> {pw.slice = @s0}) {
    %g = "pw.all_reduce"(%s) {slice = @s0} : (tensor<3xf32>) -> tensor<3xf32>
    %n = "pw.launch"(%m, %g) {callee = @add, slice = @s0} : (tensor<3xf32>, tensor<3xf32>) -> tensor<3xf32>
    return %n : tensor<3xf32>
  }
  func.func private @add(%m: tensor<3xf32>, %g: tensor<3xf32>) -> tensor<3xf32> {
    %n = stablehlo.add %m, %g : tensor<3xf32>
    return %n : tensor<3xf32>
  }
}

// -----

// Each operation that needs all of something is an error of its own, with all arguments that it keeps whole.
module attributes {pw.form = "sharded"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {mesh = @mesh, replicas = 2, sym_name = "s0"} : () -> ()
  func.func public @main(%m: tensor<4xf32> {jax.arg_info = "m", pw.slice = @s0}, %k: tensor<4xf32> {jax.arg_info = "k", pw.slice = @s0},
                         %v: tensor<6xf32> {jax.arg_info = "v", pw.slice = @s0},
                         %s: tensor<4xf32> {pw.slice = @s0}, %t: tensor<6xf32> {pw.slice = @s0})
      -> (tensor<4xf32> {pw.slice = @s0}, tensor<4xf32> {pw.slice = @s0}, tensor<6xf32> {pw.slice = @s0}) {
    %g = "pw.all_reduce"(%s) {slice = @s0} : (tensor<4xf32>) -> tensor<4xf32>
    %h = "pw.all_reduce"(%t) {slice = @s0} : (tensor<6xf32>) -> tensor<6xf32>
    %n:3 = "pw.launch"(%m, %k, %v, %g, %h) {callee = @update, slice = @s0}
        : (tensor<4xf32>, tensor<4xf32>, tensor<6xf32>, tensor<4xf32>, tensor<6xf32>) -> (tensor<4xf32>, tensor<4xf32>, tensor<6xf32>)
    return %n#0, %n#1, %n#2 : tensor<4xf32>, tensor<4xf32>, tensor<6xf32>
  }
  func.func private @update(%m: tensor<4xf32>, %k: tensor<4xf32>, %v: tensor<6xf32>, %g: tensor<4xf32>, %h: tensor<6xf32>)
      -> (tensor<4xf32>, tensor<4xf32>, tensor<6xf32>) {
    // expected-error@below {{'stablehlo.reverse' op needs all of what 2 replicas would have blocks of: zero1 cannot split the update of arguments m, k; make the update elementwise}}
    %r = stablehlo.reverse %g, dims = [0] : tensor<4xf32>
    %a = stablehlo.add %m, %g : tensor<4xf32>
    %b = stablehlo.add %k, %g : tensor<4xf32>
    %c = stablehlo.add %b, %r : tensor<4xf32>
    // expected-error@below {{'stablehlo.sort' op needs all of what 2 replicas would have blocks of: zero1 cannot split the update of argument v; make the update elementwise}}
    %o = "stablehlo.sort"(%h) <{dimension = 0 : i64}> ({
    ^bb0(%x: tensor<f32>, %y: tensor<f32>):
      %l = stablehlo.compare LT, %x, %y : (tensor<f32>, tensor<f32>) -> tensor<i1>
      stablehlo.return %l : tensor<i1>
    }) : (tensor<6xf32>) -> tensor<6xf32>
    %d = stablehlo.add %v, %h : tensor<6xf32>
    %e = stablehlo.add %d, %o : tensor<6xf32>
    return %a, %c, %e : tensor<4xf32>, tensor<4xf32>, tensor<6xf32>
  }
}

// -----

// A norm in a branch is computed in front of the conditional, unless that would run a loop which may not end there.
module attributes {pw.form = "sharded"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {mesh = @mesh, replicas = 2, sym_name = "s0"} : () -> ()
  func.func public @main(%m: tensor<4xf32> {jax.arg_info = "m", pw.slice = @s0}, %s: tensor<4xf32> {pw.slice = @s0}, %p: tensor<i1> {pw.slice = @s0})
      -> (tensor<4xf32> {pw.slice = @s0}) {
    %g = "pw.all_reduce"(%s) {slice = @s0} : (tensor<4xf32>) -> tensor<4xf32>
    %n = "pw.launch"(%m, %g, %p) {callee = @update, slice = @s0} : (tensor<4xf32>, tensor<4xf32>, tensor<i1>) -> tensor<4xf32>
    return %n : tensor<4xf32>
  }
  func.func private @update(%m: tensor<4xf32>, %g: tensor<4xf32>, %p: tensor<i1>) -> tensor<4xf32> {
    %zero = stablehlo.constant dense<0.0> : tensor<f32>
    %n = "stablehlo.if"(%p) ({
      %end:2 = stablehlo.while(%a = %zero, %b = %p) : tensor<f32>, tensor<i1>
      cond {
        stablehlo.return %b : tensor<i1>
      } do {
        stablehlo.return %a, %b : tensor<f32>, tensor<i1>
      }
      %all = stablehlo.broadcast_in_dim %end#0, dims = [] : (tensor<f32>) -> tensor<4xf32>
      %more = stablehlo.add %g, %all : tensor<4xf32>
      // expected-error@below {{'stablehlo.reduce' op needs all of what 2 replicas would have blocks of: zero1 cannot split the update of argument m; it is in a branch, after a loop: move it out of the conditional, or do not use zero1}}
      %norm = stablehlo.reduce(%more init: %zero) applies stablehlo.add across dimensions = [0] : (tensor<4xf32>, tensor<f32>) -> tensor<f32>
      %sums = stablehlo.broadcast_in_dim %norm, dims = [] : (tensor<f32>) -> tensor<4xf32>
      %sum = stablehlo.add %m, %sums : tensor<4xf32>
      stablehlo.return %sum : tensor<4xf32>
    }, {
      %sum = stablehlo.add %m, %g : tensor<4xf32>
      stablehlo.return %sum : tensor<4xf32>
    }) : (tensor<i1>) -> tensor<4xf32>
    return %n : tensor<4xf32>
  }
}
