"""Flax nnx: a module on each of two slices, split into its graph and its state.

What differs from plain JAX:

    -import functools
    +import pathways as pw

    -def build() -> tuple[Any, Any, Any]:
    +def build(s0: pw.VirtualSlice, s1: pw.VirtualSlice) -> tuple[Any, Any, Any]:

    +    @pw.jit(devices=s0)

    +    @pw.jit(devices=s1)

    -    @functools.partial(jax.jit, donate_argnums=0)
    +    @pw.program(schedule="1f1b", donate_argnums=0)

    -        loss, grads = jax.value_and_grad(loss_of)(params, batch)
    +        loss, grads = pw.accumulate(jax.value_and_grad(loss_of), 4)(params, batch)

    -    step, state, batch = build()
    +    step, state, batch = build(*slices(2))
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax
from _devices import slices
from flax import nnx

import pathways as pw


class Mixer(nnx.Module):
    """Mixer of rows. Dropout is off, so that the plain version gives the same; its keys would be part of the
    state."""

    def __init__(self, before: int, after: int, rngs: nnx.Rngs) -> None:
        self.norm = nnx.LayerNorm(before, rngs=rngs)
        self.hidden = nnx.Linear(before, 64, rngs=rngs)
        self.out = nnx.Linear(64, after, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.out(nnx.gelu(self.hidden(self.norm(x))))


def build(s0: pw.VirtualSlice, s1: pw.VirtualSlice) -> tuple[Any, Any, Any]:
    """Returns a train step, its state, and a batch: 32 inputs with their targets."""
    graph_0, front_params = nnx.split(Mixer(16, 32, nnx.Rngs(0)))
    graph_1, back_params = nnx.split(Mixer(32, 16, nnx.Rngs(1)))
    optimizer = optax.adamw(1e-3)

    @pw.jit(devices=s0)
    def front(params: Any, x: jax.Array) -> jax.Array:
        return nnx.merge(graph_0, params)(x)

    @pw.jit(devices=s1)
    def back(params: Any, x: jax.Array) -> jax.Array:
        return nnx.merge(graph_1, params)(x)

    def loss_of(params: Any, batch: Any) -> jax.Array:
        x, y = batch
        return jnp.mean((back(params[1], front(params[0], x)) - y) ** 2)

    @pw.program(schedule="1f1b", donate_argnums=0)
    def train_step(state: Any, batch: Any) -> tuple[Any, jax.Array]:
        params, moments = state
        loss, grads = pw.accumulate(jax.value_and_grad(loss_of), 4)(params, batch)
        updates, moments = optimizer.update(grads, moments, params)
        return (optax.apply_updates(params, updates), moments), loss

    x = jax.random.normal(jax.random.key(1), (32, 16))
    params = front_params, back_params
    return train_step, (params, optimizer.init(params)), (x, jnp.sort(x))


def main() -> None:
    step, state, batch = build(*slices(2))
    for n in range(5):
        state, loss = step(state, batch)
        print(f"step {n}: loss {float(loss):.6f}")


if __name__ == "__main__":
    main()
