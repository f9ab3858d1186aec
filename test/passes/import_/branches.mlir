// RUN: pw-opt %s --split-input-file --pw-import | filecheck %s

// What a branch does is in `@main`, marked with the branch; of three branches the second condition is in the
// rest of the first. What lies around selects.

!x = tensor<4xf32>
// CHECK-LABEL: module @three_branches
module @three_branches {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  // CHECK: func.func public @main(%[[X:.*]]: tensor<4xf32>, %[[I:.*]]: tensor<i32>)
  func.func public @main(%x: !x, %i: tensor<i32>) -> !x {
    // CHECK: %[[P:.*]] = stablehlo.compare NE, %[[I]], {{.*}} {pw.condition = "cond"}
    // CHECK: %[[A:.*]] = stablehlo.tanh %[[X]] {pw.branch = "not cond"}
    // CHECK: %[[Q:.*]] = stablehlo.compare NE, %[[I]], {{.*}} {pw.branch = "cond", pw.condition = "cond_1"}
    // CHECK: %[[B:.*]] = stablehlo.negate %[[X]] {pw.branch = "not cond_1"}
    // CHECK: %[[C:.*]] = stablehlo.select %[[Q]], %[[X]], %[[B]] {pw.branch = "cond"}
    // CHECK: %[[D:.*]] = stablehlo.select %[[P]], %[[C]], %[[A]]
    // CHECK: return %[[D]]
    %0 = "stablehlo.case"(%i) ({
      %a = stablehlo.tanh %x : !x
      stablehlo.return %a : !x
    }, {
      %b = func.call @minus(%x) : (!x) -> !x
      stablehlo.return %b : !x
    }, {
      stablehlo.return %x : !x
    }) : (tensor<i32>) -> !x
    return %0 : !x
  }
  func.func private @minus(%x: !x) -> !x {
    %0 = stablehlo.negate %x : !x
    return %0 : !x
  }
}

// -----

// Placed calls of a branch over two slices are launched in any case; inside of another branch, they do
// something only if both are taken. Where the other branch hands on what they got they do so themselves, and to
// each other, and nothing selects.

!x = tensor<4xf32>
// CHECK-LABEL: module @placed_branch
module @placed_branch {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  "pw.slice"() {sym_name = "s1", mesh = @mesh} : () -> ()
  // CHECK: func.func public @main(%[[X:.*]]: tensor<4xf32>, %[[P:.*]]: tensor<i1>, %[[Q:.*]]: tensor<i1>)
  func.func public @main(%x: !x, %p: tensor<i1>, %q: tensor<i1>) -> !x {
    // CHECK: %[[OUTER:.*]] = stablehlo.compare NE, %[[P]], {{.*}} {pw.condition = "cond"}
    // CHECK: %[[A:.*]] = "pw.launch"(%[[OUTER]], %[[X]]) {callee = @f_if, origins = [{kind = "fwd", stage = 0 : i64, when = true}], slice = @s0}
    // CHECK: %[[INNER:.*]] = stablehlo.compare NE, %[[Q]], {{.*}} {pw.branch = "cond", pw.condition = "cond_1"}
    // CHECK: %[[NOT:.*]] = stablehlo.not %[[INNER]]
    // CHECK: %[[BOTH:.*]] = stablehlo.and %[[OUTER]], %[[NOT]]
    // CHECK: %[[B:.*]] = "pw.launch"(%[[BOTH]], %[[A]]) {callee = @f_if, origins = [{kind = "fwd", stage = 1 : i64, when = true}], slice = @s1}
    // CHECK: %[[C:.*]] = "pw.launch"(%[[BOTH]], %[[B]]) {callee = @f_if, {{.*}} slice = @s0}
    // CHECK-NOT: stablehlo.select
    // CHECK: return %[[C]]
    %0 = "stablehlo.if"(%p) ({
      %a = func.call @call(%x) {mhlo.frontend_attributes = {pw.slice = "s0", pw.name = "f", pw.call = "0"}} : (!x) -> !x
      %b = "stablehlo.if"(%q) ({
        stablehlo.return %a : !x
      }, {
        %c = func.call @call(%a) {mhlo.frontend_attributes = {pw.slice = "s1", pw.name = "f", pw.call = "1"}} : (!x) -> !x
        %d = func.call @call(%c) {mhlo.frontend_attributes = {pw.slice = "s0", pw.name = "f", pw.call = "2"}} : (!x) -> !x
        stablehlo.return %d : !x
      }) : (tensor<i1>) -> !x
      stablehlo.return %b : !x
    }, {
      stablehlo.return %x : !x
    }) : (tensor<i1>) -> !x
    return %0 : !x
  }
  func.func private @call(%x: !x) -> !x {
    %0 = stablehlo.tanh %x : !x
    return %0 : !x
  }
  // CHECK: func.func private @f_if(%[[TAKEN:.*]]: tensor<i1>, %[[ARG:.*]]: tensor<4xf32>)
  // CHECK-NEXT: %[[N:.*]] = stablehlo.convert %[[TAKEN]]
  // CHECK-NEXT: "stablehlo.case"(%[[N]])
  // CHECK-NEXT: stablehlo.return %[[ARG]]
  // CHECK: stablehlo.tanh %[[ARG]]
}

