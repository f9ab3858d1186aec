# RUN: python %s | filecheck %s

"""A pipeline of S slices with one layer on each, and 8 microbatches. On every slice a microbatch is a forward
and a backward launch, on the last one launch in all: blocks of the batch, sums of gradients and the update
are part of them. An activation and its gradient cross each boundary for each microbatch, nothing else."""

import jax
import jax.numpy as jnp

import pathways as pw


def step_over(count):
    devices = pw.make_virtual_device_set()
    stages = [pw.jit(lambda w, x: jnp.tanh(x @ w), devices=devices.add_slice(1, "x")) for _ in range(count)]

    def loss(params, batch):
        x, y = batch
        for stage, w in zip(stages, params, strict=True):
            x = stage(w, x)
        return jnp.mean((x - y) ** 2)

    @pw.program(schedule="1f1b", donate_argnums=0)
    def step(params, batch):
        value, gradients = pw.accumulate(jax.value_and_grad(loss), 8)(params, batch)
        return value, jax.tree.map(lambda p, g: p - 0.1 * g, params, gradients)

    return step


for count in (2, 4):
    params = [jax.ShapeDtypeStruct((64, 64), "float32")] * count
    batch = (jax.ShapeDtypeStruct((16, 64), "float32"),) * 2
    text = step_over(count).lower(params, batch).as_text()
    launches, transfers = (text.count(f'"pw.{name}"(') for name in ("launch", "transfer"))
    print(f"{count} slices: {launches} launches, {transfers} transfers")

# CHECK: 2 slices: 24 launches, 16 transfers
# CHECK: 4 slices: 56 launches, 48 transfers
