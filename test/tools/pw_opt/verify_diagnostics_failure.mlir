// RUN: not pw-opt %s --verify-diagnostics 2>&1 | filecheck %s

// What was not expected and what was not produced are both errors.

// CHECK-DAG: verify_diagnostics_failure.mlir:6:1: error: unexpected error: 'my.op' op is unknown
"my.op"() : () -> ()

// CHECK-DAG: verify_diagnostics_failure.mlir:9:4: error: expected warning "no such thing" was not produced
// expected-warning@below {{no such thing}}
func.func private @f()
