// RUN: pw-opt %s --split-input-file --pw-import-mpmd | filecheck %s

// What Shardy exports: each mesh is a slice, equal ones share an `sdy.mesh`, calls are launches in their order.
// Donation by the caller stays, that of computations goes. A sharding is that of the type; without one a value
// is replicated.

!m = !mpmd.mesh_tensor<"mesh1", tensor<8x4xf32>, sharding=<@mesh, [{"x"}, {}]>>
!n = !mpmd.mesh_tensor<"mesh2", tensor<8x4xf32>>
// CHECK-LABEL: module @exported
// CHECK-SAME: pw.form = "placed"
module @exported {
  sdy.mesh @mesh = <["x"=2]>
  // CHECK: "pw.slice"() {mesh = @mesh, sym_name = "mesh1"}
  // CHECK: "pw.slice"() {mesh = @mesh, sym_name = "mesh2"}
  // CHECK: func.func public @main(%arg0: tensor<8x4xf32>
  // CHECK-SAME: pw.donated, pw.slice = @mesh1, sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>
  // CHECK-SAME: -> (tensor<8x4xf32> {jax.result_info = "y", pw.slice = @mesh2, sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>
  // CHECK-NOT: topology
  func.func public @main(%x: !m {jax.buffer_donor = true}) -> (!n {jax.result_info = "y"})
      attributes {topology = #mpmd.topology<<"mesh1" : <["x"=2]>>, <"mesh2" : <["x"=2]>>>} {
    // CHECK: %[[A:.*]] = "pw.launch"(%arg0) {callee = @f, origins = [{kind = "fwd"}], slice = @mesh1}
    %a = mpmd.fragment_call<mesh="mesh1", origin=["f"]> @f(%x) : (!m) -> !m
    // CHECK: %[[T:.*]] = "pw.transfer"(%[[A]]) {sharding = #sdy.sharding<@mesh, [{}, {}]>, slice = @mesh2}
    %t = mpmd.transfer %a : (!m) -> !n
    // CHECK: %[[B:.*]] = "pw.launch"(%[[T]]) {callee = @[[F1:.*]], origins = [{kind = "bwd"}], slice = @mesh2}
    %b = mpmd.fragment_call<mesh="mesh2", origin=["f"(1)]> @f(%t) : (!n) -> !n
    // CHECK: return %[[B]]
    return %b : !n
  }
  // The same function in another sharding is a variant of it.
  // CHECK: func.func private @[[F1]](%arg0: tensor<8x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>})
  // CHECK: func.func private @f(%arg0: tensor<8x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>})
  // CHECK-NOT: reserved_hbm_bytes
  func.func @f(%x: tensor<8x4xf32> {tf.aliasing_output = 0 : i32}) -> tensor<8x4xf32>
      attributes {mesh_shape = #sdy.mesh<["x"=2]>, reserved_hbm_bytes = 0 : i64} {
    %y = stablehlo.tanh %x : tensor<8x4xf32>
    return %y : tensor<8x4xf32>
  }
}

// -----

// What Shardy has not propagated through yet: bodies become functions, which say inside what fragments say of
// shardings. Origins keep the stage, the call number, the half of a backward and what is recomputed; what was
// inferred has none. Equal bodies become one function.

!m = !mpmd.mesh_tensor<"m/0", tensor<8x4xf32>>
// CHECK-LABEL: module @fragments
module @fragments {
  sdy.mesh @m_0 = <["x"=2]>
  // CHECK: "pw.slice"() {mesh = @m_0, sym_name = "m_0_1"}
  func.func @program(%x: !m) -> !m attributes {topology = #mpmd.topology<<"m/0" : <["x"=2]>>>} {
    // CHECK: "pw.launch"(%arg0) {callee = @f, origins = [{kind = "fwd", microbatch = 3 : i64, stage = 2 : i64}], slice = @m_0_1}
    %a = mpmd.fragment<mesh="m/0", origin=["f"], stage=2> (%x) {call_counter = 3 : ui32} (%v: tensor<8x4xf32>) {
      %0 = stablehlo.tanh %v : tensor<8x4xf32>
      mpmd.return %0 : tensor<8x4xf32>
    } : (!m) -> !m
    // CHECK: callee = @f, origins = [{kind = "recompute", stage = 2 : i64}]
    %b = mpmd.fragment<mesh="m/0", origin=["f"], stage=2> (%a) {remat} (%v: tensor<8x4xf32>) {
      %0 = stablehlo.tanh %v : tensor<8x4xf32>
      mpmd.return %0 : tensor<8x4xf32>
    } : (!m) -> !m
    // CHECK: callee = @f_bwd, origins = [{kind = "bwd", part = "input", stage = 2 : i64}]
    %c = mpmd.fragment<mesh="m/0", origin=["f"(1)], stage=2, in_shardings=[<@m_0, [{"x"}, {?}]>]> (%b) {split_keep_transferred} (%v: tensor<8x4xf32>) {
      %0 = stablehlo.negate %v : tensor<8x4xf32>
      mpmd.return %0 : tensor<8x4xf32>
    } : (!m) -> !m
    // CHECK: "pw.launch"({{.*}}) {callee = @glue, slice = @m_0_1}
    %d = mpmd.fragment<mesh="m/0", origin=[]> (%c) (%v: tensor<8x4xf32>) {
      %0 = stablehlo.add %v, %v : tensor<8x4xf32>
      mpmd.return %0 : tensor<8x4xf32>
    } : (!m) -> !m
    return %d : !m
  }
  // CHECK: func.func private @f_bwd
  // CHECK-NEXT: sdy.sharding_constraint %arg0 <@m_0, [{"x"}, {?}]>
}

