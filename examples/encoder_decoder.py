"""Encoder and decoder, each on a slice: every block of the decoder reads the encoder's output.

The embedding is tied: the encoder, the decoder and its head read it, on both slices. Its gradient is summed
on each, and sent once for each step. The decoder learns to write what it reads backwards.

What differs from plain JAX:

    -import functools
    +import pathways as pw

    -def build() -> tuple[Any, Any, Any]:
    +def build(s0: pw.VirtualSlice, s1: pw.VirtualSlice) -> tuple[Any, Any, Any]:

    -    on_s0, on_s1 = encode, decode
    +    on_s0, on_s1 = pw.jit(encode, devices=s0), pw.jit(decode, devices=s1)

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

import pathways as pw

WORDS, WIDTH, LENGTH, BATCH, BLOCKS = 32, 64, 8, 32, 2
Params = dict[str, Any]


def attend(w: Params, x: jax.Array, memory: jax.Array, causal: bool = False) -> jax.Array:
    """Applies one head of attention, from (batch, length, width) to the same."""
    q, k, v = x @ w["q"], memory @ w["k"], memory @ w["v"]
    heads = (a[:, :, None] for a in (q, k, v))
    return x + jax.nn.dot_product_attention(*heads, is_causal=causal)[:, :, 0] @ w["o"]


def think(w: Params, x: jax.Array) -> jax.Array:
    x = jax.nn.standardize(x)
    return x + jax.nn.gelu(x @ w["up"]) @ w["down"]


def encode(embed: jax.Array, params: Params, words: jax.Array) -> jax.Array:
    """Encodes words (batch, length) to the memory that the decoder reads (batch, length, width)."""
    x = embed[words] + params["position"]
    for w in params["blocks"]:
        x = think(w, attend(w["self"], x, x))
    return x


def decode(embed: jax.Array, params: Params, memory: jax.Array, words: jax.Array) -> jax.Array:
    """Returns the logits of each next word (batch, length, WORDS)."""
    x = embed[words] + params["position"]
    for w in params["blocks"]:
        x = attend(w["self"], x, x, causal=True)
        x = think(w, attend(w["cross"], x, memory))
    return jax.nn.standardize(x) @ embed.T


def init(key: jax.Array) -> Params:
    def normal(*shape: int) -> jax.Array:
        nonlocal key
        key, own = jax.random.split(key)
        return jax.random.normal(own, shape) * shape[0] ** -0.5

    def block(*attentions: str) -> Params:
        w = {"up": normal(WIDTH, 4 * WIDTH), "down": normal(4 * WIDTH, WIDTH)}
        return w | {name: {part: normal(WIDTH, WIDTH) for part in "qkvo"} for name in attentions}

    def side(*attentions: str) -> Params:
        return {"position": normal(LENGTH, WIDTH), "blocks": [block(*attentions) for _ in range(BLOCKS)]}

    return {"embed": normal(WORDS, WIDTH), "encoder": side("self"), "decoder": side("self", "cross")}


def build(s0: pw.VirtualSlice, s1: pw.VirtualSlice) -> tuple[Any, Any, Any]:
    """Returns a train step, its state, and a batch of sentences."""
    on_s0, on_s1 = pw.jit(encode, devices=s0), pw.jit(decode, devices=s1)
    optimizer = optax.adam(1e-3)

    def loss_of(params: Params, sentences: jax.Array) -> jax.Array:
        backwards = sentences[:, ::-1]
        before = jnp.pad(backwards, ((0, 0), (1, 0)))[:, :-1]
        memory = on_s0(params["embed"], params["encoder"], sentences)
        logits = on_s1(params["embed"], params["decoder"], memory, before)
        return optax.softmax_cross_entropy_with_integer_labels(logits, backwards).mean()

    @pw.program(schedule="1f1b", donate_argnums=0)
    def train_step(state: Any, batch: jax.Array) -> tuple[Any, jax.Array]:
        params, moments = state
        loss, grads = pw.accumulate(jax.value_and_grad(loss_of), 4)(params, batch)
        updates, moments = optimizer.update(grads, moments, params)
        return (optax.apply_updates(params, updates), moments), loss

    params = init(jax.random.key(0))
    batch = jax.random.randint(jax.random.key(1), (BATCH, LENGTH), 1, WORDS)
    return train_step, (params, optimizer.init(params)), batch


def main() -> None:
    step, state, batch = build(*slices(2))
    for n in range(5):
        state, loss = step(state, batch)
        print(f"step {n}: loss {float(loss):.6f}")


if __name__ == "__main__":
    main()
