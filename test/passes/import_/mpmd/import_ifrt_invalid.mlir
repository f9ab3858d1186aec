// RUN: pw-opt %s --split-input-file --verify-diagnostics --pw-import-ifrt

// Only operations that Shardy's compiler makes have a meaning on slices.

!a = !ifrt.array<tensor<8xf32>, #ifrt.sharding_param<1 to [0] on 1>, [0]>
module @unknown_operation {
  func.func @main(%x: !a) -> !a attributes {ifrt.function} {
    // expected-error@+1 {{'ifrt.Disassemble' op cannot be imported; only ifrt.Call, ifrt.CopyArrays, ifrt.Reshard and ifrt.After can}}
    %0, %c = "ifrt.Disassemble"(%x) : (!a) -> (!a, !ifrt.control)
    return %0 : !a
  }
}

// -----

// Devices are numbers of those that the program was compiled for.

!a = !ifrt.array<tensor<8xf32>, #ifrt.sharding_param<2 to [0] on 2>, [0, 2]>
module @unknown_device {
  // expected-error@+1 {{'func.func' op has an array on device 2, but the program was compiled for 2 devices, which count from 0}}
  func.func @main(%x: !a) -> !a attributes {ifrt.function, pw.device_ids = array<i64: 5, 6>} {
    return %x : !a
  }
}

// -----

!a = !ifrt.array<tensor<8xf32>, #ifrt.sharding_param<1 to [0] on 1>, [0]>
module @devices_in_another_form {
  // expected-error@+1 {{'func.func' op expected `pw.device_ids` to be an array of i64, got [5]}}
  func.func @main(%x: !a) -> !a attributes {ifrt.function, pw.device_ids = [5]} {
    return %x : !a
  }
}

// -----

// Calls execute atom programs of the module, each with a function @main.

!a = !ifrt.array<tensor<8xf32>, #ifrt.sharding_param<1 to [0] on 1>, [0]>
module @missing_atom_program {
  func.func @main(%x: !a) -> !a attributes {ifrt.function} {
    // expected-error@+1 {{'ifrt.Call' op requires '@f::@main' to reference a valid `func.func`}}
    %0, %c = ifrt.Call @f::@main(%x) on devices [0] : (!a) -> !a
    return %0 : !a
  }
}

// -----

!a = !ifrt.array<tensor<8xf32>, #ifrt.sharding_param<1 to [0] on 1>, [0]>
module @atom_program_without_main {
  func.func @main(%x: !a) -> !a attributes {ifrt.function} {
    // expected-error@+1 {{'ifrt.Call' op calls @f::@g, which is not an atom program of the module}}
    %0, %c = ifrt.Call @f::@g(%x) on devices [0] : (!a) -> !a
    return %0 : !a
  }
  module @f <sym_visibility = "private"> {
    func.func @g(%x: tensor<8xf32>) -> tensor<8xf32> {
      return %x : tensor<8xf32>
    }
  }
}

// -----

// A value that is donated is not used again.

!a = !ifrt.array<tensor<8xf32>, #ifrt.sharding_param<1 to [0] on 1>, [0]>
!b = !ifrt.array<tensor<8xf32>, #ifrt.sharding_param<1 to [0] on 1>, [1]>
module @use_after_donation {
  func.func @main(%x: !a {ifrt.donated}) -> (!a, !b) attributes {ifrt.function} {
    %0, %c0 = ifrt.Call @f::@main(%x) on devices [0] <donated_input_indices = [0]> : (!a) -> !a
    // expected-error@+1 {{'ifrt.CopyArrays' op operand #0 was donated to an earlier operation}}
    %1, %c1 = ifrt.CopyArrays(%x) : (!a) -> !b
    return %0, %1 : !a, !b
  }
  module @f <sym_visibility = "private"> {
    func.func @main(%x: tensor<8xf32>) -> tensor<8xf32> {
      return %x : tensor<8xf32>
    }
  }
}

// -----

!a = !ifrt.array<tensor<8xf32>, #ifrt.sharding_param<1 to [0] on 1>, [0]>
!b = !ifrt.array<tensor<8xf32>, #ifrt.sharding_param<1 to [0] on 1>, [1]>
module @copy_donates {
  func.func @main(%x: !a {ifrt.donated}) -> (!a, !b) attributes {ifrt.function} {
    %1, %c1 = ifrt.CopyArrays(%x) <donated = true> : (!a) -> !b
    // expected-error@+1 {{'func.return' op operand #0 was donated to an earlier operation}}
    return %x, %1 : !a, !b
  }
}

// -----

// Types match: those of calls and of what they execute, and both sides of a copy.

