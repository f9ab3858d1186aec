// RUN: pw-opt %s --split-input-file --pw-group-branches | filecheck %s

// A condition over three slices is one operation on each; the predicate is mirrored. What all slices can work
// out is done in the branch that reads it.

!x = tensor<4xf32>
// CHECK-LABEL: module @case_over_three_slices
module @case_over_three_slices attributes {pw.form = "located"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  "pw.slice"() {sym_name = "s1", mesh = @mesh} : () -> ()
  "pw.slice"() {sym_name = "s2", mesh = @mesh} : () -> ()
  // CHECK: func.func @main(%[[X:.*]]: tensor<4xf32> {{.*}}, %[[Y:.*]]: tensor<4xf32> {{.*}}, %[[Z:.*]]: tensor<4xf32> {{.*}}, %[[P:.*]]: tensor<i1>
  func.func @main(%x: !x {pw.slice = @s0}, %y: !x {pw.slice = @s1}, %z: !x {pw.slice = @s2}, %p: tensor<i1> {pw.slice = [@s0, @s1, @s2]}) -> (!x {pw.slice = @s0}, !x {pw.slice = @s1}, !x {pw.slice = @s2}) {
    // CHECK: %[[Q:.*]] = stablehlo.not %[[P]] {pw.mirrored, pw.slice = [@s0, @s1, @s2]}
    %q = stablehlo.not %p {pw.condition = "cond", pw.mirrored, pw.slice = [@s0, @s1, @s2]} : tensor<i1>
    %two = stablehlo.constant {pw.branch = "cond", pw.mirrored, pw.slice = [@s0, @s1]} dense<2.0> : !x
    // CHECK: %[[N0:.*]] = stablehlo.convert %[[Q]] {pw.slice = @s0}
    // CHECK: %[[A:.*]] = "stablehlo.case"(%[[N0]])
    // CHECK-NEXT: stablehlo.return %[[X]]
    // CHECK: %[[TWO:.*]] = stablehlo.constant dense<2.0
    // CHECK-NEXT: %[[AX:.*]] = stablehlo.multiply %[[X]], %[[TWO]] :
    // CHECK-NEXT: stablehlo.return %[[AX]]
    // CHECK: {pw.slice = @s0}
    %a = stablehlo.multiply %x, %two {pw.branch = "cond", pw.slice = @s0} : !x
    // CHECK: %[[B:.*]] = "stablehlo.case"
    // CHECK-NEXT: stablehlo.negate %[[Y]] :
    // CHECK: stablehlo.multiply %[[Y]],
    // CHECK: {pw.slice = @s1}
    %b = stablehlo.multiply %y, %two {pw.branch = "cond", pw.slice = @s1} : !x
    %c = stablehlo.negate %y {pw.branch = "not cond", pw.slice = @s1} : !x
    // CHECK: %[[C:.*]] = "stablehlo.case"
    %d = stablehlo.tanh %z {pw.branch = "cond", pw.slice = @s2} : !x
    // CHECK-NOT: stablehlo.select
    %e = stablehlo.select %q, %a, %x {pw.slice = @s0} : tensor<i1>, !x
    %f = stablehlo.select %q, %b, %c {pw.slice = @s1} : tensor<i1>, !x
    %g = stablehlo.select %q, %d, %z {pw.slice = @s2} : tensor<i1>, !x
    // CHECK: return %[[A]], %[[B]], %[[C]]
    return %e, %f, %g : !x, !x, !x
  }
}

// -----

// What a branch makes on one slice for another gives zeros where the branch is not taken. What comes before
// such a value and what comes after it are two operations.

!x = tensor<4xf32>
// CHECK-LABEL: module @there_and_back
module @there_and_back attributes {pw.form = "located"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  "pw.slice"() {sym_name = "s1", mesh = @mesh} : () -> ()
  // CHECK: func.func @main(%[[X:.*]]: tensor<4xf32>
  func.func @main(%x: !x {pw.slice = @s0}, %p: tensor<i1> {pw.slice = [@s0, @s1]}) -> (!x {pw.slice = @s0}) {
    %q = stablehlo.not %p {pw.condition = "cond", pw.mirrored, pw.slice = [@s0, @s1]} : tensor<i1>
    // CHECK: %[[A:.*]] = "stablehlo.case"
    // CHECK-NEXT: %[[ZERO:.*]] = stablehlo.constant dense<0.0
    // CHECK-NEXT: stablehlo.return %[[ZERO]]
    // CHECK: %[[TANH:.*]] = stablehlo.tanh %[[X]] :
    // CHECK-NEXT: stablehlo.return %[[TANH]]
    // CHECK: {pw.slice = @s0}
    %a = stablehlo.tanh %x {pw.branch = "cond", pw.slice = @s0} : !x
    // CHECK: %[[B:.*]] = "stablehlo.case"
    // CHECK: stablehlo.negate %[[A]] :
    // CHECK: {pw.slice = @s1}
    %b = stablehlo.negate %a {pw.branch = "cond", pw.slice = @s1} : !x
    // CHECK: %[[C:.*]] = "stablehlo.case"
    // CHECK-NEXT: stablehlo.return %[[X]]
    // CHECK: %[[ABS:.*]] = stablehlo.abs %[[X]] :
    // CHECK-NEXT: %[[SUM:.*]] = stablehlo.add %[[ABS]], %[[B]] :
    // CHECK-NEXT: stablehlo.return %[[SUM]]
    // CHECK: {pw.slice = @s0}
    %c = stablehlo.abs %x {pw.branch = "cond", pw.slice = @s0} : !x
    %d = stablehlo.add %c, %b {pw.branch = "cond", pw.slice = @s0} : !x
    %e = stablehlo.select %q, %d, %x {pw.slice = @s0} : tensor<i1>, !x
    // CHECK: return %[[C]]
    return %e : !x
  }
}

// -----

// A bit that was made a number, and asked whether that is 0, is read as it is.

!x = tensor<4xf32>
// CHECK-LABEL: module @bit
module @bit attributes {pw.form = "located"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  // CHECK: func.func @main(%{{.*}}: tensor<4xf32> {{.*}}, %[[P:.*]]: tensor<i1>
  func.func @main(%x: !x {pw.slice = @s0}, %p: tensor<i1> {pw.slice = @s0}) -> (!x {pw.slice = @s0}) {
    // CHECK-NOT: stablehlo.compare
    // CHECK: %[[NUMBER:.*]] = stablehlo.convert %[[P]] {pw.slice = @s0}
    // CHECK: "stablehlo.case"(%[[NUMBER]])
    %zero = stablehlo.constant {pw.slice = @s0} dense<0> : tensor<i32>
    %number = stablehlo.convert %p {pw.slice = @s0} : (tensor<i1>) -> tensor<i32>
    %q = stablehlo.compare NE, %number, %zero {pw.condition = "cond", pw.slice = @s0} : (tensor<i32>, tensor<i32>) -> tensor<i1>
    %a = stablehlo.tanh %x {pw.branch = "cond", pw.slice = @s0} : !x
    %b = stablehlo.select %q, %a, %x {pw.slice = @s0} : tensor<i1>, !x
    return %b : !x
  }
}