// -----

// Glue is named after the function of the user from which most of its operations come, as that of `pw-outline` is; a
// call of it keeps its callee.

#program = loc("step"("train.py":20:4))
#update = loc(callsite("adam.<locals>.update_fn"("optimizers.py":7:8) at #program))
!m = !mpmd.mesh_tensor<"m", tensor<8x4xf32>>
// CHECK-LABEL: module @step
module @step {
  sdy.mesh @m = <["x"=2]>
  func.func @main(%x: !m) -> !m attributes {topology = #mpmd.topology<<"m" : <["x"=2]>>>} {
    // CHECK: "pw.launch"(%arg0) {callee = @"adam/update", slice = @m_1}
    %a = mpmd.fragment<mesh="m", origin=[]> (%x) (%v: tensor<8x4xf32>) {
      %0 = stablehlo.tanh %v : tensor<8x4xf32> loc("jit(step)/tanh"(#update))
      %1 = stablehlo.negate %0 : tensor<8x4xf32> loc("jit(step)/neg"(#update))
      mpmd.return %1 : tensor<8x4xf32>
    } : (!m) -> !m
    // CHECK: "pw.launch"({{.*}}) {callee = @"step/add", slice = @m_1}
    %b = mpmd.fragment<mesh="m", origin=[]> (%a) (%v: tensor<8x4xf32>) {
      %0 = stablehlo.add %v, %v : tensor<8x4xf32> loc("jit(step)/add"(#program))
      mpmd.return %0 : tensor<8x4xf32>
    } : (!m) -> !m
    // CHECK: "pw.launch"({{.*}}) {callee = @p2_inferred.step, slice = @m_1}
    %c = mpmd.fragment_call<mesh="m", origin=[]> @p2_inferred.step(%b) : (!m) -> !m
    return %c : !m
  }
  func.func @p2_inferred.step(%v: tensor<8x4xf32>) -> tensor<8x4xf32> attributes {mesh_shape = #sdy.mesh<["x"=2]>} {
    %0 = stablehlo.abs %v : tensor<8x4xf32>
    return %0 : tensor<8x4xf32>
  }
}

// -----

// Within a mesh, and once more to a mesh that has the value already, a transfer is a launch that reshards; in
// the same sharding it is the value itself.

!a = !mpmd.mesh_tensor<"a", tensor<4xf32>, sharding=<@mesh, [{"x"}]>>
!r = !mpmd.mesh_tensor<"a", tensor<4xf32>>
!b = !mpmd.mesh_tensor<"b", tensor<4xf32>, sharding=<@mesh, [{"x"}]>>
!s = !mpmd.mesh_tensor<"b", tensor<4xf32>>
// CHECK-LABEL: module @reshards
module @reshards {
  sdy.mesh @mesh = <["x"=2]>
  func.func @main(%x: !a) -> (!r, !b, !s, !b) attributes {topology = #mpmd.topology<<"a" : <["x"=2]>>, <"b" : <["x"=2]>>>} {
    // CHECK: %[[R:.*]] = "pw.launch"(%arg0) {callee = @reshard, slice = @a}
    %r = mpmd.transfer %x : (!a) -> !r
    // CHECK-NEXT: %[[B:.*]] = "pw.transfer"(%arg0)
    %b = mpmd.transfer %x : (!a) -> !b
    // CHECK-NEXT: %[[S:.*]] = "pw.launch"(%[[B]]) {callee = @reshard, slice = @b}
    %s = mpmd.transfer %x : (!a) -> !s
    %again = mpmd.transfer %x : (!a) -> !b
    // CHECK-NEXT: return %[[R]], %[[B]], %[[S]], %[[B]]
    return %r, %b, %s, %again : !r, !b, !s, !b
  }
}

// -----

// Beside bodies it says inside how values lie, as these do; a transfer to a type without a sharding leaves that to
// propagation.

!o = !mpmd.mesh_tensor<"a", tensor<4x4xf32>>
!b = !mpmd.mesh_tensor<"a", tensor<4x4xf32>, sharding=<@mesh, [{}, {"x"}]>>
!c = !mpmd.mesh_tensor<"a", tensor<4x4xf32>, sharding=<@mesh, [{"x"}, {}]>>
!p = !mpmd.mesh_tensor<"b", tensor<4x4xf32>>
!q = !mpmd.mesh_tensor<"b", tensor<4x4xf32>, sharding=<@mesh, [{"x"}, {}]>>
// CHECK-LABEL: module @reshards_beside_bodies
module @reshards_beside_bodies {
  sdy.mesh @mesh = <["x"=2]>
  func.func @main(%x: !c) -> (!c, !q, !p, !p, !q) attributes {topology = #mpmd.topology<<"a" : <["x"=2]>>, <"b" : <["x"=2]>>>} {
    %open = mpmd.transfer %x : (!c) -> !o
    // CHECK: %[[F:.*]]:2 = "pw.launch"(%arg0) {callee = @f
    %f:2 = mpmd.fragment<mesh="a", origin=["f"]> (%open) (%v: tensor<4x4xf32>) {
      %0 = stablehlo.tanh %v : tensor<4x4xf32>
      mpmd.return %0, %0 : tensor<4x4xf32>, tensor<4x4xf32>
    } : (!o) -> (!b, !o)
    // CHECK: %[[C:.*]] = "pw.launch"(%[[F]]#0) {callee = @[[AS_ROWS:.*]], slice = @a}
    %c = mpmd.transfer %f#0 : (!b) -> !c
    // CHECK: %[[Q:.*]] = "pw.transfer"(%[[F]]#0)
    %q = mpmd.transfer %f#0 : (!b) -> !q
    %p = mpmd.transfer %f#0 : (!b) -> !p
    // CHECK: %[[R:.*]] = "pw.transfer"(%[[F]]#1)
    %r = mpmd.transfer %f#1 : (!o) -> !p
    // CHECK: %[[S:.*]] = "pw.launch"(%[[R]]) {callee = @[[TO_ROWS:.*]], slice = @b}
    %s = mpmd.transfer %f#1 : (!o) -> !q
    // CHECK: return %[[C]], %[[Q]], %[[Q]], %[[R]], %[[S]]
    return %c, %q, %p, %r, %s : !c, !q, !p, !p, !q
  }
  // CHECK: func.func private @[[AS_ROWS]](%arg0: tensor<4x4xf32>) -> tensor<4x4xf32>
  // CHECK: sdy.sharding_constraint %arg0 <@mesh, [{}, {"x"}]>
  // CHECK: sdy.sharding_constraint %{{.*}} <@mesh, [{"x"}, {}]>
  // CHECK: func.func private @[[TO_ROWS]](%arg0: tensor<4x4xf32>) -> tensor<4x4xf32>
  // CHECK: sdy.sharding_constraint %arg0 <@mesh, [{"x"}, {}]>
}

// -----

// Meshes of one device have no shardings; those of other shapes have an `sdy.mesh` of their own, over which the
// shardings inside of computations are. Constraints without axes, of PRNG keys, go. A host callback runs on one
// device.

!m = !mpmd.mesh_tensor<"4", tensor<4xf32>>
// CHECK-LABEL: module @shapes
module @shapes {
  // CHECK-DAG: sdy.mesh @mesh = <["x"=2]>
  // CHECK-DAG: sdy.mesh @[[M4:mesh_1]] = <["x"=4]>
  // CHECK-DAG: sdy.mesh @[[M1:mesh_2]] = <["y"=1]>
  // CHECK-DAG: sdy.mesh @[[FIRST:.*]] = <[], device_ids=[0]>
  // CHECK-DAG: "pw.slice"() {mesh = @[[M4]], sym_name = "_4"}
  // CHECK-DAG: "pw.slice"() {mesh = @[[M1]], sym_name = "one"}
  sdy.mesh @mesh = <["x"=2]>
  sdy.mesh @empty = <[]>
  func.func @main(%x: !m, %k: !mpmd.mesh_tensor<"one", tensor<2xui32>, sharding=<@empty, [{}]>>) -> !m
      attributes {topology = #mpmd.topology<<"4" : <["x"=4]>>, <"one" : <["y"=1]>>>} {
    %y = mpmd.fragment_call<mesh="4", origin=["f"]> @f(%x) : (!m) -> !m
    return %y : !m
  }
  // CHECK: func.func private @f
  func.func @f(%x: tensor<4xf32>) -> tensor<4xf32> attributes {mesh_shape = #sdy.mesh<["x"=4]>} {
    // CHECK-NEXT: sdy.sharding_constraint %arg0 <@[[M4]], [{"x"}]>
    %0 = sdy.sharding_constraint %x <@mesh, [{"x"}]> : tensor<4xf32>
    // CHECK-NEXT: stablehlo.custom_call @xla_ffi_python_cpu_callback
    // CHECK-SAME: sdy.sharding = #sdy.sharding_per_value<[<@[[FIRST]], []>]>
    stablehlo.custom_call @xla_ffi_python_cpu_callback(%0) {has_side_effect = true} : (tensor<4xf32>) -> ()
    // CHECK-NEXT: return
    %1 = sdy.sharding_constraint %0 <@empty, [{}]> : tensor<4xf32>
    return %1 : tensor<4xf32>
  }
}
