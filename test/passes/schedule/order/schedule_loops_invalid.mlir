// RUN: pw-opt %s --split-input-file --verify-diagnostics --pw-schedule

// A loop asks for a policy that does not exist.

!x = tensor<4xf32>
module @unknown_policy attributes {pw.form = "unrolled"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  // expected-error@+1 {{asks for unknown policy '1f2b'; did you mean '1f1b'?}}
  "pw.loop"() {sym_name = "l", count = 1 : i64, schedule = "1f2b"} : () -> ()
  func.func @main(%x: !x {pw.slice = @s0}) -> (!x {pw.slice = @s0}) {
    %a = "pw.launch"(%x) {callee = @f, loop = @l, microbatch = 0, origins = [{kind = "fwd", microbatch = 0, stage = 0}], slice = @s0} : (!x) -> !x
    return %a : !x
  }
  func.func private @f(!x) -> !x
}

// -----

// Stages are numbered against the flow of the data.

!x = tensor<4xf32>
module @stages_against_the_data attributes {pw.form = "unrolled"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  "pw.slice"() {sym_name = "s1", mesh = @mesh} : () -> ()
  "pw.loop"() {sym_name = "l", count = 1 : i64, schedule = "1f1b"} : () -> ()
  func.func @main(%x: !x {pw.slice = @s0}) -> (!x {pw.slice = @s1}) {
    %a = "pw.launch"(%x) {callee = @f, loop = @l, microbatch = 0, origins = [{kind = "fwd", microbatch = 0, stage = 1}], slice = @s0} : (!x) -> !x
    %t = "pw.transfer"(%a) {loop = @l, microbatch = 0, slice = @s1} : (!x) -> !x
    // expected-error@+1 {{belongs to stage 0 and reads results of stage 1; number stages in the order in which a microbatch goes through them}}
    %b = "pw.launch"(%t) {callee = @f, loop = @l, microbatch = 0, origins = [{kind = "fwd", microbatch = 0, stage = 0}], slice = @s1} : (!x) -> !x
    return %b : !x
  }
  func.func private @f(!x) -> !x
}

// -----

// A loop on one slice works, and says what it is not.

!x = tensor<4xf32>
module @one_slice attributes {pw.form = "unrolled"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  // expected-remark@+1 {{runs on @s0 alone: nothing is pipelined}}
  "pw.loop"() {sym_name = "l", count = 2 : i64, schedule = "interleaved-1f1b"} : () -> ()
  func.func @main(%x: !x {pw.slice = @s0}) -> (!x {pw.slice = @s0}) {
    %a0 = "pw.launch"(%x) {callee = @f, loop = @l, microbatch = 0, origins = [{kind = "fwd", microbatch = 0, stage = 0}], slice = @s0} : (!x) -> !x
    %b0 = "pw.launch"(%a0) {callee = @f, loop = @l, microbatch = 0, origins = [{kind = "bwd", microbatch = 0, stage = 0}], slice = @s0} : (!x) -> !x
    %a1 = "pw.launch"(%x) {callee = @f, loop = @l, microbatch = 1, origins = [{kind = "fwd", microbatch = 1, stage = 0}], slice = @s0} : (!x) -> !x
    %b1 = "pw.launch"(%a1) {callee = @f, loop = @l, microbatch = 1, origins = [{kind = "bwd", microbatch = 1, stage = 0}], slice = @s0} : (!x) -> !x
    %r = "pw.reduce"(%b0, %b1) {kind = "sum", loop = @l, slice = @s0} : (!x, !x) -> !x
    return %r : !x
  }
  func.func private @f(!x) -> !x
}

// -----

// Two slices of two stages want an even number of microbatches to interleave.

