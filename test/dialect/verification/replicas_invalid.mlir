// RUN: pw-opt %s --split-input-file --verify-diagnostics

sdy.mesh @mesh = <["x"=1]>
// expected-error@below {{expected 1 to 65536 replicas, got 0}}
"pw.slice"() {mesh = @mesh, replicas = 0, sym_name = "s0"} : () -> ()

// -----

sdy.mesh @mesh = <["x"=1]>
// expected-error@below {{has `replicas`, but is itself one `replica`}}
"pw.slice"() {mesh = @mesh, replica = 0, replicas = 2, sym_name = "s0"} : () -> ()

// -----

sdy.mesh @mesh = <["x"=1]>
"pw.slice"() {mesh = @mesh, sym_name = "s0"} : () -> ()
// expected-error@below {{is a replica of @s0, but has no other `replica` number}}
"pw.slice"() {mesh = @mesh, replica_of = @s0, sym_name = "s1"} : () -> ()

// -----

sdy.mesh @mesh = <["x"=1]>
"pw.slice"() {mesh = @mesh, sym_name = "s0"} : () -> ()
func.func public @main(%a: tensor<2xf32> {pw.slice = @s0}) {
  // expected-error@below {{expected as many results as operands, got 1 and 2}}
  %b:2 = "pw.all_reduce"(%a) {slice = @s0} : (tensor<2xf32>) -> (tensor<2xf32>, tensor<2xf32>)
  return
}

// -----

sdy.mesh @mesh = <["x"=1]>
"pw.slice"() {mesh = @mesh, sym_name = "s0"} : () -> ()
func.func public @main(%a: tensor<2xf32> {pw.slice = @s0}) {
  // expected-error@below {{sums tensor<2xf32>, but the result is tensor<3xf32>}}
  %b = "pw.all_reduce"(%a) {slice = @s0} : (tensor<2xf32>) -> tensor<3xf32>
  return
}

// -----

sdy.mesh @mesh = <["x"=1]>
"pw.slice"() {mesh = @mesh, sym_name = "s0"} : () -> ()
func.func public @main(%a: tensor<2xf32> {pw.slice = @s0}) {
  // expected-error@below {{has a `slice`, but 2 operands}}
  %b:2 = "pw.all_reduce"(%a, %a) {slice = @s0} : (tensor<2xf32>, tensor<2xf32>) -> (tensor<2xf32>, tensor<2xf32>)
  return
}

// -----

module attributes {pw.form = "sharded"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {mesh = @mesh, sym_name = "s0"} : () -> ()
  func.func public @main(%a: tensor<2xf32> {pw.slice = @s0}) {
    // expected-error@below {{expected operands on one slice each, and all different, got @s0 and @s0}}
    %b:2 = "pw.all_reduce"(%a, %a) : (tensor<2xf32>, tensor<2xf32>) -> (tensor<2xf32>, tensor<2xf32>)
    return
  }
}

// -----

module attributes {pw.form = "placed"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {mesh = @mesh, sym_name = "s0"} : () -> ()
  "pw.slice"() {mesh = @mesh, sym_name = "s1"} : () -> ()
  func.func public @main(%a: tensor<2xf32> {pw.slice = @s0}, %b: tensor<2xf32> {pw.slice = @s1}) {
    // expected-error@below {{op has no `slice`, which form 'placed' requires}}
    %c:2 = "pw.all_reduce"(%a, %b) : (tensor<2xf32>, tensor<2xf32>) -> (tensor<2xf32>, tensor<2xf32>)
    return
  }
}

// -----

