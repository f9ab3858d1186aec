// RUN: pw-opt %s --split-input-file --pw-import | filecheck %s

// `jax.lax.scan` over two slices becomes a sequential loop: the rows that it works through are split, those
// that it fills concatenated, the carry is handed on, and the counters are arithmetic on the index.

module @decode {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  "pw.slice"() {sym_name = "s1", mesh = @mesh} : () -> ()
  // CHECK: "pw.loop"() {count = 3 : i64, sequential, sym_name = "loop"}
  // CHECK: func.func public @main(%[[X:.*]]: tensor<4xf32>, %[[XS:.*]]: tensor<3x4xf32>)
  func.func public @main(%x: tensor<4xf32>, %xs: tensor<3x4xf32>) -> (tensor<4xf32>, tensor<3x4xf32>, tensor<i32>) {
    // CHECK: %[[I:.*]] = "pw.index"() {loop = @loop} : () -> tensor<i32>
    // CHECK: %[[TWICE:.*]] = stablehlo.multiply %[[I]], {{.*}} {pw.loop = @loop}
    // CHECK: %[[N:.*]] = stablehlo.add %[[TWICE]], {{.*}} {pw.loop = @loop}
    // CHECK: %[[H:.*]] = "pw.carry"(%[[X]]) {loop = @loop} : (tensor<4xf32>) -> tensor<4xf32>
    // CHECK: %[[ROW:.*]] = "pw.split"(%[[XS]]) {loop = @loop} : (tensor<3x4xf32>) -> tensor<1x4xf32>
    // CHECK: %[[FLAT:.*]] = stablehlo.reshape %[[ROW]] {pw.loop = @loop}
    // CHECK: %[[A:.*]] = "pw.launch"(%[[H]], %[[FLAT]]) {callee = @f, loop = @loop, origins = [{kind = "fwd", stage = 0 : i64}], slice = @s0}
    // CHECK: %[[B:.*]] = "pw.launch"(%[[A]], %[[N]]) {callee = @g, loop = @loop, origins = [{kind = "fwd", stage = 1 : i64}], slice = @s1}
    // CHECK: %[[R:.*]] = stablehlo.reshape %[[B]] {pw.loop = @loop}
    // CHECK: %[[LAST_N:.*]] = stablehlo.constant dense<11> : tensor<i32>
    // CHECK: %[[LAST:.*]] = "pw.next"(%[[H]], %[[B]]) {loop = @loop} : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
    // CHECK: %[[ROWS:.*]] = "pw.reduce"(%[[R]]) {kind = "concat", loop = @loop} : (tensor<1x4xf32>) -> tensor<3x4xf32>
    // CHECK: return %[[LAST]], %[[ROWS]], %[[LAST_N]]
    %zero = stablehlo.constant dense<0> : tensor<i32>
    %five = stablehlo.constant dense<5> : tensor<i32>
    %blank = stablehlo.constant dense<0.0> : tensor<3x4xf32>
    %0:5 = stablehlo.while(%rows = %xs, %i = %zero, %n = %five, %h = %x, %out = %blank) : tensor<3x4xf32>, tensor<i32>, tensor<i32>, tensor<4xf32>, tensor<3x4xf32>
      cond {
        %three = stablehlo.constant dense<3> : tensor<i32>
        %c = stablehlo.compare LT, %i, %three, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
        stablehlo.return %c : tensor<i1>
      } do {
        %row = func.call @row(%rows, %i) : (tensor<3x4xf32>, tensor<i32>) -> tensor<4xf32>
        %a = func.call @f(%h, %row) {mhlo.frontend_attributes = {pw.slice = "s0", pw.name = "f", pw.call = "0"}} : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
        %b = func.call @g(%a, %n) {mhlo.frontend_attributes = {pw.slice = "s1", pw.name = "g", pw.call = "1"}} : (tensor<4xf32>, tensor<i32>) -> tensor<4xf32>
        %r = stablehlo.reshape %b : (tensor<4xf32>) -> tensor<1x4xf32>
        %o = stablehlo.dynamic_update_slice %out, %r, %i, %zero : (tensor<3x4xf32>, tensor<1x4xf32>, tensor<i32>, tensor<i32>) -> tensor<3x4xf32>
        %one = stablehlo.constant dense<1> : tensor<i32>
        %two = stablehlo.constant dense<2> : tensor<i32>
        %j = stablehlo.add %i, %one : tensor<i32>
        %m = stablehlo.add %n, %two : tensor<i32>
        stablehlo.return %rows, %j, %m, %b, %o : tensor<3x4xf32>, tensor<i32>, tensor<i32>, tensor<4xf32>, tensor<3x4xf32>
      }
    return %0#3, %0#4, %0#2 : tensor<4xf32>, tensor<3x4xf32>, tensor<i32>
  }
  func.func private @row(%rows: tensor<3x4xf32>, %i: tensor<i32>) -> tensor<4xf32> {
    %zero = stablehlo.constant dense<0> : tensor<i32>
    %0 = stablehlo.dynamic_slice %rows, %i, %zero, sizes = [1, 4] : (tensor<3x4xf32>, tensor<i32>, tensor<i32>) -> tensor<1x4xf32>
    %1 = stablehlo.reshape %0 : (tensor<1x4xf32>) -> tensor<4xf32>
    return %1 : tensor<4xf32>
  }
  func.func private @f(%h: tensor<4xf32>, %row: tensor<4xf32>) -> tensor<4xf32> {
    %0 = stablehlo.add %h, %row : tensor<4xf32>
    return %0 : tensor<4xf32>
  }
  func.func private @g(%h: tensor<4xf32>, %n: tensor<i32>) -> tensor<4xf32> {
    %0 = stablehlo.convert %n : (tensor<i32>) -> tensor<f32>
    %1 = stablehlo.broadcast_in_dim %0, dims = [] : (tensor<f32>) -> tensor<4xf32>
    %2 = stablehlo.multiply %h, %1 : tensor<4xf32>
    return %2 : tensor<4xf32>
  }
}

