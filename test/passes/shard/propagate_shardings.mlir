// RUN: pw-opt %s --split-input-file --pw-propagate-shardings | filecheck %s

// A sharding given on a parameter reaches its optimizer state and results; one on the batch crosses a
// transfer between equal meshes. Everything is closed at the end.

!x = tensor<16x64xf32>
!w = tensor<64x64xf32>
// CHECK-LABEL: module @through_launches_and_transfers
module @through_launches_and_transfers attributes {pw.form = "placed"} {
  sdy.mesh @mesh = <["data"=2, "model"=2]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  "pw.slice"() {sym_name = "s1", mesh = @mesh} : () -> ()
  // CHECK: func.func @main(
  // CHECK-SAME: %arg0: tensor<64x64xf32> {pw.slice = @s0, sdy.sharding = #sdy.sharding<@mesh, [{}, {"model"}]>}
  // CHECK-SAME: %arg1: tensor<64x64xf32> {pw.slice = @s0, sdy.sharding = #sdy.sharding<@mesh, [{}, {"model"}]>}
  // CHECK-SAME: %arg2: tensor<16x64xf32> {pw.slice = @s0, sdy.sharding = #sdy.sharding<@mesh, [{"data"}, {}]>}
  // CHECK-SAME: -> (tensor<16x64xf32> {pw.slice = @s1, sdy.sharding = #sdy.sharding<@mesh, [{"data"}, {"model"}]>}
  // CHECK-SAME: tensor<64x64xf32> {pw.slice = @s0, sdy.sharding = #sdy.sharding<@mesh, [{}, {"model"}]>})
  func.func @main(%w: !w {pw.slice = @s0, pw.spec = [[], ["model"]]}, %m: !w {pw.slice = @s0}, %x: !x {pw.slice = @s0, pw.spec = [["data"], []]}) -> (!x {pw.slice = @s1}, !w {pw.slice = @s0}) {
    %h = "pw.launch"(%w, %x) {callee = @f, slice = @s0} : (!w, !x) -> !x
    // CHECK: "pw.transfer"(%{{.*}}) {sharding = #sdy.sharding<@mesh, [{"data"}, {"model"}]>, slice = @s1}
    %t = "pw.transfer"(%h) {slice = @s1} : (!x) -> !x
    %y = "pw.launch"(%t) {callee = @g, slice = @s1} : (!x) -> !x
    %n = "pw.launch"(%w, %m) {callee = @update, slice = @s0} : (!w, !w) -> !w
    return %y, %n : !x, !w
  }
  // CHECK: func.func private @f(%arg0: tensor<64x64xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"model"}]>}, %arg1: tensor<16x64xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"data"}, {}]>}) -> (tensor<16x64xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"data"}, {"model"}]>})
  func.func private @f(%w: !w, %x: !x) -> !x {
    %y = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (!x, !w) -> !x
    return %y : !x
  }
  func.func private @g(%x: !x) -> !x {
    %y = stablehlo.tanh %x : !x
    return %y : !x
  }
  func.func private @update(%w: !w, %m: !w) -> !w {
    %y = stablehlo.add %w, %m : !w
    return %y : !w
  }
}

// -----

// Between different meshes a sharding goes on by the names of its axes, as far as they exist there: the
// second slice knows `data`, not `model`.

