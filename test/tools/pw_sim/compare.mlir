// RUN: pw-sim %s --compare | filecheck %s
// RUN: pw-sim %s --compare --times %S/Inputs/halves.json --json | filecheck %s --check-prefix=JSON
// RUN: pw-opt %s -p pw-propagate-shardings,pw-lower-transfers | not pw-sim --compare 2>&1 | filecheck %s --check-prefix=FORM
// RUN: not pw-sim %s --compare --trace %t.json 2>&1 | filecheck %s --check-prefix=TRACE
// RUN: pw-sim %s --compare --steps 6 | filecheck %s --check-prefix=STEPS
// RUN: pw-sim %s --compare --limits max-live=2 | filecheck %s --check-prefix=LIMITS
// RUN: not pw-sim %s --compare --limits max-lvie=2 2>&1 | filecheck %s --check-prefix=OPTION
// RUN: not pw-sim %s --limits max-live=2 2>&1 | filecheck %s --check-prefix=ALONE
// RUN: printf '0F0,0F1,0B0,0F2,0B1,0F3,0B2,0B3\n1F0,1B0,1F1,1B1,1F2,1B2,1F3,1B3\n' >%t.csv
// RUN: pw-sim %s --schedule gpipe --schedule %t.csv | filecheck %s --check-prefix=FILE
// RUN: pw-viz %s --schedule gpipe --schedule %t.csv | filecheck %s --check-prefix=FILEPAGE
// RUN: pw-compile %s --schedule %t.csv | pw-opt --emit-schedule | filecheck %s --check-prefix=COMPILED
// RUN: printf '0F0,0F1,0B0,0F2,0B1,0F3,0B2,0B3\n1F0,1B0,1F1,1B1,1F2,1B2,1F3\n' >%t.csv
// RUN: not pw-sim %s --schedule gpipe --schedule %t.csv 2>&1 | filecheck %s --check-prefix=WRONG
// RUN: not pw-sim %s --schedule gpipe --compare 2>&1 | filecheck %s --check-prefix=BOTH
// RUN: pw-sim %s --schedule 1f1b --schedule search --latency 2 | filecheck %s --check-prefix=LINKS
// RUN: not pw-sim %s --schedule search --latency 2us 2>&1 | filecheck %s --check-prefix=UNIT
// RUN: not pw-sim %s --schedule gpip 2>&1 | filecheck %s --check-prefix=UNKNOWN
// RUN: pw-viz %s --schedule 1f1b --schedule zb-h1 | filecheck %s --check-prefix=PAGE
// RUN: not pw-viz %s --schedule zb-v 2>&1 | filecheck %s --check-prefix=UNFIT

// Two stages under every policy, the fastest first, and why others do not fit. Halves save a unit of time, for the
// memory of what waits for the half of the weights.

// CHECK: {{^ +}}policy            step time  s0 idle  s1 idle  s0 peak  s1 peak  transfers
// CHECK:      zb-h1             9          11.1 %   0.0 %    336 B    288 B    8, 256 B
// CHECK:      1f1b              10         20.0 %   0.0 %    336 B    192 B    8, 256 B
// CHECK:      program           16
// CHECK:      zb-v does not fit: it needs two stages on each slice in a V

// Steps that follow each other overlap; zb-h2 idles only in the first.

// STEPS: policy            step time  steady
// STEPS: zb-h2             9          8.5
// STEPS: zb-h1             9          9
// STEPS: 1f1b              10         10

// Limits are for all policies.

// LIMITS: zb-h2             9          11.1 %   0.0 %    336 B    288 B    8, 256 B
// LIMITS: gpipe does not fit: it keeps 4 microbatches of stage 0 alive at once, more than 2: use search
// OPTION: pw-sim: error: 'gpipe(max-lvie=2)': option 'max-lvie' is unknown; did you mean 'max-live'?
// ALONE: pw-sim: error: --limits is for --compare and --schedule

// Some policies alone, and schedule files.

