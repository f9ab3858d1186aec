// RUN: pw-compile %s -o %t.pwb && pw-bundle inspect --program %t.pwb | filecheck %s
// RUN: sed 's/func.func nested @once(.*{/func.func private @once(!x) -> !x/; /\/\/ ONCE/,/\/\/ END/d' %s > %t.mlir
// RUN: not pw-compile %t.mlir -o %t.pwb 2>&1 | filecheck %s --check-prefix=BODY

// A bundle declares the computations of a module, whatever their visibility is.

// CHECK: func.func private @double(tensor<4xf32>) -> tensor<4xf32>
// BODY: pw-compile: error: program 'm': @once is only declared and has no body to run

!x = tensor<4xf32>
module @m attributes {pw.form = "unrolled"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {mesh = @mesh, sym_name = "s0"} : () -> ()
  func.func @main(%x: !x {pw.slice = @s0}) -> (!x {pw.slice = @s0}) {
    %y = "pw.launch"(%x) {callee = @double, slice = @s0} : (!x) -> !x
    return %y : !x
  }
  func.func @double(%x: !x) -> !x {
    %y = call @once(%x) : (!x) -> !x
    %z = stablehlo.add %y, %y : !x
    return %z : !x
  }
  func.func nested @once(%x: !x) -> !x {
    // ONCE
    return %x : !x
  }
  // END
}
