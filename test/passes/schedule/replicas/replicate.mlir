// RUN: pw-opt %s --split-input-file -p pw-replicate | filecheck %s

// Two replicas of two stages: each has a loop over half of the microbatches, its rows of the batch, its own copy
// of the parameters, and sums its gradient with that of the other.
// CHECK-LABEL: module @two_stages
// CHECK: "pw.slice"() {mesh = @mesh, replica = 0 : i64, sym_name = "s0"}
// CHECK-NEXT: "pw.slice"() {mesh = @mesh, replica = 0 : i64, sym_name = "s1"}
// CHECK-NEXT: "pw.slice"() {mesh = @mesh, replica = 1 : i64, replica_of = @s0, sym_name = "s0_r1"}
// CHECK-NEXT: "pw.slice"() {mesh = @mesh, replica = 1 : i64, replica_of = @s1, sym_name = "s1_r1"}
// CHECK-NEXT: "pw.loop"() {count = 2 : i64, sym_name = "batch"}
// CHECK-NEXT: "pw.loop"() {count = 2 : i64, replica_of = @batch, sym_name = "batch_r1"}
// CHECK: @main(%[[W0:.*]]: tensor<4xf32> {pw.donated, pw.replica = {count = 2 : i64, number = 0 : i64, of = 0 : i64}, pw.slice = @s0}
// CHECK-SAME: %[[W1:.*]]: tensor<4xf32> {pw.donated, pw.replica = {count = 2 : i64, number = 1 : i64, of = 0 : i64}, pw.slice = @s0_r1}
// CHECK-SAME: %[[X0:.*]]: tensor<4xf32> {pw.replica = {count = 2 : i64, number = 0 : i64, of = 1 : i64, split = 0 : i64}, pw.slice = @s0}
// CHECK-SAME: %[[X1:.*]]: tensor<4xf32> {pw.replica = {count = 2 : i64, number = 1 : i64, of = 1 : i64, split = 0 : i64}, pw.slice = @s0_r1}
// CHECK: "pw.split"(%[[X0]]) {loop = @batch, slice = @s0}
// CHECK: %[[B1:.*]] = "pw.split"(%[[X1]]) {loop = @batch_r1, slice = @s0_r1}
// CHECK: "pw.launch"(%[[W1]], %[[B1]]) {callee = @f, loop = @batch_r1, slice = @s0_r1}
// CHECK: %[[G0:.*]] = "pw.reduce"(%{{.*}}) {kind = "sum", loop = @batch, slice = @s1}
// CHECK: %[[G1:.*]] = "pw.reduce"(%{{.*}}) {kind = "sum", loop = @batch_r1, slice = @s1_r1}
// CHECK: %[[G:.*]]:2 = "pw.all_reduce"(%[[G0]], %[[G1]])
// CHECK: return %[[G]]#0, %[[G]]#1
module @two_stages {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {mesh = @mesh, replicas = 2, sym_name = "s0"} : () -> ()
  "pw.slice"() {mesh = @mesh, replicas = 2, sym_name = "s1"} : () -> ()
  "pw.loop"() {count = 4, sym_name = "batch"} : () -> ()
  func.func public @main(%w: tensor<4xf32> {pw.slice = @s0, pw.donated}, %x: tensor<8xf32> {pw.slice = @s0})
      -> (tensor<4xf32> {pw.slice = @s1}) {
    %b = "pw.split"(%x) {loop = @batch, slice = @s0} : (tensor<8xf32>) -> tensor<2xf32>
    %h = "pw.launch"(%w, %b) {callee = @f, loop = @batch, slice = @s0} : (tensor<4xf32>, tensor<2xf32>) -> tensor<4xf32>
    %h1 = "pw.transfer"(%h) {loop = @batch, slice = @s1} : (tensor<4xf32>) -> tensor<4xf32>
    %g = "pw.reduce"(%h1) {kind = "sum", loop = @batch, slice = @s1} : (tensor<4xf32>) -> tensor<4xf32>
    %total = "pw.all_reduce"(%g) {slice = @s1} : (tensor<4xf32>) -> tensor<4xf32>
    return %total : tensor<4xf32>
  }
  func.func private @f(%w: tensor<4xf32>, %x: tensor<2xf32>) -> tensor<4xf32> {
    return %w : tensor<4xf32>
  }
}

// -----

