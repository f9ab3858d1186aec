# RUN: python %s | filecheck %s

"""A table that the first slice reads to embed and the second to predict, over 8 microbatches: each slice sums
what it contributes to the gradient, and one sum is sent over at the end, not eight terms."""

import collections
import re

import jax
import jax.numpy as jnp

import pathways as pw

devices = pw.make_virtual_device_set()
s0, s1 = (devices.add_slice((1,), ("x",), name=name) for name in ("s0", "s1"))
embed = pw.jit(lambda table, tokens: table[tokens], devices=s0)
predict = pw.jit(lambda table, h: h @ table, devices=s1)


@pw.program(donate_argnums=0, schedule="1f1b")
def step(table, tokens):
    # The second slice gets the table transposed, so that its gradient comes back transposed as well.
    loss = lambda table, tokens: jnp.mean(predict(table.T, jnp.tanh(embed(table, tokens))) ** 2)  # noqa: E731
    return table - 0.1 * pw.accumulate(jax.grad(loss), 8)(table, tokens)


table = jax.ShapeDtypeStruct((100, 64), "float32")
tokens = jax.ShapeDtypeStruct((8,), "int32")
text = step.lower(table, tokens).as_text()
moves = re.findall(r'"pw.transfer".*slice = (@\w+)} : \((\S+)\)', text)
for (to, what), count in collections.Counter(moves).items():
    print(f"{count} of {what} to {to}")

# CHECK: 1 of tensor<64x100xf32> to @s1
# CHECK-NEXT: 8 of tensor<1x64xf32> to @s1
# CHECK-NEXT: 8 of tensor<1x64xf32> to @s0
# CHECK-NEXT: 1 of tensor<64x100xf32> to @s0
# CHECK-NOT: of
