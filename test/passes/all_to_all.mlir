// RUN: pw-opt %s -p pw-import | filecheck %s --check-prefix=IMPORT
// RUN: pw-opt %s -p pw-import,pw-infer-placement | filecheck %s --check-prefix=PLACE
// RUN: pw-opt %s -p pw-import,pw-infer-placement,pw-sink-loop-reductions,pw-group-branches,pw-outline | filecheck %s --check-prefix=OUTLINE
// RUN: pw-opt %s -p pw-import,pw-infer-placement,pw-sink-loop-reductions,pw-group-branches,pw-outline,pw-cse | filecheck %s --check-prefix=CSE
// RUN: pw-opt %s -p pw-import,pw-infer-placement,pw-sink-loop-reductions,pw-group-branches,pw-outline,pw-cse,pw-merge-residuals,pw-sink-constants,pw-dce | filecheck %s --check-prefix=DCE
// RUN: pw-opt %s -p pw-import,pw-infer-placement,pw-sink-loop-reductions,pw-group-branches,pw-outline,pw-cse,pw-merge-residuals,pw-sink-constants,pw-dce,pw-insert-transfers,pw-verify-placed | filecheck %s --check-prefix=TRANSFERS
// RUN: pw-opt %s -p pw-import,pw-infer-placement,pw-sink-loop-reductions,pw-group-branches,pw-outline,pw-cse,pw-merge-residuals,pw-sink-constants,pw-dce,pw-insert-transfers,pw-verify-placed,pw-split-backward,pw-propagate-shardings,pw-lower-transfers | filecheck %s --check-prefix=SHARD
// RUN: pw-opt %s -p pw-import,pw-infer-placement,pw-sink-loop-reductions,pw-group-branches,pw-outline,pw-cse,pw-merge-residuals,pw-sink-constants,pw-dce,pw-insert-transfers,pw-verify-placed,pw-split-backward,pw-propagate-shardings,pw-lower-transfers,pw-split-chunks,pw-sum-carries,pw-replicate,pw-lower-all-reduces,pw-unroll-microbatches | filecheck %s --check-prefix=UNROLL
// RUN: pw-opt %s -p 'pw-import,pw-infer-placement,pw-sink-loop-reductions,pw-group-branches,pw-outline,pw-cse,pw-merge-residuals,pw-sink-constants,pw-dce,pw-insert-transfers,pw-verify-placed,pw-split-backward,pw-propagate-shardings,pw-lower-transfers,pw-split-chunks,pw-sum-carries,pw-replicate,pw-lower-all-reduces,pw-unroll-microbatches,pw-schedule{policy=gpipe}' | filecheck %s --check-prefix=SCHEDULE
// RUN: pw-opt %s -p 'pw-import,pw-infer-placement,pw-sink-loop-reductions,pw-group-branches,pw-outline,pw-cse,pw-merge-residuals,pw-sink-constants,pw-dce,pw-insert-transfers,pw-verify-placed,pw-split-backward,pw-propagate-shardings,pw-lower-transfers,pw-split-chunks,pw-sum-carries,pw-replicate,pw-lower-all-reduces,pw-unroll-microbatches,pw-schedule{policy=gpipe},pw-lower-all-to-alls,pw-accumulate,pw-fuse-launches,pw-share-loops,pw-assign-memory-kinds,pw-plan-memory,pw-verify-schedule' | filecheck %s --check-prefix=END

// An exchange of blocks on its way through the passes: one operation, until each slice has a position for it.

// The slices of an exchange are those of the placed calls that its blocks come from; the slices of the last one,
// which differentiation made, are those of the exchange with its number, although a block adds up values of both.
// IMPORT: %[[A:.*]] = "pw.launch"({{.*}}slice = @s0}
// IMPORT: %[[B:.*]] = "pw.launch"({{.*}}slice = @s1}
// IMPORT: "pw.all_to_all"(%[[A]], %[[B]]) {loop = @batch, slices = [@s0, @s1]}
// IMPORT: "pw.all_to_all"(%[[A]], %[[B]]) {loop = @batch, slices = [@s0, @s1]}
// IMPORT: "pw.all_to_all"(%[[B]], %[[A]]) {loop = @batch, slices = [@s1, @s0]}
// IMPORT: "pw.all_to_all"({{.*}}) {loop = @batch, slices = [@s0, @s1]}

// Operations that read only blocks that @s1 received are on @s1, and so are the blocks that it sends.
// PLACE: stablehlo.tanh %{{.*}}#1 {pw.loop = @batch, pw.slice = @s1}
// PLACE: stablehlo.add {{.*}} {pw.loop = @batch, pw.slice = @s1}

// The exchange stays as it is; its operands are results of launches.
// OUTLINE: %[[GLUE:.*]] = "pw.launch"({{.*}}) {callee = @glue, loop = @batch, slice = @s1}
// OUTLINE: "pw.all_to_all"(%{{.*}}, %[[GLUE]]) {loop = @batch, slices = [@s0, @s1]}

// Equal exchanges are one. Other slices, or another order of them, make another exchange.
// CSE-COUNT-3: "pw.all_to_all"
// CSE-NOT: "pw.all_to_all"

