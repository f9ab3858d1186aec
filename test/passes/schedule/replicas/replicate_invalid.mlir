// RUN: pw-opt %s --split-input-file --verify-diagnostics -p pw-replicate

// Every replica works on as many microbatches.
module {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {mesh = @mesh, replicas = 2, sym_name = "s0"} : () -> ()
  // expected-error@below {{has 3 microbatches, which is not divisible by 2 replicas}}
  "pw.loop"() {count = 3, sym_name = "batch"} : () -> ()
  func.func public @main(%x: tensor<4xf32> {pw.slice = @s0}) -> (tensor<4xf32> {pw.slice = @s0}) {
    return %x : tensor<4xf32>
  }
}

// -----

// A program has one number of replicas.
module {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {mesh = @mesh, replicas = 2, sym_name = "s0"} : () -> ()
  // expected-error@below {{asks for 3 replicas, but @s0 for 2}}
  "pw.slice"() {mesh = @mesh, replicas = 3, sym_name = "s1"} : () -> ()
  func.func public @main(%x: tensor<4xf32> {pw.slice = @s0}) -> (tensor<4xf32> {pw.slice = @s0}) {
    return %x : tensor<4xf32>
  }
}