!x = tensor<16x64xf32>
// CHECK-LABEL: module @between_meshes
module @between_meshes attributes {pw.form = "placed"} {
  sdy.mesh @mesh_2x2 = <["data"=2, "model"=2]>
  sdy.mesh @mesh_4 = <["data"=4]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh_2x2} : () -> ()
  "pw.slice"() {sym_name = "s1", mesh = @mesh_4} : () -> ()
  // CHECK: func.func @main
  // CHECK-SAME: -> (tensor<16x64xf32> {pw.slice = @s1, sdy.sharding = #sdy.sharding<@mesh_4, [{"data"}, {}]>})
  func.func @main(%x: !x {pw.slice = @s0, pw.spec = [["data"], ["model"]]}) -> (!x {pw.slice = @s1}) {
    // CHECK: "pw.launch"(%arg0) {callee = @[[F:.*]], slice = @s0}
    %h = "pw.launch"(%x) {callee = @f, slice = @s0} : (!x) -> !x
    // CHECK: "pw.transfer"(%{{.*}}) {sharding = #sdy.sharding<@mesh_4, [{"data"}, {}]>, slice = @s1}
    %t = "pw.transfer"(%h) {slice = @s1} : (!x) -> !x
    // The same computation on another mesh is another computation.
    // CHECK: "pw.launch"(%{{.*}}) {callee = @[[G:.*]], slice = @s1}
    %y = "pw.launch"(%t) {callee = @f, slice = @s1} : (!x) -> !x
    return %y : !x
  }
  // CHECK-DAG: func.func private @[[F]](%arg0: tensor<16x64xf32> {sdy.sharding = #sdy.sharding<@mesh_2x2, [{"data"}, {"model"}]>})
  // CHECK-DAG: func.func private @[[G]](%arg0: tensor<16x64xf32> {sdy.sharding = #sdy.sharding<@mesh_4, [{"data"}, {}]>})
  func.func private @f(%x: !x) -> !x {
    %y = stablehlo.tanh %x : !x
    return %y : !x
  }
}

// -----

// Equal stages on equal meshes keep sharing one computation; what nothing decides is replicated, and a
// mirrored argument is replicated on each of its meshes.

!x = tensor<16x64xf32>
// CHECK-LABEL: module @equal_stages
module @equal_stages attributes {pw.form = "placed"} {
  sdy.mesh @mesh = <["data"=2]>
  sdy.mesh @other = <["data"=4]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  "pw.slice"() {sym_name = "s1", mesh = @mesh} : () -> ()
  "pw.slice"() {sym_name = "s2", mesh = @other} : () -> ()
  // CHECK: func.func @main(%arg0: tensor<16x64xf32> {pw.slice = [@s0, @s2], sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>}
  func.func @main(%both: !x {pw.slice = [@s0, @s2]}, %y: !x {pw.slice = @s1}) -> (!x {pw.slice = @s0}, !x {pw.slice = @s1}, !x {pw.slice = @s2}) {
    // CHECK: callee = @[[F:.*]], slice = @s0
    %a = "pw.launch"(%both) {callee = @f, slice = @s0} : (!x) -> !x
    // CHECK: callee = @[[F]], slice = @s1
    %b = "pw.launch"(%y) {callee = @f, slice = @s1} : (!x) -> !x
    // CHECK: "pw.launch"(%arg0) {callee = @[[G:.*]], slice = @s2}
    %c = "pw.launch"(%both) {callee = @f, slice = @s2} : (!x) -> !x
    return %a, %b, %c : !x, !x, !x
  }
  func.func private @f(%x: !x) -> !x {
    %y = stablehlo.tanh %x : !x
    return %y : !x
  }
}

// -----

// Two shardings meet: the value is resharded on its slice, by a computation of its own.

!x = tensor<16x64xf32>
// CHECK-LABEL: module @conflict
module @conflict attributes {pw.form = "placed"} {
  sdy.mesh @mesh = <["data"=2]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  // CHECK: -> (tensor<16x64xf32> {pw.slice = @s0, sdy.sharding = #sdy.sharding<@mesh, [{}, {"data"}]>})
  func.func @main(%x: !x {pw.slice = @s0, pw.spec = [["data"], []]}) -> (!x {pw.slice = @s0, pw.spec = [[], ["data"]]}) {
    // CHECK: %[[Y:.*]] = "pw.launch"(%arg0) {callee = @f, slice = @s0}
    %y = "pw.launch"(%x) {callee = @f, slice = @s0} : (!x) -> !x
    // CHECK: %[[Z:.*]] = "pw.launch"(%[[Y]]) {callee = @reshard, slice = @s0}
    // CHECK: return %[[Z]]
    return %y : !x
  }
  func.func private @f(%x: !x) -> !x {
    %y = stablehlo.tanh %x : !x
    return %y : !x
  }
}

