// RUN: pw-opt %s --split-input-file --verify-diagnostics --pw-import-mpmd

// Only what Shardy has partitioned runs. Each operation that it removes is refused where it is.

module @named_computation {
  func.func @main(%x: !mpmd.mesh_tensor<"m", tensor<4xf32>>, %y: tensor<4xf32>) -> !mpmd.mesh_tensor<"m", tensor<4xf32>>
      attributes {topology = #mpmd.topology<<"m" : <["x"=1]>>>} {
    // expected-error@+1 {{'mpmd.named_computation' op is not partitioned yet: only what Shardy's `lower()` has split into fragments can run}}
    %0 = mpmd.named_computation<"f"> (%y) (%v: tensor<4xf32>) {
      mpmd.return %v : tensor<4xf32>
    } : (tensor<4xf32>) -> tensor<4xf32>
    return %x : !mpmd.mesh_tensor<"m", tensor<4xf32>>
  }
}

// -----

module @named_tensor {
  func.func @main(%y: tensor<4xf32>) -> tensor<4xf32> attributes {topology = #mpmd.topology<<"m" : <["x"=1]>>>} {
    // expected-error@+1 {{'mpmd.named_tensor' op is not partitioned yet}}
    %0 = mpmd.named_tensor %y name="t" : tensor<4xf32>
    return %0 : tensor<4xf32>
  }
}

// -----

module @call {
  func.func @main(%y: tensor<4xf32>) -> tensor<4xf32> attributes {topology = #mpmd.topology<<"m" : <["x"=1]>>>} {
    // expected-error@+1 {{'mpmd.call' op is not partitioned yet}}
    %0 = mpmd.call @f(%y) : (tensor<4xf32>) -> tensor<4xf32>
    return %0 : tensor<4xf32>
  }
  func.func private @f(%y: tensor<4xf32>) -> tensor<4xf32> attributes {topology = #mpmd.topology<<"m" : <["x"=1]>>>} {
    return %y : tensor<4xf32>
  }
}

// -----

module @for_loop {
  func.func @main(%y: tensor<4xui32>) -> tensor<4xui32> attributes {topology = #mpmd.topology<<"m" : <["x"=1]>>>} {
    // expected-error@+1 {{'mpmd.for' op is not partitioned yet}}
    %0 = mpmd.for (%y) {iterations = 3 : ui32} (%v: tensor<4xui32>, %i: tensor<ui32>) {
      mpmd.return %v : tensor<4xui32>
    } : tensor<4xui32>
    return %0 : tensor<4xui32>
  }
}

// -----

module @assign {
  func.func @main(%y: tensor<4xf32>) -> !mpmd.mesh_tensor<"m", tensor<4xf32>> attributes {topology = #mpmd.topology<<"m" : <["x"=1]>>>} {
    // expected-error@+1 {{'mpmd.assign' op is not partitioned yet}}
    %0 = mpmd.assign %y : (tensor<4xf32>) -> !mpmd.mesh_tensor<"m", tensor<4xf32>>
    return %0 : !mpmd.mesh_tensor<"m", tensor<4xf32>>
  }
}

// -----

module @unassign {
  func.func @main(%y: !mpmd.mesh_tensor<"m", tensor<4xf32>>) -> tensor<4xf32> attributes {topology = #mpmd.topology<<"m" : <["x"=1]>>>} {
    // expected-error@+1 {{'mpmd.unassign' op is not partitioned yet}}
    %0 = mpmd.unassign %y : (!mpmd.mesh_tensor<"m", tensor<4xf32>>) -> tensor<4xf32>
    return %0 : tensor<4xf32>
  }
}

// -----

module @broadcast {
  func.func @main(%y: tensor<4xf32>) -> tensor<4xf32> attributes {topology = #mpmd.topology<<"m" : <["x"=1]>>>} {
    // expected-error@+1 {{'mpmd.broadcast' op is not partitioned yet}}
    %0 = mpmd.broadcast %y : tensor<4xf32>
    return %0 : tensor<4xf32>
  }
}

