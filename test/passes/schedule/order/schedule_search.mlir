// RUN: pw-opt %s --emit-schedule -p "pw-unroll-microbatches,pw-schedule{policy='search(seed=1, iterations=50)'}" | filecheck %s --check-prefix=HELD
// RUN: pw-opt %s -p "pw-unroll-microbatches,pw-schedule{policy='search(max-live=1)'}" 2>&1 >/dev/null | filecheck %s --check-prefix=REMARK
// RUN: pw-opt %s --emit-schedule -p "pw-unroll-microbatches,pw-schedule{policy='search(max-bytes=16)'}" | filecheck %s --check-prefix=BYTES
// RUN: not pw-opt %s -p "pw-unroll-microbatches,pw-schedule{policy='search(max-bytes=15)'}" 2>&1 | filecheck %s --check-prefix=NOTHING
// RUN: not pw-opt %s -p "pw-unroll-microbatches,pw-schedule{policy='gpipe(max-bytes=16)'}" 2>&1 | filecheck %s --check-prefix=POLICY
// RUN: not pw-opt %s -p "pw-unroll-microbatches,pw-schedule{policy='search(max-byte=16)'}" 2>&1 | filecheck %s --check-prefix=OPTION
// RUN: not pw-opt %s -p "pw-unroll-microbatches,pw-schedule{policy='1f1b(times=none.json)'}" 2>&1 | filecheck %s --check-prefix=TIMES

// Two stages and four microbatches. What a search finds is a schedule file like any other.

// HELD:      {{^}}0F0,0F1,
// HELD-NEXT: {{^}},1F0,1B0,
// REMARK: remark: 'pw.loop' op is ordered by a search of 0 steps: 0.0% faster than '1f1b', the best policy; 0.0% above the lower bound

// Each microbatch holds the result of its forward on the first slice; its block of the batch is cut again.

// BYTES:      {{^}}0F0,,,0B0,0F1,,,0B1,
// BYTES-NEXT: {{^}},1F0,1B0,,,1F1,1B1,
// NOTHING: error: 'pw.loop' op cannot be scheduled by 'search(max-bytes=15)', which needs at least 16 bytes of microbatches on @s0, and may have 15
// POLICY: error: 'pw.loop' op cannot be scheduled by 'gpipe(max-bytes=16)', which keeps 64 bytes of microbatches on @s0 alive at once, more than 16: use search
// OPTION: error: 'func.func' op cannot be scheduled by 'search(max-byte=16)': option 'max-byte' is unknown; did you mean 'max-bytes'?
// TIMES: error: 'pw.loop' op cannot be scheduled by '1f1b(times=none.json)': 'none.json': No such file or directory

!x = tensor<4xf32>
module attributes {pw.form = "sharded"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  "pw.slice"() {sym_name = "s1", mesh = @mesh} : () -> ()
  "pw.loop"() {sym_name = "l", count = 4 : i64} : () -> ()
  func.func @main(%x: tensor<16xf32> {pw.slice = @s0}) -> (!x {pw.slice = @s0}) {
    %t0 = "pw.split"(%x) {loop = @l, slice = @s0} : (tensor<16xf32>) -> !x
    %f0 = "pw.launch"(%t0) {callee = @f, loop = @l, origins = [{kind = "fwd", stage = 0}], slice = @s0} : (!x) -> !x
    %t1 = "pw.transfer"(%f0) {loop = @l, slice = @s1} : (!x) -> !x
    %f1 = "pw.launch"(%t1) {callee = @f, loop = @l, origins = [{kind = "fwd", stage = 1}], slice = @s1} : (!x) -> !x
    %b1 = "pw.launch"(%f1, %f1) {callee = @b, loop = @l, origins = [{kind = "bwd", stage = 1}], slice = @s1} : (!x, !x) -> !x
    %u0 = "pw.transfer"(%b1) {loop = @l, slice = @s0} : (!x) -> !x
    %b0 = "pw.launch"(%f0, %t0, %u0) {callee = @c, loop = @l, origins = [{kind = "bwd", stage = 0}], slice = @s0} : (!x, !x, !x) -> !x
    %r0 = "pw.reduce"(%b0) {kind = "sum", loop = @l, slice = @s0} : (!x) -> !x
    return %r0 : !x
  }
  func.func private @f(!x) -> !x
  func.func private @b(!x, !x) -> !x
  func.func private @c(!x, !x, !x) -> !x
}
