// RUN: pw-opt %s --split-input-file -p pw-sum-carries | filecheck %s
// RUN: pw-opt %s --split-input-file -p pw-sum-carries,pw-sum-carries | filecheck %s
// RUN: pw-opt %s --split-input-file -p pw-sum-carries,pw-replicate | filecheck %s --check-prefix=REPLICAS

// A running average that a stage makes beside what it is for: 0.5 c + b. Each of two replicas has two microbatches,
// so that what the first ends with counts a quarter, and what was there before a sixteenth.
// CHECK-LABEL: module @average
// CHECK: %[[R:.*]] = "pw.replica"() {slice = @s0}
// CHECK: %[[Z:.*]] = "pw.launch"() {callee = @"batch/zeros", slice = @s0}
// CHECK: %[[C:.*]] = "pw.carry"(%[[Z]]) {loop = @batch, per_replica, slice = @s0}
// CHECK: %[[E:.*]] = "pw.next"(%[[C]], %{{.*}}) {loop = @batch, slice = @s0}
// CHECK: %[[W:.*]] = "pw.launch"(%[[E]], %[[R]]) {callee = @weighted, slice = @s0}
// CHECK: %[[T:.*]] = "pw.all_reduce"(%[[W]]) {slice = @s0}
// CHECK: %[[L:.*]] = "pw.launch"(%arg0, %[[T]]) {callee = @with_first, slice = @s0}
// CHECK: return %[[L]]
// CHECK: @weighted(%[[V:.*]]: tensor<2xf32>, %[[N:.*]]: tensor<i32>)
// CHECK: %[[TABLE:.*]] = stablehlo.constant dense<[2.500000e-01, 1.000000e+00]> : tensor<2xf32>
// CHECK: stablehlo.dynamic_slice %[[TABLE]], %[[N]], sizes = [1]
// CHECK: @with_first(%[[F:.*]]: tensor<2xf32>, %[[S:.*]]: tensor<2xf32>)
// CHECK: %[[FS:.*]]:2 = stablehlo.optimization_barrier %[[F]], %[[S]]
// CHECK: %[[K:.*]] = stablehlo.constant dense<6.250000e-02> : tensor<2xf32>
// CHECK: %[[P:.*]] = stablehlo.multiply %[[FS]]#0, %[[K]]
// CHECK: stablehlo.add %[[P]], %[[FS]]#1