// -----

// A branch with a callback stays whole: it is called once.

!x = tensor<4xf32>
// CHECK-LABEL: module @whole
module @whole {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  func.func public @main(%x: !x, %i: tensor<i32>) -> !x {
    // CHECK: "stablehlo.case"
    %0 = "stablehlo.case"(%i) ({
      %a = stablehlo.tanh %x : !x
      stablehlo.custom_call @print(%a) {has_side_effect = true} : (!x) -> ()
      stablehlo.return %a : !x
    }, {
      stablehlo.return %x : !x
    }) : (tensor<i32>) -> !x
    return %0 : !x
  }
}

// -----

// A loop is one operation of its branch; what is beside it is cut as anywhere.

!x = tensor<4xf32>
// CHECK-LABEL: module @loop_in_branch
module @loop_in_branch {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  // CHECK: func.func public @main(%[[X:.*]]: tensor<4xf32>,
  func.func public @main(%x: !x, %i: tensor<i32>, %n: tensor<i32>) -> (!x, !x) {
    // CHECK: %[[P:.*]] = stablehlo.compare NE, {{.*}} {pw.condition = "cond"}
    // CHECK: %[[LOOP:.*]]:2 = stablehlo.while({{.*}}) : tensor<i32>, tensor<4xf32> attributes {pw.branch = "not cond"}
    // CHECK: %[[MINUS:.*]] = stablehlo.negate %[[X]] {pw.branch = "not cond"}
    // CHECK: %[[A:.*]] = stablehlo.select %[[P]], %[[X]], %[[LOOP]]#1
    // CHECK: %[[B:.*]] = stablehlo.select %[[P]], %[[X]], %[[MINUS]]
    // CHECK: return %[[A]], %[[B]]
    %0:2 = "stablehlo.case"(%i) ({
      %a:2 = stablehlo.while(%k = %n, %y = %x) : tensor<i32>, !x
        cond {
          %p = stablehlo.compare LT, %k, %i : (tensor<i32>, tensor<i32>) -> tensor<i1>
          stablehlo.return %p : tensor<i1>
        } do {
          %j = stablehlo.add %k, %i : tensor<i32>
          %z = stablehlo.tanh %y : !x
          stablehlo.return %j, %z : tensor<i32>, !x
        }
      %b = stablehlo.negate %x : !x
      stablehlo.return %a#1, %b : !x, !x
    }, {
      stablehlo.return %x, %x : !x, !x
    }) : (tensor<i32>) -> (!x, !x)
    return %0#0, %0#1 : !x, !x
  }
}

// -----

// A loop over two slices whose end depends on values is a loop of one chunk of iterations: each is a branch on whether
// the loop has not ended, and `pw.until` reads whether it has after the last one.

