"""Flax linen with its `TrainState`, pipelined over two slices.

What differs from plain JAX:

    -import functools
    +import pathways as pw

    -def build() -> tuple[Any, TrainState, Any]:
    +def build(s0: pw.VirtualSlice, s1: pw.VirtualSlice) -> tuple[Any, TrainState, Any]:

    -    encode, predict = encoder.apply, head.apply
    +    encode, predict = pw.jit(encoder.apply, devices=s0), pw.jit(head.apply, devices=s1)

    -    @functools.partial(jax.jit, donate_argnums=0)
    +    @pw.program(schedule="1f1b", donate_argnums=0)

    -        loss, grads = jax.value_and_grad(loss_of)(state.params, batch)
    +        loss, grads = pw.accumulate(jax.value_and_grad(loss_of), 4)(state.params, batch)

    -    step, state, batch = build()
    +    step, state, batch = build(*slices(2))
"""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from _devices import slices
from flax.training.train_state import TrainState

import pathways as pw


class Encoder(nn.Module):
    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        return nn.gelu(nn.Dense(64)(nn.LayerNorm()(nn.Dense(64)(x))))


class Head(nn.Module):
    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        return nn.Dense(10)(nn.gelu(nn.Dense(64)(x)))


def build(s0: pw.VirtualSlice, s1: pw.VirtualSlice) -> tuple[Any, TrainState, Any]:
    """Returns a train step, its state, and a batch of 32 images with their classes."""
    encoder, head = Encoder(), Head()
    encode, predict = pw.jit(encoder.apply, devices=s0), pw.jit(head.apply, devices=s1)

    def loss_of(params: Any, batch: Any) -> jax.Array:
        logits = predict(params["head"], encode(params["encoder"], batch["image"]))
        return optax.softmax_cross_entropy_with_integer_labels(logits, batch["label"]).mean()

    @pw.program(schedule="1f1b", donate_argnums=0)
    def train_step(state: TrainState, batch: Any) -> tuple[TrainState, jax.Array]:
        loss, grads = pw.accumulate(jax.value_and_grad(loss_of), 4)(state.params, batch)
        return state.apply_gradients(grads=grads), loss

    keys = jax.random.split(jax.random.key(0), 4)
    batch = {
        "image": jax.random.normal(keys[0], (32, 28 * 28)),
        "label": jax.random.randint(keys[1], (32,), 0, 10),
    }
    params = {
        "encoder": encoder.init(keys[2], batch["image"]),
        "head": head.init(keys[3], jnp.zeros((1, 64))),
    }
    state = TrainState.create(apply_fn=None, params=params, tx=optax.adamw(1e-3))
    return train_step, state, batch


def main() -> None:
    step, state, batch = build(*slices(2))
    for _ in range(5):
        state, loss = step(state, batch)
        print(f"step {int(state.step)}: loss {float(loss):.6f}")


if __name__ == "__main__":
    main()