// It is not handed from replica to replica.
// REPLICAS-LABEL: module @average
// REPLICAS-NOT: pw.transfer
// REPLICAS: "pw.carry"(%{{.*}}) {loop = @batch, per_replica, slice = @s0}
// REPLICAS: "pw.carry"(%{{.*}}) {loop = @batch_r1, per_replica, slice = @s0_r1}
// REPLICAS-NOT: pw.transfer
// REPLICAS: %[[W0:.*]] = "pw.launch"(%{{.*}}, %[[N0:.*]]) {callee = @weighted, slice = @s0}
// REPLICAS: %[[W1:.*]] = "pw.launch"(%{{.*}}, %[[N1:.*]]) {callee = @weighted, slice = @s0_r1}
// REPLICAS: "pw.all_reduce"(%[[W0]], %[[W1]])
module @average {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {mesh = @mesh, replicas = 2, sym_name = "s0"} : () -> ()
  "pw.loop"() {count = 4, sym_name = "batch"} : () -> ()
  func.func public @main(%mean: tensor<2xf32> {pw.slice = @s0}, %x: tensor<8xf32> {pw.slice = @s0})
      -> (tensor<2xf32> {pw.slice = @s0}, tensor<2xf32> {pw.slice = @s0}) {
    %c = "pw.carry"(%mean) {loop = @batch, slice = @s0} : (tensor<2xf32>) -> tensor<2xf32>
    %b = "pw.split"(%x) {loop = @batch, slice = @s0} : (tensor<8xf32>) -> tensor<2xf32>
    %n:2 = "pw.launch"(%c, %b) {callee = @f, loop = @batch, slice = @s0} : (tensor<2xf32>, tensor<2xf32>) -> (tensor<2xf32>, tensor<2xf32>)
    %s = "pw.reduce"(%n#1) {kind = "sum", loop = @batch, slice = @s0} : (tensor<2xf32>) -> tensor<2xf32>
    %t = "pw.all_reduce"(%s) {slice = @s0} : (tensor<2xf32>) -> tensor<2xf32>
    %l = "pw.next"(%c, %n#0) {loop = @batch, slice = @s0} : (tensor<2xf32>, tensor<2xf32>) -> tensor<2xf32>
    return %l, %t : tensor<2xf32>, tensor<2xf32>
  }
  func.func private @f(%c: tensor<2xf32>, %x: tensor<2xf32>) -> (tensor<2xf32>, tensor<2xf32>) {
    %half = stablehlo.constant dense<0.5> : tensor<f32>
    %halves = stablehlo.broadcast_in_dim %half, dims = [] : (tensor<f32>) -> tensor<2xf32>
    %a = stablehlo.multiply %halves, %c : tensor<2xf32>
    %h = stablehlo.tanh %x : tensor<2xf32>
    %n = stablehlo.add %a, %h : tensor<2xf32>
    return %n, %h : tensor<2xf32>, tensor<2xf32>
  }
}

// -----

// A sum needs no weights. In a loop of steps each of them has a sum of its own.
// CHECK-LABEL: module @sum_in_steps
// CHECK-NOT: pw.replica"
// CHECK: %[[F:.*]] = "pw.carry"(%{{.*}}) {loop = @steps, slice = @s0}
// CHECK: %[[Z:.*]] = "pw.launch"() {callee = @"batch/zeros", loop = @steps, slice = @s0}
// CHECK: "pw.carry"(%[[Z]]) {loop = @batch, per_replica, slice = @s0}
// CHECK: %[[E:.*]] = "pw.next"({{.*}}) {loop = @batch, outer = @steps, slice = @s0}
// CHECK: %[[T:.*]] = "pw.all_reduce"(%[[E]]) {loop = @steps, slice = @s0}
// CHECK: %[[L:.*]] = "pw.launch"(%[[F]], %[[T]]) {callee = @with_first, loop = @steps, slice = @s0}
// CHECK: "pw.next"(%[[F]], %[[L]]) {loop = @steps, slice = @s0}
// CHECK: @with_first(%[[A:.*]]: tensor<2xf32>, %[[B:.*]]: tensor<2xf32>)
// CHECK-NEXT: %[[AB:.*]]:2 = stablehlo.optimization_barrier %[[A]], %[[B]]
// CHECK-NEXT: stablehlo.add %[[AB]]#0, %[[AB]]#1
module @sum_in_steps {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {mesh = @mesh, replicas = 2, sym_name = "s0"} : () -> ()
  "pw.loop"() {count = 3, sequential, sym_name = "steps"} : () -> ()
  "pw.loop"() {count = 4, parent = @steps, sym_name = "batch"} : () -> ()
  func.func public @main(%sum: tensor<2xf32> {pw.slice = @s0}, %x: tensor<8xf32> {pw.slice = @s0})
      -> (tensor<2xf32> {pw.slice = @s0}) {
    %o = "pw.carry"(%sum) {loop = @steps, slice = @s0} : (tensor<2xf32>) -> tensor<2xf32>
    %c = "pw.carry"(%o) {loop = @batch, slice = @s0} : (tensor<2xf32>) -> tensor<2xf32>
    %b = "pw.split"(%x) {loop = @batch, slice = @s0} : (tensor<8xf32>) -> tensor<2xf32>
    %n = "pw.launch"(%c, %b) {callee = @f, loop = @batch, slice = @s0} : (tensor<2xf32>, tensor<2xf32>) -> tensor<2xf32>
    %l = "pw.next"(%c, %n) {loop = @batch, outer = @steps, slice = @s0} : (tensor<2xf32>, tensor<2xf32>) -> tensor<2xf32>
    %m = "pw.next"(%o, %l) {loop = @steps, slice = @s0} : (tensor<2xf32>, tensor<2xf32>) -> tensor<2xf32>
    return %m : tensor<2xf32>
  }
  func.func private @f(%c: tensor<2xf32>, %x: tensor<2xf32>) -> tensor<2xf32> {
    %n = stablehlo.add %c, %x : tensor<2xf32>
    return %n : tensor<2xf32>
  }
}

// -----

// The constant is found through several computations, slices and ways to write it: c - (c - x) / 4, in halves of a
// float and back. Of three replicas with one microbatch each.
// CHECK-LABEL: module @spelled_out
// CHECK: "pw.carry"({{.*}}per_replica
// CHECK: dense<[5.625000e-01, 7.500000e-01, 1.000000e+00]>
// CHECK: dense<4.218750e-01>
module @spelled_out {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {mesh = @mesh, replicas = 3, sym_name = "s0"} : () -> ()
  "pw.slice"() {mesh = @mesh, replicas = 3, sym_name = "s1"} : () -> ()
  "pw.loop"() {count = 3, sym_name = "batch"} : () -> ()
  func.func public @main(%mean: tensor<2xf32> {pw.slice = @s0}, %x: tensor<6xf32> {pw.slice = @s1})
      -> (tensor<2xf32> {pw.slice = @s0}) {
    %c = "pw.carry"(%mean) {loop = @batch, slice = @s0} : (tensor<2xf32>) -> tensor<2xf32>
    %b = "pw.split"(%x) {loop = @batch, slice = @s1} : (tensor<6xf32>) -> tensor<2xf32>
    %there = "pw.transfer"(%c) {loop = @batch, slice = @s1} : (tensor<2xf32>) -> tensor<2xf32>
    %d = "pw.launch"(%there, %b) {callee = @difference, loop = @batch, slice = @s1} : (tensor<2xf32>, tensor<2xf32>) -> tensor<2xf32>
    %back = "pw.transfer"(%d) {loop = @batch, slice = @s0} : (tensor<2xf32>) -> tensor<2xf32>
    %n = "pw.launch"(%c, %back) {callee = @minus_quarter, loop = @batch, slice = @s0} : (tensor<2xf32>, tensor<2xf32>) -> tensor<2xf32>
    %l = "pw.next"(%c, %n) {loop = @batch, slice = @s0} : (tensor<2xf32>, tensor<2xf32>) -> tensor<2xf32>
    return %l : tensor<2xf32>
  }
  func.func private @difference(%c: tensor<2xf32>, %x: tensor<2xf32>) -> tensor<2xf32> {
    %n = stablehlo.subtract %c, %x : tensor<2xf32>
    return %n : tensor<2xf32>
  }
  func.func private @minus_quarter(%c: tensor<2xf32>, %d: tensor<2xf32>) -> tensor<2xf32> {
    %four = stablehlo.constant dense<4.0> : tensor<2xf32>
    %q = func.call @quotient(%d, %four) : (tensor<2xf32>, tensor<2xf32>) -> tensor<2xf32>
    %o = stablehlo.optimization_barrier %c : tensor<2xf32>
    %n = stablehlo.negate %q : tensor<2xf32>
    %s = stablehlo.add %n, %o : tensor<2xf32>
    return %s : tensor<2xf32>
  }
  func.func private @quotient(%d: tensor<2xf32>, %by: tensor<2xf32>) -> tensor<2xf32> {
    %narrow = stablehlo.convert %d : (tensor<2xf32>) -> tensor<2xbf16>
    %wide = stablehlo.convert %narrow : (tensor<2xbf16>) -> tensor<2xf32>
    %q = stablehlo.divide %wide, %by : tensor<2xf32>
    return %q : tensor<2xf32>
  }
}

// -----

// Over several devices all values lie as what is carried.
// CHECK-LABEL: module @over_devices
// CHECK-DAG: @"batch/zeros"() -> (tensor<2xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}]>})
// CHECK-DAG: @with_first(%{{.*}}: tensor<2xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}]>}, %{{.*}}: tensor<2xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}]>}) -> (tensor<2xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}]>})
module @over_devices {
  sdy.mesh @mesh = <["x"=2]>
  "pw.slice"() {mesh = @mesh, replicas = 2, sym_name = "s0"} : () -> ()
  "pw.loop"() {count = 2, sym_name = "batch"} : () -> ()
  func.func public @main(%sum: tensor<2xf32> {pw.slice = @s0, sdy.sharding = #sdy.sharding<@mesh, [{"x"}]>})
      -> (tensor<2xf32> {pw.slice = @s0}) {
    %c = "pw.carry"(%sum) {loop = @batch, sharding = #sdy.sharding<@mesh, [{"x"}]>, slice = @s0} : (tensor<2xf32>) -> tensor<2xf32>
    %n = "pw.launch"(%c) {callee = @f, loop = @batch, slice = @s0} : (tensor<2xf32>) -> tensor<2xf32>
    %l = "pw.next"(%c, %n) {loop = @batch, slice = @s0} : (tensor<2xf32>, tensor<2xf32>) -> tensor<2xf32>
    return %l : tensor<2xf32>
  }
  func.func private @f(%c: tensor<2xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}]>}) -> (tensor<2xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}]>}) {
    %one = stablehlo.constant dense<1.0> : tensor<2xf32>
    %n = stablehlo.add %c, %one : tensor<2xf32>
    return %n : tensor<2xf32>
  }
}

