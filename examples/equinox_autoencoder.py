"""Autoencoder of equinox: modules are pytrees, and a placed function takes their arrays.

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

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from _devices import slices

import pathways as pw


def build(s0: pw.VirtualSlice, s1: pw.VirtualSlice) -> tuple[Any, Any, Any]:
    """Returns a train step of an autoencoder, its state, and a batch of 32 rows."""
    keys = jax.random.split(jax.random.key(0), 3)
    encoder = eqx.nn.MLP(16, 4, width_size=64, depth=2, key=keys[0])
    decoder = eqx.nn.MLP(4, 16, width_size=64, depth=2, key=keys[1])
    encoder_params, encoder_rest = eqx.partition(encoder, eqx.is_array)
    decoder_params, decoder_rest = eqx.partition(decoder, eqx.is_array)
    optimizer = optax.adamw(1e-3)

    @pw.jit(devices=s0)
    def encode(params: Any, x: jax.Array) -> jax.Array:
        return jax.vmap(eqx.combine(params, encoder_rest))(x)

    @pw.jit(devices=s1)
    def decode(params: Any, x: jax.Array) -> jax.Array:
        return jax.vmap(eqx.combine(params, decoder_rest))(x)

    def loss_of(params: Any, batch: jax.Array) -> jax.Array:
        return jnp.mean((decode(params[1], encode(params[0], batch)) - batch) ** 2)

    @pw.program(schedule="1f1b", donate_argnums=0)
    def train_step(state: Any, batch: jax.Array) -> tuple[Any, jax.Array]:
        params, moments = state
        loss, grads = pw.accumulate(jax.value_and_grad(loss_of), 4)(params, batch)
        updates, moments = optimizer.update(grads, moments, params)
        return (eqx.apply_updates(params, updates), moments), loss

    params = encoder_params, decoder_params
    batch = jax.random.normal(keys[2], (32, 16))
    return train_step, (params, optimizer.init(params)), batch


def main() -> None:
    step, state, batch = build(*slices(2))
    for n in range(5):
        state, loss = step(state, batch)
        print(f"step {n}: loss {float(loss):.6f}")


if __name__ == "__main__":
    main()