// Shards of the same number must be of the same part.
module attributes {pw.form = "sharded"} {
  sdy.mesh @mesh = <["x"=2]>
  "pw.slice"() {mesh = @mesh, sym_name = "s0"} : () -> ()
  "pw.slice"() {mesh = @mesh, sym_name = "s1"} : () -> ()
  func.func public @main(%a: tensor<2xf32> {pw.slice = @s0, sdy.sharding = #sdy.sharding<@mesh, [{"x"}]>},
      %b: tensor<2xf32> {pw.slice = @s1}) {
    // expected-error@below {{exchanges values with different shardings over their slices}}
    %c:2 = "pw.all_reduce"(%a, %b) : (tensor<2xf32>, tensor<2xf32>) -> (tensor<2xf32>, tensor<2xf32>)
    return
  }
}

// -----

module attributes {pw.form = "unrolled"} {
  sdy.mesh @mesh = <["x"=1]>
  // expected-error@below {{has `replicas`; run pw-replicate}}
  "pw.slice"() {mesh = @mesh, replicas = 2, sym_name = "s0"} : () -> ()
  func.func public @main() {
    return
  }
}

// -----

module attributes {pw.form = "unrolled"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {mesh = @mesh, sym_name = "s0"} : () -> ()
  // expected-error@below {{argument 0 is not on all 2 replicas}}
  func.func public @main(%a: tensor<2xf32> {pw.replica = {count = 2, number = 0, of = 0}, pw.slice = @s0}) {
    return
  }
}

// -----

module attributes {pw.form = "unrolled"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {mesh = @mesh, sym_name = "s0"} : () -> ()
  "pw.slice"() {mesh = @mesh, sym_name = "s1"} : () -> ()
  // expected-error@below {{argument 0 is not alike on all replicas}}
  func.func public @main(%a: tensor<2xf32> {pw.replica = {count = 2, number = 0, of = 0}, pw.slice = @s0},
      %b: tensor<3xf32> {pw.replica = {count = 2, number = 1, of = 0}, pw.slice = @s1}) {
    return
  }
}

// -----

module attributes {pw.form = "unrolled"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {mesh = @mesh, sym_name = "s0"} : () -> ()
  // expected-error@below {{`pw.replica` must be a dictionary of `of`, `number` and a larger `count`, and perhaps `split`}}
  func.func public @main(%a: tensor<2xf32> {pw.replica = {count = 2, number = 2, of = 0}, pw.slice = @s0}) {
    return
  }
}

// -----

sdy.mesh @mesh = <["x"=1]>
"pw.slice"() {mesh = @mesh, replicas = 2, sym_name = "s0"} : () -> ()
func.func @main(%a: tensor<4x2xf32> {pw.slice = @s0}) {
  // expected-error@below {{expected 2 blocks along dimension 0, got tensor<4x2xf32> and tensor<4x1xf32>}}
  %b = "pw.reduce_scatter"(%a) {dim = 0, slice = @s0} : (tensor<4x2xf32>) -> tensor<4x1xf32>
  return
}

// -----

sdy.mesh @mesh = <["x"=1]>
"pw.slice"() {mesh = @mesh, replicas = 2, sym_name = "s0"} : () -> ()
func.func @main(%a: tensor<2xf32> {pw.slice = @s0}) {
  // expected-error@below {{names dimension 1, but tensor<2xf32> has 1}}
  %b = "pw.all_gather"(%a) {dim = 1, slice = @s0} : (tensor<2xf32>) -> tensor<4xf32>
  return
}

// -----

sdy.mesh @mesh = <["x"=1]>
"pw.slice"() {mesh = @mesh, replicas = 2, sym_name = "s0"} : () -> ()
func.func @main(%a: tensor<2xf32> {pw.slice = @s0}) {
  // expected-error@below {{expected a result of type tensor<i32>, got tensor<i64>}}
  %b = "pw.replica"() {slice = @s0} : () -> tensor<i64>
  return
}

// -----

module attributes {pw.form = "sharded"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {mesh = @mesh, replicas = 2, sym_name = "s0"} : () -> ()
  // expected-error@below {{argument #0 is a block along a dimension that does not exist}}
  func.func public @main(%a: tensor<2xf32> {pw.block = 1, pw.slice = @s0}) {
    return
  }
}

// -----

module attributes {pw.form = "sharded"} {
  sdy.mesh @mesh = <["x"=2]>
  "pw.slice"() {mesh = @mesh, replicas = 2, sym_name = "s0"} : () -> ()
  func.func public @main(%a: tensor<2xf32> {pw.slice = @s0, sdy.sharding = #sdy.sharding<@mesh, [{"x"}]>}) {
    // expected-error@below {{has a result that cannot be laid out over @s0: dimension 0 of size 1 is not divisible by 2 (axes x)}}
    %b = "pw.reduce_scatter"(%a) {dim = 0, slice = @s0} : (tensor<2xf32>) -> tensor<1xf32>
    return
  }
}
