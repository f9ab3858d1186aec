// RUN: pw-opt %s --split-input-file --verify-diagnostics -p 'pw-propagate-shardings{replicated-bytes=4096}'

// Where two shardings meet, a remark says what is resharded, and where.

!x = tensor<16x16xf32>
module @conflict attributes {pw.form = "placed"} {
  sdy.mesh @mesh = <["data"=2]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  func.func @main(%x: !x {pw.slice = @s0, pw.spec = [["data"], []]}) -> (!x {pw.slice = @s0, pw.spec = [[], ["data"]]}) {
    // expected-remark@+1 {{'pw.launch' op two shardings meet: <@mesh, [{"data"}, {}]> is resharded to <@mesh, [{}, {"data"}]> on @s0}}
    %y = "pw.launch"(%x) {callee = @f, slice = @s0} : (!x) -> !x
    return %y : !x
  }
  func.func private @f(%x: !x) -> !x {
    %y = stablehlo.tanh %x : !x
    return %y : !x
  }
}

// -----

// Large values that end up on every device are named, from the size that the option gives.

!x = tensor<64x16xf32>
!y = tensor<63x16xf32>
module @replicated attributes {pw.form = "placed"} {
  sdy.mesh @mesh = <["data"=2]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  // expected-remark@+1 {{table of 4096 bytes is replicated over @s0}}
  func.func @main(%x: !x {pw.slice = @s0, jax.arg_info = "table"}, %small: !y {pw.slice = @s0}) -> (!x {pw.slice = @s0}, !y {pw.slice = @s0}) {
    // expected-remark@+1 {{result #0 of 4096 bytes is replicated over @s0}}
    %a:2 = "pw.launch"(%x, %small) {callee = @f, slice = @s0} : (!x, !y) -> (!x, !y)
    return %a#0, %a#1 : !x, !y
  }
  func.func private @f(%x: !x, %y: !y) -> (!x, !y) {
    %a = stablehlo.tanh %x : !x
    %b = stablehlo.tanh %y : !y
    return %a, %b : !x, !y
  }
}

// -----

// What a program says of its arguments is checked once their slice is known.

!x = tensor<15x16xf32>
module @does_not_divide attributes {pw.form = "placed"} {
  sdy.mesh @mesh = <["data"=2]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  // expected-error@+1 {{argument batch on @s0: dimension 0 of size 15 is not divisible by 2 (axes data)}}
  func.func @main(%x: !x {pw.slice = @s0, pw.spec = [["data"], []], jax.arg_info = "batch"}) -> (!x {pw.slice = @s0}) {
    return %x : !x
  }
}

// -----

!x = tensor<16x16xf32>
module @unknown_axis attributes {pw.form = "placed"} {
  sdy.mesh @mesh = <["data"=2]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  // expected-error@+1 {{result #0 on @s0: axis 'model' is not in the mesh, which has data}}
  func.func @main(%x: !x {pw.slice = @s0}) -> (!x {pw.slice = @s0, pw.spec = [["model"], []]}) {
    return %x : !x
  }
}

// -----

// A microbatch must divide by the devices that its rows are split over, as the batch does.

!x = tensor<12x4xf32>
!b = tensor<3x4xf32>
module @rows_that_do_not_divide attributes {pw.form = "placed"} {
  sdy.mesh @mesh = <["data"=2, "model"=2]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  "pw.loop"() {sym_name = "batch", count = 4} : () -> ()
  func.func @main(%x: !x {pw.slice = @s0, pw.spec = [["data"], []]}) -> (!b {pw.slice = @s0}) {
    // expected-error@+1 {{cuts microbatches of 3 rows, which do not divide by 2 (axes data of @s0)}}
    %b = "pw.split"(%x) {loop = @batch, slice = @s0} : (!x) -> !b
    %y = "pw.launch"(%b) {callee = @f, loop = @batch, slice = @s0} : (!b) -> !b
    %s = "pw.reduce"(%y) {kind = "sum", loop = @batch, slice = @s0} : (!b) -> !b
    return %s : !b
  }
  func.func private @f(%b: !b) -> !b {
    return %b : !b
  }
}
