// RUN: pw-opt %s --pw-schedule --pw-plan-memory --pw-verify-schedule -o %t.mlir
// RUN: pw-viz %t.mlir | filecheck %s --check-prefix=PLANNED
// RUN: pw-viz %t.mlir --latency 0.5 | filecheck %s --check-prefix=SIMULATED
// RUN: pw-sim %t.mlir --trace %t.json -o %t.txt
// RUN: pw-viz %t.mlir --trace %t.json --trace %t.json -o %t.html
// RUN: filecheck %s --check-prefix=TRACES --input-file=%t.html
// RUN: pw-viz --trace %t.json | filecheck %s --check-prefix=PLANNED
// RUN: not pw-viz 2>&1 | filecheck %s --check-prefix=NOTHING
// RUN: not pw-viz %s 2>&1 | filecheck %s --check-prefix=FORM
// RUN: not pw-viz --trace %t.mlir 2>&1 | filecheck %s --check-prefix=NO-TRACE
// RUN: not pw-viz --trace %t.json --step 1 2>&1 | filecheck %s --check-prefix=STEP

// A page has a section for each timeline, and a box for each launch.

// PLANNED: <!DOCTYPE html>
// PLANNED: <title>two: timeline</title>
// PLANNED: <section
// PLANNED-NEXT: <h2>planned, times=units <small>2 units, bubble 50.0 %</small></h2>
// PLANNED: data-name="f"
// PLANNED: data-name="g"
// PLANNED-NOT: <section

// SIMULATED: <h2>planned, times=units <small>2 units
// SIMULATED: <h2>simulated, times=units <small>2.5 units

// TRACES-COUNT-3: <section

// NOTHING: pw-viz: error: expected a program in scheduled form, or --trace
// FORM: pw-viz: error: '{{.*}}' is in the form 'unrolled', not 'scheduled'
// NO-TRACE: pw-viz: error: '{{.*}}.mlir': is not a trace in Chrome's JSON format
// STEP: pw-viz: error: --step: '{{.*}}.json' has steps 0 to 0, got '1'

!x = tensor<4xf32>
module @two attributes {pw.form = "unrolled"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  "pw.slice"() {sym_name = "s1", mesh = @mesh} : () -> ()
  func.func @main(%x: !x {pw.slice = @s0}) -> (!x {pw.slice = @s1}) {
    %a = "pw.launch"(%x) {callee = @f, origins = [{kind = "fwd", stage = 0}], slice = @s0} : (!x) -> !x
    %b = "pw.transfer"(%a) {slice = @s1} : (!x) -> !x
    %c = "pw.launch"(%b) {callee = @g, origins = [{kind = "fwd", stage = 1}], slice = @s1} : (!x) -> !x
    return %c : !x
  }
  func.func private @f(%x: !x) -> !x {
    return %x : !x
  }
  func.func private @g(%x: !x) -> !x {
    return %x : !x
  }
}
