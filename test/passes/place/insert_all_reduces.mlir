// RUN: pw-opt %s --split-input-file -p 'pw-insert-all-reduces' | filecheck %s
// RUN: pw-opt %s --split-input-file -p 'pw-insert-all-reduces,pw-sink-loop-reductions,pw-insert-all-reduces' \
// RUN: | filecheck %s

// A sum over microbatches is summed over replicas; a concatenation is not, nor what is summed without replicas.
// CHECK-LABEL: module @replicas
// CHECK: %[[G:.*]] = "pw.reduce"(%{{.*}}) {kind = "sum", loop = @batch, slice = @s0}
// CHECK-NEXT: %[[T:.*]] = "pw.all_reduce"(%[[G]]) {slice = @s0}
// CHECK-NEXT: %[[C:.*]] = "pw.reduce"(%{{.*}}) {kind = "concat", loop = @batch, slice = @s0}
// CHECK-NEXT: return %[[T]], %[[C]]
module @replicas attributes {pw.form = "located"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {mesh = @mesh, replicas = 2, sym_name = "s0"} : () -> ()
  "pw.loop"() {count = 4, sym_name = "batch"} : () -> ()
  func.func public @main(%x: tensor<8xf32> {pw.slice = @s0})
      -> (tensor<2xf32> {pw.slice = @s0}, tensor<8xf32> {pw.slice = @s0}) {
    %b = "pw.split"(%x) {loop = @batch, slice = @s0} : (tensor<8xf32>) -> tensor<2xf32>
    %g = "pw.reduce"(%b) {kind = "sum", loop = @batch, slice = @s0} : (tensor<2xf32>) -> tensor<2xf32>
    %c = "pw.reduce"(%b) {kind = "concat", loop = @batch, slice = @s0} : (tensor<2xf32>) -> tensor<8xf32>
    return %g, %c : tensor<2xf32>, tensor<8xf32>
  }
}

// -----

// CHECK-LABEL: module @alone
// CHECK-NOT: pw.all_reduce
module @alone attributes {pw.form = "located"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {mesh = @mesh, sym_name = "s0"} : () -> ()
  "pw.loop"() {count = 4, sym_name = "batch"} : () -> ()
  func.func public @main(%x: tensor<8xf32> {pw.slice = @s0}) -> (tensor<2xf32> {pw.slice = @s0}) {
    %b = "pw.split"(%x) {loop = @batch, slice = @s0} : (tensor<8xf32>) -> tensor<2xf32>
    %g = "pw.reduce"(%b) {kind = "sum", loop = @batch, slice = @s0} : (tensor<2xf32>) -> tensor<2xf32>
    return %g : tensor<2xf32>
  }
}

// -----

// What is summed over replicas already is not summed again, whatever stands between the two sums.
// CHECK-LABEL: module @summed
// CHECK: %[[G:.*]] = "pw.reduce"(%{{.*}}) {kind = "sum", loop = @batch, slice = @s0}
// CHECK-NEXT: %[[N:.*]] = stablehlo.negate %[[G]]
// CHECK-NEXT: %[[T:.*]] = "pw.all_reduce"(%[[N]]) {slice = @s0}
// CHECK-NEXT: return %[[T]]
module @summed attributes {pw.form = "located"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {mesh = @mesh, replicas = 2, sym_name = "s0"} : () -> ()
  "pw.loop"() {count = 4, sym_name = "batch"} : () -> ()
  func.func public @main(%x: tensor<8xf32> {pw.slice = @s0}) -> (tensor<2xf32> {pw.slice = @s0}) {
    %b = "pw.split"(%x) {loop = @batch, slice = @s0} : (tensor<8xf32>) -> tensor<2xf32>
    %g = "pw.reduce"(%b) {kind = "sum", loop = @batch, slice = @s0} : (tensor<2xf32>) -> tensor<2xf32>
    %n = stablehlo.negate %g {pw.slice = @s0} : tensor<2xf32>
    %t = "pw.all_reduce"(%n) {slice = @s0} : (tensor<2xf32>) -> tensor<2xf32>
    return %t : tensor<2xf32>
  }
}
