// RUN: pw-opt %s --split-input-file --verify-diagnostics -p 'pw-schedule{policy=progam}'
// RUN: not pw-opt %s -p 'pw-schedule{file=order.csv}' 2>&1 | filecheck %s

// A misspelt policy names the nearest one; a file needs a loop.

// CHECK: error: 'func.func' op has no loop with stages that a schedule file could order

!x = tensor<4xf32>
module @unknown_policy attributes {pw.form = "unrolled"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  // expected-error@+1 {{unknown policy 'progam'; did you mean 'program'?}}
  func.func @main(%x: !x {pw.slice = @s0}) -> (!x {pw.slice = @s0}) {
    return %x : !x
  }
}
