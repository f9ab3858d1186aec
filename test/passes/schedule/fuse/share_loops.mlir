// RUN: pw-opt %s --split-input-file -p 'pw-share-loops{large=4}' | filecheck %s --check-prefixes=CHECK,CUT
// RUN: pw-opt %s --split-input-file --pw-share-loops | filecheck %s --check-prefixes=CHECK,WHOLE

// The first stage has an embedding in front of its layers, the last one a loss behind them; the layers are one loop.
// The negative of the embedding is only read behind the loop, and worked out there.

!x = tensor<4xf32>
!i = tensor<i32>
// CHECK-LABEL: module @stages
module @stages attributes {pw.form = "ordered"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  "pw.slice"() {sym_name = "s1", mesh = @mesh} : () -> ()
  "pw.channel"() {sym_name = "c0", src = @s0, dst = @s1, capacity = 1, value_type = !x} : () -> ()
  func.func @main(%x: !x {pw.slice = @s0}, %w: !x {pw.slice = @s1}) -> (!x {pw.slice = @s1}) {
    // WHOLE: "pw.launch"(%arg0) {callee = @first, order = 0
    // CUT: %[[E:.*]] = "pw.launch"(%arg0) {callee = @first_part, order = 0 : i64, origins = [{kind = "fwd", pieces = 3 : i64, stage = 0
    // CUT-NEXT: %[[L:.*]] = "pw.launch"(%[[E]]) {callee = @first_loop, order = 1 : i64, origins = [{kind = "fwd", pieces = 3 : i64, stage = 0
    // CUT-NEXT: %[[Y:.*]] = "pw.launch"(%[[E]], %[[L]]) {callee = @first_part_1, order = 2
    // CUT-NEXT: %[[T:.*]] = "pw.transfer"(%[[Y]]) {{.*}}order = 3
    %y = "pw.launch"(%x) {callee = @first, slice = @s0, order = 0, origins = [{kind = "fwd", stage = 0}]} : (!x) -> !x
    %t = "pw.transfer"(%y) {slice = @s1, channel = @c0, order = 1} : (!x) -> !x
    // CUT-NEXT: %[[M:.*]] = "pw.launch"(%[[T]]) {callee = @first_loop, order = 0
    // CUT-NEXT: "pw.launch"(%[[M]], %arg1) {callee = @last_part, order = 1
    %z = "pw.launch"(%w, %t) {callee = @last, slice = @s1, order = 0, origins = [{kind = "fwd", stage = 1}]} : (!x, !x) -> !x
    return %z : !x
  }
  // CUT: func.func private @first_loop(%arg0: tensor<4xf32>)
  // CUT-NEXT: stablehlo.constant
  // CUT-NEXT: stablehlo.while
  // CUT: func.func private @first_part(%arg0: tensor<4xf32>)
  // CUT-NEXT: stablehlo.tanh
  // CUT: func.func private @first_part_1
  // CUT-NEXT: stablehlo.negate
  // CUT-NEXT: stablehlo.add
  // CUT: func.func private @last_part
  // CUT-NEXT: stablehlo.multiply
  // CUT-NOT: stablehlo.while
  func.func private @first(%x: !x) -> !x {
    %e = stablehlo.tanh %x : !x
    %n = stablehlo.negate %e : !x
    %zero = stablehlo.constant dense<0> : !i
    %l:2 = stablehlo.while(%i = %zero, %v = %e) : !i, !x
      cond {
        %end = stablehlo.constant dense<3> : !i
        %more = stablehlo.compare LT, %i, %end : (!i, !i) -> tensor<i1>
        stablehlo.return %more : tensor<i1>
      } do {
        %one = stablehlo.constant dense<1> : !i
        %next = stablehlo.add %i, %one : !i
        %s = stablehlo.sine %v : !x
        stablehlo.return %next, %s : !i, !x
      }
    %y = stablehlo.add %l#1, %n : !x
    return %y : !x
  }
  func.func private @last(%w: !x, %x: !x) -> !x {
    %zero = stablehlo.constant dense<0> : !i
    %l:2 = stablehlo.while(%i = %zero, %v = %x) : !i, !x
      cond {
        %end = stablehlo.constant dense<3> : !i
        %more = stablehlo.compare LT, %i, %end : (!i, !i) -> tensor<i1>
        stablehlo.return %more : tensor<i1>
      } do {
        %one = stablehlo.constant dense<1> : !i
        %next = stablehlo.add %i, %one : !i
        %s = stablehlo.sine %v : !x
        stablehlo.return %next, %s : !i, !x
      }
    %y = stablehlo.multiply %l#1, %w : !x
    return %y : !x
  }
}

// -----

// Loops that differ, here in their trip counts, are left where they are.

