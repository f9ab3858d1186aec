// RUN: pw-opt %s --split-input-file --verify-diagnostics --pw-verify-sharded

// The first device of @s1 needs all of the value, and would get half of it.

!x = tensor<8xf32>
module @unlike attributes {pw.form = "placed"} {
  sdy.mesh @mesh = <["x"=2]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  "pw.slice"() {sym_name = "s1", mesh = @mesh} : () -> ()
  func.func @main(%x: !x {pw.slice = @s0, sdy.sharding = #sdy.sharding<@mesh, [{"x"}]>}) -> (!x {pw.slice = @s1}) {
    // expected-error@+1 {{moves shards of @s0 that @s1 does not need; run pw-lower-transfers}}
    %y = "pw.transfer"(%x) {slice = @s1} : (!x) -> !x
    return %y : !x
  }
}

// -----

// Nothing is scheduled yet.

// expected-error@+1 {{'pw-verify-sharded' expects the form 'placed' or 'sharded', got 'outlined'}}
module @too_early attributes {pw.form = "outlined"} {
  func.func @main() {
    return
  }
}
