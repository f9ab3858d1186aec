// RUN: pw-opt %s -p 'pw-bind-slices{count=3}' | filecheck %s

// Slices that may share devices go to one host together; a program that was bound before is bound anew.

// CHECK-LABEL: module @four
// CHECK: host = 0 : i64, {{.*}}sym_name = "s0"
// CHECK: host = 1 : i64, {{.*}}sym_name = "s1"
// CHECK: host = 2 : i64, {{.*}}sym_name = "s2"
// CHECK: host = 1 : i64, {{.*}}sym_name = "s3"
// CHECK: host = 0 : i64, {{.*}}sym_name = "s4"

module @four attributes {pw.form = "bound"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh, host = 7} : () -> ()
  "pw.slice"() {sym_name = "s1", mesh = @mesh, host = 7, overlap} : () -> ()
  "pw.slice"() {sym_name = "s2", mesh = @mesh, host = 7} : () -> ()
  "pw.slice"() {sym_name = "s3", mesh = @mesh, host = 7, overlap} : () -> ()
  "pw.slice"() {sym_name = "s4", mesh = @mesh, host = 7} : () -> ()
  func.func @main() {
    return
  }
}
