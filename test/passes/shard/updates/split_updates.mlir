// RUN: pw-opt %s --split-input-file -p pw-split-updates | filecheck %s

// Momentum lies in blocks of rows: the gradient is scattered, the update works on blocks, and of the parameter,
// which microbatches read, it takes the block of the replica. The new parameter is gathered.
// CHECK-LABEL: func.func public @main
// CHECK-SAME: %[[W:[a-z0-9]+]]: tensor<4x3xf32> {pw.slice = @s0}
// CHECK-SAME: %[[M:[a-z0-9]+]]: tensor<2x3xf32> {pw.block = 0 : i64, pw.slice = @s0}
// CHECK-SAME: -> (tensor<4x3xf32> {pw.slice = @s0}, tensor<2x3xf32> {pw.block = 0 : i64, pw.slice = @s0})
// CHECK: %[[R:.*]] = "pw.replica"() {slice = @s0} : () -> tensor<i32>
// CHECK: %[[S:.*]] = "pw.reduce"
// CHECK: %[[G:.*]] = "pw.reduce_scatter"(%[[S]]) {dim = 0 : i64, slice = @s0} : (tensor<4x3xf32>) -> tensor<2x3xf32>
// CHECK: %[[U:.*]]:2 = "pw.launch"(%[[W]], %[[M]], %[[G]], %[[R]]) {callee = @update_blocks, slice = @s0}
// CHECK: %[[NEW:.*]] = "pw.all_gather"(%[[U]]#0) {dim = 0 : i64, slice = @s0} : (tensor<2x3xf32>) -> tensor<4x3xf32>
// CHECK: return %[[NEW]], %[[U]]#1
// CHECK: func.func private @update_blocks
// CHECK: %[[AT:.*]] = stablehlo.multiply
// CHECK: stablehlo.dynamic_slice %{{.*}}, %[[AT]], {{.*}} sizes = [2, 3]
// CHECK: stablehlo.add {{.*}} : tensor<2x3xf32>
module @momentum attributes {pw.form = "sharded"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {mesh = @mesh, replicas = 2, sym_name = "s0"} : () -> ()
  "pw.loop"() {count = 4, sym_name = "batch"} : () -> ()
  func.func public @main(%w: tensor<4x3xf32> {pw.slice = @s0}, %m: tensor<4x3xf32> {pw.slice = @s0})
      -> (tensor<4x3xf32> {pw.slice = @s0}, tensor<4x3xf32> {pw.slice = @s0}) {
    %i = "pw.index"() {loop = @batch} : () -> tensor<i32>
    %gi = "pw.launch"(%w, %i) {callee = @bwd, loop = @batch, slice = @s0} : (tensor<4x3xf32>, tensor<i32>) -> tensor<4x3xf32>
    %s = "pw.reduce"(%gi) {kind = "sum", loop = @batch, slice = @s0} : (tensor<4x3xf32>) -> tensor<4x3xf32>
    %g = "pw.all_reduce"(%s) {slice = @s0} : (tensor<4x3xf32>) -> tensor<4x3xf32>
    %u:2 = "pw.launch"(%w, %m, %g) {callee = @update, slice = @s0} : (tensor<4x3xf32>, tensor<4x3xf32>, tensor<4x3xf32>) -> (tensor<4x3xf32>, tensor<4x3xf32>)
    return %u#0, %u#1 : tensor<4x3xf32>, tensor<4x3xf32>
  }
  func.func private @bwd(%w: tensor<4x3xf32>, %i: tensor<i32>) -> tensor<4x3xf32> {
    return %w : tensor<4x3xf32>
  }
  func.func private @update(%w: tensor<4x3xf32>, %m: tensor<4x3xf32>, %g: tensor<4x3xf32>) -> (tensor<4x3xf32>, tensor<4x3xf32>) {
    %n = stablehlo.add %m, %g : tensor<4x3xf32>
    %v = stablehlo.subtract %w, %n : tensor<4x3xf32>
    return %v, %n : tensor<4x3xf32>, tensor<4x3xf32>
  }
}

// -----

