// RUN: pw-opt %s --split-input-file --verify-diagnostics --pw-import

// A loop whose body holds calls placed on two slices cannot run on either.

!x = tensor<4xf32>
module @loop_over_two_slices {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  "pw.slice"() {sym_name = "s1", mesh = @mesh} : () -> ()
  func.func public @main(%x: !x) -> !x {
    %zero = stablehlo.constant dense<0> : tensor<i32>
    %0:2 = stablehlo.while(%i = %zero, %a = %x) : tensor<i32>, !x
      cond {
        %c = stablehlo.compare LT, %i, %zero : (tensor<i32>, tensor<i32>) -> tensor<i1>
        stablehlo.return %c : tensor<i1>
      } do {
        %b = func.call @f(%a) {mhlo.frontend_attributes = {pw.slice = "s0", pw.name = "f"}} : (!x) -> !x
        // expected-error@+1 {{is placed on @s1 inside a loop or branch that also holds a call placed on @s0}}
        %c = func.call @f(%b) {mhlo.frontend_attributes = {pw.slice = "s1", pw.name = "f"}} : (!x) -> !x
        stablehlo.return %i, %c : tensor<i32>, !x
      }
    return %0#1 : !x
  }
  func.func private @f(%x: !x) -> !x {
    return %x : !x
  }
}

// -----

// A placed function cannot call a function of another slice.

!x = tensor<4xf32>
module @nested_on_another_slice {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  "pw.slice"() {sym_name = "s1", mesh = @mesh} : () -> ()
  func.func public @main(%x: !x) -> !x {
    %a = call @outer(%x) {mhlo.frontend_attributes = {pw.slice = "s0", pw.name = "outer"}} : (!x) -> !x
    return %a : !x
  }
  func.func private @outer(%x: !x) -> !x {
    // expected-error@+1 {{'inner' is placed on @s1 but called inside 'outer', which is placed on @s0}}
    %a = call @inner(%x) {mhlo.frontend_attributes = {pw.slice = "s1", pw.name = "inner"}} : (!x) -> !x
    return %a : !x
  }
  func.func private @inner(%x: !x) -> !x {
    return %x : !x
  }
}

// -----

// Metadata that names no slice of the module.

!x = tensor<4xf32>
module @unknown_slice {
  func.func public @main(%x: !x) -> !x {
    // expected-error@+1 {{is placed on @nowhere, but the module has no pw.slice of that name}}
    %a = call @f(%x) {mhlo.frontend_attributes = {pw.slice = "nowhere", pw.name = "f"}} : (!x) -> !x
    return %a : !x
  }
  func.func private @f(%x: !x) -> !x {
    return %x : !x
  }
}

// -----

// Ordered side effects thread a token through the program.

module @ordered_effect {
  // expected-error@+1 {{argument #0 is a !stablehlo.token: ordered side effects (ordered=True) cannot be kept in order over several slices}}
  func.func public @main(%t: !stablehlo.token) -> !stablehlo.token {
    return %t : !stablehlo.token
  }
}

// -----

// expected-error@+1 {{has no function @main, the program}}
module @no_main {
}
