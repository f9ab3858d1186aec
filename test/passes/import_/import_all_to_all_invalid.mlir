// RUN: pw-opt %s --split-input-file --verify-diagnostics --pw-import

// A block comes from a placed call, whose slice takes part; each slice does so once.
module @blocks {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {mesh = @mesh, sym_name = "s0"} : () -> ()
  "pw.slice"() {mesh = @mesh, sym_name = "s1"} : () -> ()
  func.func public @main(%x: tensor<2xf32>) -> (tensor<2xf32>, tensor<2xf32>) {
    %0 = call @f(%x) {mhlo.frontend_attributes = {pw.slice = "s0"}} : (tensor<2xf32>) -> tensor<2xf32>
    // expected-error@below {{exchanges block 1 of type tensor<2xf32>, which is on no slice: let a function placed by pw.jit return it, whose slice takes part}}
    %1:2 = call @exchange(%0, %x) {mhlo.frontend_attributes = {pw.exchange = "1"}} : (tensor<2xf32>, tensor<2xf32>) -> (tensor<2xf32>, tensor<2xf32>)
    return %1#0, %1#1 : tensor<2xf32>, tensor<2xf32>
  }
  func.func private @f(%x: tensor<2xf32>) -> tensor<2xf32> {
    return %x : tensor<2xf32>
  }
  func.func private @exchange(%x: tensor<2xf32>, %y: tensor<2xf32>) -> (tensor<2xf32>, tensor<2xf32>) {
    return %x, %y : tensor<2xf32>, tensor<2xf32>
  }
}

// -----

module @twice {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {mesh = @mesh, sym_name = "s0"} : () -> ()
  func.func public @main(%x: tensor<2xf32>) -> (tensor<2xf32>, tensor<2xf32>) {
    %0 = call @f(%x) {mhlo.frontend_attributes = {pw.slice = "s0"}} : (tensor<2xf32>) -> tensor<2xf32>
    %1 = stablehlo.negate %0 : tensor<2xf32>
    // expected-error@below {{exchanges block 1 of type tensor<2xf32> on @s0, where block 0 is already: each slice takes part once, so place one of them on another slice}}
    %2:2 = call @exchange(%0, %1) {mhlo.frontend_attributes = {pw.exchange = "1"}} : (tensor<2xf32>, tensor<2xf32>) -> (tensor<2xf32>, tensor<2xf32>)
    return %2#0, %2#1 : tensor<2xf32>, tensor<2xf32>
  }
  func.func private @f(%x: tensor<2xf32>) -> tensor<2xf32> {
    return %x : tensor<2xf32>
  }
  func.func private @exchange(%x: tensor<2xf32>, %y: tensor<2xf32>) -> (tensor<2xf32>, tensor<2xf32>) {
    return %x, %y : tensor<2xf32>, tensor<2xf32>
  }
}

// -----

// Metadata that the front end does not write.
module @strange {
  func.func public @main(%x: tensor<2xf32>) -> tensor<2xf32> {
    // expected-error@below {{exchanges 1 blocks, but has 2 results}}
    %0:2 = call @two(%x) {mhlo.frontend_attributes = {pw.exchange = "1"}} : (tensor<2xf32>) -> (tensor<2xf32>, tensor<2xf32>)
    return %0#0 : tensor<2xf32>
  }
  func.func private @two(%x: tensor<2xf32>) -> (tensor<2xf32>, tensor<2xf32>) {
    return %x, %x : tensor<2xf32>, tensor<2xf32>
  }
}

// -----

module @strange {
  "pw.slice"() {mesh = @mesh, sym_name = "s0"} : () -> ()
  sdy.mesh @mesh = <["x"=1]>
  func.func public @main(%x: tensor<2xf32>) -> tensor<2xf32> {
    // expected-error@below {{metadata places or marks a call that exchanges blocks}}
    %0 = call @f(%x) {mhlo.frontend_attributes = {pw.exchange = "1", pw.slice = "s0"}} : (tensor<2xf32>) -> tensor<2xf32>
    return %0 : tensor<2xf32>
  }
  func.func private @f(%x: tensor<2xf32>) -> tensor<2xf32> {
    return %x : tensor<2xf32>
  }
}
