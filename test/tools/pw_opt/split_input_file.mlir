// RUN: not pw-opt %s --split-input-file 2>&1 | filecheck %s --check-prefix=ERROR
// RUN: not pw-opt %s --split-input-file 2>/dev/null | filecheck %s

// Each piece is an input of its own; an error in one, at its line of the whole file, leaves the others.

// CHECK: func.func private @first
func.func private @first()

// -----

// ERROR: split_input_file.mlir:14:3: error: custom op 'second' is unknown
// ERROR-NEXT: {{^}}  second
// ERROR-NEXT: {{^  \^}}
  second

// -----

// CHECK: // -----
// CHECK: func.func private @third
func.func private @third()
