// A policy of the user orders a program: the one that the program names, and one of the command line.

// RUN: pw-compile %S/../../../examples/custom_policy.py:step | pw-opt --pretty | filecheck %s
// CHECK: pw.loop @loss of 4 schedule custom
// CHECK: on @s0 [fwd 0 #0] in @loss #0 order 0
// CHECK: on @s0 [fwd 0 #1] in @loss #1 order 2
// CHECK: on @s0 [fwd 0 #2] in @loss #2 order 4
// CHECK: on @s0 [bwd 0 #0] in @loss #0 order 6

// RUN: pw-compile %S/../../../examples/custom_policy.py:step --compile-to=placed -o %t.mlir
// RUN: pw-sim %t.mlir --schedule 1f1b --schedule %S/../../../examples/custom_policy.py:Ahead | filecheck %s --check-prefix=SIM
// SIM: {{^ +}}1f1b {{.*}} 10
// SIM: custom_policy.py:Ahead {{.*}} 10

// RUN: not pw-compile %t.mlir --schedule %S/../../../examples/custom_policy.py:ahead 2>&1 | filecheck %s --check-prefix=NAME
// NAME: pw-compile: error: there is no 'ahead' in {{.*}}custom_policy.py; did you mean 'Ahead'?
// RUN: not pw-compile %t.mlir --schedule %S/../../../examples/custom_policy.py:example_args 2>&1 | filecheck %s --check-prefix=TUPLE
// TUPLE: pw-compile: error: '{{.*}}custom_policy.py:example_args' is not a policy: tuple cannot be called
// RUN: not pw-compile %t.mlir --schedule %S/../../../examples/custom_policy.py:Action 2>&1 | filecheck %s --check-prefix=WRONG
// WRONG: cannot be scheduled by 'pathways.passes.schedule.policies.actions:Action', which raises TypeError: {{.*}}
// RUN: not pw-compile %t.mlir --schedule %S/../../../examples/custom_policy.py:Ahead'(max-live=1)' 2>&1 | filecheck %s --check-prefix=LIMIT
// LIMIT: cannot be scheduled by 'custom_policy:Ahead#2(max-live=1)', which keeps 3 microbatches of stage 0 alive at once, more than 1: use search
