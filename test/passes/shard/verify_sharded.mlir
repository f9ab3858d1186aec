// RUN: pw-opt %s --split-input-file --pw-verify-sharded | filecheck %s

// The value lies on the other slice device by device as it lies on this one: its shards can be copied as they
// are.

!x = tensor<8xf32>
// CHECK: module @alike attributes {pw.form = "sharded"}
module @alike attributes {pw.form = "placed"} {
  sdy.mesh @mesh = <["x"=2]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  "pw.slice"() {sym_name = "s1", mesh = @mesh} : () -> ()
  func.func @main(%x: !x {pw.slice = @s0, sdy.sharding = #sdy.sharding<@mesh, [{"x"}]>}) -> (!x {pw.slice = @s1}) {
    %y = "pw.transfer"(%x) {slice = @s1, sharding = #sdy.sharding<@mesh, [{"x"}]>} : (!x) -> !x
    return %y : !x
  }
}
