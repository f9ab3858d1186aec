// RUN: rm -f %t && not pw-opt %s --cse --pw-schedule=policy=gpipe --mlir-pass-pipeline-crash-reproducer=%t 2>&1 | filecheck %s --check-prefix=FAILED
// RUN: filecheck %s --input-file=%t
// RUN: not pw-opt %t --run-reproducer 2>&1 | filecheck %s --check-prefix=AGAIN
// RUN: not pw-opt %s --run-reproducer 2>&1 | filecheck %s --check-prefix=NONE
// RUN: rm -f %t && pw-opt %s --cse --mlir-pass-pipeline-crash-reproducer=%t -o /dev/null && not ls %t

// A pipeline that fails leaves the module and itself in a file of mlir-opt's format, which runs again.

// FAILED: reproducer.mlir:{{[0-9]+}}:1: error: 'func.func' op argument #0 is of type i32
// FAILED: pw-opt: note: pipeline failed: reproducer generated at '

// CHECK: func.func @main
// CHECK: {-#
// CHECK-NEXT: external_resources: {
// CHECK-NEXT: mlir_reproducer: {
// CHECK-NEXT: pipeline: "builtin.module(cse,pw-schedule{policy=gpipe})",
// CHECK-NEXT: disable_threading: true,
// CHECK-NEXT: verify_each: true
// CHECK-NEXT: }
// CHECK-NEXT: }
// CHECK-NEXT: #-}

// AGAIN-NOT: warning
// AGAIN: error: 'func.func' op argument #0 is of type i32
// AGAIN-NOT: note: pipeline failed

// NONE: pw-opt: error: '{{.*}}reproducer.mlir' is not a reproducer: it has no pipeline in `mlir_reproducer`

func.func @main(%x: i32) -> i32 {
  return %x : i32
}
