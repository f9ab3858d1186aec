// RUN: pw-compile %S/Inputs/regression.py:step --args '{"w": bf16[8,4], "b": f32[4]}' 'f32[2,8]' --kwargs 'scale=f32[]' --compile-to=placed 2>/dev/null | filecheck %s --check-prefix=NAMED
// RUN: pw-compile %S/Inputs/regression.py:repeat --args 'f32[8,8]' 3 'key[]' --compile-to=imported 2>/dev/null | filecheck %s --check-prefix=STATIC
// RUN: pw-compile %S/Inputs/regression.py:chain --args 'f32[8,8]' --mlir-elide-elementsattrs-if-larger=4 2>/dev/null | filecheck %s --check-prefix=CHAIN
// RUN: pw-compile %S/Inputs/regression.py:chain --fuse --args 'f32[8,8]' 2>/dev/null | filecheck %s --check-prefix=FUSED

// Trees, scalars and named arguments have the names that the program gives them.

// NAMED: func.func public @main(
// NAMED-SAME: tensor<4xf32> {jax.arg_info = "params['b']"
// NAMED-SAME: tensor<8x4xbf16> {jax.arg_info = "params['w']"
// NAMED-SAME: tensor<2x8xf32> {jax.arg_info = "x"
// NAMED-SAME: tensor<f32> {jax.arg_info = "scale"

// A static argument is a value, and a PRNG key has the dtype of JAX's keys.

// STATIC: func.func public @main(
// STATIC-SAME: tensor<8x8xf32> {jax.arg_info = "x"
// STATIC-SAME: tensor<2xui32> {jax.arg_info = "key"
// STATIC-COUNT-3: "pw.launch"(
// STATIC-NOT: "pw.launch"(

// Long constants can be left out; what --fuse joins is one launch.

// CHAIN: callee = @lambda,
// FUSED-NOT: callee = @lambda,
// FUSED: return
