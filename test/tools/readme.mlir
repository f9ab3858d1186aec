// RUN: pw-opt %S/../../examples/two_slices.mlir --pw-insert-transfers | filecheck %s

// The session that README.md shows.

// CHECK-LABEL: func.func public @main
// CHECK-NEXT: %[[X:.*]] = "pw.launch"(%{{.*}}) {callee = @double, slice = @s0}
// CHECK-NEXT: %[[MOVED:.*]] = "pw.transfer"(%[[X]]) {slice = @s1}
// CHECK-NEXT: %[[Y:.*]] = "pw.launch"(%[[MOVED]]) {callee = @increment, slice = @s1}
// CHECK-NEXT: return %[[Y]]