// A batch that something else reads too is whole on every replica, which cuts its rows off; and what reads the
// concatenated rows gets those of all replicas.
// CHECK-LABEL: module @whole_batch
// CHECK: "pw.constant"() {sym_name = "replica_1", value = dense<1> : tensor<i32>}
// CHECK: @main(%[[X0:.*]]: tensor<8xf32> {{.*}}, %[[X1:.*]]: tensor<8xf32> {{.*}}, %[[N0:.*]]: tensor<i32> {pw.constant = @replica_0, pw.slice = @s0}, %[[N1:.*]]: tensor<i32> {pw.constant = @replica_1, pw.slice = @s0_r1})
// CHECK: "pw.launch"(%[[X0]], %[[N0]]) {callee = @replica_rows, slice = @s0} : (tensor<8xf32>, tensor<i32>) -> tensor<4xf32>
// CHECK: %[[R1:.*]] = "pw.launch"(%[[X1]], %[[N1]]) {callee = @replica_rows, slice = @s0_r1}
// CHECK: "pw.split"(%[[R1]]) {loop = @batch_r1, slice = @s0_r1} : (tensor<4xf32>) -> tensor<2xf32>
// CHECK: %[[P0:.*]] = "pw.reduce"(%{{.*}}) {kind = "concat", loop = @batch, slice = @s0} : (tensor<2xf32>) -> tensor<4xf32>
// CHECK: %[[P1:.*]] = "pw.reduce"(%{{.*}}) {kind = "concat", loop = @batch_r1, slice = @s0_r1}
// CHECK: %[[T1:.*]] = "pw.transfer"(%[[P1]]) {slice = @s0}
// CHECK: "pw.launch"(%[[P0]], %[[T1]]) {callee = @rows, slice = @s0} : (tensor<4xf32>, tensor<4xf32>) -> tensor<8xf32>
// CHECK: %[[T0:.*]] = "pw.transfer"(%[[P0]]) {slice = @s0_r1}
// CHECK: "pw.launch"(%[[T0]], %[[P1]]) {callee = @rows, slice = @s0_r1}
module @whole_batch {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {mesh = @mesh, replicas = 2, sym_name = "s0"} : () -> ()
  "pw.loop"() {count = 4, sym_name = "batch"} : () -> ()
  func.func public @main(%x: tensor<8xf32> {pw.slice = @s0})
      -> (tensor<8xf32> {pw.slice = @s0}, tensor<8xf32> {pw.slice = @s0}) {
    %b = "pw.split"(%x) {loop = @batch, slice = @s0} : (tensor<8xf32>) -> tensor<2xf32>
    %y = "pw.launch"(%b) {callee = @f, loop = @batch, slice = @s0} : (tensor<2xf32>) -> tensor<2xf32>
    %all = "pw.reduce"(%y) {kind = "concat", loop = @batch, slice = @s0} : (tensor<2xf32>) -> tensor<8xf32>
    %z = "pw.launch"(%all) {callee = @g, slice = @s0} : (tensor<8xf32>) -> tensor<8xf32>
    return %z, %x : tensor<8xf32>, tensor<8xf32>
  }
  func.func private @f(%x: tensor<2xf32>) -> tensor<2xf32> {
    return %x : tensor<2xf32>
  }
  func.func private @g(%x: tensor<8xf32>) -> tensor<8xf32> {
    return %x : tensor<8xf32>
  }
}

// -----

// What replicas concatenate and only return stays where it is, as the rows of one array.
// CHECK-LABEL: module @rows_stay
// CHECK: -> (tensor<4xf32> {pw.replica = {count = 2 : i64, number = 0 : i64, of = 0 : i64, split = 0 : i64}, pw.slice = @s0},
// CHECK-SAME: tensor<4xf32> {pw.replica = {count = 2 : i64, number = 1 : i64, of = 0 : i64, split = 0 : i64}, pw.slice = @s0_r1})
// CHECK-NOT: pw.transfer
module @rows_stay {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {mesh = @mesh, replicas = 2, sym_name = "s0"} : () -> ()
  "pw.loop"() {count = 4, sym_name = "batch"} : () -> ()
  func.func public @main(%x: tensor<8xf32> {pw.slice = @s0}) -> (tensor<8xf32> {pw.slice = @s0}) {
    %b = "pw.split"(%x) {loop = @batch, slice = @s0} : (tensor<8xf32>) -> tensor<2xf32>
    %y = "pw.launch"(%b) {callee = @f, loop = @batch, slice = @s0} : (tensor<2xf32>) -> tensor<2xf32>
    %all = "pw.reduce"(%y) {kind = "concat", loop = @batch, slice = @s0} : (tensor<2xf32>) -> tensor<8xf32>
    return %all : tensor<8xf32>
  }
  func.func private @f(%x: tensor<2xf32>) -> tensor<2xf32> {
    return %x : tensor<2xf32>
  }
}

// -----

