// RUN: pw-compile %S/Inputs/regression.py:step --compile-to=stablehlo 2>/dev/null | filecheck %s --check-prefix=STABLEHLO
// RUN: pw-compile %S/Inputs/regression.py:step --compile-to imported 2>/dev/null | filecheck %s --check-prefix=IMPORTED
// RUN: pw-compile %S/Inputs/regression.py:step --compile-to=placed 2>/dev/null | filecheck %s --check-prefix=PLACED
// RUN: pw-compile %S/Inputs/regression.py:step 2>/dev/null | filecheck %s --check-prefix=SCHEDULED
// RUN: pw-compile %S/Inputs/regression.py:step --compile-to=device 2>/dev/null | filecheck %s --check-prefix=DEVICE

// Each phase prints its form of the module; the last one before devices is the default. The file has no
// devices of its own and starts JAX with one, so that for `device` the tool starts again with two.

// STABLEHLO: module @step
// STABLEHLO: pw.slice = "front"

// IMPORTED: pw.form = "imported"
// IMPORTED: "pw.slice"() {{.*}}sym_name = "front"

// PLACED: pw.form = "placed"
// PLACED: "pw.transfer"

// SCHEDULED: pw.form = "scheduled"
// SCHEDULED: "pw.channel"() {{.*}}dst = @back{{.*}}src = @front
// SCHEDULED: "pw.release"

// DEVICE: {{^}}// computation {{[a-z_0-9]+}} on slice front
// DEVICE: HloModule
// DEVICE: ENTRY
// DEVICE: {{^}}// computation {{[a-z_0-9]+}} on slice back
// DEVICE: HloModule
