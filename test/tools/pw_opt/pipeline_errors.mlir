// RUN: not pw-opt %s --canonicalise 2>&1 | filecheck %s --check-prefix=FLAG
// FLAG: pw-opt: error: unknown flag '--canonicalise'; did you mean '--canonicalize'?

// RUN: not pw-opt %s --verify-diagnostic 2>&1 | filecheck %s --check-prefix=OWN
// OWN: pw-opt: error: unknown flag '--verify-diagnostic'; did you mean '--verify-diagnostics'?

// RUN: not pw-opt %s -p cse,pw-verify-plased 2>&1 | filecheck %s --check-prefix=PASS
// PASS: pw-opt: error: pipeline:1:5: no pass is named 'pw-verify-plased'; did you mean 'pw-verify-placed'?
// PASS-NEXT: cse,pw-verify-plased
// PASS-NEXT: {{^    \^$}}

// RUN: not pw-opt %s -p 'pw-cse{fast=1}' 2>&1 | filecheck %s --check-prefix=OPTION
// OPTION: pw-opt: error: pipeline:1:8: 'pw-cse' has no option 'fast'; it has none

// RUN: not pw-opt %s -p 'func.func(pw-cse)' 2>&1 | filecheck %s --check-prefix=NESTED
// NESTED: pw-opt: error: pipeline:1:11: 'pw-cse' works on a whole module and cannot be nested inside 'func.func'

// RUN: not pw-opt %s '--pass-pipeline=builtin.module(cse' 2>&1 | filecheck %s --check-prefix=OPEN
// OPEN: pw-opt: error: pipeline:1:15: '(' is never closed

// Nothing is printed to standard output after a mistake.
// RUN: not pw-opt %s --canonicalise 2>/dev/null | filecheck %s --check-prefix=NOTHING --allow-empty
// NOTHING-NOT: module