// A norm is added up of the squares of each block: the computation is done in two, with an exchange between
// them. Two stages share them.
// CHECK-LABEL: module @norm
// CHECK: %[[G:.*]] = "pw.reduce_scatter"
// CHECK: %[[PART:.*]] = "pw.launch"(%[[G]]) {callee = @update_blocks, slice = @s0} : (tensor<2xf32>) -> tensor<1xf32>
// CHECK: %[[PARTS:.*]] = "pw.all_gather"(%[[PART]]) {dim = 0 : i64, slice = @s0} : (tensor<1xf32>) -> tensor<2xf32>
// CHECK: "pw.launch"({{.*}}%[[PARTS]]{{.*}}) {callee = @update_blocks_1, slice = @s0} : {{.*}} -> tensor<2xf32>
// CHECK: func.func private @update_blocks(%{{.*}}: tensor<2xf32>) -> tensor<1xf32>
// CHECK: stablehlo.reduce({{.*}}) applies stablehlo.add across dimensions = [0] : (tensor<2xf32>
// CHECK: func.func private @update_blocks_1
// CHECK: stablehlo.reduce({{.*}}) applies stablehlo.add across dimensions = [0] : (tensor<2xf32>
// CHECK: stablehlo.divide
module @norm attributes {pw.form = "sharded"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {mesh = @mesh, replicas = 2, sym_name = "s0"} : () -> ()
  func.func public @main(%m: tensor<4xf32> {pw.slice = @s0}, %s: tensor<4xf32> {pw.slice = @s0}) -> (tensor<4xf32> {pw.slice = @s0}) {
    %g = "pw.all_reduce"(%s) {slice = @s0} : (tensor<4xf32>) -> tensor<4xf32>
    %n = "pw.launch"(%m, %g) {callee = @update, slice = @s0} : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
    return %n : tensor<4xf32>
  }
  func.func private @update(%m: tensor<4xf32>, %g: tensor<4xf32>) -> tensor<4xf32> {
    %zero = stablehlo.constant dense<0.0> : tensor<f32>
    %square = stablehlo.multiply %g, %g : tensor<4xf32>
    %norm = stablehlo.reduce(%square init: %zero) applies stablehlo.add across dimensions = [0] : (tensor<4xf32>, tensor<f32>) -> tensor<f32>
    %all = stablehlo.broadcast_in_dim %norm, dims = [] : (tensor<f32>) -> tensor<4xf32>
    %unit = stablehlo.divide %g, %all : tensor<4xf32>
    %n = stablehlo.add %m, %unit : tensor<4xf32>
    return %n : tensor<4xf32>
  }
}

// -----

// Of a dimension that devices divide already no blocks are made, if there is another.
// CHECK-LABEL: module @devices
// CHECK: %{{[a-z0-9]+}}: tensor<4x2xf32> {pw.block = 1 : i64, pw.slice = @s0, sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}
module @devices attributes {pw.form = "sharded"} {
  sdy.mesh @mesh = <["x"=2]>
  "pw.slice"() {mesh = @mesh, replicas = 2, sym_name = "s0"} : () -> ()
  func.func public @main(%m: tensor<4x4xf32> {pw.slice = @s0, sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>},
      %s: tensor<4x4xf32> {pw.slice = @s0, sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}) -> (tensor<4x4xf32> {pw.slice = @s0}) {
    %g = "pw.all_reduce"(%s) {slice = @s0} : (tensor<4x4xf32>) -> tensor<4x4xf32>
    %n = "pw.launch"(%m, %g) {callee = @add, slice = @s0} : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
    return %n : tensor<4x4xf32>
  }
  func.func private @add(%m: tensor<4x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}, %g: tensor<4x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>})
      -> (tensor<4x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}) {
    %n = stablehlo.add %m, %g {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"x"}, {}]>]>} : tensor<4x4xf32>
    return %n : tensor<4x4xf32>
  }
}

// -----

