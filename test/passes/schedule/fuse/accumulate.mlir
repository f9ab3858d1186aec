// RUN: pw-opt %s --split-input-file --pw-accumulate | filecheck %s

// A sum goes along with the launches that make its terms, in the order in which they run: here the last
// microbatch first. The first launch stays as it is, its term is the sum so far; each of the others takes the
// sum and returns it with its own term, by one computation for all.

!x = tensor<4xf32>
// CHECK-LABEL: module @in_the_order_of_launches
module @in_the_order_of_launches attributes {pw.form = "ordered"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  "pw.loop"() {sym_name = "batch", count = 3} : () -> ()
  func.func @main(%x: !x {pw.slice = @s0}) -> (!x {pw.slice = @s0}) {
    // CHECK: %[[G2:.*]] = "pw.launch"(%arg0) {callee = @f, loop = @batch, microbatch = 2 : i64, order = 0
    // CHECK-NEXT: %[[G1:.*]] = "pw.launch"(%arg0, %[[G2]]) {callee = @f_add, loop = @batch, microbatch = 1 : i64, order = 1 : i64, origins = [{kind = "bwd", microbatch = 1 : i64, stage = 0 : i64}], slice = @s0}
    // CHECK-NEXT: %[[G0:.*]] = "pw.launch"(%arg0, %[[G1]]) {callee = @f_add, loop = @batch, microbatch = 0 : i64, order = 2
    // CHECK-NEXT: return %[[G0]]
    %g2 = "pw.launch"(%x) {callee = @f, loop = @batch, microbatch = 2, order = 0, origins = [{kind = "bwd", microbatch = 2, stage = 0}], slice = @s0} : (!x) -> !x
    %g1 = "pw.launch"(%x) {callee = @f, loop = @batch, microbatch = 1, order = 1, origins = [{kind = "bwd", microbatch = 1, stage = 0}], slice = @s0} : (!x) -> !x
    %g0 = "pw.launch"(%x) {callee = @f, loop = @batch, microbatch = 0, order = 2, origins = [{kind = "bwd", microbatch = 0, stage = 0}], slice = @s0} : (!x) -> !x
    %sum = "pw.reduce"(%g0, %g1, %g2) {kind = "sum", loop = @batch, slice = @s0} : (!x, !x, !x) -> !x
    return %sum : !x
  }
  func.func private @f(%x: !x) -> !x {
    %y = stablehlo.tanh %x : !x
    return %y : !x
  }
  // CHECK: func.func private @f_add(%[[X:.*]]: tensor<4xf32>, %[[SO_FAR:.*]]: tensor<4xf32>) -> tensor<4xf32>
  // CHECK-NEXT: %[[TERM:.*]] = stablehlo.tanh %[[X]]
  // CHECK-NEXT: %[[SUM:.*]] = stablehlo.add %[[SO_FAR]], %[[TERM]]
  // CHECK-NEXT: return %[[SUM]]
  // CHECK-NOT: func.func
}

// -----

// A term that something else reads is returned as well, behind the other results. Only the launches whose term
// is read do so.

!x = tensor<4xf32>
// CHECK-LABEL: module @a_term_that_is_read
module @a_term_that_is_read attributes {pw.form = "ordered"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  "pw.loop"() {sym_name = "batch", count = 3} : () -> ()
  func.func @main(%x: !x {pw.slice = @s0}) -> (!x {pw.slice = @s0}, !x {pw.slice = @s0}) {
    // CHECK: %[[G0:.*]] = "pw.launch"(%arg0) {callee = @f, loop = @batch, microbatch = 0
    // CHECK-NEXT: %[[G1:.*]]:2 = "pw.launch"(%arg0, %[[G0]]) {callee = @f_add, loop = @batch, microbatch = 1
    // CHECK-NEXT: %[[H:.*]] = "pw.launch"(%[[G1]]#0) {callee = @h
    // CHECK-NEXT: %[[G2:.*]] = "pw.launch"(%arg0, %[[G1]]#1) {callee = @f_add_1, loop = @batch, microbatch = 2
    // CHECK-NEXT: return %[[G2]], %[[H]]
    %g0 = "pw.launch"(%x) {callee = @f, loop = @batch, microbatch = 0, order = 0, slice = @s0} : (!x) -> !x
    %g1 = "pw.launch"(%x) {callee = @f, loop = @batch, microbatch = 1, order = 1, slice = @s0} : (!x) -> !x
    %h = "pw.launch"(%g1) {callee = @h, loop = @batch, microbatch = 1, order = 2, slice = @s0} : (!x) -> !x
    %g2 = "pw.launch"(%x) {callee = @f, loop = @batch, microbatch = 2, order = 3, slice = @s0} : (!x) -> !x
    %sum = "pw.reduce"(%g0, %g1, %g2) {kind = "sum", loop = @batch, slice = @s0} : (!x, !x, !x) -> !x
    return %sum, %h : !x, !x
  }
  func.func private @f(%x: !x) -> !x {
    return %x : !x
  }
  func.func private @h(%x: !x) -> !x {
    %y = stablehlo.tanh %x : !x
    return %y : !x
  }
  // CHECK: func.func private @f_add(%[[X:.*]]: tensor<4xf32>, %[[SO_FAR:.*]]: tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>)
  // CHECK-NEXT: %[[SUM:.*]] = stablehlo.add %[[SO_FAR]], %[[X]]
  // CHECK-NEXT: return %[[X]], %[[SUM]]
  // CHECK: func.func private @f_add_1(%{{.*}}: tensor<4xf32>, %{{.*}}: tensor<4xf32>) -> tensor<4xf32>
}

// -----