!a = !ifrt.array<tensor<8xf32>, #ifrt.sharding_param<1 to [0] on 1>, [0]>
module @other_types {
  func.func @main(%x: !a) -> !a attributes {ifrt.function} {
    // expected-error@+1 {{'ifrt.Call' op requires the same global shape. Input #0 'tensor<8xf32>' vs Callee 'tensor<4xf32>'}}
    %0, %c = ifrt.Call @f::@main(%x) on devices [0] : (!a) -> !a
    return %0 : !a
  }
  module @f <sym_visibility = "private"> {
    func.func @main(%x: tensor<4xf32>) -> tensor<8xf32> {
      %0 = stablehlo.concatenate %x, %x, dim = 0 : (tensor<4xf32>, tensor<4xf32>) -> tensor<8xf32>
      return %0 : tensor<8xf32>
    }
  }
}

// -----

!a = !ifrt.array<tensor<8xf32>, #ifrt.sharding_param<1 to [0] on 1>, [0]>
!b = !ifrt.array<tensor<4xf32>, #ifrt.sharding_param<1 to [0] on 1>, [1]>
module @copy_of_other_type {
  func.func @main(%x: !a) -> !b attributes {ifrt.function} {
    // expected-error@+1 {{'ifrt.CopyArrays' op requires input #0 and output #0 to have the same shape and dtype}}
    %0, %c = ifrt.CopyArrays(%x) : (!a) -> !b
    return %0 : !b
  }
}

// -----

// Computations run where their arrays are.

!a = !ifrt.array<tensor<8xf32>, #ifrt.sharding_param<1 to [0] on 1>, [0]>
!b = !ifrt.array<tensor<8xf32>, #ifrt.sharding_param<1 to [0] on 1>, [1]>
module @elsewhere {
  func.func @main(%x: !a) -> !b attributes {ifrt.function} {
    // expected-error@+1 {{'ifrt.Call' op requires all outputs placed on `devices` attr}}
    %0, %c = ifrt.Call @f::@main(%x) on devices [0] : (!a) -> !b
    return %0 : !b
  }
  module @f <sym_visibility = "private"> {
    func.func @main(%x: tensor<8xf32>) -> tensor<8xf32> {
      return %x : tensor<8xf32>
    }
  }
}

// -----

!a = !ifrt.array<tensor<8xf32>, #ifrt.sharding_param<2 to [0] on 2>, [0, 1]>
!b = !ifrt.array<tensor<8xf32>, #ifrt.sharding_param<1 to [0] on 1>, [1]>
module @on_some_of_its_devices {
  func.func @main(%x: !a) -> !b attributes {ifrt.function} {
    // expected-error@+1 {{'ifrt.Call' op has an array on devices [1], which are not those that it runs on}}
    %0, %c = ifrt.Call @f::@main(%x) on devices [0, 1] : (!a) -> !b
    return %0 : !b
  }
  module @f <sym_visibility = "private"> {
    func.func @main(%x: tensor<8xf32>) -> tensor<8xf32> {
      return %x : tensor<8xf32>
    }
  }
}

// -----

// Values between computations are in the device's memory, in XLA's layout, whole, and in equal shards.

!a = !ifrt.array<tensor<8xf32>, #ifrt.sharding_param<1 to [0] on 1>, [0], memory_kind = "pinned_host">
module @host_memory {
  // expected-error@+1 {{'func.func' op argument #0 is in 'pinned_host' memory; only the default memory of the device is supported}}
  func.func @main(%x: !a) -> !a attributes {ifrt.function} {
    return %x : !a
  }
}

// -----

!a = !ifrt.array<tensor<8xf32>, #ifrt.sharding_param<1 to [0] on 2 unreduced [0]>, [0, 1]>
module @partial_sums {
  // expected-error@+1 {{'func.func' op argument #0 is in partial sums, which only Shardy adds up: 1 to [0] on 2}}
  func.func @main(%x: !a) -> !a attributes {ifrt.function} {
    return %x : !a
  }
}

// -----

!a = !ifrt.array<tensor<9xf32>, #ifrt.sharding_param<2 to [0] on 2>, [0, 1]>
module @uneven_shards {
  // expected-error@+1 {{'func.func' op argument #0 cannot be sharded over d0=2 as 2 to [0] on 2: dimension 0 of size 9 is not divisible by 2 (axes d0)}}
  func.func @main(%x: !a) -> !a attributes {ifrt.function} {
    return %x : !a
  }
}

// -----

// A slice has one mesh, of whole axes.