// What an operation in front of the loop needs all of, for the microbatches, they read: the parameter stays
// whole, and its momentum is split as ever.
// CHECK-LABEL: module @read_in_front
// CHECK: @main(%[[W:[a-z0-9]+]]: tensor<4xf32> {pw.slice = @s0}, %[[M:[a-z0-9]+]]: tensor<2xf32> {pw.block = 0 : i64, pw.slice = @s0})
// CHECK: "pw.launch"(%[[W]]) {callee = @prepare, slice = @s0} : (tensor<4xf32>) -> tensor<2xf32>
// CHECK: %[[G:.*]] = "pw.reduce_scatter"
// CHECK: "pw.launch"(%[[W]], %[[M]], %[[G]], %{{.*}}) {callee = @update_blocks, slice = @s0}
module @read_in_front attributes {pw.form = "sharded"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {mesh = @mesh, replicas = 2, sym_name = "s0"} : () -> ()
  "pw.loop"() {count = 4, sym_name = "batch"} : () -> ()
  func.func public @main(%w: tensor<4xf32> {pw.slice = @s0}, %m: tensor<4xf32> {pw.slice = @s0})
      -> (tensor<4xf32> {pw.slice = @s0}, tensor<4xf32> {pw.slice = @s0}) {
    %part = "pw.launch"(%w) {callee = @prepare, slice = @s0} : (tensor<4xf32>) -> tensor<2xf32>
    %i = "pw.index"() {loop = @batch} : () -> tensor<i32>
    %gi = "pw.launch"(%part, %i) {callee = @bwd, loop = @batch, slice = @s0} : (tensor<2xf32>, tensor<i32>) -> tensor<4xf32>
    %s = "pw.reduce"(%gi) {kind = "sum", loop = @batch, slice = @s0} : (tensor<4xf32>) -> tensor<4xf32>
    %g = "pw.all_reduce"(%s) {slice = @s0} : (tensor<4xf32>) -> tensor<4xf32>
    %u:2 = "pw.launch"(%w, %m, %g) {callee = @update, slice = @s0} : (tensor<4xf32>, tensor<4xf32>, tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>)
    return %u#0, %u#1 : tensor<4xf32>, tensor<4xf32>
  }
  func.func private @prepare(%w: tensor<4xf32>) -> tensor<2xf32> {
    %r = stablehlo.slice %w [0:2] : (tensor<4xf32>) -> tensor<2xf32>
    return %r : tensor<2xf32>
  }
  func.func private @bwd(%w: tensor<2xf32>, %i: tensor<i32>) -> tensor<4xf32> {
    %r = stablehlo.concatenate %w, %w, dim = 0 : (tensor<2xf32>, tensor<2xf32>) -> tensor<4xf32>
    return %r : tensor<4xf32>
  }
  func.func private @update(%w: tensor<4xf32>, %m: tensor<4xf32>, %g: tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>) {
    %n = stablehlo.add %m, %g : tensor<4xf32>
    %v = stablehlo.subtract %w, %n : tensor<4xf32>
    return %v, %n : tensor<4xf32>, tensor<4xf32>
  }
}

// -----

// Complex numbers are added up block by block, too.
// CHECK-LABEL: module @complex_sum
// CHECK: func.func private @update_blocks(%{{.*}}: tensor<2xcomplex<f32>>) -> tensor<1xcomplex<f32>>
// CHECK: func.func private @update_blocks_1
module @complex_sum attributes {pw.form = "sharded"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {mesh = @mesh, replicas = 2, sym_name = "s0"} : () -> ()
  func.func public @main(%m: tensor<4xcomplex<f32>> {pw.slice = @s0}, %s: tensor<4xcomplex<f32>> {pw.slice = @s0})
      -> (tensor<4xcomplex<f32>> {pw.slice = @s0}) {
    %g = "pw.all_reduce"(%s) {slice = @s0} : (tensor<4xcomplex<f32>>) -> tensor<4xcomplex<f32>>
    %n = "pw.launch"(%m, %g) {callee = @update, slice = @s0} : (tensor<4xcomplex<f32>>, tensor<4xcomplex<f32>>) -> tensor<4xcomplex<f32>>
    return %n : tensor<4xcomplex<f32>>
  }
  func.func private @update(%m: tensor<4xcomplex<f32>>, %g: tensor<4xcomplex<f32>>) -> tensor<4xcomplex<f32>> {
    %zero = stablehlo.constant dense<(0.0, 0.0)> : tensor<complex<f32>>
    %sum = stablehlo.reduce(%g init: %zero) applies stablehlo.add across dimensions = [0] : (tensor<4xcomplex<f32>>, tensor<complex<f32>>) -> tensor<complex<f32>>
    %all = stablehlo.broadcast_in_dim %sum, dims = [] : (tensor<complex<f32>>) -> tensor<4xcomplex<f32>>
    %unit = stablehlo.subtract %g, %all : tensor<4xcomplex<f32>>
    %n = stablehlo.add %m, %unit : tensor<4xcomplex<f32>>
    return %n : tensor<4xcomplex<f32>>
  }
}

