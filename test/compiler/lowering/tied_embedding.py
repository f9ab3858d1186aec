# RUN: python %s | filecheck %s

"""A table that the first slice reads to embed and the second to predict. It lives on the first: it is sent
over, and the gradient of the second slice comes back, once each, to be added and applied there."""

import jax
import jax.numpy as jnp

import pathways as pw

devices = pw.make_virtual_device_set()
s0, s1 = (devices.add_slice((1,), ("x",), name=name) for name in ("s0", "s1"))
embed = pw.jit(lambda table, tokens: table[tokens], devices=s0)
predict = pw.jit(lambda table, h: h @ table.T, devices=s1)


@pw.program(donate_argnums=0)
def step(table, tokens):
    loss = lambda table: jnp.mean(predict(table, jnp.tanh(embed(table, tokens))) ** 2)  # noqa: E731
    return table - 0.1 * jax.grad(loss)(table)


table = jax.ShapeDtypeStruct((100, 64), "float32")
tokens = jax.ShapeDtypeStruct((8,), "int32")
print(step.lower(table, tokens).as_text("scheduled"))

# CHECK: func.func public @main(%arg0: tensor<100x64xf32>
# CHECK-SAME: pw.donated, pw.slice = @s0}
# CHECK-SAME: -> (tensor<100x64xf32>
# CHECK-SAME: pw.slice = @s0})
# CHECK: "pw.transfer"(%arg0) {{.*}}slice = @s1} : (tensor<100x64xf32>)
# CHECK: "pw.transfer"({{.*}}slice = @s1} : (tensor<8x64xf32>)
# CHECK: kind = "bwd"{{.*}}, slice = @s1
# CHECK: "pw.transfer"({{.*}}slice = @s0} : (tensor<8x64xf32>)
# CHECK: "pw.transfer"({{.*}}slice = @s0} : (tensor<100x64xf32>)
# CHECK-NOT: "pw.transfer"
# CHECK: return