!a = !ifrt.array<tensor<8xf32>, #ifrt.sharding_param<2 to [0] on 4>, [0, 1, 2, 3]>
module @divided_axis {
  // expected-error@+1 {{'func.func' op argument #0 cannot be sharded over x=4 as 2 to [0] on 4: it divides an axis}}
  func.func @main(%x: !a) -> !a attributes {ifrt.function} {
    %0, %c = ifrt.Call @f::@main(%x) on devices [0, 1, 2, 3] : (!a) -> !a
    return %0 : !a
  }
  module @f <sym_visibility = "private"> {
    sdy.mesh @mesh = <["x"=4]>
    func.func @main(%x: tensor<8xf32>) -> tensor<8xf32> {
      return %x : tensor<8xf32>
    }
  }
}

// -----

!a = !ifrt.array<tensor<6xf32>, #ifrt.sharding_param<2 to [0] on 6>, [0, 1, 2, 3, 4, 5]>
!b = !ifrt.array<tensor<6xf32>, #ifrt.sharding_param<3 to [0] on 6>, [0, 1, 2, 3, 4, 5]>
module @no_one_mesh {
  // expected-error@+1 {{'func.func' op has shardings over devices [0, 1, 2, 3, 4, 5] for which there is no one mesh}}
  func.func @main(%x: !a, %y: !b) -> !a attributes {ifrt.function} {
    return %x : !a
  }
}

// -----

!a = !ifrt.array<tensor<8xf32>, #ifrt.sharding_param<2 to [0] on 2>, [0, 1]>
module @two_meshes {
  func.func @main(%x: !a) -> !a attributes {ifrt.function} {
    %0, %c0 = ifrt.Call @f::@main(%x) on devices [0, 1] : (!a) -> !a
    // expected-error@+1 {{'ifrt.Call' op is over the mesh y=2, but others on the same devices are over x=2}}
    %1, %c1 = ifrt.Call @g::@main(%0) on devices [0, 1] : (!a) -> !a
    return %1 : !a
  }
  module @f <sym_visibility = "private"> {
    sdy.mesh @mesh = <["x"=2]>
    func.func @main(%x: tensor<8xf32>) -> tensor<8xf32> {
      return %x : tensor<8xf32>
    }
  }
  module @g <sym_visibility = "private"> {
    sdy.mesh @mesh = <["y"=2]>
    func.func @main(%x: tensor<8xf32>) -> tensor<8xf32> {
      return %x : tensor<8xf32>
    }
  }
}

// -----

// Atom programs have functions with bodies, and meshes, alone.

!a = !ifrt.array<tensor<8xf32>, #ifrt.sharding_param<1 to [0] on 1>, [0]>
module @declared_only {
  func.func @main(%x: !a) -> !a attributes {ifrt.function} {
    %0, %c = ifrt.Call @f::@main(%x) on devices [0] : (!a) -> !a
    return %0 : !a
  }
  module @f <sym_visibility = "private"> {
    func.func @main(%x: tensor<8xf32>) -> tensor<8xf32> {
      %0 = call @g(%x) : (tensor<8xf32>) -> tensor<8xf32>
      return %0 : tensor<8xf32>
    }
    // expected-error@+1 {{'func.func' op is only declared}}
    func.func private @g(%x: tensor<8xf32>) -> tensor<8xf32>
  }
}

// -----

!a = !ifrt.array<tensor<8xf32>, #ifrt.sharding_param<1 to [0] on 1>, [0]>
module @nested_module {
  func.func @main(%x: !a) -> !a attributes {ifrt.function} {
    %0, %c = ifrt.Call @f::@main(%x) on devices [0] : (!a) -> !a
    return %0 : !a
  }
  module @f <sym_visibility = "private"> {
    func.func @main(%x: tensor<8xf32>) -> tensor<8xf32> {
      return %x : tensor<8xf32>
    }
    // expected-error@+1 {{'builtin.module' op is in an atom program, which may only have functions and meshes}}
    module @g {
    }
  }
}

// -----

// The program is one function, marked as such, whose values are arrays.

!a = !ifrt.array<tensor<8xf32>, #ifrt.sharding_param<1 to [0] on 1>, [0]>
module @other_name {
  // expected-error@+1 {{'func.func' op has the `ifrt.function`, but is @f; the program has to be @main}}
  func.func @f(%x: !a) -> !a attributes {ifrt.function} {
    return %x : !a
  }
}

// -----

module @plain_tensor {
  // expected-error@+1 {{'func.func' op argument #0 is a tensor<8xf32>, not an array on a mesh of the topology}}
  func.func @main(%x: tensor<8xf32>) -> tensor<8xf32> attributes {ifrt.function} {
    return %x : tensor<8xf32>
  }
}

// -----

!a = !ifrt.array<tensor<8xf32>, #ifrt.sharding_param<1 to [0] on 1>, [0]>
// expected-error@+1 {{'builtin.module' op has no function with an `ifrt.function`, the program}}
module @not_marked {
  func.func @main(%x: !a) -> !a {
    return %x : !a
  }
}
