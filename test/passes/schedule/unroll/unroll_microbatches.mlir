// RUN: pw-opt %s --split-input-file --pw-unroll-microbatches | filecheck %s

// Everything between splits and reductions is repeated for each microbatch, what stands in front of the loop
// is not, what reads a reduction stays behind it. Each reader takes its block of the batch from the whole by
// one computation, which gets the number of the microbatch. The sum has an operand for each.

!w = tensor<4x4xf32>
!x = tensor<6x4xf32>
!b = tensor<2x4xf32>
// CHECK-LABEL: module @pipeline
module @pipeline attributes {pw.form = "sharded"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  "pw.slice"() {sym_name = "s1", mesh = @mesh} : () -> ()
  // CHECK: "pw.loop"() {count = 3 : i64, schedule = "1f1b", sym_name = "batch"}
  "pw.loop"() {sym_name = "batch", count = 3, schedule = "1f1b"} : () -> ()
  // CHECK: "pw.constant"() {sym_name = "microbatch_0", value = dense<0> : tensor<i32>}
  // CHECK: "pw.constant"() {sym_name = "microbatch_1", value = dense<1> : tensor<i32>}
  // CHECK: "pw.constant"() {sym_name = "microbatch_2", value = dense<2> : tensor<i32>}
  // CHECK: func.func @main(%[[W:.*]]: tensor<4x4xf32> {pw.slice = @s0}, %[[X:.*]]: tensor<6x4xf32> {pw.slice = @s0}, %[[N0:.*]]: tensor<i32> {pw.constant = @microbatch_0, pw.slice = @s0}, %[[N1:.*]]: tensor<i32> {pw.constant = @microbatch_1, pw.slice = @s0}, %[[N2:.*]]: tensor<i32> {pw.constant = @microbatch_2, pw.slice = @s0})
  func.func @main(%w: !w {pw.slice = @s0}, %x: !x {pw.slice = @s0}) -> (!w {pw.slice = @s0}) {
    // CHECK-NEXT: %[[CAST:.*]] = "pw.launch"(%[[W]]) {callee = @cast, slice = @s0}
    %v = "pw.launch"(%w) {callee = @cast, slice = @s0} : (!w) -> !w
    %b = "pw.split"(%x) {loop = @batch, slice = @s0} : (!x) -> !b
    // CHECK-NEXT: %[[B0:.*]] = "pw.launch"(%[[X]], %[[N0]]) {callee = @block, loop = @batch, microbatch = 0 : i64, slice = @s0}
    // CHECK-NEXT: %[[H0:.*]] = "pw.launch"(%[[CAST]], %[[B0]]) {callee = @front, loop = @batch, microbatch = 0 : i64, origins = [{kind = "fwd", microbatch = 0 : i64, stage = 0 : i64}], slice = @s0}
    // CHECK-NEXT: %[[T0:.*]] = "pw.transfer"(%[[H0]]) {loop = @batch, microbatch = 0 : i64, slice = @s1}
    // CHECK-NEXT: %[[G0:.*]] = "pw.launch"(%[[T0]]) {callee = @back, loop = @batch, microbatch = 0 : i64, origins = [{kind = "bwd", microbatch = 0 : i64, stage = 1 : i64}], slice = @s1}
    // CHECK-NEXT: %[[D0:.*]] = "pw.transfer"(%[[G0]]) {loop = @batch, microbatch = 0 : i64, slice = @s0}
    // CHECK-NEXT: %[[C0:.*]] = "pw.launch"(%[[X]], %[[N0]]) {callee = @block, loop = @batch, microbatch = 0
    // CHECK-NEXT: %[[A0:.*]] = "pw.launch"(%[[C0]], %[[D0]]) {callee = @front_bwd, loop = @batch, microbatch = 0 : i64, origins = [{kind = "bwd", microbatch = 0 : i64, stage = 0 : i64}], slice = @s0}
    // CHECK-NEXT: %[[B1:.*]] = "pw.launch"(%[[X]], %[[N1]]) {callee = @block, loop = @batch, microbatch = 1
    // CHECK-NEXT: "pw.launch"(%[[CAST]], %[[B1]]) {callee = @front, loop = @batch, microbatch = 1
    %h = "pw.launch"(%v, %b) {callee = @front, loop = @batch, origins = [{kind = "fwd", stage = 0}], slice = @s0} : (!w, !b) -> !b
    %t = "pw.transfer"(%h) {loop = @batch, slice = @s1} : (!b) -> !b
    %g = "pw.launch"(%t) {callee = @back, loop = @batch, origins = [{kind = "bwd", stage = 1}], slice = @s1} : (!b) -> !b
    %d = "pw.transfer"(%g) {loop = @batch, slice = @s0} : (!b) -> !b
    %a = "pw.launch"(%b, %d) {callee = @front_bwd, loop = @batch, origins = [{kind = "bwd", stage = 0}], slice = @s0} : (!b, !b) -> !w
    // CHECK: %[[A1:.*]] = "pw.launch"({{.*}}) {callee = @front_bwd, loop = @batch, microbatch = 1
    // CHECK: %[[A2:.*]] = "pw.launch"({{.*}}) {callee = @front_bwd, loop = @batch, microbatch = 2
    // CHECK-NEXT: %[[SUM:.*]] = "pw.reduce"(%[[A0]], %[[A1]], %[[A2]]) {kind = "sum", loop = @batch, slice = @s0}
    %s = "pw.reduce"(%a) {kind = "sum", loop = @batch, slice = @s0} : (!w) -> !w
    // CHECK-NEXT: %[[NEW:.*]] = "pw.launch"(%[[W]], %[[SUM]]) {callee = @update, slice = @s0}
    // CHECK-NEXT: return %[[NEW]]
    %n = "pw.launch"(%w, %s) {callee = @update, slice = @s0} : (!w, !w) -> !w
    return %n : !w
  }
  func.func private @cast(%w: !w) -> !w {
    return %w : !w
  }
  func.func private @front(%w: !w, %b: !b) -> !b {
    return %b : !b
  }
  func.func private @back(%b: !b) -> !b {
    return %b : !b
  }
  func.func private @front_bwd(%b: !b, %d: !b) -> !w {
    %w = stablehlo.dot_general %b, %d, contracting_dims = [0] x [0] : (!b, !b) -> !w
    return %w : !w
  }
  func.func private @update(%w: !w, %g: !w) -> !w {
    %n = stablehlo.subtract %w, %g : !w
    return %n : !w
  }
  // CHECK: func.func private @block(%[[WHOLE:.*]]: tensor<6x4xf32>, %[[N:.*]]: tensor<i32>) -> tensor<2x4xf32>
  // CHECK-NEXT: %[[ROWS:.*]] = stablehlo.constant dense<2>
  // CHECK-NEXT: %[[START:.*]] = stablehlo.multiply %[[N]], %[[ROWS]]
  // CHECK-NEXT: %[[ZERO:.*]] = stablehlo.constant dense<0>
  // CHECK-NEXT: %[[BLOCK:.*]] = stablehlo.dynamic_slice %[[WHOLE]], %[[START]], %[[ZERO]], sizes = [2, 4]
  // CHECK-NEXT: return %[[BLOCK]]
  // CHECK-NOT: func.func private @block_
}

