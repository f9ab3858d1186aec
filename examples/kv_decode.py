"""Decoding with caches of keys and values: layers on two slices, and a cache beside each.

A call decodes a token in each iteration of its loop: the loop goes through both slices, so it is a loop of
the program, and its caches are donated from iteration to iteration and never leave their slice. The caller
donates the state, and the next call continues with the returned one.

What differs from plain JAX:

    +import pathways as pw

    -def build() -> tuple[Any, Any, Any]:
    +def build(s0: pw.VirtualSlice, s1: pw.VirtualSlice) -> tuple[Any, Any, Any]:

    -    front, back = layer, layer
    +    front, back = pw.jit(layer, devices=s0), pw.jit(layer, devices=s1)

    -    @functools.partial(jax.jit, donate_argnums=0)
    +    @pw.program(donate_argnums=0)

    -    decode, state, params = build()
    +    decode, state, params = build(*slices(2))
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from _devices import slices

import pathways as pw

WORDS, WIDTH, LENGTH, BATCH, ITERATIONS = 32, 64, 24, 4, 8
Params, Cache = dict[str, jax.Array], dict[str, jax.Array]


def layer(w: Params, cache: Cache, x: jax.Array, position: jax.Array) -> tuple[jax.Array, Cache]:
    """Applies one layer to a token: x is (BATCH, WIDTH), keys and values (BATCH, LENGTH, WIDTH)."""
    write = functools.partial(jax.lax.dynamic_update_slice_in_dim, start_index=position, axis=1)
    cache = {name: write(cache[name], (x @ w[name])[:, None]) for name in ("k", "v")}
    scores = jnp.einsum("bw,btw->bt", x @ w["q"], cache["k"]) / WIDTH**0.5
    weights = jax.nn.softmax(jnp.where(jnp.arange(LENGTH) <= position, scores, -jnp.inf))
    x = jax.nn.standardize(x + jnp.einsum("bt,btw->bw", weights, cache["v"]) @ w["o"])
    return x + jax.nn.gelu(x @ w["up"]) @ w["down"], cache


def init(key: jax.Array) -> Params:
    shapes = dict.fromkeys("qkvo", (WIDTH, WIDTH)) | {"up": (WIDTH, 4 * WIDTH), "down": (4 * WIDTH, WIDTH)}
    keys = jax.random.split(key, len(shapes))
    return {n: jax.random.normal(k, s) * s[0] ** -0.5 for k, (n, s) in zip(keys, shapes.items(), strict=True)}


def build(s0: pw.VirtualSlice, s1: pw.VirtualSlice) -> tuple[Any, Any, Any]:
    """Returns a program that decodes, its state (caches, last tokens, number of tokens so far), and
    parameters."""
    front, back = pw.jit(layer, devices=s0), pw.jit(layer, devices=s1)

    @pw.program(donate_argnums=0)
    def decode(caches: tuple[Cache, Cache], params: Any, last: jax.Array, done: jax.Array) -> Any:
        def iterate(state: Any, _: None) -> tuple[Any, jax.Array]:
            (first, second), token, position = state
            x, first = front(params["front"], first, params["embed"][token], position)
            x, second = back(params["back"], second, x, position)
            token = jnp.argmax(x @ params["head"], axis=-1)
            return ((first, second), token, position + 1), token

        state, tokens = jax.lax.scan(iterate, (caches, last, done), length=ITERATIONS)
        return state, tokens.T

    keys = jax.random.split(jax.random.key(0), 4)
    params = {
        "embed": jax.random.normal(keys[0], (WORDS, WIDTH)),
        "front": init(keys[1]),
        "back": init(keys[2]),
        "head": jax.random.normal(keys[3], (WIDTH, WORDS)),
    }
    caches = tuple({name: jnp.zeros((BATCH, LENGTH, WIDTH)) for name in ("k", "v")} for _ in range(2))
    return decode, (caches, jnp.arange(BATCH), jnp.int32(0)), params


def main() -> None:
    decode, state, params = build(*slices(2))
    for _ in range(LENGTH // ITERATIONS):
        caches, last, done = state
        state, tokens = decode(caches, params, last, done)
        print(*jax.device_get(tokens[0]))


if __name__ == "__main__":
    main()