// FILE:      policy
// FILE-NEXT: {{gpipe +}}10
// FILE-NEXT: {{compare.mlir.tmp.csv +}}10
// FILEPAGE: <h2>gpipe <small>10 units
// FILEPAGE: <h2>{{.*}}.csv <small>10 units
// COMPILED: {{^}}0F0,0F1,,0B0,0F2,0B1,0F3,0B2,,0B3{{$}}
// WRONG: pw-sim: error: '{{.*}}', by {{.*}}.csv: {{.*}}: row 2: 1B3 is missing
// BOTH: pw-sim: error: --compare and --schedule exclude each other: --compare covers all policies
// UNKNOWN: pw-sim: error: unknown policy 'gpip'; did you mean 'gpipe'?

// A search knows that links take time, a pattern does not.

// LINKS:      policy
// LINKS-NEXT: {{search +}}12
// LINKS-NEXT: {{1f1b +}}18
// UNIT: pw-sim: error: {{.*}} cannot be scheduled by 'search(times=units, latency=2us)': latency: is in seconds, but the durations are in time units

// Policies are drawn under one another, the fastest first.

// PAGE: <h2>zb-h1 <small>9 units
// PAGE: <h2>1f1b <small>10 units
// UNFIT: pw-viz: error: zb-v does not fit: it needs two stages on each slice in a V

// JSON: "zb-h1": {
// JSON: "step_time": 0.026
// JSON: "1f1b": {
// JSON: "step_time": 0.03
// JSON: "refused": {
// JSON-NEXT: "zb-v": "does not fit: it needs two stages on each slice in a V

// FORM: pw-sim: error: '<stdin>' is in the form 'sharded', in which it is too late to split backwards; policies are compared from the form 'placed'
// TRACE: pw-sim: error: --compare and --trace exclude each other: a trace is of one schedule

!x = tensor<8x4xf32>
!b = tensor<2x4xf32>
!w = tensor<4x4xf32>
module @two_stages attributes {pw.form = "placed"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  "pw.slice"() {sym_name = "s1", mesh = @mesh} : () -> ()
  "pw.loop"() {sym_name = "l", count = 4} : () -> ()
  func.func @main(%x: !x {pw.slice = @s0}, %w0: !w {pw.slice = @s0}, %w1: !w {pw.slice = @s1})
      -> (!w {pw.slice = @s0}, !w {pw.slice = @s1}) {
    %b = "pw.split"(%x) {loop = @l, slice = @s0} : (!x) -> !b
    %y = "pw.launch"(%w0, %b) {callee = @f, loop = @l, origins = [{kind = "fwd", stage = 0}], slice = @s0} : (!w, !b) -> !b
    %t = "pw.transfer"(%y) {loop = @l, slice = @s1} : (!b) -> !b
    %z = "pw.launch"(%w1, %t) {callee = @f, loop = @l, origins = [{kind = "fwd", stage = 1}], slice = @s1} : (!w, !b) -> !b
    %dw1, %dy = "pw.launch"(%w1, %t, %z) {callee = @b, loop = @l, origins = [{kind = "bwd", stage = 1}], slice = @s1} : (!w, !b, !b) -> (!w, !b)
    %u = "pw.transfer"(%dy) {loop = @l, slice = @s0} : (!b) -> !b
    %dw0 = "pw.launch"(%b, %u) {callee = @first, loop = @l, origins = [{kind = "bwd", stage = 0}], slice = @s0} : (!b, !b) -> !w
    %r0 = "pw.reduce"(%dw0) {kind = "sum", loop = @l, slice = @s0} : (!w) -> !w
    %r1 = "pw.reduce"(%dw1) {kind = "sum", loop = @l, slice = @s1} : (!w) -> !w
    return %r0, %r1 : !w, !w
  }
  func.func private @f(%w: !w, %x: !b) -> !b {
    %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (!b, !w) -> !b
    %1 = stablehlo.tanh %0 : !b
    return %1 : !b
  }
  func.func private @b(%w: !w, %x: !b, %d: !b) -> (!w, !b) {
    %0 = stablehlo.dot_general %x, %d, contracting_dims = [0] x [0] : (!b, !b) -> !w
    %1 = stablehlo.dot_general %d, %w, contracting_dims = [1] x [1] : (!b, !w) -> !b
    return %0, %1 : !w, !b
  }
  func.func private @first(%x: !b, %d: !b) -> !w {
    %0 = stablehlo.dot_general %x, %d, contracting_dims = [0] x [0] : (!b, !b) -> !w
    return %0 : !w
  }
}