// An exchange that nothing reads is gone; one of which one result is read stays whole.
// DCE-COUNT-2: "pw.all_to_all"
// DCE-NOT: "pw.all_to_all"

// Each operand is on its own slice.
// TRANSFERS: %[[A:.*]] = "pw.launch"({{.*}}slice = @s0}
// TRANSFERS: %[[B:.*]] = "pw.launch"({{.*}}slice = @s1}
// TRANSFERS-NEXT: "pw.all_to_all"(%[[A]], %[[B]])

// The blocks that a slice receives are split like the blocks that it sends, here by a constraint of their producer.
// SHARD: func.func private @glue(%arg0: tensor<2x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>}

// Each microbatch has its own exchange.
// UNROLL: "pw.all_to_all"({{.*}}) {loop = @batch, microbatch = 0 : i64, slices = [@s0, @s1]}
// UNROLL: "pw.all_to_all"({{.*}}) {loop = @batch, microbatch = 1 : i64, slices = [@s0, @s1]}

// Blocks leave each slice right after the launch that computes them: at another position on each.
// SCHEDULE: "pw.launch"({{.*}}order = 7 : i64{{.*}}slice = @s0}
// SCHEDULE: "pw.all_to_all"({{.*}}) {loop = @batch, microbatch = 1 : i64, orders = array<i64: 8, 5>, slices = [@s0, @s1]}

// Two exchanges of two microbatches are eight transfers; two more bring a value that is added on @s1.
// END: pw.form = "scheduled"
// END-COUNT-10: "pw.transfer"
// END-NOT: "pw.transfer"

!x = tensor<2x4xf32>
module @experts {
  sdy.mesh @mesh = <["x"=2]>
  "pw.slice"() {mesh = @mesh, sym_name = "s0"} : () -> ()
  "pw.slice"() {mesh = @mesh, sym_name = "s1"} : () -> ()
  "pw.loop"() {count = 2 : i64, sym_name = "batch"} : () -> ()
  func.func public @main(%x: tensor<4x4xf32>, %y: tensor<4x4xf32>) -> (tensor<4x4xf32>, tensor<4x4xf32>) {
    %0 = call @first(%x) {mhlo.frontend_attributes = {pw.loop = "batch", pw.mark = "split"}} : (tensor<4x4xf32>) -> !x
    %1 = call @first(%y) {mhlo.frontend_attributes = {pw.loop = "batch", pw.mark = "split"}} : (tensor<4x4xf32>) -> !x
    %2 = call @f(%0) {mhlo.frontend_attributes = {pw.call = "0", pw.name = "f", pw.slice = "s0"}} : (!x) -> !x
    %3 = call @f(%1) {mhlo.frontend_attributes = {pw.call = "1", pw.name = "f", pw.slice = "s1"}} : (!x) -> !x
    %4:2 = call @exchange(%2, %3) {mhlo.frontend_attributes = {pw.exchange = "2", pw.kind = "fwd"}} : (!x, !x) -> (!x, !x)
    %5:2 = call @exchange(%2, %3) {mhlo.frontend_attributes = {pw.exchange = "3", pw.kind = "fwd"}} : (!x, !x) -> (!x, !x)
    %6:2 = call @exchange(%3, %2) {mhlo.frontend_attributes = {pw.exchange = "4", pw.kind = "fwd"}} : (!x, !x) -> (!x, !x)
    %7 = stablehlo.tanh %4#1 : !x
    %8 = call @f(%4#0) {mhlo.frontend_attributes = {pw.call = "5", pw.name = "f", pw.slice = "s0"}} : (!x) -> !x
    %9 = call @f(%5#0) {mhlo.frontend_attributes = {pw.call = "6", pw.name = "f", pw.slice = "s0"}} : (!x) -> !x
    %10 = stablehlo.add %7, %9 : !x
    %11:2 = call @exchange(%8, %10) {mhlo.frontend_attributes = {pw.exchange = "2", pw.kind = "bwd"}} : (!x, !x) -> (!x, !x)
    %12 = call @both(%11#0) {mhlo.frontend_attributes = {pw.loop = "batch", pw.mark = "concat"}} : (!x) -> tensor<4x4xf32>
    %13 = call @both(%11#1) {mhlo.frontend_attributes = {pw.loop = "batch", pw.mark = "concat"}} : (!x) -> tensor<4x4xf32>
    return %12, %13 : tensor<4x4xf32>, tensor<4x4xf32>
  }
  func.func private @f(%x: !x) -> !x {
    %0 = stablehlo.sine %x : !x
    %1 = sdy.sharding_constraint %0 <@mesh, [{}, {"x"}]> : !x
    return %1 : !x
  }
  func.func private @exchange(%x: !x, %y: !x) -> (!x, !x) {
    return %x, %y : !x, !x
  }
  func.func private @first(%x: tensor<4x4xf32>) -> !x {
    %0 = stablehlo.slice %x [0:2, 0:4] : (tensor<4x4xf32>) -> !x
    return %0 : !x
  }
  func.func private @both(%x: !x) -> tensor<4x4xf32> {
    %0 = stablehlo.concatenate %x, %x, dim = 0 : (!x, !x) -> tensor<4x4xf32>
    return %0 : tensor<4x4xf32>
  }
}
