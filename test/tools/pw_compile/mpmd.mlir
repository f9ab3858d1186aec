// RUN: pw-compile %s | filecheck %s
// RUN: pw-compile %s --compile-to=placed | filecheck %s --check-prefix=PLACED
// RUN: not pw-compile %s --schedule=1f1b 2>&1 | filecheck %s --check-prefix=ORDER

// ORDER: error: program '{{.*}}' keeps the order chosen by Shardy, so a schedule cannot be given

// What Shardy's MPMD compiler makes is taken as it is printed. Each fragment is a launch in the order of its
// schedule, also what it inferred, which would be fused with its neighbours in a program of ours.

!a = !mpmd.mesh_tensor<"a", tensor<4xf32>>
!b = !mpmd.mesh_tensor<"b", tensor<4xf32>>
// PLACED: pw.form = "placed"
// CHECK: module @step attributes {pw.form = "scheduled"
module @step {
  // CHECK-DAG: "pw.slice"() {{.*}}sym_name = "a"
  // CHECK-DAG: "pw.slice"() {{.*}}sym_name = "b"
  func.func @main(%x: !a {jax.buffer_donor = true}) -> !b attributes {topology = #mpmd.topology<<"a" : <["x"=1]>>, <"b" : <["x"=1]>>>} {
    // CHECK: "pw.launch"(%arg0) {callee = @f, order = 0 : i64, origins = [{kind = "fwd"}], slice = @a}
    %0 = mpmd.fragment_call<mesh="a", origin=["f"]> @f(%x) : (!a) -> !a
    // CHECK: "pw.launch"({{.*}}) {callee = @inferred, order = 1 : i64, slice = @a}
    %1 = mpmd.fragment_call<mesh="a", origin=[]> @inferred(%0) : (!a) -> !a
    // CHECK: "pw.transfer"({{.*}}) {channel = @c0, order = 2 : i64, slice = @b}
    %2 = mpmd.transfer %1 : (!a) -> !b
    return %2 : !b
  }
  func.func @f(%x: tensor<4xf32>) -> tensor<4xf32> attributes {mesh_shape = #sdy.mesh<["x"=1]>} {
    %y = stablehlo.tanh %x : tensor<4xf32>
    return %y : tensor<4xf32>
  }
  func.func @inferred(%x: tensor<4xf32>) -> tensor<4xf32> attributes {mesh_shape = #sdy.mesh<["x"=1]>} {
    %y = stablehlo.add %x, %x : tensor<4xf32>
    return %y : tensor<4xf32>
  }
}