// Sums over the results of the same launches are carried along together: a loss and two gradients, one of
// which is asked for twice.

!x = tensor<4xf32>
!s = tensor<f32>
// CHECK-LABEL: module @several_sums
module @several_sums attributes {pw.form = "ordered"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  "pw.loop"() {sym_name = "batch", count = 2} : () -> ()
  func.func @main(%x: !x {pw.slice = @s0}) -> (!s {pw.slice = @s0}, !x {pw.slice = @s0}, !x {pw.slice = @s0}) {
    // CHECK: %[[A:.*]]:2 = "pw.launch"(%arg0) {callee = @f, loop = @batch, microbatch = 0
    // CHECK-NEXT: %[[B:.*]]:3 = "pw.launch"(%arg0, %[[A]]#0, %[[A]]#1, %[[A]]#1) {callee = @f_add, loop = @batch, microbatch = 1
    // CHECK-NEXT: return %[[B]]#0, %[[B]]#1, %[[B]]#2
    %a:2 = "pw.launch"(%x) {callee = @f, loop = @batch, microbatch = 0, order = 0, slice = @s0} : (!x) -> (!s, !x)
    %b:2 = "pw.launch"(%x) {callee = @f, loop = @batch, microbatch = 1, order = 1, slice = @s0} : (!x) -> (!s, !x)
    %loss = "pw.reduce"(%a#0, %b#0) {kind = "sum", loop = @batch, slice = @s0} : (!s, !s) -> !s
    %g = "pw.reduce"(%a#1, %b#1) {kind = "sum", loop = @batch, slice = @s0} : (!x, !x) -> !x
    %again = "pw.reduce"(%a#1, %b#1) {kind = "sum", loop = @batch, slice = @s0} : (!x, !x) -> !x
    return %loss, %g, %again : !s, !x, !x
  }
  func.func private @f(%x: !x) -> (!s, !x) {
    %zero = stablehlo.constant dense<0.0> : !s
    return %zero, %x : !s, !x
  }
}

// -----

// A sum lies over its slice as its terms do.

!x = tensor<8x4xf32>
// CHECK-LABEL: module @sharded
module @sharded attributes {pw.form = "ordered"} {
  sdy.mesh @mesh = <["x"=2]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  "pw.loop"() {sym_name = "batch", count = 2} : () -> ()
  func.func @main(%x: !x {pw.slice = @s0, sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>}) -> (!x {pw.slice = @s0, sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}) {
    %a = "pw.launch"(%x) {callee = @f, loop = @batch, microbatch = 0, order = 0, slice = @s0} : (!x) -> !x
    %b = "pw.launch"(%x) {callee = @f, loop = @batch, microbatch = 1, order = 1, slice = @s0} : (!x) -> !x
    %s = "pw.reduce"(%a, %b) {kind = "sum", loop = @batch, slice = @s0, sharding = #sdy.sharding<@mesh, [{"x"}, {}]>} : (!x, !x) -> !x
    return %s : !x
  }
  func.func private @f(%x: !x {sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>}) -> (!x {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}) {
    return %x : !x
  }
  // CHECK: func.func private @f_add(%{{.*}}: tensor<8x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>}, %[[SO_FAR:.*]]: tensor<8x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}) -> (tensor<8x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>})
  // CHECK-NEXT: %[[SUM:.*]] = stablehlo.add %[[SO_FAR]]
  // CHECK-NEXT: sdy.sharding_constraint %[[SUM]] <@mesh, [{"x"}, {}]>
}

// -----

// Equal launches on two slices sum by one computation.

!x = tensor<4xf32>
// CHECK-LABEL: module @two_slices
module @two_slices attributes {pw.form = "ordered"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  "pw.slice"() {sym_name = "s1", mesh = @mesh} : () -> ()
  "pw.loop"() {sym_name = "batch", count = 2} : () -> ()
  func.func @main(%x: !x {pw.slice = @s0}, %y: !x {pw.slice = @s1}) -> (!x {pw.slice = @s0}, !x {pw.slice = @s1}) {
    // CHECK: %[[A:.*]] = "pw.launch"(%arg0) {callee = @f, {{.*}}slice = @s0
    // CHECK-NEXT: %[[B:.*]] = "pw.launch"(%arg1) {callee = @f, {{.*}}slice = @s1
    // CHECK-NEXT: %[[C:.*]] = "pw.launch"(%arg0, %[[A]]) {callee = @f_add, {{.*}}slice = @s0
    // CHECK-NEXT: %[[D:.*]] = "pw.launch"(%arg1, %[[B]]) {callee = @f_add, {{.*}}slice = @s1
    // CHECK-NEXT: return %[[C]], %[[D]]
    %a0 = "pw.launch"(%x) {callee = @f, loop = @batch, microbatch = 0, order = 0, slice = @s0} : (!x) -> !x
    %b0 = "pw.launch"(%y) {callee = @f, loop = @batch, microbatch = 0, order = 0, slice = @s1} : (!x) -> !x
    %a1 = "pw.launch"(%x) {callee = @f, loop = @batch, microbatch = 1, order = 1, slice = @s0} : (!x) -> !x
    %b1 = "pw.launch"(%y) {callee = @f, loop = @batch, microbatch = 1, order = 1, slice = @s1} : (!x) -> !x
    %s0 = "pw.reduce"(%a0, %a1) {kind = "sum", loop = @batch, slice = @s0} : (!x, !x) -> !x
    %s1 = "pw.reduce"(%b0, %b1) {kind = "sum", loop = @batch, slice = @s1} : (!x, !x) -> !x
    return %s0, %s1 : !x, !x
  }
  func.func private @f(%x: !x) -> !x {
    return %x : !x
  }
}
