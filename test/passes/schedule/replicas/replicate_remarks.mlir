// RUN: pw-opt %s --split-input-file --verify-diagnostics -p pw-replicate

// What waits for what microbatches hand on waits for all microbatches of the replica before. Of two launches one does.
module {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {mesh = @mesh, replicas = 2, sym_name = "s0"} : () -> ()
  "pw.loop"() {count = 4, sym_name = "batch"} : () -> ()
  func.func public @main(%state: tensor<2xf32> {pw.slice = @s0}, %x: tensor<8xf32> {pw.slice = @s0})
      -> (tensor<2xf32> {pw.slice = @s0}) {
    // expected-remark@below {{'pw.carry' op of type tensor<2xf32> is passed on from replica to replica: 1 of 2 launches of each microbatch of @batch wait for the replica before, until it has done its last microbatch}}
    %c = "pw.carry"(%state) {loop = @batch, slice = @s0} : (tensor<2xf32>) -> tensor<2xf32>
    %b = "pw.split"(%x) {loop = @batch, slice = @s0} : (tensor<8xf32>) -> tensor<2xf32>
    %h = "pw.launch"(%b) {callee = @f, loop = @batch, origins = [{kind = "fwd", stage = 0}], slice = @s0} : (tensor<2xf32>) -> tensor<2xf32>
    %n = "pw.launch"(%c, %h) {callee = @update, loop = @batch, slice = @s0} : (tensor<2xf32>, tensor<2xf32>) -> tensor<2xf32>
    %l = "pw.next"(%c, %n) {loop = @batch, slice = @s0} : (tensor<2xf32>, tensor<2xf32>) -> tensor<2xf32>
    return %l : tensor<2xf32>
  }
  func.func private @f(%x: tensor<2xf32>) -> tensor<2xf32> {
    return %x : tensor<2xf32>
  }
  func.func private @update(%s: tensor<2xf32>, %x: tensor<2xf32>) -> tensor<2xf32> {
    %n = stablehlo.maximum %s, %x : tensor<2xf32>
    return %n : tensor<2xf32>
  }
}

// -----

// What reads a key waits for the keys of the replica before, and for nothing that is made with them.
module {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {mesh = @mesh, replicas = 2, sym_name = "s0"} : () -> ()
  "pw.loop"() {count = 4, sym_name = "batch"} : () -> ()
  func.func public @main(%key: tensor<2xui32> {pw.slice = @s0}, %x: tensor<8xf32> {pw.slice = @s0})
      -> (tensor<2xui32> {pw.slice = @s0}, tensor<2xf32> {pw.slice = @s0}) {
    // expected-remark@below {{2 of 2 launches of each microbatch of @batch wait for the replica before, for its updates of this alone}}
    %c = "pw.carry"(%key) {loop = @batch, slice = @s0} : (tensor<2xui32>) -> tensor<2xui32>
    %b = "pw.split"(%x) {loop = @batch, slice = @s0} : (tensor<8xf32>) -> tensor<2xf32>
    %n = "pw.launch"(%c) {callee = @advance, loop = @batch, slice = @s0} : (tensor<2xui32>) -> tensor<2xui32>
    %h = "pw.launch"(%n, %b) {callee = @f, loop = @batch, origins = [{kind = "fwd", stage = 0}], slice = @s0} : (tensor<2xui32>, tensor<2xf32>) -> tensor<2xf32>
    %l = "pw.next"(%c, %n) {loop = @batch, slice = @s0} : (tensor<2xui32>, tensor<2xui32>) -> tensor<2xui32>
    %s = "pw.reduce"(%h) {kind = "sum", loop = @batch, slice = @s0} : (tensor<2xf32>) -> tensor<2xf32>
    %t = "pw.all_reduce"(%s) {slice = @s0} : (tensor<2xf32>) -> tensor<2xf32>
    return %l, %t : tensor<2xui32>, tensor<2xf32>
  }
  func.func private @advance(%k: tensor<2xui32>) -> tensor<2xui32> {
    %n = stablehlo.add %k, %k : tensor<2xui32>
    return %n : tensor<2xui32>
  }
  func.func private @f(%k: tensor<2xui32>, %x: tensor<2xf32>) -> tensor<2xf32> {
    return %x : tensor<2xf32>
  }
}
