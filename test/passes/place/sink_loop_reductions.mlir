// RUN: pw-opt %s --split-input-file --pw-sink-loop-reductions | filecheck %s

// The gradient of a tied embedding: each microbatch would send a contribution over to add it. Instead each
// slice sums its own, and the two sums are added once.

!x = tensor<8x4xf32>
!b = tensor<2x4xf32>
!t = tensor<9x4xf32>
// CHECK-LABEL: module @tied
module @tied attributes {pw.form = "located"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  "pw.slice"() {sym_name = "s1", mesh = @mesh} : () -> ()
  "pw.loop"() {sym_name = "batch", count = 4} : () -> ()
  func.func @main(%x: !x {pw.slice = @s0}) -> (!t {pw.slice = @s0}) {
    %b = "pw.split"(%x) {loop = @batch, slice = @s0} : (!x) -> !b
    // CHECK: %[[EMBED:.*]] = "pw.launch"(%{{.*}}) {callee = @f, loop = @batch, slice = @s0}
    %g0 = "pw.launch"(%b) {callee = @f, loop = @batch, slice = @s0} : (!b) -> !t
    // CHECK: %[[PREDICT:.*]] = "pw.launch"(%{{.*}}) {callee = @f, loop = @batch, slice = @s1}
    %g1 = "pw.launch"(%b) {callee = @f, loop = @batch, slice = @s1} : (!b) -> !t
    // CHECK-NEXT: %[[A:.*]] = "pw.reduce"(%[[PREDICT]]) {kind = "sum", loop = @batch, slice = @s1}
    // CHECK-NEXT: %[[B:.*]] = "pw.reduce"(%[[EMBED]]) {kind = "sum", loop = @batch, slice = @s0}
    // CHECK-NEXT: %[[SUM:.*]] = stablehlo.add %[[A]], %[[B]] {pw.slice = @s0}
    // CHECK-NEXT: return %[[SUM]]
    %g = stablehlo.add %g1, %g0 {pw.loop = @batch, pw.slice = @s0} : !t
    %s = "pw.reduce"(%g) {kind = "sum", loop = @batch, slice = @s0} : (!t) -> !t
    return %s : !t
  }
  func.func private @f(%b: !b) -> !t {
    %t = stablehlo.constant dense<0.0> : !t
    return %t : !t
  }
}

// -----

// Sums pass through what is linear: a contribution that arrives transposed, negated and reshaped is summed
// where it is made, and so is each term of a longer chain.

!x = tensor<8x4xf32>
!b = tensor<2x4xf32>
!u = tensor<4x9xf32>
!t = tensor<9x4xf32>
!v = tensor<36xf32>
// CHECK-LABEL: module @linear
module @linear attributes {pw.form = "located"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  "pw.slice"() {sym_name = "s1", mesh = @mesh} : () -> ()
  "pw.loop"() {sym_name = "batch", count = 4} : () -> ()
  func.func @main(%x: !x {pw.slice = @s0}) -> (!t {pw.slice = @s0}) {
    %b = "pw.split"(%x) {loop = @batch, slice = @s0} : (!x) -> !b
    %a = "pw.launch"(%b) {callee = @f, loop = @batch, slice = @s0} : (!b) -> !t
    %c = "pw.launch"(%b) {callee = @g, loop = @batch, slice = @s1} : (!b) -> !u
    %d = "pw.launch"(%b) {callee = @h, loop = @batch, slice = @s1} : (!b) -> !v
    %ct = stablehlo.transpose %c, dims = [1, 0] {pw.loop = @batch, pw.slice = @s0} : (!u) -> !t
    %dr = stablehlo.reshape %d {pw.loop = @batch, pw.slice = @s0} : (!v) -> !t
    %dn = stablehlo.negate %dr {pw.loop = @batch, pw.slice = @s0} : !t
    %ac = stablehlo.add %a, %ct {pw.loop = @batch, pw.slice = @s0} : !t
    %acd = stablehlo.subtract %ac, %dn {pw.loop = @batch, pw.slice = @s0} : !t
    // CHECK-NOT: stablehlo
    // CHECK: %[[A:.*]] = "pw.reduce"(%{{.*}}) {kind = "sum", loop = @batch, slice = @s0} : (tensor<9x4xf32>)
    // CHECK: %[[C:.*]] = "pw.reduce"(%{{.*}}) {kind = "sum", loop = @batch, slice = @s1} : (tensor<4x9xf32>)
    // CHECK: %[[CT:.*]] = stablehlo.transpose %[[C]]
    // CHECK: %[[AC:.*]] = stablehlo.add %[[A]], %[[CT]]
    // CHECK: %[[D:.*]] = "pw.reduce"(%{{.*}}) {kind = "sum", loop = @batch, slice = @s1} : (tensor<36xf32>)
    // CHECK: %[[DR:.*]] = stablehlo.reshape %[[D]]
    // CHECK: %[[DN:.*]] = stablehlo.negate %[[DR]]
    // CHECK: %[[SUM:.*]] = stablehlo.subtract %[[AC]], %[[DN]]
    // CHECK: return %[[SUM]]
    %s = "pw.reduce"(%acd) {kind = "sum", loop = @batch, slice = @s0} : (!t) -> !t
    return %s : !t
  }
  func.func private @f(%b: !b) -> !t {
    %t = stablehlo.constant dense<0.0> : !t
    return %t : !t
  }
  func.func private @g(%b: !b) -> !u {
    %t = stablehlo.constant dense<0.0> : !u
    return %t : !u
  }
  func.func private @h(%b: !b) -> !v {
    %t = stablehlo.constant dense<0.0> : !v
    return %t : !v
  }
}