!x = tensor<4xf32>
module @three_microbatches attributes {pw.form = "unrolled"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  "pw.slice"() {sym_name = "s1", mesh = @mesh} : () -> ()
  // expected-error@+1 {{cannot be scheduled by 'interleaved-1f1b', which needs a multiple of 2 microbatches, the number of slices, got 1}}
  "pw.loop"() {sym_name = "l", count = 1 : i64, schedule = "interleaved-1f1b"} : () -> ()
  func.func @main(%x: !x {pw.slice = @s0}) -> (!x {pw.slice = @s1}) {
    %a = "pw.launch"(%x) {callee = @f, loop = @l, microbatch = 0, origins = [{kind = "fwd", microbatch = 0, stage = 0}], slice = @s0} : (!x) -> !x
    %t = "pw.transfer"(%a) {loop = @l, microbatch = 0, slice = @s1} : (!x) -> !x
    %b = "pw.launch"(%t) {callee = @f, loop = @l, microbatch = 0, origins = [{kind = "fwd", microbatch = 0, stage = 1}], slice = @s1} : (!x) -> !x
    %u = "pw.transfer"(%b) {loop = @l, microbatch = 0, slice = @s0} : (!x) -> !x
    %c = "pw.launch"(%u) {callee = @f, loop = @l, microbatch = 0, origins = [{kind = "fwd", microbatch = 0, stage = 2}], slice = @s0} : (!x) -> !x
    %v = "pw.transfer"(%c) {loop = @l, microbatch = 0, slice = @s1} : (!x) -> !x
    %d = "pw.launch"(%v) {callee = @f, loop = @l, microbatch = 0, origins = [{kind = "fwd", microbatch = 0, stage = 3}], slice = @s1} : (!x) -> !x
    return %d : !x
  }
  func.func private @f(!x) -> !x
}

// -----

// A stage is on one slice.

!x = tensor<4xf32>
module @stage_on_two_slices attributes {pw.form = "unrolled"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  "pw.slice"() {sym_name = "s1", mesh = @mesh} : () -> ()
  "pw.loop"() {sym_name = "l", count = 1 : i64, schedule = "1f1b"} : () -> ()
  func.func @main(%x: !x {pw.slice = @s0}) -> (!x {pw.slice = @s1}) {
    %a = "pw.launch"(%x) {callee = @f, loop = @l, microbatch = 0, origins = [{kind = "fwd", microbatch = 0, stage = 0}], slice = @s0} : (!x) -> !x
    %t = "pw.transfer"(%a) {loop = @l, microbatch = 0, slice = @s1} : (!x) -> !x
    // expected-error@+1 {{puts stage 0 on @s1, but it is on @s0 already}}
    %b = "pw.launch"(%t) {callee = @f, loop = @l, microbatch = 0, origins = [{kind = "fwd", microbatch = 0, stage = 0}], slice = @s1} : (!x) -> !x
    return %b : !x
  }
  func.func private @f(!x) -> !x
}

// -----

// A stage that comes both before and after another one.

!x = tensor<4xf32>
module @there_and_back attributes {pw.form = "unrolled"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  "pw.slice"() {sym_name = "s1", mesh = @mesh} : () -> ()
  "pw.loop"() {sym_name = "l", count = 1 : i64, schedule = "gpipe"} : () -> ()
  func.func @main(%x: !x {pw.slice = @s0}) -> (!x {pw.slice = @s0}) {
    %a = "pw.launch"(%x) {callee = @f, loop = @l, microbatch = 0, origins = [{kind = "fwd", microbatch = 0, stage = 0}], slice = @s0} : (!x) -> !x
    %t = "pw.transfer"(%a) {loop = @l, microbatch = 0, slice = @s1} : (!x) -> !x
    %b = "pw.launch"(%t) {callee = @f, loop = @l, microbatch = 0, origins = [{kind = "fwd", microbatch = 0, stage = 1}], slice = @s1} : (!x) -> !x
    %u = "pw.transfer"(%b) {loop = @l, microbatch = 0, slice = @s0} : (!x) -> !x
    // expected-error@+1 {{belongs to stage 0 and reads results of stage 1}}
    %c = "pw.launch"(%u) {callee = @f, loop = @l, microbatch = 0, origins = [{kind = "fwd", microbatch = 0, stage = 0}], slice = @s0} : (!x) -> !x
    return %c : !x
  }
  func.func private @f(!x) -> !x
}

// -----

// A microbatch that the loop does not have.

!x = tensor<4xf32>
module @unknown_microbatch attributes {pw.form = "unrolled"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  "pw.loop"() {sym_name = "l", count = 1 : i64} : () -> ()
  func.func @main(%x: !x {pw.slice = @s0}) -> (!x {pw.slice = @s0}) {
    // expected-error@+1 {{works on microbatch 1, but @l has 1}}
    %a = "pw.launch"(%x) {callee = @f, loop = @l, microbatch = 1, origins = [{kind = "fwd", microbatch = 1, stage = 0}], slice = @s0} : (!x) -> !x
    return %a : !x
  }
  func.func private @f(!x) -> !x
}

// -----

// The loop stands there once for all microbatches.