!x = tensor<4xf32>
!i = tensor<i32>
// CHECK-LABEL: module @other_loops
module @other_loops attributes {pw.form = "ordered"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  func.func @main(%x: !x {pw.slice = @s0}) -> (!x {pw.slice = @s0}) {
    // CHECK: %[[Y:.*]] = "pw.launch"(%arg0) {callee = @f, order = 0
    // CHECK-NEXT: "pw.launch"(%[[Y]]) {callee = @g, order = 1
    %y = "pw.launch"(%x) {callee = @f, slice = @s0, order = 0} : (!x) -> !x
    %z = "pw.launch"(%y) {callee = @g, slice = @s0, order = 1} : (!x) -> !x
    return %z : !x
  }
  func.func private @f(%x: !x) -> !x {
    %zero = stablehlo.constant dense<0> : !i
    %l:2 = stablehlo.while(%i = %zero, %v = %x) : !i, !x
      cond {
        %end = stablehlo.constant dense<3> : !i
        %more = stablehlo.compare LT, %i, %end : (!i, !i) -> tensor<i1>
        stablehlo.return %more : tensor<i1>
      } do {
        %one = stablehlo.constant dense<1> : !i
        %next = stablehlo.add %i, %one : !i
        %s = stablehlo.sine %v : !x
        stablehlo.return %next, %s : !i, !x
      }
    return %l#1 : !x
  }
  func.func private @g(%x: !x) -> !x {
    %zero = stablehlo.constant dense<0> : !i
    %l:2 = stablehlo.while(%i = %zero, %v = %x) : !i, !x
      cond {
        %end = stablehlo.constant dense<4> : !i
        %more = stablehlo.compare LT, %i, %end : (!i, !i) -> tensor<i1>
        stablehlo.return %more : tensor<i1>
      } do {
        %one = stablehlo.constant dense<1> : !i
        %next = stablehlo.add %i, %one : !i
        %s = stablehlo.sine %v : !x
        stablehlo.return %next, %s : !i, !x
      }
    %y = stablehlo.negate %l#1 : !x
    return %y : !x
  }
}

// -----

// A loop that a forward and a fused forward and backward share is of the forward; what follows it is of both.

!x = tensor<4xf32>
!i = tensor<i32>
// CHECK-LABEL: module @fused
module @fused attributes {pw.form = "ordered"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  func.func @main(%x: !x {pw.slice = @s0}) -> (!x {pw.slice = @s0}) {
    // CUT: callee = @forward_loop, order = 0 : i64, origins = [{kind = "fwd", stage = 0 : i64}]
    // CUT: callee = @forward_loop, order = 1 : i64, origins = [{kind = "fwd", pieces = 2 : i64, stage = 1 : i64}]
    // CUT: callee = @both_part, order = 2 : i64, origins = [{kind = "fwd", pieces = 2 : i64, stage = 1 : i64}, {kind = "bwd", stage = 1 : i64}]
    %y = "pw.launch"(%x) {callee = @forward, slice = @s0, order = 0, origins = [{kind = "fwd", stage = 0}]} : (!x) -> !x
    %z = "pw.launch"(%y) {callee = @both, slice = @s0, order = 1, origins = [{kind = "fwd", stage = 1}, {kind = "bwd", stage = 1}]} : (!x) -> !x
    return %z : !x
  }
  func.func private @forward(%x: !x) -> !x {
    %zero = stablehlo.constant dense<0> : !i
    %l:2 = stablehlo.while(%i = %zero, %v = %x) : !i, !x
      cond {
        %end = stablehlo.constant dense<3> : !i
        %more = stablehlo.compare LT, %i, %end : (!i, !i) -> tensor<i1>
        stablehlo.return %more : tensor<i1>
      } do {
        %one = stablehlo.constant dense<1> : !i
        %next = stablehlo.add %i, %one : !i
        %s = stablehlo.sine %v : !x
        stablehlo.return %next, %s : !i, !x
      }
    return %l#1 : !x
  }
  func.func private @both(%x: !x) -> !x {
    %zero = stablehlo.constant dense<0> : !i
    %l:2 = stablehlo.while(%i = %zero, %v = %x) : !i, !x
      cond {
        %end = stablehlo.constant dense<3> : !i
        %more = stablehlo.compare LT, %i, %end : (!i, !i) -> tensor<i1>
        stablehlo.return %more : tensor<i1>
      } do {
        %one = stablehlo.constant dense<1> : !i
        %next = stablehlo.add %i, %one : !i
        %s = stablehlo.sine %v : !x
        stablehlo.return %next, %s : !i, !x
      }
    %y = stablehlo.negate %l#1 : !x
    return %y : !x
  }
}
