// RUN: pw-opt %s -p 'pw-split-chunks,pw-unroll-microbatches,pw-schedule,pw-plan-memory,pw-verify-schedule' -o %t.mlir
// RUN: pw-sim %t.mlir | filecheck %s
// RUN: pw-sim %t.mlir --taken 0.25 | filecheck %s --check-prefix=TAKEN
// RUN: not pw-sim %t.mlir --taken 2 2>&1 | filecheck %s --check-prefix=RANGE
// RUN: pw-viz %t.mlir | filecheck %s --check-prefix=PAGE

// Of a program in parts a chunk is replayed. Calls on a condition take their share of the time: the rest takes all.

// CHECK: program decode_turns, planned, times=units
// CHECK-NEXT: step time  4 units
// TAKEN: program decode_turns, simulated, times=units, taken=0.25
// TAKEN-NEXT: step time  2.5 units
// RANGE: pw-sim: error: argument --taken: must be a probability from 0 to 1, got '2'
// PAGE: forward on a condition

!x = tensor<4xf32>
module @decode attributes {pw.form = "sharded"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  "pw.loop"() {sym_name = "turns", chunk = 2, sequential} : () -> ()
  func.func public @main(%x: !x {pw.slice = @s0}, %end: tensor<i1> {pw.slice = @s0}) -> (!x {pw.slice = @s0}) {
    %d = "pw.carry"(%end) {loop = @turns, slice = @s0} : (tensor<i1>) -> tensor<i1>
    %h = "pw.carry"(%x) {loop = @turns, slice = @s0} : (!x) -> !x
    %y = "pw.launch"(%d, %h) {callee = @f_if, loop = @turns, slice = @s0, origins = [{kind = "fwd", stage = 0, when = true}]} : (tensor<i1>, !x) -> !x
    %z, %done = "pw.launch"(%d, %y) {callee = @g, loop = @turns, slice = @s0, origins = [{kind = "fwd", stage = 0}]} : (tensor<i1>, !x) -> (!x, tensor<i1>)
    %d_end = "pw.next"(%d, %done) {loop = @turns, slice = @s0} : (tensor<i1>, tensor<i1>) -> tensor<i1>
    %h_end = "pw.next"(%h, %z) {loop = @turns, slice = @s0} : (!x, !x) -> !x
    "pw.until"(%d_end) {loop = @turns, slice = @s0} : (tensor<i1>) -> ()
    return %h_end : !x
  }
  func.func private @f_if(%p: tensor<i1>, %x: !x) -> !x {
    return %x : !x
  }
  func.func private @g(%p: tensor<i1>, %x: !x) -> (!x, tensor<i1>) {
    return %x, %p : !x, tensor<i1>
  }
}