!x = tensor<4xf32>
module @not_unrolled attributes {pw.form = "unrolled"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  "pw.loop"() {sym_name = "l", count = 2 : i64} : () -> ()
  func.func @main(%x: !x {pw.slice = @s0}) -> (!x {pw.slice = @s0}) {
    // expected-error@+1 {{'pw.launch' op has `loop`, but no `microbatch`}}
    %a = "pw.launch"(%x) {callee = @f, loop = @l, origins = [{kind = "fwd", stage = 0}], slice = @s0} : (!x) -> !x
    %r = "pw.reduce"(%a) {kind = "sum", loop = @l, slice = @s0} : (!x) -> !x
    return %r : !x
  }
  func.func private @f(!x) -> !x
}

// -----

// What is neither in a loop nor before or after it.

!x = tensor<4xf32>
module @in_between attributes {pw.form = "unrolled"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  "pw.slice"() {sym_name = "s1", mesh = @mesh} : () -> ()
  "pw.loop"() {sym_name = "l", count = 1 : i64, schedule = "gpipe"} : () -> ()
  func.func @main(%x: !x {pw.slice = @s0}) -> (!x {pw.slice = @s1}) {
    %a = "pw.launch"(%x) {callee = @f, loop = @l, microbatch = 0, origins = [{kind = "fwd", microbatch = 0, stage = 0}], slice = @s0} : (!x) -> !x
    // expected-error@+1 {{is not part of @l, but reads results of it and makes what it reads}}
    %b = "pw.launch"(%a) {callee = @f, slice = @s0} : (!x) -> !x
    %t = "pw.transfer"(%b) {slice = @s1} : (!x) -> !x
    %c = "pw.launch"(%t) {callee = @f, loop = @l, microbatch = 0, origins = [{kind = "fwd", microbatch = 0, stage = 1}], slice = @s1} : (!x) -> !x
    return %c : !x
  }
  func.func private @f(!x) -> !x
}

// -----

// Two loops that need each other.

!x = tensor<4xf32>
module @two_loops attributes {pw.form = "unrolled"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  // expected-error@+1 {{needs results of @m, which needs results of this loop}}
  "pw.loop"() {sym_name = "l", count = 1 : i64, schedule = "gpipe"} : () -> ()
  "pw.loop"() {sym_name = "m", count = 1 : i64, schedule = "gpipe"} : () -> ()
  func.func @main(%x: !x {pw.slice = @s0}) -> (!x {pw.slice = @s0}) {
    %a = "pw.launch"(%x) {callee = @f, loop = @l, microbatch = 0, origins = [{kind = "fwd", microbatch = 0, stage = 0}], slice = @s0} : (!x) -> !x
    %b = "pw.launch"(%a) {callee = @f, loop = @m, microbatch = 0, origins = [{kind = "fwd", microbatch = 0, stage = 1}], slice = @s0} : (!x) -> !x
    %c = "pw.launch"(%b) {callee = @f, loop = @l, microbatch = 0, origins = [{kind = "fwd", microbatch = 0, stage = 2}], slice = @s0} : (!x) -> !x
    return %c : !x
  }
  func.func private @f(!x) -> !x
}

// -----

// A loop must not ask for any number of actions.
module attributes {pw.form = "unrolled"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  // expected-remark@below {{runs on @s0 alone}}
  // expected-error@below {{'pw.loop' op has 9 stages x 16384 microbatches; a policy orders at most 131072 actions}}
  "pw.loop"() {sym_name = "batch", count = 16384, schedule = "gpipe"} : () -> ()
  func.func @main(%x: tensor<4xf32> {pw.slice = @s0}) -> (tensor<4xf32> {pw.slice = @s0}) {
    %0 = "pw.launch"(%x) {callee = @f, loop = @batch, microbatch = 0, origins = [
      {kind = "fwd", microbatch = 0, stage = 0}, {kind = "fwd", microbatch = 0, stage = 1},
      {kind = "fwd", microbatch = 0, stage = 2}, {kind = "fwd", microbatch = 0, stage = 3},
      {kind = "fwd", microbatch = 0, stage = 4}, {kind = "fwd", microbatch = 0, stage = 5},
      {kind = "fwd", microbatch = 0, stage = 6}, {kind = "fwd", microbatch = 0, stage = 7},
      {kind = "fwd", microbatch = 0, stage = 8}], slice = @s0} : (tensor<4xf32>) -> tensor<4xf32>
    return %x : tensor<4xf32>
  }
  func.func private @f(tensor<4xf32>) -> tensor<4xf32>
}