// -----

// Slices of one device have no shardings.

!x = tensor<16x64xf32>
// CHECK-LABEL: module @one_device
module @one_device attributes {pw.form = "placed"} {
  sdy.mesh @mesh = <["data"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  // CHECK-NOT: sdy.sharding
  func.func @main(%x: !x {pw.slice = @s0}) -> (!x {pw.slice = @s0}) {
    return %x : !x
  }
}

// -----

// A sharding of the batch reaches the blocks of its microbatches, the sums of gradients, and what is
// concatenated of them; one of a parameter reaches the sum of its gradient.

!w = tensor<64x64xf32>
!x = tensor<64x64xf32>
!b = tensor<16x64xf32>
// CHECK-LABEL: module @microbatches
module @microbatches attributes {pw.form = "placed"} {
  sdy.mesh @mesh = <["data"=2, "model"=2]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  "pw.slice"() {sym_name = "s1", mesh = @mesh} : () -> ()
  "pw.loop"() {sym_name = "batch", count = 4} : () -> ()
  // CHECK: func.func @main(
  // CHECK-SAME: -> (tensor<64x64xf32> {pw.slice = @s0, sdy.sharding = #sdy.sharding<@mesh, [{}, {"model"}]>}
  // CHECK-SAME: tensor<64x64xf32> {pw.slice = @s1, sdy.sharding = #sdy.sharding<@mesh, [{"data"}, {"model"}]>})
  func.func @main(%w: !w {pw.slice = @s0, pw.spec = [[], ["model"]]}, %x: !x {pw.slice = @s0, pw.spec = [["data"], []]}) -> (!w {pw.slice = @s0}, !x {pw.slice = @s1}) {
    // CHECK: "pw.split"(%arg1) {loop = @batch, sharding = #sdy.sharding<@mesh, [{"data"}, {}]>, slice = @s0}
    %b = "pw.split"(%x) {loop = @batch, slice = @s0} : (!x) -> !b
    %h = "pw.launch"(%w, %b) {callee = @front, loop = @batch, origins = [{kind = "fwd", stage = 0}], slice = @s0} : (!w, !b) -> !b
    // CHECK: "pw.transfer"(%{{.*}}) {loop = @batch, sharding = #sdy.sharding<@mesh, [{"data"}, {"model"}]>, slice = @s1}
    %t = "pw.transfer"(%h) {loop = @batch, slice = @s1} : (!b) -> !b
    // CHECK: "pw.launch"(%{{.*}}) {callee = @back, loop = @batch, origins = [{kind = "fwd", stage = 1 : i64}], slice = @s1
    %y = "pw.launch"(%t) {callee = @back, loop = @batch, origins = [{kind = "fwd", stage = 1}], slice = @s1} : (!b) -> !b
    %g = "pw.launch"(%b, %h) {callee = @front_bwd, loop = @batch, origins = [{kind = "bwd", stage = 0}], slice = @s0} : (!b, !b) -> !w
    // CHECK: "pw.reduce"(%{{.*}}) {kind = "sum", loop = @batch, sharding = #sdy.sharding<@mesh, [{}, {"model"}]>, slice = @s0}
    %s = "pw.reduce"(%g) {kind = "sum", loop = @batch, slice = @s0} : (!w) -> !w
    // CHECK: "pw.reduce"(%{{.*}}) {kind = "concat", loop = @batch, sharding = #sdy.sharding<@mesh, [{"data"}, {"model"}]>, slice = @s1}
    %r = "pw.reduce"(%y) {kind = "concat", loop = @batch, slice = @s1} : (!b) -> !x
    %n = "pw.launch"(%w, %s) {callee = @update, slice = @s0} : (!w, !w) -> !w
    return %n, %r : !w, !x
  }
  func.func private @front(%w: !w, %b: !b) -> !b {
    %y = stablehlo.dot_general %b, %w, contracting_dims = [1] x [0] : (!b, !w) -> !b
    return %y : !b
  }
  func.func private @back(%b: !b) -> !b {
    %y = stablehlo.tanh %b : !b
    return %y : !b
  }
  func.func private @front_bwd(%b: !b, %d: !b) -> !w {
    %g = stablehlo.dot_general %b, %d, contracting_dims = [0] x [0] : (!b, !b) -> !w
    return %g : !w
  }
  func.func private @update(%w: !w, %g: !w) -> !w {
    %n = stablehlo.subtract %w, %g : !w
    return %n : !w
  }
}

// -----

// Between different meshes a microbatch keeps what both have names for. A batch that slices of different
// meshes read is replicated on each of them; its blocks lie as their readers want them.

!x = tensor<64x8xf32>
!b = tensor<16x8xf32>
// CHECK-LABEL: module @microbatches_between_meshes
module @microbatches_between_meshes attributes {pw.form = "placed"} {
  sdy.mesh @mesh_2x2 = <["data"=2, "model"=2]>
  sdy.mesh @mesh_4 = <["data"=4]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh_2x2} : () -> ()
  "pw.slice"() {sym_name = "s1", mesh = @mesh_4} : () -> ()
  "pw.loop"() {sym_name = "batch", count = 4} : () -> ()
  func.func @main(%x: !x {pw.slice = @s0, pw.spec = [["data"], ["model"]]}, %both: !x {pw.slice = [@s0, @s1]}) -> (!x {pw.slice = @s1}) {
    // CHECK: "pw.split"(%arg0) {loop = @batch, sharding = #sdy.sharding<@mesh_2x2, [{"data"}, {"model"}]>, slice = @s0}
    %b = "pw.split"(%x) {loop = @batch, slice = @s0} : (!x) -> !b
    %h = "pw.launch"(%b) {callee = @f, loop = @batch, slice = @s0} : (!b) -> !b
    // CHECK: "pw.transfer"(%{{.*}}) {loop = @batch, sharding = #sdy.sharding<@mesh_4, [{"data"}, {}]>, slice = @s1}
    %t = "pw.transfer"(%h) {loop = @batch, slice = @s1} : (!b) -> !b
    // CHECK: "pw.split"(%arg1) {loop = @batch, sharding = #sdy.sharding<@mesh_4, [{"data"}, {}]>, slice = @s1}
    %c = "pw.split"(%both) {loop = @batch, slice = @s1} : (!x) -> !b
    %y = "pw.launch"(%t, %c) {callee = @g, loop = @batch, slice = @s1} : (!b, !b) -> !b
    // CHECK: "pw.reduce"(%{{.*}}) {kind = "concat", loop = @batch, sharding = #sdy.sharding<@mesh_4, [{"data"}, {}]>, slice = @s1}
    %r = "pw.reduce"(%y) {kind = "concat", loop = @batch, slice = @s1} : (!b) -> !x
    return %r : !x
  }
  func.func private @f(%x: !b) -> !b {
    %y = stablehlo.tanh %x : !b
    return %y : !b
  }
  func.func private @g(%x: !b, %c: !b) -> !b {
    %y = stablehlo.add %x, %c : !b
    return %y : !b
  }
}