// -----

// A norm in a branch, and what it is the norm of, is computed in front of the conditional, also of one in another: the
// replicas exchange their partial sums before either runs.
// CHECK-LABEL: module @norm_in_a_branch
// CHECK: %[[PART:.*]] = "pw.launch"({{.*}}) {callee = @update_blocks, slice = @s0} : {{.*}} -> tensor<1xf32>
// CHECK: "pw.all_gather"(%[[PART]]) {dim = 0 : i64, slice = @s0} : (tensor<1xf32>) -> tensor<2xf32>
// CHECK: func.func private @update_blocks
// CHECK-NOT: case
// CHECK: stablehlo.multiply {{.*}} : tensor<2xf32>
// CHECK: stablehlo.reduce({{.*}}) applies stablehlo.add across dimensions = [0] : (tensor<2xf32>
// CHECK: func.func private @update_blocks_1
// CHECK: stablehlo.reduce({{.*}}) applies stablehlo.add across dimensions = [0] : (tensor<2xf32>
// CHECK: "stablehlo.case"
// CHECK-NOT: reduce
// CHECK: stablehlo.divide {{.*}} : tensor<2xf32>
module @norm_in_a_branch attributes {pw.form = "sharded"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {mesh = @mesh, replicas = 2, sym_name = "s0"} : () -> ()
  func.func public @main(%m: tensor<4xf32> {pw.slice = @s0}, %s: tensor<4xf32> {pw.slice = @s0}, %p: tensor<i32> {pw.slice = @s0})
      -> (tensor<4xf32> {pw.slice = @s0}) {
    %g = "pw.all_reduce"(%s) {slice = @s0} : (tensor<4xf32>) -> tensor<4xf32>
    %n = "pw.launch"(%m, %g, %p) {callee = @update, slice = @s0} : (tensor<4xf32>, tensor<4xf32>, tensor<i32>) -> tensor<4xf32>
    return %n : tensor<4xf32>
  }
  func.func private @update(%m: tensor<4xf32>, %g: tensor<4xf32>, %p: tensor<i32>) -> tensor<4xf32> {
    %zero = stablehlo.constant dense<0.0> : tensor<f32>
    %n = "stablehlo.case"(%p) ({
      stablehlo.return %m : tensor<4xf32>
    }, {
      %square = stablehlo.multiply %g, %g : tensor<4xf32>
      %inner = "stablehlo.case"(%p) ({
        %norm = stablehlo.reduce(%square init: %zero) applies stablehlo.add across dimensions = [0] : (tensor<4xf32>, tensor<f32>) -> tensor<f32>
        %all = stablehlo.broadcast_in_dim %norm, dims = [] : (tensor<f32>) -> tensor<4xf32>
        %unit = stablehlo.divide %g, %all : tensor<4xf32>
        stablehlo.return %unit : tensor<4xf32>
      }, {
        stablehlo.return %g : tensor<4xf32>
      }) : (tensor<i32>) -> tensor<4xf32>
      %sum = stablehlo.add %m, %inner : tensor<4xf32>
      stablehlo.return %sum : tensor<4xf32>
    }) : (tensor<i32>) -> tensor<4xf32>
    return %n : tensor<4xf32>
  }
}
