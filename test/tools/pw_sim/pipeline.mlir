// RUN: pw-opt %s -p pw-schedule,pw-plan-memory,pw-verify-schedule | pw-sim | filecheck %s --check-prefix=UNITS
// RUN: pw-opt %s -p pw-schedule,pw-plan-memory,pw-verify-schedule > %t.mlir
// RUN: pw-sim %t.mlir --times %S/Inputs/times.json --latency 1ms --bandwidth 16KB/s | filecheck %s --check-prefix=TIMES
// RUN: pw-sim %t.mlir --json | filecheck %s --check-prefix=JSON
// RUN: pw-sim %t.mlir --trace %t.json -o - | filecheck %s --check-prefix=UNITS
// RUN: pw-sim %t.mlir --times %t.json | filecheck %s --check-prefix=REPLAYED

// RUN: pw-sim %t.mlir --times units | filecheck %s --check-prefix=UNITS
// RUN: not pw-sim %t.mlir --times flops 2>&1 | filecheck %s --check-prefix=NO-FLOPS
// RUN: sed -e 's/^  func.func private @f(.*/&\n    %%y = stablehlo.add %%x, %%x : !x/' %s | pw-opt -p pw-schedule,pw-plan-memory,pw-verify-schedule | pw-sim --times flops | filecheck %s --check-prefix=FLOPS

// Two microbatches go through two stages: with equal times and free transfers each slice idles for one unit
// in three. Glue takes no time.

// UNITS: program two_stages, planned, times=units
// UNITS-NEXT: step time  3 units
// UNITS-NEXT: bubble     33.3 %
// UNITS-NEXT: launches   5
// UNITS-NEXT: transfers  2, 32 B
// UNITS: {{^ +}}slice  launches  busy  bubble  peak memory
// UNITS-NEXT: {{^ +}}s0     2         2     33.3 %  32 B
// UNITS-NEXT: {{^ +}}s1     3         2     33.3 %  32 B
// UNITS: critical path
// UNITS-NEXT: {{^ +}}s0  F0 F1  0 to 2
// UNITS-NEXT: {{^ +}}s1  F1     2 to 3

// With times of their own the second stage is what the step waits for, and transfers are on the way to it:
// 1 ms for 16 bytes, and 1 ms until they arrive.

// TIMES: program two_stages, simulated, times=times.json
// TIMES-NEXT: step time  14 ms
// TIMES: {{^ +}}s1     3         10 ms  28.6 %
// TIMES: critical path
// TIMES-NEXT: {{^ +}}s0        F0            0 s to 2 ms
// TIMES-NEXT: {{^ +}}s0 -> s1  16 B          2 ms to 4 ms
// TIMES-NEXT: {{^ +}}s1        F0 F1 finish  4 ms to 14 ms

// Calls without operations take none; an addition of four elements takes four.
// NO-FLOPS: pw-sim: error: --times: program 'two_stages' does not state the operations of its launches
// FLOPS: program two_stages, planned, times=flops
// FLOPS-NEXT: step time  8 FLOPs

// JSON: "step_time": 3.0,
// JSON: "slices": {
// JSON-NEXT: "s0": {
// JSON-NEXT: "busy": 2.0,
// JSON: "critical_path": [

// The trace of a run gives the times of another.
// REPLAYED: program two_stages, simulated
// REPLAYED-NEXT: step time  3 units

!x = tensor<4xf32>
module @two_stages attributes {pw.form = "unrolled"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  "pw.slice"() {sym_name = "s1", mesh = @mesh} : () -> ()
  "pw.loop"() {count = 2, sym_name = "l"} : () -> ()
  func.func @main(%x: !x {pw.slice = @s0}) -> (!x {pw.slice = @s1}) {
    %a0 = "pw.launch"(%x) {callee = @f, slice = @s0, loop = @l, microbatch = 0, origins = [{kind = "fwd", microbatch = 0, stage = 0}]} : (!x) -> !x
    %b0 = "pw.transfer"(%a0) {loop = @l, microbatch = 0, slice = @s1} : (!x) -> !x
    %a1 = "pw.launch"(%x) {callee = @f, slice = @s0, loop = @l, microbatch = 1, origins = [{kind = "fwd", microbatch = 1, stage = 0}]} : (!x) -> !x
    %b1 = "pw.transfer"(%a1) {loop = @l, microbatch = 1, slice = @s1} : (!x) -> !x
    %c0 = "pw.launch"(%b0) {callee = @g, slice = @s1, loop = @l, microbatch = 0, origins = [{kind = "fwd", microbatch = 0, stage = 1}]} : (!x) -> !x
    %c1 = "pw.launch"(%b1) {callee = @g, slice = @s1, loop = @l, microbatch = 1, origins = [{kind = "fwd", microbatch = 1, stage = 1}]} : (!x) -> !x
    %d = "pw.launch"(%c0, %c1) {callee = @finish, slice = @s1} : (!x, !x) -> !x
    return %d : !x
  }
  func.func private @f(%x: !x) -> !x {
    return %x : !x
  }
  func.func private @g(%x: !x) -> !x {
    return %x : !x
  }
  func.func private @finish(%x: !x, %y: !x) -> !x {
    return %x : !x
  }
}