// -----

// Constants are StableHLO's again when Shardy is done, complex ones too.

!c = tensor<2xcomplex<f32>>
// CHECK-LABEL: module @complex_constants
module @complex_constants attributes {pw.form = "placed"} {
  sdy.mesh @mesh = <["x"=2]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  func.func @main(%x: !c {pw.slice = @s0}) -> (!c {pw.slice = @s0, pw.spec = [["x"]]}) {
    %y = "pw.launch"(%x) {callee = @f, slice = @s0} : (!c) -> !c
    return %y : !c
  }
  func.func private @f(%x: !c) -> !c {
    // CHECK: %[[C:.*]] = stablehlo.constant dense<[(1.000000e+00,2.000000e+00), (3.000000e+00,4.000000e+00)]> : tensor<2xcomplex<f32>>
    %c = stablehlo.constant dense<[(1.0,2.0), (3.0,4.0)]> : !c
    // CHECK-NEXT: stablehlo.add %arg0, %[[C]]
    %y = stablehlo.add %x, %c : !c
    return %y : !c
  }
}

// -----

// The words of a PRNG key stay together; keys themselves are split as anything else.
// CHECK-LABEL: module @keys
module @keys attributes {pw.form = "placed"} {
  sdy.mesh @mesh = <["data"=2]>
  "pw.slice"() {mesh = @mesh, sym_name = "s0"} : () -> ()
  // CHECK: func.func public @main(%{{.*}}: tensor<4x2xui32> {{{.*}}sdy.sharding = #sdy.sharding<@mesh{{.*}}, [{"data"}, {}]>}, %{{.*}}: tensor<2xui32> {{{.*}}sdy.sharding = #sdy.sharding<@mesh{{.*}}, [{}]>})
  // CHECK-NOT: pw.keys
  func.func public @main(%k: tensor<4x2xui32> {pw.slice = @s0, pw.keys}, %o: tensor<2xui32> {pw.slice = @s0, pw.keys}) -> (tensor<4x2xui32> {pw.slice = @s0}, tensor<2xui32> {pw.slice = @s0}) {
    %0:2 = "pw.launch"(%k, %o) {callee = @f, slice = @s0} : (tensor<4x2xui32>, tensor<2xui32>) -> (tensor<4x2xui32>, tensor<2xui32>)
    return %0#0, %0#1 : tensor<4x2xui32>, tensor<2xui32>
  }
  func.func private @f(%k: tensor<4x2xui32>, %o: tensor<2xui32>) -> (tensor<4x2xui32>, tensor<2xui32>) {
    %0 = sdy.sharding_constraint %k <@mesh, [{"data"}, {}]> : tensor<4x2xui32>
    %1 = sdy.sharding_constraint %o <@mesh, [{"data"}]> : tensor<2xui32>
    return %0, %1 : tensor<4x2xui32>, tensor<2xui32>
  }
}

