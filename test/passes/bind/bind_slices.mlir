// RUN: pw-opt %s --split-input-file -p "pw-bind-slices{hosts='s0:1,s1:0'}" | filecheck %s --check-prefix NAMED
// RUN: pw-opt %s --split-input-file -p 'pw-bind-slices{count=2}' | filecheck %s --check-prefix DEALT

// Each slice goes to the host that is named for it, or to the hosts in turn.

// NAMED: module @two attributes {pw.form = "bound"}
// NAMED: "pw.slice"() {host = 1 : i64, mesh = @mesh, sym_name = "s0"}
// NAMED: "pw.slice"() {host = 0 : i64, mesh = @mesh, sym_name = "s1"}

// DEALT: module @two attributes {pw.form = "bound"}
// DEALT: "pw.slice"() {host = 0 : i64, mesh = @mesh, sym_name = "s0"}
// DEALT: "pw.slice"() {host = 1 : i64, mesh = @mesh, sym_name = "s1"}

module @two attributes {pw.form = "scheduled"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  "pw.slice"() {sym_name = "s1", mesh = @mesh} : () -> ()
  func.func @main() {
    return
  }
}

// -----

// Slices that may share devices may be on different hosts, where they share none.

// NAMED: module @overlapping attributes {pw.form = "bound"}
// NAMED: "pw.slice"() {host = 1 : i64, mesh = @mesh, overlap, sym_name = "s0"}
// NAMED: "pw.slice"() {host = 0 : i64, mesh = @mesh, overlap, sym_name = "s1"}

module @overlapping attributes {pw.form = "scheduled"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh, overlap} : () -> ()
  "pw.slice"() {sym_name = "s1", mesh = @mesh, overlap} : () -> ()
  func.func @main() {
    return
  }
}