// -----

module @reduce {
  func.func @main(%y: tensor<4xf32>) -> tensor<4xf32> attributes {topology = #mpmd.topology<<"m" : <["x"=1]>>>} {
    // expected-error@+1 {{'mpmd.reduce' op is not partitioned yet}}
    %0 = mpmd.reduce<add> %y, %y : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
    return %0 : tensor<4xf32>
  }
}

// -----

// The program is one function with a topology, whatever its name.

// expected-error@+1 {{'builtin.module' op has no function with a `topology`, the program}}
module @no_topology {
  func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
    return %x : tensor<4xf32>
  }
}

// -----

!m = !mpmd.mesh_tensor<"m", tensor<4xf32>>
module @two_topologies {
  func.func @main(%x: !m) -> !m attributes {topology = #mpmd.topology<<"m" : <["x"=1]>>>} {
    return %x : !m
  }
  // expected-error@+1 {{'func.func' op has a `topology`, as does another function: @main and @other; a program is one function}}
  func.func @other(%x: !m) -> !m attributes {topology = #mpmd.topology<<"m" : <["x"=1]>>>} {
    return %x : !m
  }
}

// -----

!m = !mpmd.mesh_tensor<"m", tensor<4xf32>>
module @another_main {
  // expected-error@+1 {{'func.func' op has the `topology`, but there is an @main besides it}}
  func.func @program(%x: !m) -> !m attributes {topology = #mpmd.topology<<"m" : <["x"=1]>>>} {
    return %x : !m
  }
  func.func @main() {
    return
  }
}

// -----

// Arrays are in the memory of devices, in XLA's layouts, on meshes of the topology.

!h = !mpmd.mesh_tensor<"m", tensor<4xf32>, memory_kind="pinned_host">
module @memory_kind {
  // expected-error@+1 {{'func.func' op argument args[0]['w'] is in 'pinned_host' memory; only the default memory of the device is supported}}
  func.func @main(%x: !h {jax.arg_info = "args[0]['w']"}) -> !h attributes {topology = #mpmd.topology<<"m" : <["x"=1]>>>} {
    return %x : !h
  }
}

// -----

!m = !mpmd.mesh_tensor<"m", tensor<4xf32>>
module @memory_kind_of_result {
  // expected-error@+1 {{'func.func' op result #0 is in 'unpinned_host' memory; only the default memory of the device is supported}}
  func.func @main(%x: !m) -> (!m {mhlo.memory_kind = "unpinned_host"}) attributes {topology = #mpmd.topology<<"m" : <["x"=1]>>>} {
    return %x : !m
  }
}

// -----

!m = !mpmd.mesh_tensor<"m", tensor<4xf32>>
module @layout {
  // expected-error@+1 {{'func.func' op argument #0 has the layout "{0,1}"; between computations only XLA's default is supported}}
  func.func @main(%x: !m {mhlo.layout_mode = "{0,1}"}) -> !m attributes {topology = #mpmd.topology<<"m" : <["x"=1]>>>} {
    return %x : !m
  }
}

// -----

!m = !mpmd.mesh_tensor<"m", tensor<4xf32>>
module @cpu_mesh {
  // expected-error@+1 {{'func.func' op has the mesh "m/cpu" of CPUs beside accelerators, which cannot become a slice}}
  func.func @main(%x: !m) -> !m attributes {topology = #mpmd.topology<<"m" : <["x"=1]>>, <"m/cpu" : <["x"=1]>>>} {
    return %x : !m
  }
}

// -----

!m = !mpmd.mesh_tensor<"m", tensor<4xf32>>
module @token {
  // expected-error@+1 {{'func.func' op argument #1 is a token: ordered side effects (ordered=True) cannot be kept in order over slices}}
  func.func @main(%x: !m, %t: !stablehlo.token) -> !m attributes {topology = #mpmd.topology<<"m" : <["x"=1]>>>} {
    return %x : !m
  }
}

