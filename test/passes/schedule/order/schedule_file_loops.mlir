// RUN: pw-opt %s --pw-schedule --emit-schedule -o %t.csv
// RUN: filecheck %s --input-file %t.csv
// RUN: pw-opt %s -p "pw-schedule{file='"%t.csv"'}" --emit-schedule | diff %t.csv -
// RUN: printf '@second\n0F0,0F1\n1F0,1F1\n\n@first\n0F1,0F0\n1F1,1F0\n' >%t.csv
// RUN: pw-opt %s -p "pw-schedule{file='"%t.csv"'}" --emit-schedule | filecheck %s --check-prefix=READ
// RUN: printf '@first\n0F0,0F1\n1F0,1F1\n@second\n0F0,0F1\n1F0,0F1\n' >%t.csv
// RUN: not pw-opt %s -p "pw-schedule{file='"%t.csv"'}" 2>&1 | filecheck %s --check-prefix=WRONG
// RUN: printf '@first\n0F0,0F1\n1F0,1F1\n' >%t.csv
// RUN: not pw-opt %s -p "pw-schedule{file='"%t.csv"'}" 2>&1 | filecheck %s --check-prefix=MISSING
// RUN: printf '0F0,0F1\n1F0,1F1\n' >%t.csv
// RUN: not pw-opt %s -p "pw-schedule{file='"%t.csv"'}" 2>&1 | filecheck %s --check-prefix=NAMELESS

// The rows of several loops follow their names, in the order in which the loops run.

// CHECK:      {{^}}@first{{$}}
// CHECK-NEXT: {{^}}0F0,0F1,{{$}}
// CHECK-NEXT: {{^}},1F0,1F1{{$}}
// CHECK-NEXT: {{^}}@second{{$}}
// CHECK-NEXT: {{^}}0F0,0F1,{{$}}
// CHECK-NEXT: {{^}},1F0,1F1{{$}}

// They may stand in any order.

// READ:      {{^}}@first{{$}}
// READ-NEXT: {{^}}0F1,0F0,{{$}}
// READ:      {{^}}@second{{$}}
// READ-NEXT: {{^}}0F0,0F1,{{$}}

// A mistake in the rows of a loop is one at that loop.

// WRONG: schedule_file_loops.mlir:[[#]]:3: error: 'pw.loop' op cannot be scheduled by '{{.*}}': @second, row 6, column 2, 0F1: stage 0 is on @s0, row 5
// MISSING: error: 'pw.loop' op cannot be scheduled by '{{.*}}': @second is missing
// NAMELESS: error: 'func.func' op cannot be scheduled by '{{.*}}': row 1: expected the name of a loop above it: @first, @second

!x = tensor<4xf32>
module @p attributes {pw.form = "unrolled"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  "pw.slice"() {sym_name = "s1", mesh = @mesh} : () -> ()
  "pw.loop"() {sym_name = "second", count = 2 : i64} : () -> ()
  "pw.loop"() {sym_name = "first", count = 2 : i64, schedule = "gpipe"} : () -> ()
  func.func @main(%x0: !x {pw.slice = @s0}, %x1: !x {pw.slice = @s0}) -> (!x {pw.slice = @s1}) {
    %af0 = "pw.launch"(%x0) {callee = @f, loop = @first, microbatch = 0, origins = [{kind = "fwd", microbatch = 0, stage = 0}], slice = @s0} : (!x) -> !x
    %at0 = "pw.transfer"(%af0) {loop = @first, microbatch = 0, slice = @s1} : (!x) -> !x
    %ag0 = "pw.launch"(%at0) {callee = @f, loop = @first, microbatch = 0, origins = [{kind = "fwd", microbatch = 0, stage = 1}], slice = @s1} : (!x) -> !x
    %af1 = "pw.launch"(%x1) {callee = @f, loop = @first, microbatch = 1, origins = [{kind = "fwd", microbatch = 1, stage = 0}], slice = @s0} : (!x) -> !x
    %at1 = "pw.transfer"(%af1) {loop = @first, microbatch = 1, slice = @s1} : (!x) -> !x
    %ag1 = "pw.launch"(%at1) {callee = @f, loop = @first, microbatch = 1, origins = [{kind = "fwd", microbatch = 1, stage = 1}], slice = @s1} : (!x) -> !x
    %ar = "pw.reduce"(%ag0, %ag1) {kind = "sum", loop = @first, slice = @s1} : (!x, !x) -> !x
    %u = "pw.transfer"(%ar) {slice = @s0} : (!x) -> !x
    %bf0 = "pw.launch"(%u) {callee = @f, loop = @second, microbatch = 0, origins = [{kind = "fwd", microbatch = 0, stage = 0}], slice = @s0} : (!x) -> !x
    %bt0 = "pw.transfer"(%bf0) {loop = @second, microbatch = 0, slice = @s1} : (!x) -> !x
    %bg0 = "pw.launch"(%bt0) {callee = @f, loop = @second, microbatch = 0, origins = [{kind = "fwd", microbatch = 0, stage = 1}], slice = @s1} : (!x) -> !x
    %bf1 = "pw.launch"(%u) {callee = @f, loop = @second, microbatch = 1, origins = [{kind = "fwd", microbatch = 1, stage = 0}], slice = @s0} : (!x) -> !x
    %bt1 = "pw.transfer"(%bf1) {loop = @second, microbatch = 1, slice = @s1} : (!x) -> !x
    %bg1 = "pw.launch"(%bt1) {callee = @f, loop = @second, microbatch = 1, origins = [{kind = "fwd", microbatch = 1, stage = 1}], slice = @s1} : (!x) -> !x
    %br = "pw.reduce"(%bg0, %bg1) {kind = "sum", loop = @second, slice = @s1} : (!x, !x) -> !x
    return %br : !x
  }
  func.func private @f(!x) -> !x
}
