// RUN: pw-opt %s --pretty | filecheck %s
// RUN: pw-opt %s --pretty --mlir-print-debuginfo | filecheck %s --check-prefix=DEBUG
// RUN: pw-opt %s --pretty --verify-each=0 --cse --mlir-print-ir-after-all 2>&1 >/dev/null | filecheck %s
// RUN: not pw-opt %s --pretty --mlir-print-op-generic 2>&1 | filecheck %s --check-prefix=BOTH

// Operations of pw as people read them; all else is as MLIR prints it. Values keep their names.

// BOTH: pw-opt: error: --pretty cannot be combined with --mlir-print-op-generic

// CHECK: sdy.mesh @mesh = <["data"=2]>
sdy.mesh @mesh = <["data"=2]>
// CHECK-NEXT: pw.slice @s0 mesh @mesh {island = "a \22 b, c", peak_bytes = 64}
"pw.slice"() {mesh = @mesh, sym_name = "s0", island = "a \" b, c", peak_bytes = 64} : () -> ()
// CHECK-NEXT: pw.slice @s1 mesh @mesh
"pw.slice"() {mesh = @mesh, sym_name = "s1"} : () -> ()
// CHECK-NEXT: pw.loop @batch of 8 schedule 1f1b
"pw.loop"() {count = 8, schedule = "1f1b", sym_name = "batch"} : () -> ()
// CHECK-NEXT: pw.constant @k = dense<[1.000000e+00, 2.000000e+00]> : tensor<2xf32>
"pw.constant"() {sym_name = "k", value = dense<[1.0, 2.0]> : tensor<2xf32>} : () -> ()
// CHECK-NEXT: pw.channel @c0 from @s0 to @s1 capacity 2 {value_type = tensor<8xf32>}
"pw.channel"() {capacity = 2, dst = @s1, src = @s0, sym_name = "c0", value_type = tensor<8xf32>} : () -> ()

// CHECK: func.func @main(%arg0: tensor<8xf32> {pw.slice = @s0})
func.func @main(%x: tensor<8xf32> {pw.slice = @s0}) -> (tensor<8xf32> {pw.slice = @s1}) {
  // A launch says which placed call it stands for: forward or backward, stage, microbatch.
  // CHECK-NEXT: %0:2 = pw.launch @two(%arg0) on @s0 [fwd 0 #3, bwd.input 1 #3] in @batch #3 order 0 : 2 x tensor<8xf32>
  // DEBUG: %0:2 = pw.launch @two(%arg0) on @s0 {{.*}} : 2 x tensor<8xf32> loc(#loc{{[0-9]+}})
  %a:2 = "pw.launch"(%x) {callee = @two, loop = @batch, microbatch = 3, order = 0, origins = [{kind = "fwd", microbatch = 3, stage = 0}, {kind = "bwd", part = "input", microbatch = 3, stage = 1}], slice = @s0} : (tensor<8xf32>) -> (tensor<8xf32>, tensor<8xf32>)
  // CHECK-NEXT: %1 = pw.transfer %0#1 to @s1 over @c0 order 1 {sharding = #sdy.sharding<@mesh, [{"data"}]>} : tensor<8xf32>
  %b = "pw.transfer"(%a#1) {channel = @c0, order = 1, sharding = #sdy.sharding<@mesh, [{"data"}]>, slice = @s1} : (tensor<8xf32>) -> tensor<8xf32>
  // CHECK-NEXT: pw.release %0#0
  "pw.release"(%a#0) : (tensor<8xf32>) -> ()
  // CHECK-NEXT: return %1
  return %b : tensor<8xf32>
}

// CHECK: %{{.*}} = stablehlo.add
func.func private @two(%x: tensor<8xf32>) -> (tensor<8xf32>, tensor<8xf32>) {
  %y = stablehlo.add %x, %x : tensor<8xf32>
  return %x, %y : tensor<8xf32>, tensor<8xf32>
}