// The iterations of a loop that need each other are those of all replicas; only the microbatches inside are shared out.
// CHECK-LABEL: module @steps
// CHECK: "pw.loop"() {count = 3 : i64, sequential, sym_name = "steps"}
// CHECK-NEXT: "pw.loop"() {count = 2 : i64, parent = @steps, sym_name = "batch"}
// CHECK-NEXT: "pw.loop"() {count = 2 : i64, parent = @steps, replica_of = @batch, sym_name = "batch_r1"}
// CHECK: %[[C0:.*]] = "pw.carry"(%{{.*}}) {loop = @steps, slice = @s0}
// CHECK: %[[C1:.*]] = "pw.carry"(%{{.*}}) {loop = @steps, slice = @s0_r1}
// CHECK: %[[G:.*]]:2 = "pw.all_reduce"(%{{.*}}, %{{.*}}) {loop = @steps}
// CHECK: "pw.next"(%[[C0]], %[[G]]#0) {loop = @steps, slice = @s0}
// CHECK: "pw.next"(%[[C1]], %[[G]]#1) {loop = @steps, slice = @s0_r1}
module @steps {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {mesh = @mesh, replicas = 2, sym_name = "s0"} : () -> ()
  "pw.loop"() {count = 3, sequential, sym_name = "steps"} : () -> ()
  "pw.loop"() {count = 4, parent = @steps, sym_name = "batch"} : () -> ()
  func.func public @main(%w: tensor<2xf32> {pw.slice = @s0}, %x: tensor<8xf32> {pw.slice = @s0})
      -> (tensor<2xf32> {pw.slice = @s0}) {
    %c = "pw.carry"(%w) {loop = @steps, slice = @s0} : (tensor<2xf32>) -> tensor<2xf32>
    %b = "pw.split"(%x) {loop = @batch, slice = @s0} : (tensor<8xf32>) -> tensor<2xf32>
    %y = "pw.launch"(%c, %b) {callee = @f, loop = @batch, slice = @s0} : (tensor<2xf32>, tensor<2xf32>) -> tensor<2xf32>
    %g = "pw.reduce"(%y) {kind = "sum", loop = @batch, outer = @steps, slice = @s0} : (tensor<2xf32>) -> tensor<2xf32>
    %t = "pw.all_reduce"(%g) {loop = @steps, slice = @s0} : (tensor<2xf32>) -> tensor<2xf32>
    %n = "pw.next"(%c, %t) {loop = @steps, slice = @s0} : (tensor<2xf32>, tensor<2xf32>) -> tensor<2xf32>
    return %n : tensor<2xf32>
  }
  func.func private @f(%w: tensor<2xf32>, %x: tensor<2xf32>) -> tensor<2xf32> {
    return %x : tensor<2xf32>
  }
}

// -----

// What microbatches hand on goes from replica to replica: each starts from what the one before ended with, whatever
// it does before that, and all get what the last one ends with.
// CHECK-LABEL: module @handed_on
// CHECK: %[[C0:.*]] = "pw.carry"(%{{.*}}) {loop = @batch, slice = @s0}
// CHECK: %[[N0:.*]] = "pw.launch"(%[[C0]], %{{.*}}) {callee = @update, loop = @batch, slice = @s0}
// CHECK: %[[E0:.*]] = "pw.next"(%[[C0]], %[[N0]]) {loop = @batch, slice = @s0}
// CHECK: %[[T1:.*]] = "pw.transfer"(%[[E0]]) {slice = @s0_r1}
// CHECK: %[[C1:.*]] = "pw.carry"(%[[T1]]) {loop = @batch_r1, slice = @s0_r1}
// CHECK: %[[E1:.*]] = "pw.next"(%[[C1]], %{{.*}}) {loop = @batch_r1, slice = @s0_r1}
// CHECK: %[[T2:.*]] = "pw.transfer"(%[[E1]]) {slice = @s0_r2}
// CHECK: %[[C2:.*]] = "pw.carry"(%[[T2]]) {loop = @batch_r2, slice = @s0_r2}
// CHECK: %[[E2:.*]] = "pw.next"(%[[C2]], %{{.*}}) {loop = @batch_r2, slice = @s0_r2}
// CHECK: %[[L0:.*]] = "pw.transfer"(%[[E2]]) {slice = @s0}
// CHECK: %[[L1:.*]] = "pw.transfer"(%[[E2]]) {slice = @s0_r1}
// CHECK: return %[[L0]], %[[L1]], %[[E2]]
module @handed_on {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {mesh = @mesh, replicas = 3, sym_name = "s0"} : () -> ()
  "pw.loop"() {count = 6, sym_name = "batch"} : () -> ()
  func.func public @main(%state: tensor<2xf32> {pw.slice = @s0}, %x: tensor<12xf32> {pw.slice = @s0})
      -> (tensor<2xf32> {pw.slice = @s0}) {
    %c = "pw.carry"(%state) {loop = @batch, slice = @s0} : (tensor<2xf32>) -> tensor<2xf32>
    %b = "pw.split"(%x) {loop = @batch, slice = @s0} : (tensor<12xf32>) -> tensor<2xf32>
    %h = "pw.launch"(%b) {callee = @f, loop = @batch, slice = @s0} : (tensor<2xf32>) -> tensor<2xf32>
    %n = "pw.launch"(%c, %h) {callee = @update, loop = @batch, slice = @s0} : (tensor<2xf32>, tensor<2xf32>) -> tensor<2xf32>
    %l = "pw.next"(%c, %n) {loop = @batch, slice = @s0} : (tensor<2xf32>, tensor<2xf32>) -> tensor<2xf32>
    return %l : tensor<2xf32>
  }
  func.func private @f(%x: tensor<2xf32>) -> tensor<2xf32> {
    return %x : tensor<2xf32>
  }
  func.func private @update(%s: tensor<2xf32>, %x: tensor<2xf32>) -> tensor<2xf32> {
    %n = stablehlo.maximum %s, %x : tensor<2xf32>
    return %n : tensor<2xf32>
  }
}