// -----

// Others stay as they are: one that a result depends on, a largest value, a count, one whose factor is of the
// microbatch, one that grows, one that another is made of, and one whose elements change places. That another one is
// made of what is handed on does not matter.
// CHECK-LABEL: module @left_alone
// CHECK-COUNT-1: per_replica
// CHECK-NOT: per_replica
module @left_alone {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {mesh = @mesh, replicas = 2, sym_name = "s0"} : () -> ()
  "pw.loop"() {count = 4, sym_name = "batch"} : () -> ()
  func.func public @main(%s: tensor<2xf32> {pw.slice = @s0}, %i: tensor<i32> {pw.slice = @s0}, %x: tensor<8xf32> {pw.slice = @s0})
      -> (tensor<2xf32> {pw.slice = @s0}, tensor<2xf32> {pw.slice = @s0}, tensor<2xf32> {pw.slice = @s0}, tensor<2xf32> {pw.slice = @s0}, tensor<2xf32> {pw.slice = @s0}, tensor<2xf32> {pw.slice = @s0}, tensor<2xf32> {pw.slice = @s0}, tensor<2xf32> {pw.slice = @s0}, tensor<i32> {pw.slice = @s0}) {
    %read = "pw.carry"(%s) {loop = @batch, slice = @s0} : (tensor<2xf32>) -> tensor<2xf32>
    %largest = "pw.carry"(%s) {loop = @batch, slice = @s0} : (tensor<2xf32>) -> tensor<2xf32>
    %weighted = "pw.carry"(%s) {loop = @batch, slice = @s0} : (tensor<2xf32>) -> tensor<2xf32>
    %grown = "pw.carry"(%s) {loop = @batch, slice = @s0} : (tensor<2xf32>) -> tensor<2xf32>
    %first = "pw.carry"(%s) {loop = @batch, slice = @s0} : (tensor<2xf32>) -> tensor<2xf32>
    %turned = "pw.carry"(%s) {loop = @batch, slice = @s0} : (tensor<2xf32>) -> tensor<2xf32>
    %seen = "pw.carry"(%i) {loop = @batch, slice = @s0} : (tensor<i32>) -> tensor<i32>
    %second = "pw.carry"(%s) {loop = @batch, slice = @s0} : (tensor<2xf32>) -> tensor<2xf32>
    %b = "pw.split"(%x) {loop = @batch, slice = @s0} : (tensor<8xf32>) -> tensor<2xf32>
    %n:8 = "pw.launch"(%read, %largest, %weighted, %grown, %first, %turned, %second, %b) {callee = @f, loop = @batch, slice = @s0} : (tensor<2xf32>, tensor<2xf32>, tensor<2xf32>, tensor<2xf32>, tensor<2xf32>, tensor<2xf32>, tensor<2xf32>, tensor<2xf32>) -> (tensor<2xf32>, tensor<2xf32>, tensor<2xf32>, tensor<2xf32>, tensor<2xf32>, tensor<2xf32>, tensor<2xf32>, tensor<2xf32>)
    %more = "pw.launch"(%seen) {callee = @count, loop = @batch, slice = @s0} : (tensor<i32>) -> tensor<i32>
    %l0 = "pw.next"(%read, %n#0) {loop = @batch, slice = @s0} : (tensor<2xf32>, tensor<2xf32>) -> tensor<2xf32>
    %l1 = "pw.next"(%largest, %n#1) {loop = @batch, slice = @s0} : (tensor<2xf32>, tensor<2xf32>) -> tensor<2xf32>
    %l2 = "pw.next"(%weighted, %n#2) {loop = @batch, slice = @s0} : (tensor<2xf32>, tensor<2xf32>) -> tensor<2xf32>
    %l3 = "pw.next"(%grown, %n#3) {loop = @batch, slice = @s0} : (tensor<2xf32>, tensor<2xf32>) -> tensor<2xf32>
    %l4 = "pw.next"(%first, %n#4) {loop = @batch, slice = @s0} : (tensor<2xf32>, tensor<2xf32>) -> tensor<2xf32>
    %l5 = "pw.next"(%turned, %n#5) {loop = @batch, slice = @s0} : (tensor<2xf32>, tensor<2xf32>) -> tensor<2xf32>
    %l6 = "pw.next"(%second, %n#6) {loop = @batch, slice = @s0} : (tensor<2xf32>, tensor<2xf32>) -> tensor<2xf32>
    %l7 = "pw.next"(%seen, %more) {loop = @batch, slice = @s0} : (tensor<i32>, tensor<i32>) -> tensor<i32>
    %r = "pw.reduce"(%n#7) {kind = "sum", loop = @batch, slice = @s0} : (tensor<2xf32>) -> tensor<2xf32>
    %t = "pw.all_reduce"(%r) {slice = @s0} : (tensor<2xf32>) -> tensor<2xf32>
    return %l0, %l1, %l2, %l3, %l4, %l5, %l6, %t, %l7 : tensor<2xf32>, tensor<2xf32>, tensor<2xf32>, tensor<2xf32>, tensor<2xf32>, tensor<2xf32>, tensor<2xf32>, tensor<2xf32>, tensor<i32>
  }
  func.func private @f(%read: tensor<2xf32>, %largest: tensor<2xf32>, %weighted: tensor<2xf32>, %grown: tensor<2xf32>, %first: tensor<2xf32>, %turned: tensor<2xf32>, %second: tensor<2xf32>, %x: tensor<2xf32>)
      -> (tensor<2xf32>, tensor<2xf32>, tensor<2xf32>, tensor<2xf32>, tensor<2xf32>, tensor<2xf32>, tensor<2xf32>, tensor<2xf32>) {
    %two = stablehlo.constant dense<2.0> : tensor<2xf32>
    %0 = stablehlo.add %read, %x : tensor<2xf32>
    %1 = stablehlo.maximum %largest, %x : tensor<2xf32>
    %2 = stablehlo.multiply %weighted, %x : tensor<2xf32>
    %3 = stablehlo.multiply %grown, %two : tensor<2xf32>
    %4 = stablehlo.add %first, %x : tensor<2xf32>
    %5 = stablehlo.reverse %turned, dims = [0] : tensor<2xf32>
    %6 = stablehlo.add %second, %first : tensor<2xf32>
    %y = stablehlo.tanh %read : tensor<2xf32>
    return %0, %1, %2, %3, %4, %5, %6, %y : tensor<2xf32>, tensor<2xf32>, tensor<2xf32>, tensor<2xf32>, tensor<2xf32>, tensor<2xf32>, tensor<2xf32>, tensor<2xf32>
  }
  func.func private @count(%n: tensor<i32>) -> tensor<i32> {
    %one = stablehlo.constant dense<1> : tensor<i32>
    %m = stablehlo.add %n, %one : tensor<i32>
    return %m : tensor<i32>
  }
}

// -----

// So do the averages of a loop whose iterations are those of all replicas, and a factor that is rounded before it is used.
// CHECK-LABEL: module @not_of_microbatches
// CHECK-NOT: per_replica
module @not_of_microbatches {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {mesh = @mesh, replicas = 2, sym_name = "s0"} : () -> ()
  "pw.loop"() {count = 4, sequential, sym_name = "steps"} : () -> ()
  "pw.loop"() {count = 4, sym_name = "batch"} : () -> ()
  func.func public @main(%x: tensor<2xf32> {pw.slice = @s0}, %y: tensor<2xbf16> {pw.slice = @s0})
      -> (tensor<2xf32> {pw.slice = @s0}, tensor<2xbf16> {pw.slice = @s0}) {
    %c = "pw.carry"(%x) {loop = @steps, slice = @s0} : (tensor<2xf32>) -> tensor<2xf32>
    %n = "pw.launch"(%c) {callee = @f, loop = @steps, slice = @s0} : (tensor<2xf32>) -> tensor<2xf32>
    %l = "pw.next"(%c, %n) {loop = @steps, slice = @s0} : (tensor<2xf32>, tensor<2xf32>) -> tensor<2xf32>
    %d = "pw.carry"(%y) {loop = @batch, slice = @s0} : (tensor<2xbf16>) -> tensor<2xbf16>
    %o = "pw.launch"(%d) {callee = @g, loop = @batch, slice = @s0} : (tensor<2xbf16>) -> tensor<2xbf16>
    %m = "pw.next"(%d, %o) {loop = @batch, slice = @s0} : (tensor<2xbf16>, tensor<2xbf16>) -> tensor<2xbf16>
    return %l, %m : tensor<2xf32>, tensor<2xbf16>
  }
  func.func private @f(%c: tensor<2xf32>) -> tensor<2xf32> {
    %one = stablehlo.constant dense<1.0> : tensor<2xf32>
    %n = stablehlo.add %c, %one : tensor<2xf32>
    return %n : tensor<2xf32>
  }
  func.func private @g(%c: tensor<2xbf16>) -> tensor<2xbf16> {
    %wide = stablehlo.constant dense<0.9> : tensor<2xf32>
    %a = stablehlo.convert %wide : (tensor<2xf32>) -> tensor<2xbf16>
    %n = stablehlo.multiply %c, %a : tensor<2xbf16>
    return %n : tensor<2xbf16>
  }
}
