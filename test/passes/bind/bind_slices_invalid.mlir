// RUN: pw-opt %s --split-input-file --verify-diagnostics -p "pw-bind-slices{hosts='s0:0,s1:1'}"

// Every slice has a host ...
module attributes {pw.form = "scheduled"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  "pw.slice"() {sym_name = "s1", mesh = @mesh} : () -> ()
  // expected-error@below {{'pw.slice' op is not among `hosts`}}
  "pw.slice"() {sym_name = "s2", mesh = @mesh} : () -> ()
  func.func @main() {
    return
  }
}

// -----

// ... and every name is one of a slice.
module attributes {pw.form = "scheduled"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  // expected-error@below {{'func.func' op has no slice @s1, which `hosts` names}}
  func.func @main() {
    return
  }
}

// -----

// A program is bound once it is scheduled.
// expected-error@below {{'builtin.module' op 'pw-bind-slices' expects the form 'scheduled' or 'bound', got 'placed'}}
module attributes {pw.form = "placed"} {
  func.func @main() {
    return
  }
}