// -----

// Slices of equal meshes share the first of them, which is the one that Shardy leaves.

// CHECK-LABEL: module @equal_meshes
module @equal_meshes attributes {pw.form = "placed"} {
  sdy.mesh @mesh = <["data"=2]>
  sdy.mesh @mesh_1 = <["data"=1]>
  sdy.mesh @mesh_2 = <["data"=2]>
  // CHECK: "pw.slice"() {mesh = @mesh_1, sym_name = "s0"}
  // CHECK: "pw.slice"() {mesh = @mesh, sym_name = "s1"}
  "pw.slice"() {sym_name = "s0", mesh = @mesh_1} : () -> ()
  "pw.slice"() {sym_name = "s1", mesh = @mesh_2} : () -> ()
  func.func public @main(%x: tensor<8xf32> {pw.slice = @s0}) -> (tensor<8xf32> {pw.slice = @s1, pw.spec = [["data"]]}) {
    // CHECK: "pw.transfer"(%{{.*}}) {sharding = #sdy.sharding<@mesh, [{"data"}]>, slice = @s1}
    %0 = "pw.transfer"(%x) {slice = @s1} : (tensor<8xf32>) -> tensor<8xf32>
    return %0 : tensor<8xf32>
  }
}

// -----

// What a parameter hands on to the rows of a batch ends where microbatches do not divide; here each has one row.

