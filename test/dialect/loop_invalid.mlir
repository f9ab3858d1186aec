// RUN: pw-opt %s --split-input-file --verify-diagnostics

// A loop runs at least once.
func.func private @body(tensor<2xf32>) -> tensor<2xf32>
func.func @main(%x: tensor<2xf32>) {
  // expected-error@below {{'pw.loop' op expected a count of at least 1, got 0}}
  %0 = "pw.loop"(%x) {body = @body, count = 0, reduce = ["sum"], split = [false]} : (tensor<2xf32>) -> tensor<2xf32>
  return
}

// -----

// It has an operand and an entry of `split` per argument of the body, a result and one of `reduce` per result.
func.func private @body(tensor<2xf32>) -> tensor<2xf32>
func.func @main(%x: tensor<2xf32>) {
  // expected-error@below {{'pw.loop' op expected 1 operand and one entry of `split` for each, as @body has, got 2 and 1}}
  %0 = "pw.loop"(%x, %x) {body = @body, count = 2, reduce = ["sum"], split = [false]} : (tensor<2xf32>, tensor<2xf32>) -> tensor<2xf32>
  // expected-error@below {{'pw.loop' op expected 1 operand and one entry of `split` for each, as @body has, got 1 and 2}}
  %1 = "pw.loop"(%x) {body = @body, count = 2, reduce = ["sum"], split = [false, true]} : (tensor<2xf32>) -> tensor<2xf32>
  // expected-error@below {{'pw.loop' op expected 1 result and one entry of `reduce` for each, as @body has, got 1 and 0}}
  %2 = "pw.loop"(%x) {body = @body, count = 2, reduce = [], split = [false]} : (tensor<2xf32>) -> tensor<2xf32>
  return
}

// -----

// A split operand and a concatenated result have `count` blocks; others have the type that the body has.
func.func private @body(tensor<2xf32>, tensor<f32>) -> tensor<2xf32>
func.func @main(%x: tensor<2xf32>, %xs: tensor<8xf32>, %y: tensor<f32>) {
  %0 = "pw.loop"(%xs, %y) {body = @body, count = 4, reduce = ["concat"], split = [true, false]} : (tensor<8xf32>, tensor<f32>) -> tensor<8xf32>
  // expected-error@below {{'pw.loop' op operand #0 has type tensor<2xf32>, expected tensor<8xf32> from @body}}
  %1 = "pw.loop"(%x, %y) {body = @body, count = 4, reduce = ["sum"], split = [true, false]} : (tensor<2xf32>, tensor<f32>) -> tensor<2xf32>
  // expected-error@below {{'pw.loop' op operand #0 has type tensor<8xf32>, expected tensor<2xf32> from @body}}
  %2 = "pw.loop"(%xs, %y) {body = @body, count = 4, reduce = ["sum"], split = [false, false]} : (tensor<8xf32>, tensor<f32>) -> tensor<2xf32>
  // expected-error@below {{'pw.loop' op result #0 has type tensor<2xf32>, expected tensor<8xf32> from @body}}
  %3 = "pw.loop"(%x, %y) {body = @body, count = 4, reduce = ["concat"], split = [false, false]} : (tensor<2xf32>, tensor<f32>) -> tensor<2xf32>
  // expected-error@below {{'pw.loop' op operand #1 is a scalar in @body and cannot be split}}
  %4 = "pw.loop"(%x, %y) {body = @body, count = 4, reduce = ["sum"], split = [false, true]} : (tensor<2xf32>, tensor<f32>) -> tensor<2xf32>
  return
}
