// RUN: pw-opt %s --split-input-file --verify-diagnostics -p pw-replicate

// Every replica works on as many microbatches.
module {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {mesh = @mesh, replicas = 2, sym_name = "s0"} : () -> ()
  // expected-error@below {{has 3 microbatches, which do not divide by 2 replicas}}
  "pw.loop"() {count = 3, sym_name = "batch"} : () -> ()
  func.func public @main(%x: tensor<4xf32> {pw.slice = @s0}) -> (tensor<4xf32> {pw.slice = @s0}) {
    return %x : tensor<4xf32>
  }
}

// -----

// What one microbatch hands on to the next would have to go from replica to replica.
module {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {mesh = @mesh, replicas = 2, sym_name = "s0"} : () -> ()
  "pw.loop"() {count = 4, sym_name = "batch"} : () -> ()
  func.func public @main(%x: tensor<4xf32> {pw.slice = @s0}) -> (tensor<4xf32> {pw.slice = @s0}) {
    // expected-error@below {{is handed on from microbatch to microbatch of @batch, but 2 replicas work on them at the same time}}
    %c = "pw.carry"(%x) {loop = @batch, slice = @s0} : (tensor<4xf32>) -> tensor<4xf32>
    %n = "pw.launch"(%c) {callee = @f, loop = @batch, slice = @s0} : (tensor<4xf32>) -> tensor<4xf32>
    %l = "pw.next"(%c, %n) {loop = @batch, slice = @s0} : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
    return %l : tensor<4xf32>
  }
  func.func private @f(%x: tensor<4xf32>) -> tensor<4xf32> {
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
