// RUN: pw-opt %s --split-input-file --verify-diagnostics --pw-unroll-microbatches

// A microbatch must divide by the devices that its rows are split over, as the batch does.

!x = tensor<12x4xf32>
!b = tensor<3x4xf32>
module @rows_that_do_not_divide attributes {pw.form = "placed"} {
  sdy.mesh @mesh = <["data"=2, "model"=2]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  "pw.loop"() {sym_name = "batch", count = 4} : () -> ()
  func.func @main(%x: !x {pw.slice = @s0, sdy.sharding = #sdy.sharding<@mesh, [{"data"}, {}]>}) -> (!b {pw.slice = @s0}) {
    // expected-error@+1 {{cuts microbatches of 3 rows, which do not divide by 2 (axes data of @s0)}}
    %b = "pw.split"(%x) {loop = @batch, slice = @s0, sharding = #sdy.sharding<@mesh, [{"data"}, {}]>} : (!x) -> !b
    %y = "pw.launch"(%b) {callee = @f, loop = @batch, slice = @s0} : (!b) -> !b
    %s = "pw.reduce"(%y) {kind = "sum", loop = @batch, slice = @s0} : (!b) -> !b
    return %s : !b
  }
  func.func private @f(%b: !b {sdy.sharding = #sdy.sharding<@mesh, [{"data"}, {}]>}) -> !b {
    return %b : !b
  }
}
