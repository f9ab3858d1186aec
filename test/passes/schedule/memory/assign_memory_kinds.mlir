// RUN: pw-opt %s --split-input-file --pw-assign-memory-kinds | filecheck %s

// What a computation moves to the memory of the host is there for all that reads it, and a transfer keeps it
// there. A launch of the same computation with an operand in device memory is one of a variant.

!x = tensor<4xf32>
// CHECK-LABEL: module @offload
module @offload attributes {pw.form = "ordered"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  "pw.slice"() {sym_name = "s1", mesh = @mesh} : () -> ()
  "pw.channel"() {sym_name = "c0", src = @s0, dst = @s1, value_type = !x, capacity = 1} : () -> ()
  func.func @main(%x: !x {pw.slice = @s0}) -> (!x {mhlo.memory_kind = "pinned_host", pw.slice = @s1}, !x {pw.slice = @s0}) {
    %a = "pw.launch"(%x) {callee = @offload, slice = @s0, order = 0} : (!x) -> !x
    // CHECK: "pw.transfer"(%{{.*}}) {channel = @c0, memory_kind = "pinned_host"
    %b = "pw.transfer"(%a) {channel = @c0, slice = @s1, order = 1} : (!x) -> !x
    // CHECK: "pw.launch"(%{{.*}}) {callee = @twice, order = 0
    %c = "pw.launch"(%b) {callee = @twice, slice = @s1, order = 0} : (!x) -> !x
    // CHECK: "pw.launch"(%arg0) {callee = @twice_in_memory, order = 2
    %d = "pw.launch"(%x) {callee = @twice, slice = @s0, order = 2} : (!x) -> !x
    return %c, %d : !x, !x
  }
  // CHECK: func.func private @offload(%arg0: tensor<4xf32>) -> (tensor<4xf32> {mhlo.memory_kind = "pinned_host"})
  func.func private @offload(%x: !x) -> !x {
    %h = stablehlo.custom_call @annotate_device_placement(%x) {mhlo.frontend_attributes = {_xla_buffer_placement = "pinned_host"}} : (!x) -> !x
    return %h : !x
  }
  // CHECK: func.func private @twice_in_memory(%arg0: tensor<4xf32>) -> tensor<4xf32>
  // CHECK: func.func private @twice(%arg0: tensor<4xf32> {mhlo.memory_kind = "pinned_host"}) -> (tensor<4xf32> {mhlo.memory_kind = "pinned_host"})
  func.func private @twice(%x: !x) -> !x {
    %y = stablehlo.add %x, %x : !x
    return %y : !x
  }
}

// -----

// Rows that a loop puts into the memory of the host are there as the array that it carries, which starts from
// zeros. What is moved back is in device memory, as is what is computed from an array in `unpinned_host`, which
// is in no type of JAX.

!x = tensor<4xf32>
!i = tensor<i32>
// CHECK-LABEL: module @rows
module @rows attributes {pw.form = "ordered"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  func.func @main(%x: !x {mhlo.memory_kind = "unpinned_host", pw.slice = @s0}) -> (!x {mhlo.memory_kind = "pinned_host", pw.slice = @s0}, !x {pw.slice = @s0}, !x {pw.slice = @s0}) {
    %r, %b, %n = "pw.launch"(%x) {callee = @f, slice = @s0, order = 0} : (!x) -> (!x, !x, !x)
    return %r, %b, %n : !x, !x, !x
  }
  // CHECK: func.func private @f(%arg0: tensor<4xf32> {mhlo.memory_kind = "unpinned_host"}) -> (tensor<4xf32> {mhlo.memory_kind = "pinned_host"}, tensor<4xf32>, tensor<4xf32>)
  func.func private @f(%x: !x) -> (!x, !x, !x) {
    %zeros = stablehlo.constant dense<0.0> : !x
    %start = stablehlo.constant dense<0> : !i
    %end = stablehlo.constant dense<3> : !i
    %r:2 = stablehlo.while(%i = %start, %rows = %zeros) : !i, !x
    cond {
      %more = stablehlo.compare LT, %i, %end : (!i, !i) -> tensor<i1>
      stablehlo.return %more : tensor<i1>
    } do {
      %next = stablehlo.add %i, %i : !i
      %h = stablehlo.custom_call @annotate_device_placement(%x) {mhlo.frontend_attributes = {_xla_buffer_placement = "pinned_host"}} : (!x) -> !x
      %sum = stablehlo.add %rows, %h : !x
      stablehlo.return %next, %sum : !i, !x
    }
    %back = stablehlo.custom_call @annotate_device_placement(%r#1) {mhlo.frontend_attributes = {_xla_buffer_placement = "device"}} : (!x) -> !x
    %n = stablehlo.negate %x : !x
    return %r#1, %back, %n : !x, !x, !x
  }
}

// -----

// A result of the program is where its type says, whatever its computation does.

!x = tensor<4xf32>
// CHECK-LABEL: module @returned
module @returned attributes {pw.form = "ordered"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  func.func @main(%x: !x {pw.slice = @s0}) -> (!x {mhlo.memory_kind = "pinned_host", pw.slice = @s0}) {
    %a = "pw.launch"(%x) {callee = @f, slice = @s0, order = 0} : (!x) -> !x
    return %a : !x
  }
  // CHECK: func.func private @f(%arg0: tensor<4xf32>) -> (tensor<4xf32> {mhlo.memory_kind = "pinned_host"})
  func.func private @f(%x: !x) -> !x {
    %y = stablehlo.negate %x : !x
    return %y : !x
  }
}
