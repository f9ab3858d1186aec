// RUN: pw-opt %s --split-input-file --pw-import-ifrt | filecheck %s

// Each list of devices is a slice, named by the mesh of its calls, and over the mesh of its computations. Calls are
// launches in their order, atom programs are functions. Donation by the caller stays, that of calls goes.

!a = !ifrt.array<tensor<8x4xf32>, #ifrt.sharding_param<2x1 to [0] on 2>, [0, 1]>
!b = !ifrt.array<tensor<8x4xf32>, #ifrt.sharding_param<2x1 to [0] on 2>, [2, 3]>
// CHECK-LABEL: module @calls_and_copies
// CHECK-SAME: pw.form = "placed"
module @calls_and_copies {
  // CHECK: "pw.slice"() {mesh = @mesh, sym_name = "first"}
  // CHECK: "pw.slice"() {mesh = @mesh, sym_name = "second"}
  // CHECK: sdy.mesh @mesh = <["x"=2]>
  // CHECK: func.func public @main(%arg0: tensor<8x4xf32>
  // CHECK-SAME: pw.donated, pw.slice = @first, sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>
  // CHECK-SAME: -> (tensor<8x4xf32> {jax.result_info = "y", pw.slice = @second, sdy.sharding
  // CHECK-NOT: ifrt
  func.func public @main(%x: !a {ifrt.donated}) -> (!b {jax.result_info = "y"}) attributes {ifrt.function} {
    // CHECK: %[[A:.*]] = "pw.launch"(%arg0) {callee = @f, slice = @first}
    %a, %c0 = ifrt.Call @f::@main(%x) on devices [0, 1] <donated_input_indices = [0]> {ifrt.mesh_name = "first"} : (!a) -> !a
    // CHECK: %[[T:.*]] = "pw.transfer"(%[[A]]) {sharding = #sdy.sharding<@mesh, [{"x"}, {}]>, slice = @second}
    %t, %c1 = ifrt.CopyArrays(%a) after %c0 : (!a) -> !b
    %c2 = "ifrt.After"(%t) : (!b) -> !ifrt.control
    // CHECK: %[[B:.*]] = "pw.launch"(%[[T]]) {callee = @g, slice = @second}
    %b, %c3 = ifrt.Call @g::@main(%t) after %c2 on devices [2, 3] {ifrt.mesh_name = "second"} : (!b) -> !b
    // CHECK: return %[[B]]
    return %b : !b
  }
  // CHECK: func.func private @f(%arg0: tensor<8x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>})
  // CHECK: call @f_helper
  module @f <sym_visibility = "private"> {
    sdy.mesh @mesh = <["x"=2]>
    func.func @main(%x: tensor<8x4xf32> {jax.buffer_donor = true}) -> tensor<8x4xf32> {
      %0 = call @helper(%x) : (tensor<8x4xf32>) -> tensor<8x4xf32>
      return %0 : tensor<8x4xf32>
    }
    func.func private @helper(%x: tensor<8x4xf32>) -> tensor<8x4xf32> {
      %0 = stablehlo.tanh %x : tensor<8x4xf32>
      return %0 : tensor<8x4xf32>
    }
  }
  module @g <sym_visibility = "private"> {
    sdy.mesh @mesh = <["x"=2]>
    func.func @main(%x: tensor<8x4xf32>) -> tensor<8x4xf32> {
      return %x : tensor<8x4xf32>
    }
  }
}

// -----

// Axes of devices are numbered from the minor one: these are the shardings of a mesh of x=2 and y=4 that are split
// along x and y, y and x, y, and y before x.

!xy = !ifrt.array<tensor<8x8xf32>, #ifrt.sharding_param<2x4 to [0] on 8>, [0, 1, 2, 3, 4, 5, 6, 7]>
!yx = !ifrt.array<tensor<8x8xf32>, #ifrt.sharding_param<4x2 to [1, 0] on 4x2>, [0, 1, 2, 3, 4, 5, 6, 7]>
!y = !ifrt.array<tensor<8x8xf32>, #ifrt.sharding_param<1x4 to [1, 0] on 4x2>, [0, 1, 2, 3, 4, 5, 6, 7]>
!both = !ifrt.array<tensor<8x8xf32>, #ifrt.sharding_param<8x1 to [1, 0] on 4x2>, [0, 1, 2, 3, 4, 5, 6, 7]>
// CHECK-LABEL: module @shardings
module @shardings {
  // CHECK: func.func public @main(
  // CHECK-SAME: {pw.slice = @slice, sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {"y"}]>}
  // CHECK-SAME: {pw.slice = @slice, sdy.sharding = #sdy.sharding<@mesh, [{"y"}, {"x"}]>}
  // CHECK-SAME: {pw.slice = @slice, sdy.sharding = #sdy.sharding<@mesh, [{}, {"y"}]>}
  // CHECK-SAME: {pw.slice = @slice, sdy.sharding = #sdy.sharding<@mesh, [{"y", "x"}, {}]>}
  sdy.mesh @mesh = <["x"=2, "y"=4]>
  func.func public @main(%0: !xy, %1: !yx, %2: !y, %3: !both) -> !xy attributes {ifrt.function} {
    return %0 : !xy
  }
}