// -----

// What joins values of one slice stays in the loop, and so does what is read there, what is not linear, what
// adds something that all microbatches share, and a concatenation.

!x = tensor<8x4xf32>
!b = tensor<2x4xf32>
// CHECK-LABEL: module @left_alone
module @left_alone attributes {pw.form = "located"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  "pw.slice"() {sym_name = "s1", mesh = @mesh} : () -> ()
  "pw.loop"() {sym_name = "batch", count = 4} : () -> ()
  func.func @main(%x: !x {pw.slice = @s0}, %k: !b {pw.slice = @s1}) -> (!b {pw.slice = @s0}, !b {pw.slice = @s0}, !b {pw.slice = @s0}, !b {pw.slice = @s0}, !x {pw.slice = @s0}, !b {pw.slice = @s0}) {
    %b = "pw.split"(%x) {loop = @batch, slice = @s0} : (!x) -> !b
    %g0 = "pw.launch"(%b) {callee = @f, loop = @batch, slice = @s0} : (!b) -> !b
    %h0 = "pw.launch"(%g0) {callee = @f, loop = @batch, slice = @s0} : (!b) -> !b
    %g1 = "pw.launch"(%b) {callee = @f, loop = @batch, slice = @s1} : (!b) -> !b
    // CHECK: %[[SAME:.*]] = stablehlo.add
    %same = stablehlo.add %g0, %h0 {pw.loop = @batch, pw.slice = @s0} : !b
    // CHECK: %[[READ:.*]] = stablehlo.add
    %read = stablehlo.add %g0, %g1 {pw.loop = @batch, pw.slice = @s0} : !b
    // CHECK: %[[PRODUCT:.*]] = stablehlo.multiply
    %product = stablehlo.multiply %g0, %g1 {pw.loop = @batch, pw.slice = @s0} : !b
    // CHECK: %[[SHARED:.*]] = stablehlo.add
    %shared = stablehlo.add %g0, %k {pw.loop = @batch, pw.slice = @s0} : !b
    // CHECK: %[[ROWS:.*]] = stablehlo.subtract
    %rows = stablehlo.subtract %g0, %g1 {pw.loop = @batch, pw.slice = @s0} : !b
    // CHECK: "pw.reduce"(%[[SAME]])
    %s = "pw.reduce"(%same) {kind = "sum", loop = @batch, slice = @s0} : (!b) -> !b
    // CHECK: "pw.reduce"(%[[READ]])
    %r = "pw.reduce"(%read) {kind = "sum", loop = @batch, slice = @s0} : (!b) -> !b
    // CHECK: "pw.reduce"(%[[PRODUCT]])
    %p = "pw.reduce"(%product) {kind = "sum", loop = @batch, slice = @s0} : (!b) -> !b
    // CHECK: "pw.reduce"(%[[SHARED]])
    %q = "pw.reduce"(%shared) {kind = "sum", loop = @batch, slice = @s0} : (!b) -> !b
    // CHECK: "pw.reduce"(%[[ROWS]]) {kind = "concat"
    %c = "pw.reduce"(%rows) {kind = "concat", loop = @batch, slice = @s0} : (!b) -> !x
    %z = "pw.launch"(%read) {callee = @f, loop = @batch, slice = @s0} : (!b) -> !b
    %t = "pw.reduce"(%z) {kind = "sum", loop = @batch, slice = @s0} : (!b) -> !b
    return %s, %r, %p, %q, %c, %t : !b, !b, !b, !b, !x, !b
  }
  func.func private @f(%b: !b) -> !b {
    return %b : !b
  }
}

// -----

// A value that both slices have does not cross: the addition stays.

!x = tensor<8xf32>
!b = tensor<2xf32>
// CHECK-LABEL: module @on_both_slices
module @on_both_slices attributes {pw.form = "located"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  "pw.slice"() {sym_name = "s1", mesh = @mesh} : () -> ()
  "pw.loop"() {sym_name = "batch", count = 4} : () -> ()
  func.func @main(%x: !x {pw.slice = [@s0, @s1]}) -> (!b {pw.slice = @s1}) {
    %b = "pw.split"(%x) {loop = @batch, slice = @s1} : (!x) -> !b
    %both = stablehlo.exponential %b {pw.loop = @batch, pw.slice = [@s0, @s1]} : !b
    %g = "pw.launch"(%b) {callee = @f, loop = @batch, slice = @s1} : (!b) -> !b
    // CHECK: %[[SUM:.*]] = stablehlo.add
    %sum = stablehlo.add %g, %both {pw.loop = @batch, pw.slice = @s1} : !b
    // CHECK-NEXT: "pw.reduce"(%[[SUM]])
    %s = "pw.reduce"(%sum) {kind = "sum", loop = @batch, slice = @s1} : (!b) -> !b
    return %s : !b
  }
  func.func private @f(%b: !b) -> !b {
    return %b : !b
  }
}