// -----

!m = !mpmd.mesh_tensor<"m", tensor<4xf32>>
module @outside {
  func.func @main(%x: !m) -> !m attributes {topology = #mpmd.topology<<"m" : <["x"=1]>>>} {
    // expected-error@+1 {{'stablehlo.constant' op result #0 is a tensor<f32>, not an array on a mesh of the topology}}
    %c = stablehlo.constant dense<1.0> : tensor<f32>
    return %x : !m
  }
}

// -----

!u = !mpmd.mesh_tensor<"m", tensor<4xf32>, sharding=<@mesh, [{}], unreduced={"x"}>>
module @unreduced {
  sdy.mesh @mesh = <["x"=2]>
  // expected-error@+1 {{'func.func' op argument #0 has unreduced axes, partial sums that only Shardy adds up}}
  func.func @main(%x: !u) -> !u attributes {topology = #mpmd.topology<<"m" : <["x"=2]>>>} {
    return %x : !u
  }
}

// -----

// Shardy may split an axis, or a dimension that it does not divide; between computations whole axes are kept.

!m = !mpmd.mesh_tensor<"m", tensor<4x2xf32>, sharding=<@mesh, [{"x":(1)2}, {"y"}]>>
module @split_axis {
  sdy.mesh @mesh = <["x"=4, "y"=2]>
  // expected-remark@+1 {{argument #0 lies as #sdy.sharding<@mesh, [{"x":(1)2}, {"y"}]>, of which @m keeps the whole axes that divide it: [{}, {"y"}]}}
  func.func @main(%x: !m) -> !m attributes {topology = #mpmd.topology<<"m" : <["x"=4, "y"=2]>>>} {
    return %x : !m
  }
}

// -----

// What a fragment calls is there, with a body, and made for such a mesh. Of that MLIR's verifier says the first and
// the last.

!m = !mpmd.mesh_tensor<"m", tensor<4xf32>>
module @missing {
  func.func @main(%x: !m) -> !m attributes {topology = #mpmd.topology<<"m" : <["x"=2]>>>} {
    // expected-error@+1 {{'f' does not reference a valid function}}
    %0 = mpmd.fragment_call<mesh="m", origin=[]> @f(%x) : (!m) -> !m
    return %0 : !m
  }
}

// -----

!m = !mpmd.mesh_tensor<"m", tensor<4xf32>>
!n = !mpmd.mesh_tensor<"n", tensor<4xf32>>
module @unequal_meshes {
  func.func @main(%x: !m, %y: !n) -> (!m, !n) attributes {topology = #mpmd.topology<<"m" : <["x"=2]>>, <"n" : <["x"=4]>>>} {
    %0 = mpmd.fragment_call<mesh="m", origin=[]> @f(%x) : (!m) -> !m
    // expected-error@+1 {{Expected mesh of fragment call and callee function to match: #sdy.mesh<["x"=4]> vs #sdy.mesh<["x"=2]>}}
    %1 = mpmd.fragment_call<mesh="n", origin=[]> @f(%y) : (!n) -> !n
    return %0, %1 : !m, !n
  }
  func.func @f(%x: tensor<4xf32>) -> tensor<4xf32> attributes {mesh_shape = #sdy.mesh<["x"=2]>} {
    return %x : tensor<4xf32>
  }
}

// -----

!m = !mpmd.mesh_tensor<"m", tensor<4xf32>>
module @declared {
  func.func @main(%x: !m) -> !m attributes {topology = #mpmd.topology<<"m" : <["x"=2]>>>} {
    // expected-error@+1 {{'mpmd.fragment_call' op calls @f, which is only declared}}
    %0 = mpmd.fragment_call<mesh="m", origin=[]> @f(%x) : (!m) -> !m
    return %0 : !m
  }
  func.func private @f(%x: tensor<4xf32>) -> tensor<4xf32> attributes {mesh_shape = #sdy.mesh<["x"=2]>}
}
