// RUN: pw-compile %S/../../../examples/figure2.py:f --args 'f32[2]' 2>%t.err | filecheck %s
// RUN: filecheck %s --check-prefix=ERR < %t.err
// RUN: pw-compile %S/../../../examples/figure2.py:f --args 'f32[2]' 2>/dev/null | pw-opt | filecheck %s
// RUN: pw-compile %S/../../../examples/figure2.py:f --args 'f32[2]' --explain 2>/dev/null | filecheck %s --check-prefix=EXPLAIN
// RUN: pw-compile %S/../../../examples/figure2.py:b --args 'bf16[3]' 2>/dev/null | filecheck %s --check-prefix=ALONE
// RUN: pw-compile %S/../../../examples/figure2.py:f --args 'f32[2]' --remarks -o %t.mlir 2>&1 | filecheck %s --check-prefix=REMARKS
// RUN: filecheck %s < %t.mlir
// RUN: pw-compile %S/../../../examples/figure2.py:f --args 'f32[2]' --pretty 2>/dev/null | filecheck %s --check-prefix=PRETTY

// The module is whole, and alone on standard output: pw-opt reads it. What stands below __main__ does not run.

// PRETTY: %{{.*}} = pw.launch @lambda(%arg0) on @s0 [fwd 0] order 0 : tensor<2xf32>

// CHECK: module @f attributes {pw.form = "scheduled"
// CHECK-LABEL: func.func public @main
// CHECK-COUNT-4: "pw.launch"
// CHECK: return

// ERR: pw-compile: note: importing {{.*}}figure2.py, which runs its top level
// ERR-NOT: f([1. 2.]) =

// EXPLAIN: {{^}}program f
// EXPLAIN-NEXT: slices 3
// EXPLAIN-NEXT: computations 3
// EXPLAIN-NEXT: launches 4
// EXPLAIN-NEXT: transfers 3
// EXPLAIN-NEXT: channels 3
// EXPLAIN-NEXT: bytes on the wire 24 B
// EXPLAIN-NEXT: FLOPs {{[0-9]}}
// EXPLAIN: slice mesh computations launches
// EXPLAIN-NEXT: s0 x=1 1 2
// EXPLAIN: computation slice launches
// EXPLAIN-NEXT: lambda s0 2
// EXPLAIN: XLA module slice instructions time share
// EXPLAIN: memory
// EXPLAIN-NEXT: slice devices arguments results donated temporaries code peak peak of a device
// EXPLAIN-NEXT: s0 1 8 B 8 B 0 B {{.*}} 24 B

// A function of `pw.jit` is a program of one launch.

// ALONE: func.func public @main(%{{.*}}: tensor<3xbf16>
// ALONE-COUNT-1: "pw.launch"
// ALONE-NOT: "pw.launch"

// REMARKS: {{remark: |no remarks}}