// -----

// A scan may go backwards, and a loop may stand in another: what leads out of the inner one is of the outer.
// A carried value that nobody reads but itself is gone.

module @nested {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  "pw.slice"() {sym_name = "s1", mesh = @mesh} : () -> ()
  // CHECK-LABEL: module @nested
  // CHECK: "pw.loop"() {count = 4 : i64, sequential, sym_name = "loop"}
  // CHECK: "pw.loop"() {count = 2 : i64, parent = @loop, sequential, sym_name = "loop_1"}
  // CHECK: func.func public @main(%[[X:.*]]: tensor<4xf32>, %[[XS:.*]]: tensor<4x4xf32>)
  func.func public @main(%x: tensor<4xf32>, %xs: tensor<4x4xf32>) -> tensor<4xf32> {
    // CHECK: %[[BACK:.*]] = stablehlo.reverse %[[XS]], dims = [0]
    // CHECK: %[[H:.*]] = "pw.carry"(%[[X]]) {loop = @loop}
    // CHECK: %[[ROW:.*]] = "pw.split"(%[[BACK]]) {loop = @loop}
    // CHECK: %[[FLAT:.*]] = stablehlo.reshape %[[ROW]] {pw.loop = @loop}
    // CHECK: %[[K:.*]] = "pw.carry"(%[[H]]) {loop = @loop_1}
    // CHECK: %[[A:.*]] = "pw.launch"(%[[K]], %[[FLAT]]) {callee = @f, loop = @loop_1
    // CHECK: %[[B:.*]] = "pw.launch"(%[[A]], %[[FLAT]]) {callee = @f_1, loop = @loop_1
    // CHECK: %[[NEXT:.*]] = "pw.next"(%[[K]], %[[B]]) {loop = @loop_1, outer = @loop}
    // CHECK: %[[LAST:.*]] = "pw.next"(%[[H]], %[[NEXT]]) {loop = @loop} :
    // CHECK-NOT: pw.carry
    // CHECK: return %[[LAST]]
    %zero = stablehlo.constant dense<0> : tensor<i32>
    %0:3 = stablehlo.while(%i = %zero, %h = %x, %unread = %x) : tensor<i32>, tensor<4xf32>, tensor<4xf32>
      cond {
        %four = stablehlo.constant dense<4> : tensor<i32>
        %c = stablehlo.compare NE, %i, %four, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
        stablehlo.return %c : tensor<i1>
      } do {
        %one = stablehlo.constant dense<1> : tensor<i32>
        %three = stablehlo.constant dense<3> : tensor<i32>
        %at = stablehlo.subtract %three, %i : tensor<i32>
        %row = stablehlo.dynamic_slice %xs, %at, %zero, sizes = [1, 4] : (tensor<4x4xf32>, tensor<i32>, tensor<i32>) -> tensor<1x4xf32>
        %flat = stablehlo.reshape %row : (tensor<1x4xf32>) -> tensor<4xf32>
        %1:2 = stablehlo.while(%j = %three, %k = %h) : tensor<i32>, tensor<4xf32>
          cond {
            %c = stablehlo.compare GT, %j, %one, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
            stablehlo.return %c : tensor<i1>
          } do {
            %a = func.call @f(%k, %flat) {mhlo.frontend_attributes = {pw.slice = "s0", pw.name = "f", pw.call = "0"}} : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
            %b = func.call @g(%a, %flat) {mhlo.frontend_attributes = {pw.slice = "s1", pw.name = "f", pw.call = "1"}} : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
            %less = stablehlo.subtract %j, %one : tensor<i32>
            stablehlo.return %less, %b : tensor<i32>, tensor<4xf32>
          }
        %twice = stablehlo.add %unread, %flat : tensor<4xf32>
        %next = stablehlo.add %i, %one : tensor<i32>
        stablehlo.return %next, %1#1, %twice : tensor<i32>, tensor<4xf32>, tensor<4xf32>
      }
    return %0#1 : tensor<4xf32>
  }
  func.func private @f(%h: tensor<4xf32>, %row: tensor<4xf32>) -> tensor<4xf32> {
    %0 = stablehlo.add %h, %row : tensor<4xf32>
    return %0 : tensor<4xf32>
  }
  func.func private @g(%h: tensor<4xf32>, %row: tensor<4xf32>) -> tensor<4xf32> {
    %0 = stablehlo.multiply %h, %row : tensor<4xf32>
    return %0 : tensor<4xf32>
  }
}

