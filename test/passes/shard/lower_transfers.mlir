// RUN: pw-opt %s --split-input-file --pw-lower-transfers | filecheck %s
// RUN: pw-opt %s --split-input-file -p 'pw-lower-transfers{islands=all gather-bytes=64}' | filecheck %s --check-prefix=APART
// RUN: pw-opt %s --split-input-file -p 'pw-lower-transfers{max-pieces=8}' | filecheck %s --check-prefix=FEW
// RUN: pw-opt %s --split-input-file -p 'pw-lower-transfers{max-pieces=8}' 2>&1 >/dev/null | filecheck %s --check-prefix=FEW-REMARK
// RUN: pw-opt %s --split-input-file --pw-lower-transfers 2>&1 >/dev/null | filecheck %s --check-prefix=REMARK

// Where device i of one slice holds what device i of the other needs, a transfer stays as it is, whatever the
// axes are called; a value that was cut for one slice is not cut again for another.

!x = tensor<8x4xf32>
// CHECK-LABEL: module @shard_by_shard
module @shard_by_shard attributes {pw.form = "placed"} {
  sdy.mesh @mesh_2x2 = <["a"=2, "b"=2]>
  sdy.mesh @mesh_4 = <["x"=4]>
  "pw.slice"() {mesh = @mesh_2x2, sym_name = "s0"} : () -> ()
  "pw.slice"() {mesh = @mesh_4, sym_name = "s1"} : () -> ()
  "pw.slice"() {mesh = @mesh_4, sym_name = "s2"} : () -> ()
  func.func public @main(%x: !x {pw.slice = @s0, sdy.sharding = #sdy.sharding<@mesh_2x2, [{"a", "b"}, {}]>},
                         %y: !x {pw.slice = @s0, sdy.sharding = #sdy.sharding<@mesh_2x2, [{"a"}, {"b"}]>})
      -> (!x {pw.slice = @s1, sdy.sharding = #sdy.sharding<@mesh_4, [{"x"}, {}]>},
          !x {pw.slice = @s1, sdy.sharding = #sdy.sharding<@mesh_4, [{"x"}, {}]>},
          !x {pw.slice = @s2, sdy.sharding = #sdy.sharding<@mesh_4, [{"x"}, {}]>}) {
    // CHECK: %[[X1:.*]] = "pw.transfer"(%arg0) {sharding = #sdy.sharding<@mesh_4, [{"x"}, {}]>, slice = @s1} : (tensor<8x4xf32>) -> tensor<8x4xf32>
    %x1 = "pw.transfer"(%x) {sharding = #sdy.sharding<@mesh_4, [{"x"}, {}]>, slice = @s1} : (!x) -> !x
    // CHECK-NEXT: %[[CUT:.*]]:2 = "pw.launch"(%arg1) {callee = @cut, slice = @s0}
    // CHECK-NEXT: %[[P1:.*]]:2 = "pw.transfer"(%[[CUT]]#0, %[[CUT]]#1)
    // CHECK-NEXT: %[[Y1:.*]] = "pw.launch"(%[[P1]]#0, %[[P1]]#1) {callee = @join, slice = @s1}
    %y1 = "pw.transfer"(%y) {sharding = #sdy.sharding<@mesh_4, [{"x"}, {}]>, slice = @s1} : (!x) -> !x
    // CHECK-NEXT: %[[P2:.*]]:2 = "pw.transfer"(%[[CUT]]#0, %[[CUT]]#1)
    // CHECK-NEXT: %[[Y2:.*]] = "pw.launch"(%[[P2]]#0, %[[P2]]#1) {callee = @join, slice = @s2}
    %y2 = "pw.transfer"(%y) {sharding = #sdy.sharding<@mesh_4, [{"x"}, {}]>, slice = @s2} : (!x) -> !x
    // CHECK-NEXT: return %[[X1]], %[[Y1]], %[[Y2]]
    return %x1, %y1, %y2 : !x, !x, !x
  }
}

// -----

// 4 devices to 2: nothing is cut; each device of the target joins the shards of two devices of the source.

!x = tensor<8x4xf32>
// CHECK-LABEL: module @four_to_two
module @four_to_two attributes {pw.form = "placed"} {
  sdy.mesh @mesh_4 = <["x"=4]>
  sdy.mesh @mesh_2 = <["x"=2]>
  "pw.slice"() {mesh = @mesh_4, sym_name = "s0"} : () -> ()
  "pw.slice"() {mesh = @mesh_2, sym_name = "s1"} : () -> ()
  func.func public @main(%x: !x {pw.slice = @s0, sdy.sharding = #sdy.sharding<@mesh_4, [{"x"}, {}]>})
      -> (!x {pw.slice = @s1, sdy.sharding = #sdy.sharding<@mesh_2, [{"x"}, {}]>}) {
    // CHECK: %[[P:.*]]:2 = "pw.transfer"(%arg0) {routes = array<i64: 0, 0, 0, 2, 0, 1, 0, 3>, sharding = #sdy.sharding<@mesh_2, [{"x"}, {}]>, slice = @s1} : (tensor<8x4xf32>) -> (tensor<4x4xf32>, tensor<4x4xf32>)
    // REMARK: lower_transfers.mlir:{{.*}}: remark: 'pw.transfer' op moves 128 bytes from @s0 (4 devices) to @s1 (2 devices) in 4 pieces
    %0 = "pw.transfer"(%x) {sharding = #sdy.sharding<@mesh_2, [{"x"}, {}]>, slice = @s1} : (!x) -> !x
    return %0 : !x
  }
  // CHECK: func.func private @join(%[[A:.*]]: tensor<4x4xf32> {sdy.sharding = #sdy.sharding<@mesh_2, [{"x"}, {}]>}, %[[B:.*]]: tensor<4x4xf32> {sdy.sharding = #sdy.sharding<@mesh_2, [{"x"}, {}]>}) -> (tensor<8x4xf32> {sdy.sharding = #sdy.sharding<@mesh_2, [{"x"}, {}]>})
  // CHECK-NEXT: %[[X:.*]] = sdy.manual_computation(%[[A]], %[[B]]) in_shardings=[<@mesh_2, [{"x"}, {}]>, <@mesh_2, [{"x"}, {}]>] out_shardings=[<@mesh_2, [{"x"}, {}]>] manual_axes={"x"} (%[[MINE_A:.*]]: tensor<2x4xf32>, %[[MINE_B:.*]]: tensor<2x4xf32>)
  // CHECK-NEXT: stablehlo.concatenate %[[MINE_A]], %[[MINE_B]], dim = 0 : (tensor<2x4xf32>, tensor<2x4xf32>) -> tensor<4x4xf32>
  // CHECK: return %[[X]]
}

// -----

// 2x2 tiles to 4 rows: tiles are cut along the rows, rows are joined along the columns. The pieces are logical
// arrays that lie as the value did.

!x = tensor<8x4xf32>
// CHECK-LABEL: module @grid_to_row
module @grid_to_row attributes {pw.form = "placed"} {
  sdy.mesh @mesh_2x2 = <["x"=2, "y"=2]>
  sdy.mesh @mesh_4 = <["z"=4]>
  "pw.slice"() {mesh = @mesh_2x2, sym_name = "s0"} : () -> ()
  "pw.slice"() {mesh = @mesh_4, sym_name = "s1"} : () -> ()
  func.func public @main(%x: !x {pw.slice = @s0, sdy.sharding = #sdy.sharding<@mesh_2x2, [{"x"}, {"y"}]>})
      -> (!x {pw.slice = @s1, sdy.sharding = #sdy.sharding<@mesh_4, [{"z"}, {}]>}) {
    // CHECK: "pw.transfer"({{.*}}) {routes = array<i64: 0, 0, 1, 0, 0, 2, 1, 2, 0, 1, 1, 1, 0, 3, 1, 3>, sharding = #sdy.sharding<@mesh_4, [{"z"}, {}]>, slice = @s1} : (tensor<4x4xf32>, tensor<4x4xf32>) -> (tensor<8x2xf32>, tensor<8x2xf32>)
    %0 = "pw.transfer"(%x) {sharding = #sdy.sharding<@mesh_4, [{"z"}, {}]>, slice = @s1} : (!x) -> !x
    return %0 : !x
  }
  // CHECK: func.func private @cut(%[[X:.*]]: {{.*}}) -> (tensor<4x4xf32> {sdy.sharding = #sdy.sharding<@mesh_2x2, [{"x"}, {"y"}]>}, tensor<4x4xf32> {sdy.sharding = #sdy.sharding<@mesh_2x2, [{"x"}, {"y"}]>})
  // CHECK-NEXT: sdy.manual_computation(%[[X]]) {{.*}} manual_axes={"x", "y"} (%[[MINE:.*]]: tensor<4x2xf32>)
  // CHECK-NEXT: stablehlo.slice %[[MINE]] [0:2, 0:2]
  // CHECK-NEXT: stablehlo.slice %[[MINE]] [2:4, 0:2]
  // CHECK: func.func private @join
  // CHECK-NEXT: sdy.manual_computation{{.*}} manual_axes={"z"} (%[[A:.*]]: tensor<2x2xf32>, %[[B:.*]]: tensor<2x2xf32>)
  // CHECK-NEXT: stablehlo.concatenate %[[A]], %[[B]], dim = 1
}

// -----

// A slice of one device has nothing written about it: a whole value is cut by plain slices.

!x = tensor<8x4xf32>
// CHECK-LABEL: module @one_to_two
module @one_to_two attributes {pw.form = "placed"} {
  sdy.mesh @mesh_1 = <["x"=1]>
  sdy.mesh @mesh_2 = <["x"=2]>
  "pw.slice"() {mesh = @mesh_1, sym_name = "s0"} : () -> ()
  "pw.slice"() {mesh = @mesh_2, sym_name = "s1"} : () -> ()
  func.func public @main(%x: !x {pw.slice = @s0}) -> (!x {pw.slice = @s1, sdy.sharding = #sdy.sharding<@mesh_2, [{}, {"x"}]>}) {
    // CHECK: "pw.transfer"({{.*}}) {routes = array<i64: 0, 0, 1, 0>, {{.*}}} : (tensor<8x2xf32>, tensor<8x2xf32>) -> tensor<8x4xf32>
    %0 = "pw.transfer"(%x) {sharding = #sdy.sharding<@mesh_2, [{}, {"x"}]>, slice = @s1} : (!x) -> !x
    return %0 : !x
  }
  // CHECK: func.func private @cut(%[[X:.*]]: tensor<8x4xf32>) -> (tensor<8x2xf32>, tensor<8x2xf32>)
  // CHECK-NEXT: stablehlo.slice %[[X]] [0:8, 0:2] : (tensor<8x4xf32>) -> tensor<8x2xf32>
  // CHECK-NEXT: stablehlo.slice %[[X]] [0:8, 2:4] : (tensor<8x4xf32>) -> tensor<8x2xf32>
}

// -----

// Axes that replicate the source share the work: each device keeps what it will send, and sends it to the
// device of its number.

!x = tensor<8x4xf32>
// CHECK-LABEL: module @narrowed
module @narrowed attributes {pw.form = "placed"} {
  sdy.mesh @mesh_4 = <["x"=4]>
  "pw.slice"() {mesh = @mesh_4, sym_name = "s0"} : () -> ()
  "pw.slice"() {mesh = @mesh_4, sym_name = "s1"} : () -> ()
  func.func public @main(%x: !x {pw.slice = @s0}) -> (!x {pw.slice = @s1, sdy.sharding = #sdy.sharding<@mesh_4, [{"x"}, {}]>}) {
    // CHECK: %[[MINE:.*]] = "pw.launch"(%arg0) {callee = @cut, slice = @s0}
    // CHECK-NEXT: "pw.transfer"(%[[MINE]]) {sharding = #sdy.sharding<@mesh_4, [{"x"}, {}]>, slice = @s1}
    %0 = "pw.transfer"(%x) {sharding = #sdy.sharding<@mesh_4, [{"x"}, {}]>, slice = @s1} : (!x) -> !x
    return %0 : !x
  }
  // CHECK: func.func private @cut({{.*}} {sdy.sharding = #sdy.sharding<@mesh_4, [{}, {}]>}) -> ({{.*}} {sdy.sharding = #sdy.sharding<@mesh_4, [{"x"}, {}]>})
  // CHECK-NEXT: sdy.sharding_constraint %{{.*}} <@mesh_4, [{"x"}, {}]>
}

// -----

// Devices that hold the same piece take turns: three devices get it from two.

!x = tensor<8x4xf32>
// CHECK-LABEL: module @replicas
// APART-LABEL: module @replicas
module @replicas attributes {pw.form = "placed"} {
  sdy.mesh @mesh_2 = <["x"=2]>
  sdy.mesh @mesh_3 = <["x"=3]>
  "pw.slice"() {mesh = @mesh_2, sym_name = "s0"} : () -> ()
  "pw.slice"() {mesh = @mesh_3, sym_name = "s1"} : () -> ()
  func.func public @main(%x: !x {pw.slice = @s0}) -> (!x {pw.slice = @s1}) {
    // CHECK: "pw.transfer"(%arg0) {routes = array<i64: 0, 0, 0, 1, 0, 0>, sharding = #sdy.sharding<@mesh_3, [{}, {}]>, slice = @s1}
    // No dimension divides by three, so that each gets a copy also from another island.
    // APART: "pw.transfer"(%arg0) {routes = array<i64: 0, 0, 0, 1, 0, 0>,
    %0 = "pw.transfer"(%x) {slice = @s1} : (!x) -> !x
    return %0 : !x
  }
}

// -----

// Between islands every byte of a large value that the target replicates crosses once: it is sent in parts,
// which the target gathers. Within an island every device gets a copy.

!x = tensor<8x4xf32>
// CHECK-LABEL: module @islands
// APART-LABEL: module @islands
module @islands attributes {pw.form = "placed"} {
  sdy.mesh @mesh_2 = <["x"=2]>
  sdy.mesh @mesh_2x2 = <["x"=2, "y"=2]>
  "pw.slice"() {mesh = @mesh_2, sym_name = "s0", island = "left"} : () -> ()
  "pw.slice"() {mesh = @mesh_2x2, sym_name = "s1", island = "right"} : () -> ()
  func.func public @main(%x: !x {pw.slice = @s0}, %y: !x {pw.slice = @s0}, %small: tensor<4xf32> {pw.slice = @s0})
      -> (!x {pw.slice = @s1}, !x {pw.slice = @s1}, tensor<4xf32> {pw.slice = @s1}) {
    // CHECK: "pw.transfer"(%arg0) {routes = array<i64: 0, 0, 0, 1, 0, 0, 0, 1>, {{.*}}, [{}, {}]>, slice = @s1}
    // APART: %[[CUT:.*]]:2 = "pw.launch"(%arg0)
    // APART-NEXT: %[[PART:.*]] = "pw.transfer"(%[[CUT]]#0, %[[CUT]]#1) {{.*}}, sharding = #sdy.sharding<@mesh_2x2, [{"x", "y"}, {}]>, slice = @s1}
    // APART-NEXT: %[[X:.*]] = "pw.launch"(%[[PART]]) {callee = @gather, slice = @s1}
    %0 = "pw.transfer"(%x) {slice = @s1} : (!x) -> !x
    // What is replicated along one axis crosses in as many parts.
    // APART: %[[Y:.*]] = "pw.launch"(%{{.*}}) {callee = @gather_1, slice = @s1}
    %1 = "pw.transfer"(%y) {sharding = #sdy.sharding<@mesh_2x2, [{"x"}, {}]>, slice = @s1} : (!x) -> !x
    // Small values are not worth a launch.
    // APART-NEXT: %[[S:.*]] = "pw.transfer"(%arg2) {routes = array<i64: 0, 0, 0, 1, 0, 0, 0, 1>,
    %2 = "pw.transfer"(%small) {slice = @s1} : (tensor<4xf32>) -> tensor<4xf32>
    // APART-NEXT: return %[[X]], %[[Y]], %[[S]]
    return %0, %1, %2 : !x, !x, tensor<4xf32>
  }
  // APART: func.func private @gather(%[[ARG:.*]]: tensor<8x4xf32> {sdy.sharding = #sdy.sharding<@mesh_2x2, [{"x", "y"}, {}]>}) -> (tensor<8x4xf32> {sdy.sharding = #sdy.sharding<@mesh_2x2, [{}, {}]>})
  // APART-NEXT: return %[[ARG]]
}

// -----

// Islands that have names differ without being told; a value that both slices replicate crosses shard by shard.

!x = tensor<512x64xf32>
// CHECK-LABEL: module @named_islands
module @named_islands attributes {pw.form = "placed"} {
  sdy.mesh @mesh_2 = <["x"=2]>
  "pw.slice"() {mesh = @mesh_2, sym_name = "s0", island = "left"} : () -> ()
  "pw.slice"() {mesh = @mesh_2, sym_name = "s1", island = "right"} : () -> ()
  func.func public @main(%x: !x {pw.slice = @s0}) -> (!x {pw.slice = @s1}) {
    // CHECK: %[[HALF:.*]] = "pw.launch"(%arg0) {callee = @cut
    // CHECK-NEXT: %[[SENT:.*]] = "pw.transfer"(%[[HALF]]) {sharding = #sdy.sharding<@mesh_2, [{"x"}, {}]>, slice = @s1}
    // CHECK-NEXT: "pw.launch"(%[[SENT]]) {callee = @gather
    %0 = "pw.transfer"(%x) {slice = @s1} : (!x) -> !x
    return %0 : !x
  }
}

// -----

// Shards that have too many pieces in common are gathered on the source first, once for all who get them. With
// a limit of 8, three devices gather what four get, and each sends quarters.

!x = tensor<12x4xf32>
// CHECK-LABEL: module @too_many
// FEW-LABEL: module @too_many
module @too_many attributes {pw.form = "placed"} {
  sdy.mesh @mesh_3 = <["x"=3]>
  sdy.mesh @mesh_4 = <["x"=4]>
  "pw.slice"() {mesh = @mesh_3, sym_name = "s0"} : () -> ()
  "pw.slice"() {mesh = @mesh_4, sym_name = "s1"} : () -> ()
  "pw.slice"() {mesh = @mesh_4, sym_name = "s2"} : () -> ()
  func.func public @main(%x: !x {pw.slice = @s0, sdy.sharding = #sdy.sharding<@mesh_3, [{"x"}, {}]>})
      -> (!x {pw.slice = @s1, sdy.sharding = #sdy.sharding<@mesh_4, [{"x"}, {}]>},
          !x {pw.slice = @s2, sdy.sharding = #sdy.sharding<@mesh_4, [{"x"}, {}]>}) {
    // CHECK-NOT: @gather
    // FEW: %[[WHOLE:.*]] = "pw.launch"(%arg0) {callee = @gather, slice = @s0}
    // FEW-NEXT: %[[CUT:.*]]:4 = "pw.launch"(%[[WHOLE]]) {callee = @cut, slice = @s0}
    // FEW-NEXT: "pw.transfer"(%[[CUT]]#0, {{.*}}) {routes = array<i64: 0, 0, 1, 1, 2, 2, 3, 0>,
    // FEW-REMARK: lower_transfers.mlir:{{.*}}: remark: 'pw.transfer' op gathers on @s0 first what would move in 12 pieces
    %0 = "pw.transfer"(%x) {sharding = #sdy.sharding<@mesh_4, [{"x"}, {}]>, slice = @s1} : (!x) -> !x
    // FEW-NEXT: "pw.transfer"(%[[CUT]]#0, {{.*}}) {routes = array<i64: 0, 0, 1, 1, 2, 2, 3, 0>,
    %1 = "pw.transfer"(%x) {sharding = #sdy.sharding<@mesh_4, [{"x"}, {}]>, slice = @s2} : (!x) -> !x
    return %0, %1 : !x, !x
  }
  // FEW: func.func private @gather({{.*}} {sdy.sharding = #sdy.sharding<@mesh_3, [{"x"}, {}]>}) -> ({{.*}} {sdy.sharding = #sdy.sharding<@mesh_3, [{}, {}]>})
}

// -----

// Axes along which a value is gathered may split another dimension instead. Here the source then lies as the
// target does, and shards are copied as they are.

!x = tensor<8x8xf32>
// FEW-LABEL: module @rows_to_columns
module @rows_to_columns attributes {pw.form = "placed"} {
  sdy.mesh @mesh_2x2 = <["x"=2, "y"=2]>
  sdy.mesh @mesh_4 = <["z"=4]>
  "pw.slice"() {mesh = @mesh_2x2, sym_name = "s0"} : () -> ()
  "pw.slice"() {mesh = @mesh_4, sym_name = "s1"} : () -> ()
  func.func public @main(%x: !x {pw.slice = @s0, sdy.sharding = #sdy.sharding<@mesh_2x2, [{"x", "y"}, {}]>})
      -> (!x {pw.slice = @s1, sdy.sharding = #sdy.sharding<@mesh_4, [{}, {"z"}]>}) {
    // FEW: %[[COLUMNS:.*]] = "pw.launch"(%arg0) {callee = @gather, slice = @s0}
    // FEW-NEXT: "pw.transfer"(%[[COLUMNS]]) {sharding = #sdy.sharding<@mesh_4, [{}, {"z"}]>, slice = @s1}
    %0 = "pw.transfer"(%x) {sharding = #sdy.sharding<@mesh_4, [{}, {"z"}]>, slice = @s1} : (!x) -> !x
    return %0 : !x
  }
  // FEW: func.func private @gather({{.*}}) -> ({{.*}} {sdy.sharding = #sdy.sharding<@mesh_2x2, [{}, {"x", "y"}]>})
}
