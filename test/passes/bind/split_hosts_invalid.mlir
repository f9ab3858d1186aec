// RUN: pw-opt %s --split-input-file --verify-diagnostics --pw-split-hosts

// Of a program in parts, one at a time is split.

module @whole attributes {pw.form = "parts"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  func.func @main(%x: tensor<4xf32> {pw.slice = @s0}) -> (tensor<4xf32> {pw.slice = @s0}) {
    %0 = "pw.run"(%x) {part = @one} : (tensor<4xf32>) -> tensor<4xf32>
    return %0 : tensor<4xf32>
  }
  module @one attributes {pw.form = "bound"} {
    sdy.mesh @mesh = <["x"=1]>
    "pw.slice"() {sym_name = "s0", mesh = @mesh, host = 0, peak_bytes = 16} : () -> ()
    // expected-error@below {{'func.func' op is of a sub-program: each sub-program is split over hosts as a module of its own}}
    func.func @main(%x: tensor<4xf32> {pw.slice = @s0}) -> (tensor<4xf32> {pw.slice = @s0}) {
      return %x : tensor<4xf32>
    }
  }
}