// -----

// What is read of an array at two places that move with the iteration is no row of it: it is read by the number of
// the iteration.

!x = tensor<4xf32>
!xs = tensor<3x4xf32>
!i = tensor<i32>
// CHECK-LABEL: module @along_a_diagonal
module @along_a_diagonal {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  "pw.slice"() {sym_name = "s1", mesh = @mesh} : () -> ()
  func.func public @main(%x: !x, %xs: !xs) -> !x {
    // CHECK-NOT: pw.split
    // CHECK: %[[ITERATION:.*]] = "pw.index"() {loop = @
    // CHECK: stablehlo.dynamic_slice %{{.*}}, %[[ITERATION]], %[[ITERATION]], sizes = [1, 4]
    %zero = stablehlo.constant dense<0> : !i
    %0:3 = stablehlo.while(%rows = %xs, %i = %zero, %h = %x) : !xs, !i, !x
      cond {
        %three = stablehlo.constant dense<3> : !i
        %c = stablehlo.compare LT, %i, %three, SIGNED : (!i, !i) -> tensor<i1>
        stablehlo.return %c : tensor<i1>
      } do {
        %block = stablehlo.dynamic_slice %rows, %i, %i, sizes = [1, 4] : (!xs, !i, !i) -> tensor<1x4xf32>
        %row = stablehlo.reshape %block : (tensor<1x4xf32>) -> !x
        %a = func.call @f(%h, %row) {mhlo.frontend_attributes = {pw.slice = "s0"}} : (!x, !x) -> !x
        %b = func.call @g(%a) {mhlo.frontend_attributes = {pw.slice = "s1"}} : (!x) -> !x
        %one = stablehlo.constant dense<1> : !i
        %j = stablehlo.add %i, %one : !i
        stablehlo.return %rows, %j, %b : !xs, !i, !x
      }
    return %0#2 : !x
  }
  func.func private @f(%h: !x, %row: !x) -> !x {
    %y = stablehlo.add %h, %row : !x
    return %y : !x
  }
  func.func private @g(%h: !x) -> !x {
    %y = stablehlo.tanh %h : !x
    return %y : !x
  }
}

// -----

// A number that the body sets counts nothing: it is carried as any other value. Rows at a place that stays the
// same are no rows of the iteration.

!x = tensor<1x4xf32>
!xs = tensor<3x4xf32>
!i = tensor<i32>
// CHECK-LABEL: module @set_in_the_body
module @set_in_the_body {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  "pw.slice"() {sym_name = "s1", mesh = @mesh} : () -> ()
  // CHECK: func.func public @main(%[[X:.*]]: tensor<1x4xf32>, %[[XS:.*]]: tensor<3x4xf32>)
  func.func public @main(%x: !x, %xs: !xs) -> !x {
    // CHECK-NOT: pw.split
    // CHECK: %[[SET:.*]] = "pw.carry"(%{{.*}}) {loop = @loop} : (tensor<i32>) -> tensor<i32>
    // CHECK: %[[ROW:.*]] = stablehlo.dynamic_slice %[[XS]]
    // CHECK: "pw.launch"(%{{.*}}, %[[ROW]], %[[SET]])
    %zero = stablehlo.constant dense<0> : !i
    %0:3 = stablehlo.while(%i = %zero, %h = %x, %set = %zero) : !i, !x, !i
      cond {
        %three = stablehlo.constant dense<3> : !i
        %c = stablehlo.compare LT, %i, %three, SIGNED : (!i, !i) -> tensor<i1>
        stablehlo.return %c : tensor<i1>
      } do {
        %one = stablehlo.constant dense<1> : !i
        %row = stablehlo.dynamic_slice %xs, %one, %zero, sizes = [1, 4] : (!xs, !i, !i) -> !x
        %a = func.call @f(%h, %row, %set) {mhlo.frontend_attributes = {pw.slice = "s0"}} : (!x, !x, !i) -> !x
        %b = func.call @g(%a) {mhlo.frontend_attributes = {pw.slice = "s1"}} : (!x) -> !x
        %j = stablehlo.add %i, %one : !i
        stablehlo.return %j, %b, %one : !i, !x, !i
      }
    return %0#1 : !x
  }
  func.func private @f(%h: !x, %row: !x, %n: !i) -> !x {
    %0 = stablehlo.convert %n : (!i) -> tensor<f32>
    %1 = stablehlo.broadcast_in_dim %0, dims = [] : (tensor<f32>) -> !x
    %2 = stablehlo.add %1, %row : !x
    %y = stablehlo.add %h, %2 : !x
    return %y : !x
  }
  func.func private @g(%h: !x) -> !x {
    %y = stablehlo.tanh %h : !x
    return %y : !x
  }
}
