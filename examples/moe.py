"""Mixture of experts over slices: each slice has an expert, and tokens go to the experts that they choose.

A router sends each token to two experts, up to a capacity (GShard). A token that finds both experts full
stays as it is, and a second loss balances the experts (Switch Transformer). `pw.all_to_all` moves the tokens
to the slices of their experts, and the results back, in a pipeline of microbatches. The same model on one
slice of as many devices, by `jax.shard_map` and `jax.lax.all_to_all`, prints the same losses:

    python examples/moe.py --slices 4
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import optax
from _devices import connect
from jax.sharding import PartitionSpec as P

import pathways as pw

WIDTH, TOKENS, CAPACITY_FACTOR, BALANCE, MICROBATCHES, STEPS = 16, 64, 1.25, 0.01, 4, 5
Params = dict[str, jax.Array]
Gradient = Callable[[list[Params], Any], tuple[jax.Array, list[Params]]]


def route(router: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Returns the tokens for each expert, (experts, capacity, width), the weights of what comes back,
    (tokens, experts, capacity), and the loss that balances the experts."""
    tokens, experts = x.shape[0], router.shape[1]
    gates = jax.nn.softmax(x @ router)
    values, chosen = jax.lax.top_k(gates, 2)
    # First choices of all tokens come before second choices.
    taken = jax.nn.one_hot(chosen.T, experts).reshape(2 * tokens, experts)
    places = (jnp.cumsum(taken, 0) - taken).astype(int)
    # No slot has a place beyond the capacity: such a token is dropped.
    capacity = int(2 * tokens / experts * CAPACITY_FACTOR)
    slots = (taken[:, :, None] * jax.nn.one_hot(places, capacity)).reshape(2, tokens, experts, capacity)
    weights = jnp.einsum("tk,ktec->tec", values / values.sum(1, keepdims=True), slots)
    balance = experts * jnp.sum(gates.mean(0) * taken[:tokens].mean(0))
    return jnp.einsum("ktec,td->ecd", slots, x), weights, balance


def expert(w: Params, received: jax.Array) -> jax.Array:
    """Applies an expert to the tokens of all slices, (slices, capacity, width)."""
    return jax.nn.gelu(received @ w["up"]) @ w["down"]


def combine(x: jax.Array, weights: jax.Array, returned: jax.Array) -> jax.Array:
    """Adds what the experts return; for a dropped token that is nothing."""
    return x + jnp.einsum("tec,ecd->td", weights, returned)


def error(x: jax.Array, y: jax.Array) -> jax.Array:
    return jnp.mean((x - y) ** 2)


def over_slices(slices: Sequence[pw.VirtualSlice]) -> Gradient:
    """Returns the loss and gradient of experts on slices, of lists of parameters and tokens."""
    routes, experts, combines, errors = (
        [pw.jit(f, devices=slice) for slice in slices] for f in (route, expert, combine, error)
    )

    def loss(params: Any, batch: Any) -> jax.Array:
        x, y = batch
        routed = [f(w["router"], tokens) for f, w, tokens in zip(routes, params, x, strict=True)]
        sent, weights, balance = zip(*routed, strict=True)
        received = pw.all_to_all(sent)
        returned = pw.all_to_all(
            [f(w, tokens) for f, w, tokens in zip(experts, params, received, strict=True)]
        )
        outputs = [f(*values) for f, *values in zip(combines, x, weights, returned, strict=True)]
        losses = [f(*values) for f, *values in zip(errors, outputs, y, strict=True)]
        return sum(losses) / len(slices) + BALANCE * sum(balance) / len(slices)

    return pw.accumulate(jax.value_and_grad(loss), MICROBATCHES)


def over_devices(slice: pw.VirtualSlice) -> Gradient:
    """Returns the same of experts on the devices of one slice."""

    def of_device(params: Any, batch: Any) -> jax.Array:
        # Each device has one row of all arrays.
        w, (x, y) = jax.tree.map(lambda row: row[0], (params, batch))
        sent, weights, balance = route(w["router"], x)
        received = jax.lax.all_to_all(sent, "x", 0, 0)
        returned = jax.lax.all_to_all(expert(w, received), "x", 0, 0)
        loss = error(combine(x, weights, returned), y) + BALANCE * balance
        return jax.lax.pmean(loss, "x")

    def loss(params: Any, batch: Any) -> jax.Array:
        stacked = jax.tree.map(lambda *rows: jnp.stack(rows), *params)
        rows = tuple(map(jnp.stack, batch))
        return jax.shard_map(of_device, in_specs=P("x"), out_specs=P())(stacked, rows)

    return pw.jit(pw.accumulate(jax.value_and_grad(loss), MICROBATCHES), devices=slice)


def init(key: jax.Array) -> Params:
    """Returns the parameters of a slice: its expert, and the router for its tokens."""
    shapes = {"up": (WIDTH, 4 * WIDTH), "down": (4 * WIDTH, WIDTH)}
    keys = jax.random.split(key, len(shapes))
    return {n: jax.random.normal(k, s) * s[0] ** -0.5 for k, (n, s) in zip(keys, shapes.items(), strict=True)}


def train(gradient: Gradient, count: int) -> list[float]:
    """Returns the losses of some steps of training on random tokens."""
    optimizer = optax.adam(1e-2)

    @pw.program(schedule="1f1b", donate_argnums=0)
    def step(state: Any, batch: Any) -> tuple[Any, jax.Array]:
        params, moments = state
        value, grads = gradient(params, batch)
        updates, moments = optimizer.update(grads, moments, params)
        return (optax.apply_updates(params, updates), moments), value

    router = jax.random.normal(jax.random.key(1), (WIDTH, count)) * WIDTH**-0.5
    params = [init(jax.random.key(2 + n)) | {"router": router + 0} for n in range(count)]
    tokens = jax.random.normal(jax.random.key(0), (2, count, MICROBATCHES * TOKENS, WIDTH))
    x, y = (list(rows) for rows in tokens)
    state, losses = (params, optimizer.init(params)), []
    for _ in range(STEPS):
        state, value = step(state, (x, y))
        losses.append(float(value))
    return losses


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--slices", type=int, default=4, help="slices, each with an expert")
    count = parser.parse_args().slices
    shape, overlap = connect(2 * count, (1,))
    devices = pw.make_virtual_device_set()
    slices = [devices.add_slice(shape, ("x",), overlap=overlap) for _ in range(count)]
    one = devices.add_slice((count,), ("x",), overlap=overlap)
    both = train(over_slices(slices), count), train(over_devices(one), count)
    for n, (apart, together) in enumerate(zip(*both, strict=True)):
        print(f"step {n}: loss {apart:.6f} over slices, {together:.6f} over devices")


if __name__ == "__main__":
    main()
