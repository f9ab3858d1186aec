# RUN: python %s | filecheck %s

"""gelu between two stages: what its backward needs of the forward stays on the slice, nothing but the
activation and its gradient crosses."""

import jax
import jax.numpy as jnp

import pathways as pw

devices = pw.make_virtual_device_set()
s0, s1 = (devices.add_slice((1,), ("x",), name=name) for name in ("s0", "s1"))
first = pw.jit(lambda w, x: x @ w, devices=s0)
second = pw.jit(lambda w, h: h @ w, devices=s1)


@pw.program
def gradients(w, x):
    return jax.grad(lambda w: jnp.sum(second(w[1], jax.nn.gelu(first(w[0], x)))))(w)


w = jax.ShapeDtypeStruct((64, 64), "float32")
x = jax.ShapeDtypeStruct((8, 64), "float32")
print(gradients.lower((w, w), x).as_text("scheduled"))

# CHECK: func.func public @main(
# CHECK: %[[FWD:.*]]:{{[0-9]+}} = "pw.launch"{{.*}}origins = [{kind = "fwd", stage = 0 : i64}], slice = @s0
# CHECK-NEXT: "pw.transfer"(%[[FWD]]#{{[0-9]+}}) {{.*}}slice = @s1} : (tensor<8x64xf32>)
# CHECK: "pw.launch"({{.*}}origins = [{kind = "bwd", stage = 1 : i64}], slice = @s1
# CHECK: "pw.transfer"({{.*}}slice = @s0} : (tensor<8x64xf32>)
# CHECK-NOT: "pw.transfer"
# CHECK: "pw.launch"({{.*}}origins = [{kind = "bwd", stage = 0 : i64}], slice = @s0
# CHECK-NOT: "pw.transfer"
# CHECK: return