!x = tensor<4xf32>
// CHECK-LABEL: module @chunk
module @chunk {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  "pw.slice"() {sym_name = "s1", mesh = @mesh} : () -> ()
  // CHECK: "pw.loop"() {chunk = 8 : i64, sequential, sym_name = "loop"}
  func.func public @main(%x: !x, %p: tensor<i1>) -> !x {
    // CHECK: %[[DONE:.*]] = "pw.carry"(%{{.*}}) {loop = @loop} : (tensor<i1>)
    // CHECK: %[[H:.*]] = "pw.carry"(%arg0) {loop = @loop} : (tensor<4xf32>)
    // CHECK: %[[OVER:.*]] = stablehlo.compare NE, {{.*}} {pw.condition = "cond", pw.loop = @loop}
    // CHECK: %[[ITERATION:.*]] = stablehlo.not %[[OVER]]
    // CHECK: %[[A:.*]] = "pw.launch"(%[[ITERATION]], %[[H]]) {callee = @f_if, loop = @loop, origins = [{kind = "fwd", stage = 0 : i64, when = true}], slice = @s0}
    // CHECK: %[[B:.*]] = "pw.launch"(%[[ITERATION]], %[[A]]) {callee = @f_if, loop = @loop, origins = [{kind = "fwd", stage = 1 : i64, when = true}], slice = @s1}
    // CHECK: %[[END:.*]] = "pw.next"(%[[DONE]], %{{.*}}) {loop = @loop}
    // CHECK: %[[LAST:.*]] = "pw.next"(%[[H]], %[[B]]) {loop = @loop}
    // CHECK: "pw.until"(%[[END]]) {loop = @loop}
    // CHECK: return %[[LAST]]
    %0 = stablehlo.while(%h = %x) : !x
      cond {
        %c = func.call @small(%h) : (!x) -> tensor<i1>
        stablehlo.return %c : tensor<i1>
      } do {
        %a = func.call @f(%h) {mhlo.frontend_attributes = {pw.slice = "s0", pw.name = "f", pw.call = "0"}} : (!x) -> !x
        %b = func.call @f(%a) {mhlo.frontend_attributes = {pw.slice = "s1", pw.name = "f", pw.call = "1"}} : (!x) -> !x
        stablehlo.return %b : !x
      }
    return %0 : !x
  }
  func.func private @f(%x: !x) -> !x {
    %0 = stablehlo.tanh %x : !x
    return %0 : !x
  }
  func.func private @small(%x: !x) -> tensor<i1> {
    %one = stablehlo.constant dense<1.0> : tensor<f32>
    %0 = stablehlo.slice %x [0:1] : (!x) -> tensor<1xf32>
    %1 = stablehlo.reshape %0 : (tensor<1xf32>) -> tensor<f32>
    %2 = stablehlo.compare LT, %1, %one : (tensor<f32>, tensor<f32>) -> tensor<i1>
    return %2 : tensor<i1>
  }
}

// -----

// A call of a branch gives zeros where it is not taken: nothing has to choose between these and zeros.

!x = tensor<4xf32>
// CHECK-LABEL: module @zeros_otherwise
module @zeros_otherwise {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  "pw.slice"() {sym_name = "s1", mesh = @mesh} : () -> ()
  // CHECK: func.func public @main
  func.func public @main(%x: !x, %p: tensor<i1>) -> (!x, !x, !x) {
    %zero = stablehlo.constant dense<0.0> : tensor<f32>
    %zeros = stablehlo.broadcast_in_dim %zero, dims = [] : (tensor<f32>) -> !x
    %negative = stablehlo.constant dense<-0.0> : !x
    // CHECK: %[[A:.*]] = "pw.launch"{{.*}} {callee = @f_if
    // CHECK: %[[B:.*]] = "pw.launch"{{.*}} {callee = @f_if
    // CHECK: %[[C:.*]] = stablehlo.select %{{.*}}, %[[B]], %{{.*}}
    // CHECK-NOT: stablehlo.select
    // CHECK: return %[[A]], %[[B]], %[[C]]
    // CHECK: func.func private @f_if
    // CHECK: %[[ZEROS:.*]] = stablehlo.constant dense<0.000000e+00>
    // CHECK-NEXT: stablehlo.return %[[ZEROS]]
    // CHECK: stablehlo.tanh
    %0:3 = "stablehlo.if"(%p) ({
      %a = func.call @call(%x) {mhlo.frontend_attributes = {pw.slice = "s0", pw.name = "f", pw.call = "0"}} : (!x) -> !x
      %b = func.call @call(%a) {mhlo.frontend_attributes = {pw.slice = "s1", pw.name = "f", pw.call = "1"}} : (!x) -> !x
      stablehlo.return %a, %b, %b : !x, !x, !x
    }, {
      stablehlo.return %zeros, %zeros, %negative : !x, !x, !x
    }) : (tensor<i1>) -> (!x, !x, !x)
    return %0#0, %0#1, %0#2 : !x, !x, !x
  }
  func.func private @call(%x: !x) -> !x {
    %0 = stablehlo.tanh %x : !x
    return %0 : !x
  }
}

