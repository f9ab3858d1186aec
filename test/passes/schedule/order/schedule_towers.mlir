// RUN: pw-opt %s -p 'pw-unroll-microbatches,pw-schedule' --emit-schedule | filecheck %s
// RUN: pw-opt %s -p 'pw-unroll-microbatches,pw-schedule{policy=zb-h2}' --emit-schedule | filecheck %s --check-prefix=H2

// Towers of one and of two stages, and a head that joins them, on a slice each. The image tower keeps two
// microbatches, as many as there are stages from it to the loss, and the text tower three and two.

// CHECK:      {{^}}0F0,0F1,,,0B0,0F2,0B1,0F3,0B2,0F4,0B3,,0B4,{{$}}
// CHECK-NEXT: {{^}}1F0,1F1,1F2,,,1B0,1F3,1B1,1F4,1B2,,1B3,,1B4{{$}}
// CHECK-NEXT: {{^}},2F0,2F1,,2B0,2F2,2B1,2F3,2B2,2F4,2B3,,2B4,{{$}}
// CHECK-NEXT: {{^}},,3F0,3B0,3F1,3B1,3F2,3B2,3F3,3B3,3F4,3B4,,{{$}}

// Five microbatches are enough for a chain of three stages.

// H2: {{^}}0F0,0F1,0F2,{{.*}}0B0

!x = tensor<4xf32>
module @towers attributes {pw.form = "sharded"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "image", mesh = @mesh} : () -> ()
  "pw.slice"() {sym_name = "text", mesh = @mesh} : () -> ()
  "pw.slice"() {sym_name = "deep", mesh = @mesh} : () -> ()
  "pw.slice"() {sym_name = "head", mesh = @mesh} : () -> ()
  "pw.loop"() {sym_name = "l", count = 5 : i64, schedule = "1f1b"} : () -> ()
  func.func @main(%batch: tensor<20xf32> {pw.slice = @image}, %tokens: tensor<20xf32> {pw.slice = @text})
      -> (!x {pw.slice = @image}, !x {pw.slice = @text}) {
    %x = "pw.split"(%batch) {loop = @l, slice = @image} : (tensor<20xf32>) -> !x
    %y = "pw.split"(%tokens) {loop = @l, slice = @text} : (tensor<20xf32>) -> !x
    %f0 = "pw.launch"(%x) {callee = @f, loop = @l, origins = [{kind = "fwd", stage = 0}], slice = @image} : (!x) -> !x
    %f1 = "pw.launch"(%y) {callee = @f, loop = @l, origins = [{kind = "fwd", stage = 1}], slice = @text} : (!x) -> !x
    %t1 = "pw.transfer"(%f1) {loop = @l, slice = @deep} : (!x) -> !x
    %f2 = "pw.launch"(%t1) {callee = @f, loop = @l, origins = [{kind = "fwd", stage = 2}], slice = @deep} : (!x) -> !x
    %t0 = "pw.transfer"(%f0) {loop = @l, slice = @head} : (!x) -> !x
    %t2 = "pw.transfer"(%f2) {loop = @l, slice = @head} : (!x) -> !x
    %f3 = "pw.launch"(%t0, %t2) {callee = @g, loop = @l, origins = [{kind = "fwd", stage = 3}], slice = @head} : (!x, !x) -> !x
    %b3 = "pw.launch"(%f3, %t0) {callee = @g, loop = @l, origins = [{kind = "bwd", stage = 3}], slice = @head} : (!x, !x) -> !x
    %u0 = "pw.transfer"(%b3) {loop = @l, slice = @image} : (!x) -> !x
    %u2 = "pw.transfer"(%b3) {loop = @l, slice = @deep} : (!x) -> !x
    %b0 = "pw.launch"(%f0, %u0) {callee = @g, loop = @l, origins = [{kind = "bwd", stage = 0}], slice = @image} : (!x, !x) -> !x
    %b2 = "pw.launch"(%f2, %u2) {callee = @g, loop = @l, origins = [{kind = "bwd", stage = 2}], slice = @deep} : (!x, !x) -> !x
    %u1 = "pw.transfer"(%b2) {loop = @l, slice = @text} : (!x) -> !x
    %b1 = "pw.launch"(%f1, %u1) {callee = @g, loop = @l, origins = [{kind = "bwd", stage = 1}], slice = @text} : (!x, !x) -> !x
    %r = "pw.reduce"(%b0) {kind = "sum", loop = @l, slice = @image} : (!x) -> !x
    %s = "pw.reduce"(%b1) {kind = "sum", loop = @l, slice = @text} : (!x) -> !x
    return %r, %s : !x, !x
  }
  func.func private @f(!x) -> !x
  func.func private @g(!x, !x) -> !x
}