// -----

// Without any mesh, it is the coarsest one over which all shardings use whole axes. Within a slice a launch reshards,
// once for each pair of shardings; a value is moved to another slice once.

!x = !ifrt.array<tensor<8x8xf32>, #ifrt.sharding_param<4x1 to [0] on 4>, [0, 1, 2, 3]>
!y = !ifrt.array<tensor<8x8xf32>, #ifrt.sharding_param<1x2 to [0] on 4>, [0, 1, 2, 3]>
!one = !ifrt.array<tensor<8x8xf32>, #ifrt.sharding_param<1x1 to [0] on 1>, [4]>
// CHECK-LABEL: module @no_mesh
module @no_mesh {
  // CHECK: sdy.mesh @mesh = <["d0"=2, "d1"=2]>
  // CHECK: func.func public @main(%arg0: tensor<8x8xf32> {pw.slice = @slice, sdy.sharding = #sdy.sharding<@mesh, [{"d0", "d1"}, {}]>}
  func.func public @main(%0: !x) -> (!y, !one, !one) attributes {ifrt.function} {
    // CHECK: %[[Y:.*]] = "pw.launch"(%arg0) {callee = @reshard, slice = @slice}
    %1, %c1 = ifrt.Reshard(%0) : (!x) -> !y
    // CHECK: %[[ONE:.*]] = "pw.transfer"(%[[Y]]) {slice = @slice_1}
    %2, %c2 = ifrt.Reshard(%1) : (!y) -> !one
    %3, %c3 = ifrt.Reshard(%1) : (!y) -> !one
    // CHECK: return %[[Y]], %[[ONE]], %[[ONE]]
    return %1, %2, %3 : !y, !one, !one
  }
}

// -----

// Shardy declares one mesh for computations on slices of other sizes: the sizes are those that the shardings of their
// arguments need. Slices that have a device of the process in common overlap.

!m = !ifrt.array<tensor<8x8xf32>, #ifrt.sharding_param<2x2 to [0] on 4>, [0, 1, 2, 3]>
!n = !ifrt.array<tensor<8x8xf32>, #ifrt.sharding_param<1x2 to [0] on 2>, [4, 5]>
// CHECK-LABEL: module @one_mesh_for_all
module @one_mesh_for_all {
  // CHECK: sdy.mesh @[[N:.*]] = <["x"=1, "y"=2]>
  // CHECK: "pw.slice"() {mesh = @mesh, overlap, sym_name = "slice"}
  // CHECK: "pw.slice"() {mesh = @[[N]], overlap, sym_name = "slice_1"}
  func.func public @main(%x: !m) -> !n attributes {ifrt.function, pw.device_ids = array<i64: 10, 11, 12, 13, 13, 15>} {
    %0, %c0 = ifrt.Call @f::@main(%x) on devices [0, 1, 2, 3] : (!m) -> !m
    %1, %c1 = ifrt.Reshard(%0) : (!m) -> !n
    %2, %c2 = ifrt.Call @g::@main(%1) on devices [4, 5] : (!n) -> !n
    return %2 : !n
  }
  module @f <sym_visibility = "private"> {
    sdy.mesh @mesh = <["x"=2, "y"=2]>
    func.func @main(%x: tensor<8x8xf32>) -> tensor<8x8xf32> {
      return %x : tensor<8x8xf32>
    }
  }
  // CHECK: func.func private @g(%arg0: tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@[[N]], [{}, {"y"}]>})
  // CHECK: sdy.sharding_constraint %arg0 <@[[N]], [{"y"}, {}]>
  module @g <sym_visibility = "private"> {
    sdy.mesh @mesh = <["x"=2, "y"=2]>
    func.func @main(%x: tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {"y"}]>}) -> tensor<8x8xf32> {
      %0 = sdy.sharding_constraint %x <@mesh, [{"y"}, {}]> : tensor<8x8xf32>
      return %0 : tensor<8x8xf32>
    }
  }
}

// -----

// A function that is called with other shardings is a variant of the first.

!r = !ifrt.array<tensor<8x8xf32>, #ifrt.sharding_param<2x1 to [0] on 2>, [0, 1]>
!c = !ifrt.array<tensor<8x8xf32>, #ifrt.sharding_param<1x2 to [0] on 2>, [0, 1]>
// CHECK-LABEL: module @variants
module @variants {
  func.func public @main(%x: !r, %y: !c) -> (!r, !c) attributes {ifrt.function} {
    // CHECK: callee = @f, slice = @slice
    %0, %c0 = ifrt.Call @f::@main(%x) on devices [0, 1] : (!r) -> !r
    // CHECK: callee = @f_1, slice = @slice
    %1, %c1 = ifrt.Call @f::@main(%y) on devices [0, 1] : (!c) -> !c
    return %0, %1 : !r, !c
  }
  module @f <sym_visibility = "private"> {
    func.func @main(%x: tensor<8x8xf32>) -> tensor<8x8xf32> {
      return %x : tensor<8x8xf32>
    }
  }
}