// -----

// A whole value whose leading dimension is split over devices is first laid out block by block, each split
// over all devices; taking one then moves nothing between devices.

!x = tensor<16x4xf32>
!b = tensor<4x4xf32>
// CHECK-LABEL: module @sharded
module @sharded attributes {pw.form = "sharded"} {
  sdy.mesh @mesh = <["data"=2]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  "pw.loop"() {sym_name = "batch", count = 4} : () -> ()
  // CHECK: func.func @main(%[[X:.*]]: tensor<16x4xf32> {{.*}}, %[[N0:.*]]: tensor<i32> {pw.constant = @microbatch_0
  func.func @main(%x: !x {pw.slice = @s0, sdy.sharding = #sdy.sharding<@mesh, [{"data"}, {}]>}) -> (!x {pw.slice = @s0, sdy.sharding = #sdy.sharding<@mesh, [{"data"}, {}]>}) {
    // CHECK-NEXT: %[[BLOCKS:.*]] = "pw.launch"(%[[X]]) {callee = @blocks, slice = @s0} : (tensor<16x4xf32>) -> tensor<4x4x4xf32>
    // CHECK-NEXT: %[[B:.*]] = "pw.launch"(%[[BLOCKS]], %[[N0]]) {callee = @block, loop = @batch, microbatch = 0
    // CHECK-NEXT: "pw.launch"(%[[B]]) {callee = @f, loop = @batch, microbatch = 0
    // CHECK-NEXT: "pw.launch"(%[[BLOCKS]], %{{.*}}) {callee = @block, loop = @batch, microbatch = 1
    %b = "pw.split"(%x) {loop = @batch, slice = @s0, sharding = #sdy.sharding<@mesh, [{"data"}, {}]>} : (!x) -> !b
    %y = "pw.launch"(%b) {callee = @f, loop = @batch, slice = @s0} : (!b) -> !b
    // CHECK: "pw.launch"(%{{.*}}, %{{.*}}, %{{.*}}, %{{.*}}) {callee = @concat, slice = @s0}
    %z = "pw.reduce"(%y) {kind = "concat", loop = @batch, slice = @s0, sharding = #sdy.sharding<@mesh, [{"data"}, {}]>} : (!b) -> !x
    return %z : !x
  }
  func.func private @f(%b: !b {sdy.sharding = #sdy.sharding<@mesh, [{"data"}, {}]>}) -> (!b {sdy.sharding = #sdy.sharding<@mesh, [{"data"}, {}]>}) {
    %y = stablehlo.tanh %b : !b
    return %y : !b
  }
  // CHECK: func.func private @blocks(%{{.*}}: tensor<16x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"data"}, {}]>}) -> (tensor<4x4x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"data"}, {}]>})
  // CHECK-NEXT: %[[CUT:.*]] = stablehlo.reshape %{{.*}} : (tensor<16x4xf32>) -> tensor<4x4x4xf32>
  // CHECK-NEXT: sdy.sharding_constraint %[[CUT]] <@mesh, [{}, {"data"}, {}]>
  // CHECK: func.func private @block(%{{.*}}: tensor<4x4x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"data"}, {}]>}, %{{.*}}: tensor<i32> {sdy.sharding = #sdy.sharding<@mesh, []>}) -> (tensor<4x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"data"}, {}]>})
  // CHECK: stablehlo.dynamic_slice {{.*}}, sizes = [1, 4, 4]
  // CHECK-NEXT: stablehlo.reshape
  // CHECK: func.func private @concat({{.*}}) -> (tensor<16x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"data"}, {}]>})
  // CHECK-NEXT: stablehlo.concatenate {{.*}}, dim = 0
}

// -----

// A concatenation is one launch, once all blocks are there. A sum of terms that arrive from another slice has
// no launch to go along with: launches add them up, each as soon as its term is there. The same holds for a
// block of the batch itself.

!x = tensor<6xf32>
!b = tensor<2xf32>
// CHECK-LABEL: module @reductions
module @reductions attributes {pw.form = "sharded"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  "pw.slice"() {sym_name = "s1", mesh = @mesh} : () -> ()
  "pw.loop"() {sym_name = "batch", count = 3} : () -> ()
  func.func @main(%x: !x {pw.slice = @s0}) -> (!b {pw.slice = @s1}, !x {pw.slice = @s0}, !b {pw.slice = @s0}) {
    // CHECK: %[[Y0:.*]] = "pw.launch"({{.*}}) {callee = @f, loop = @batch, microbatch = 0
    // CHECK: %[[T0:.*]] = "pw.transfer"(%[[Y0]]) {loop = @batch, microbatch = 0 : i64, slice = @s1}
    // CHECK: %[[Y1:.*]] = "pw.launch"({{.*}}) {callee = @f, loop = @batch, microbatch = 1
    // CHECK: %[[T1:.*]] = "pw.transfer"(%[[Y1]]) {loop = @batch, microbatch = 1 : i64, slice = @s1}
    // CHECK: %[[Y2:.*]] = "pw.launch"({{.*}}) {callee = @f, loop = @batch, microbatch = 2
    // CHECK: %[[T2:.*]] = "pw.transfer"(%[[Y2]]) {loop = @batch, microbatch = 2 : i64, slice = @s1}
    %b = "pw.split"(%x) {loop = @batch, slice = @s0} : (!x) -> !b
    %y = "pw.launch"(%b) {callee = @f, loop = @batch, slice = @s0} : (!b) -> !b
    %t = "pw.transfer"(%y) {loop = @batch, slice = @s1} : (!b) -> !b
    // CHECK: %[[S1:.*]] = "pw.launch"(%[[T0]], %[[T1]]) {callee = @[[ADD:.*]], loop = @batch, microbatch = 1 : i64, slice = @s1}
    // CHECK-NEXT: %[[S2:.*]] = "pw.launch"(%[[S1]], %[[T2]]) {callee = @[[ADD]], loop = @batch, microbatch = 2 : i64, slice = @s1}
    %sum = "pw.reduce"(%t) {kind = "sum", loop = @batch, slice = @s1} : (!b) -> !b
    // CHECK-NEXT: %[[ROWS:.*]] = "pw.launch"(%[[Y0]], %[[Y1]], %[[Y2]]) {callee = @concat, slice = @s0}
    %rows = "pw.reduce"(%y) {kind = "concat", loop = @batch, slice = @s0} : (!b) -> !x
    // CHECK: %[[U1:.*]] = "pw.launch"({{.*}}) {callee = @[[ADD]], loop = @batch, microbatch = 1 : i64, slice = @s0}
    // CHECK-NEXT: %[[U2:.*]] = "pw.launch"(%[[U1]], {{.*}}) {callee = @[[ADD]], loop = @batch, microbatch = 2
    %blocks = "pw.reduce"(%b) {kind = "sum", loop = @batch, slice = @s0} : (!b) -> !b
    // CHECK-NEXT: return %[[S2]], %[[ROWS]], %[[U2]]
    return %sum, %rows, %blocks : !b, !x, !b
  }
  func.func private @f(%b: !b) -> !b {
    return %b : !b
  }
}

// -----

// One microbatch is the whole batch: nothing is cut, and nothing is added.

!x = tensor<4xf32>
// CHECK-LABEL: module @one_microbatch
module @one_microbatch attributes {pw.form = "sharded"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  "pw.loop"() {sym_name = "batch", count = 1} : () -> ()
  func.func @main(%x: !x {pw.slice = @s0}) -> (!x {pw.slice = @s0}, !x {pw.slice = @s0}) {
    // CHECK: %[[Y:.*]] = "pw.launch"(%arg0) {callee = @f, loop = @batch, microbatch = 0 : i64, slice = @s0}
    // CHECK-NEXT: return %[[Y]], %[[Y]]
    %b = "pw.split"(%x) {loop = @batch, slice = @s0} : (!x) -> !x
    %y = "pw.launch"(%b) {callee = @f, loop = @batch, slice = @s0} : (!x) -> !x
    %sum = "pw.reduce"(%y) {kind = "sum", loop = @batch, slice = @s0} : (!x) -> !x
    %rows = "pw.reduce"(%y) {kind = "concat", loop = @batch, slice = @s0} : (!x) -> !x
    return %sum, %rows : !x, !x
  }
  func.func private @f(%b: !x) -> !x {
    return %b : !x
  }
}

// -----

// The only microbatch may have to lie in another way than the batch, as one that slices of several shapes read,
// and what it gives in another way than the result.

!x = tensor<16x4xf32>
// CHECK-LABEL: module @one_microbatch_laid_out_anew
module @one_microbatch_laid_out_anew attributes {pw.form = "sharded"} {
  sdy.mesh @mesh = <["data"=2]>
  "pw.slice"() {mesh = @mesh, sym_name = "s0"} : () -> ()
  "pw.loop"() {sym_name = "batch", count = 1} : () -> ()
  // CHECK: func.func @main(%[[X:.*]]: tensor<16x4xf32>
  func.func @main(%x: !x {pw.slice = @s0, sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>}) -> (!x {pw.slice = @s0, sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>}) {
    // CHECK-NEXT: %[[B:.*]] = "pw.launch"(%[[X]]) {callee = @[[SPLIT:.*]], loop = @batch, microbatch = 0 : i64, slice = @s0}
    // CHECK-NEXT: %[[Y:.*]] = "pw.launch"(%[[B]]) {callee = @f
    // CHECK-NEXT: %[[Z:.*]] = "pw.launch"(%[[Y]]) {callee = @[[JOIN:.*]], slice = @s0}
    // CHECK-NEXT: return %[[Z]]
    %b = "pw.split"(%x) {loop = @batch, slice = @s0, sharding = #sdy.sharding<@mesh, [{"data"}, {}]>} : (!x) -> !x
    %y = "pw.launch"(%b) {callee = @f, slice = @s0, loop = @batch} : (!x) -> !x
    %z = "pw.reduce"(%y) {kind = "concat", loop = @batch, slice = @s0, sharding = #sdy.sharding<@mesh, [{}, {}]>} : (!x) -> !x
    return %z : !x
  }
  func.func private @f(%b: !x {sdy.sharding = #sdy.sharding<@mesh, [{"data"}, {}]>}) -> (!x {sdy.sharding = #sdy.sharding<@mesh, [{"data"}, {}]>}) {
    return %b : !x
  }
  // CHECK: func.func private @[[SPLIT]](%{{.*}}: tensor<16x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>}) -> (tensor<16x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"data"}, {}]>})
  // CHECK: func.func private @[[JOIN]](%{{.*}}: tensor<16x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"data"}, {}]>}) -> (tensor<16x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>})
}

// -----

// Two loops, one after the other: the second reads what the first has summed, after an update between them.
// They share the numbers of microbatches, on every slice that splits a value in one of them.

!w = tensor<2xf32>
!x = tensor<6xf32>
!b2 = tensor<3xf32>
!b3 = tensor<2xf32>
// CHECK-LABEL: module @two_loops
module @two_loops attributes {pw.form = "sharded"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  "pw.slice"() {sym_name = "s1", mesh = @mesh} : () -> ()
  "pw.loop"() {sym_name = "train", count = 2} : () -> ()
  "pw.loop"() {sym_name = "test", count = 3} : () -> ()
  // CHECK-COUNT-3: "pw.constant"
  // CHECK-NOT: "pw.constant"
  // CHECK: func.func @main
  // CHECK-SAME: {pw.constant = @microbatch_2, pw.slice = [@s0, @s1]}
  func.func @main(%w: !w {pw.slice = @s0}, %x: !x {pw.slice = @s0}, %y: !x {pw.slice = @s1}) -> (!w {pw.slice = @s1}) {
    %a = "pw.split"(%x) {loop = @train, slice = @s0} : (!x) -> !b2
    // CHECK: %[[G0:.*]] = "pw.launch"({{.*}}) {callee = @gradient, loop = @train, microbatch = 0
    // CHECK: %[[G1:.*]] = "pw.launch"({{.*}}) {callee = @gradient, loop = @train, microbatch = 1
    %g = "pw.launch"(%w, %a) {callee = @gradient, loop = @train, slice = @s0} : (!w, !b2) -> !w
    // It need not stand behind the first loop.
    %b = "pw.split"(%y) {loop = @test, slice = @s1} : (!x) -> !b3
    // CHECK: %[[SUM:.*]] = "pw.reduce"(%[[G0]], %[[G1]]) {kind = "sum", loop = @train
    %s = "pw.reduce"(%g) {kind = "sum", loop = @train, slice = @s0} : (!w) -> !w
    // CHECK: %[[NEW:.*]] = "pw.launch"(%{{.*}}, %[[SUM]]) {callee = @update, slice = @s0}
    %n = "pw.launch"(%w, %s) {callee = @update, slice = @s0} : (!w, !w) -> !w
    // CHECK: %[[THERE:.*]] = "pw.transfer"(%[[NEW]]) {slice = @s1}
    %t = "pw.transfer"(%n) {slice = @s1} : (!w) -> !w
    // CHECK: %[[L0:.*]] = "pw.launch"(%[[THERE]], %{{.*}}) {callee = @loss, loop = @test, microbatch = 0
    // CHECK: %[[L1:.*]] = "pw.launch"(%[[THERE]], %{{.*}}) {callee = @loss, loop = @test, microbatch = 1
    // CHECK: %[[L2:.*]] = "pw.launch"(%[[THERE]], %{{.*}}) {callee = @loss, loop = @test, microbatch = 2
    %l = "pw.launch"(%t, %b) {callee = @loss, loop = @test, slice = @s1} : (!w, !b3) -> !w
    // CHECK: %[[LOSS:.*]] = "pw.reduce"(%[[L0]], %[[L1]], %[[L2]]) {kind = "sum", loop = @test
    %r = "pw.reduce"(%l) {kind = "sum", loop = @test, slice = @s1} : (!w) -> !w
    // CHECK: return %[[LOSS]]
    return %r : !w
  }
  func.func private @gradient(%w: !w, %a: !b2) -> !w {
    return %w : !w
  }
  func.func private @update(%w: !w, %g: !w) -> !w {
    return %g : !w
  }
  func.func private @loss(%w: !w, %b: !b3) -> !w {
    return %b : !w
  }
}

// -----

// A program without loops stays as it is: it gets no numbers.

!x = tensor<4xf32>
// CHECK-LABEL: module @no_loop
module @no_loop attributes {pw.form = "sharded"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  // CHECK-NOT: "pw.constant"
  // CHECK: func.func @main(%arg0: tensor<4xf32> {pw.slice = @s0}) -> (tensor<4xf32> {pw.slice = @s0})
  func.func @main(%x: !x {pw.slice = @s0}) -> (!x {pw.slice = @s0}) {
    return %x : !x
  }
}

// -----

// A launch for its effect alone is repeated as well, whether it reads a block or the result of a launch.

!x = tensor<4xf32>
!b = tensor<2xf32>
// CHECK-LABEL: module @effects
module @effects attributes {pw.form = "sharded"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  "pw.loop"() {sym_name = "batch", count = 2} : () -> ()
  func.func @main(%x: !x {pw.slice = @s0}) -> (!b {pw.slice = @s0}) {
    %b = "pw.split"(%x) {loop = @batch, slice = @s0} : (!x) -> !b
    // CHECK: %[[H0:.*]] = "pw.launch"({{.*}}) {callee = @f, loop = @batch, microbatch = 0
    // CHECK-NEXT: "pw.launch"(%[[H0]]) {callee = @show, loop = @batch, microbatch = 0
    // CHECK: %[[H1:.*]] = "pw.launch"({{.*}}) {callee = @f, loop = @batch, microbatch = 1
    // CHECK-NEXT: "pw.launch"(%[[H1]]) {callee = @show, loop = @batch, microbatch = 1
    // CHECK-NEXT: "pw.reduce"(%[[H0]], %[[H1]])
    // CHECK-NEXT: return
    %h = "pw.launch"(%b) {callee = @f, loop = @batch, origins = [{kind = "fwd", stage = 0}], slice = @s0} : (!b) -> !b
    "pw.launch"(%h) {callee = @show, loop = @batch, slice = @s0} : (!b) -> ()
    %s = "pw.reduce"(%h) {kind = "sum", loop = @batch, slice = @s0} : (!b) -> !b
    return %s : !b
  }
  func.func private @f(%b: !b) -> !b {
    return %b : !b
  }
  func.func private @show(%b: !b) {
    stablehlo.custom_call @show(%b) {has_side_effect = true} : (!b) -> ()
    return
  }
}

// -----

// What one microbatch hands on is the argument itself. Where a transfer takes it from a slice on which the
// argument does not start, it is a copy there: transfers take what lives on several slices from the first.

!x = tensor<4xf32>
// CHECK-LABEL: module @handed_on
module @handed_on attributes {pw.form = "sharded"} {
  sdy.mesh @one = <["x"=1]>
  sdy.mesh @two = <["x"=2]>
  "pw.slice"() {sym_name = "s0", mesh = @one} : () -> ()
  "pw.slice"() {sym_name = "s1", mesh = @two} : () -> ()
  "pw.slice"() {sym_name = "s2", mesh = @two} : () -> ()
  "pw.loop"() {sym_name = "batch", count = 1} : () -> ()
  // CHECK: func.func @main(%[[X:.*]]: tensor<4xf32> {pw.slice = [@s0, @s1]},
  func.func @main(%x: !x {pw.slice = [@s0, @s1]}) -> (!x {pw.slice = @s0}, !x {pw.slice = @s1}, !x {pw.slice = @s2}) {
    %b = "pw.split"(%x) {loop = @batch, slice = @s1} : (!x) -> !x
    %a = "pw.split"(%x) {loop = @batch, slice = @s0} : (!x) -> !x
    // CHECK-NEXT: %[[F:.*]] = "pw.launch"(%[[X]]) {callee = @f, loop = @batch, microbatch = 0
    %f = "pw.launch"(%a) {callee = @f, loop = @batch, origins = [{kind = "fwd", stage = 0}], slice = @s0} : (!x) -> !x
    %g = "pw.reduce"(%f) {kind = "concat", loop = @batch, slice = @s0} : (!x) -> !x
    %s = "pw.reduce"(%b) {kind = "concat", loop = @batch, slice = @s1} : (!x) -> !x
    // CHECK-NEXT: %[[COPY:.*]] = "pw.launch"(%[[X]]) {callee = @[[NAME:.*]], slice = @s1}
    // CHECK-NEXT: %[[T:.*]] = "pw.transfer"(%[[COPY]]) {slice = @s2}
    %t = "pw.transfer"(%s) {slice = @s2} : (!x) -> !x
    // CHECK-NEXT: return %[[F]], %[[COPY]], %[[T]]
    return %g, %s, %t : !x, !x, !x
  }
  func.func private @f(%x: !x) -> !x {
    return %x : !x
  }
  // CHECK: func.func private @[[NAME]](%[[A:.*]]: tensor<4xf32>
  // CHECK-NEXT: return %[[A]]
}