// -----

// Of one function there is a computation for each choice of operands that calls hand on. A call gives one thing
// where its branch is not taken: for anything else something selects, as for what it did not get.

!x = tensor<4xf32>
!cache = tensor<64x4xf32>
// CHECK-LABEL: module @caches
module @caches {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  "pw.slice"() {sym_name = "s1", mesh = @mesh} : () -> ()
  // CHECK: func.func public @main(%[[X:.*]]: tensor<4xf32>, %[[A:.*]]: tensor<64x4xf32>, %[[B:.*]]: tensor<64x4xf32>, %[[P:.*]]: tensor<i1>)
  func.func public @main(%x: !x, %a: !cache, %b: !cache, %p: tensor<i1>) -> (!x, !cache, !cache, !cache) {
    %zeros = stablehlo.constant dense<0.0> : !cache
    // CHECK: %[[Q:.*]] = stablehlo.compare NE, %[[P]]
    // CHECK: %[[Y:.*]] = stablehlo.negate %[[X]]
    // CHECK: %[[C:.*]]:2 = "pw.launch"(%[[Q]], %[[X]], %[[A]]) {callee = @f_if,
    // CHECK: %[[D:.*]]:2 = "pw.launch"(%[[Q]], %[[C]]#0, %[[B]]) {callee = @f_if_1,
    // CHECK: %[[E:.*]] = stablehlo.select %[[Q]], %[[D]]#0, %[[Y]]
    // CHECK: %[[F:.*]] = stablehlo.select %[[Q]], %[[C]]#1, %{{.*}}
    // CHECK: %[[G:.*]] = stablehlo.select %[[Q]], %[[D]]#1, %[[A]]
    // CHECK-NOT: stablehlo.select
    // CHECK: return %[[E]], %[[C]]#1, %[[F]], %[[G]]
    %0:4 = "stablehlo.if"(%p) ({
      %c:2 = func.call @call(%x, %a) {mhlo.frontend_attributes = {pw.slice = "s0", pw.name = "f", pw.call = "0"}} : (!x, !cache) -> (!x, !cache)
      %d:2 = func.call @call(%c#0, %b) {mhlo.frontend_attributes = {pw.slice = "s1", pw.name = "f", pw.call = "1"}} : (!x, !cache) -> (!x, !cache)
      stablehlo.return %d#0, %c#1, %c#1, %d#1 : !x, !cache, !cache, !cache
    }, {
      %y = stablehlo.negate %x : !x
      stablehlo.return %y, %a, %zeros, %a : !x, !cache, !cache, !cache
    }) : (tensor<i1>) -> (!x, !cache, !cache, !cache)
    return %0#0, %0#1, %0#2, %0#3 : !x, !cache, !cache, !cache
  }
  // CHECK: func.func private @f_if(%{{.*}}: tensor<i1>, %{{.*}}: tensor<4xf32>, %[[OLD:.*]]: tensor<64x4xf32>)
  // CHECK: %[[NO_X:.*]] = stablehlo.constant dense<0.000000e+00> : tensor<4xf32>
  // CHECK-NEXT: stablehlo.return %[[NO_X]], %[[OLD]]
  func.func private @call(%x: !x, %cache: !cache) -> (!x, !cache) {
    %0 = stablehlo.tanh %x : !x
    %1 = stablehlo.negate %cache : !cache
    return %0, %1 : !x, !cache
  }
}

// -----

// A constant of complex numbers in a branch is one as any other.

!x = tensor<4xf32>
!c = tensor<4xcomplex<f32>>
// CHECK-LABEL: module @complex
module @complex {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  func.func public @main(%x: !c, %p: tensor<i1>) -> !c {
    // CHECK: stablehlo.select %{{.*}}, %{{.*}}, %{{.*}} : tensor<i1>, tensor<4xcomplex<f32>>
    %zeros = stablehlo.constant dense<(0.0, 0.0)> : !c
    %0 = "stablehlo.if"(%p) ({
      %a = stablehlo.tanh %x : !c
      stablehlo.return %a : !c
    }, {
      stablehlo.return %zeros : !c
    }) : (tensor<i1>) -> !c
    return %0 : !c
  }
}