!w = tensor<4x4xf32>
!x = tensor<4x4xf32>
!b = tensor<1x4xf32>
module @rows_stay_together attributes {pw.form = "placed"} {
  sdy.mesh @mesh = <["data"=2]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  "pw.loop"() {sym_name = "batch", count = 4} : () -> ()
  // CHECK-LABEL: func.func @main
  // CHECK-SAME: %arg0: tensor<4x4xf32> {pw.slice = @s0, sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>}
  func.func @main(%x: !x {pw.slice = @s0}, %w: !w {pw.slice = @s0, pw.spec = [["data"], []]}) -> (!w {pw.slice = @s0}) {
    // CHECK: "pw.split"(%arg0) {loop = @batch, sharding = #sdy.sharding<@mesh, [{}, {}]>, slice = @s0}
    %b = "pw.split"(%x) {loop = @batch, slice = @s0} : (!x) -> !b
    %y = "pw.launch"(%b, %w) {callee = @f, loop = @batch, slice = @s0} : (!b, !w) -> !w
    %s = "pw.reduce"(%y) {kind = "sum", loop = @batch, slice = @s0} : (!w) -> !w
    return %s : !w
  }
  func.func private @f(%b: !b, %w: !w) -> !w {
    %c = stablehlo.concatenate %b, %b, %b, %b, dim = 0 : (!b, !b, !b, !b) -> !w
    %y = stablehlo.multiply %c, %w : !w
    return %y : !w
  }
}

// -----

// A sharding crosses any number of transfers between different meshes, one in each round.

!x = tensor<16x64xf32>
// CHECK-LABEL: module @along_a_chain_of_meshes
module @along_a_chain_of_meshes attributes {pw.form = "placed"} {
  sdy.mesh @mesh_2x2 = <["data"=2, "model"=2]>
  sdy.mesh @mesh_2 = <["data"=2]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh_2x2} : () -> ()
  "pw.slice"() {sym_name = "s1", mesh = @mesh_2} : () -> ()
  // CHECK: func.func @main
  // CHECK-SAME: -> (tensor<16x64xf32> {pw.slice = @s0, sdy.sharding = #sdy.sharding<@mesh_2x2, [{"data"}, {}]>})
  func.func @main(%x: !x {pw.slice = @s0, pw.spec = [["data"], []]}) -> (!x {pw.slice = @s0}) {
    %0 = "pw.launch"(%x) {callee = @f, slice = @s0} : (!x) -> !x
    %1 = "pw.transfer"(%0) {slice = @s1} : (!x) -> !x
    %2 = "pw.launch"(%1) {callee = @f, slice = @s1} : (!x) -> !x
    %3 = "pw.transfer"(%2) {slice = @s0} : (!x) -> !x
    %4 = "pw.launch"(%3) {callee = @f, slice = @s0} : (!x) -> !x
    %5 = "pw.transfer"(%4) {slice = @s1} : (!x) -> !x
    %6 = "pw.launch"(%5) {callee = @f, slice = @s1} : (!x) -> !x
    %7 = "pw.transfer"(%6) {slice = @s0} : (!x) -> !x
    %8 = "pw.launch"(%7) {callee = @f, slice = @s0} : (!x) -> !x
    %9 = "pw.transfer"(%8) {slice = @s1} : (!x) -> !x
    %10 = "pw.launch"(%9) {callee = @f, slice = @s1} : (!x) -> !x
    // CHECK-COUNT-3: sharding = #sdy.sharding<@mesh_2x2, [{"data"}, {}]>, slice = @s0
    %11 = "pw.transfer"(%10) {slice = @s0} : (!x) -> !x
    %12 = "pw.launch"(%11) {callee = @f, slice = @s0} : (!x) -> !x
    return %12 : !x
  }
  func.func private @f(%x: !x) -> !x {
    %y = stablehlo.tanh %x : !x
    return %y : !x
  }
}
