"""With `zero1=True` each replica keeps and updates a part of the optimizer's state, with the same results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import PartitionSpec as P

import pathways as pw
from pathways.runtime.plan.plan import Plan, Transfer

WIDTH, ROWS, MICROBATCHES = 24, 48, 12

OPTIMIZERS = {
    "momentum": optax.sgd(0.1, momentum=0.9),
    "nesterov": optax.sgd(0.1, momentum=0.9, nesterov=True),
    "adam": optax.adam(1e-2),
    "adamw": optax.adamw(optax.cosine_decay_schedule(1e-2, 100), weight_decay=0.1),
    "amsgrad": optax.amsgrad(1e-2),
    "nadam": optax.nadam(1e-2),
    "lion": optax.lion(1e-2),
    "rmsprop": optax.rmsprop(1e-2, momentum=0.9, centered=True),
    "adagrad": optax.adagrad(1e-2),
    "ema": optax.chain(optax.scale_by_adam(), optax.scale(-1e-2), optax.ema(0.9)),
    "signs": optax.chain(optax.sign_sgd(1e-2), optax.trace(0.5)),
    "bfloat16": optax.adam(1e-2, mu_dtype=jnp.bfloat16),
}
CLIPPED = {
    "global norm": optax.chain(optax.clip_by_global_norm(0.05), optax.adam(1e-2)),
    "norm of each": optax.chain(optax.clip_by_block_rms(0.01), optax.adam(1e-2)),
    "lamb": optax.lamb(1e-2),
    "finite": optax.chain(optax.zero_nans(), optax.adam(1e-2)),
    "adafactor": optax.adafactor(1e-2, min_dim_size_to_factor=8),
}
"""What adds up over all of an array, and in another order when replicas have blocks of it."""


def layer(p: dict[str, Any], x: jax.Array) -> jax.Array:
    return jnp.tanh(x @ p["w"] + p["b"]) * p.get("scale", 1.0)


def loss_of(layers: list[Callable[..., Any]]) -> Callable[..., Any]:
    def loss(params: list[Any], batch: Any) -> Any:
        x, y = batch
        for one, p in zip(layers, params, strict=True):
            x = one(p, x)
        return ((x - y) ** 2).mean()

    return loss


def step_of(layers: list[Callable[..., Any]], optimizer: Any) -> Callable[..., Any]:
    loss = loss_of(layers)

    def step(params, state, batch):
        value, grads = pw.accumulate(jax.value_and_grad(loss), MICROBATCHES)(params, batch)
        updates, state = optimizer.update(grads, state, params)
        return value, optax.apply_updates(params, updates), state

    return step


def stages(replicas: int, count: int = 2, shape: tuple[int, ...] = (1,), **shardings: Any) -> list[Any]:
    devices = pw.make_virtual_device_set(replicas=replicas)
    axes = ("x", "y")[: len(shape)]
    return [pw.jit(layer, devices=devices.add_slice(shape, axes), **shardings) for _ in range(count)]


def inputs(count: int = 2, dtype: Any = np.float32, odd: bool = True) -> tuple[list[Any], Any]:
    """Parameters of which the weight and the bias divide by 2, 3 and 4, and the scale by none of them.

    Without `odd` there is no scale: what has one element XLA rounds otherwise where it fuses otherwise.
    """
    rng = np.random.default_rng(0)

    def array(*shape: int) -> Any:
        return jnp.asarray(rng.normal(size=shape) / 2, dtype)

    params = [{"w": array(WIDTH, WIDTH), "b": array(WIDTH)} for _ in range(count)]
    if odd:
        params = [{**p, "scale": 1 + array(1)} for p in params]
    return jax.device_get(params), jax.device_get((array(ROWS, WIDTH), array(ROWS, WIDTH)))


def trained(step: Any, params: Any, state: Any, batch: Any, steps: int = 3) -> Any:
    values = []
    for _ in range(steps):
        value, params, state = step(params, state, batch)
        values.append(value)
    return values, params, state


def assert_equal(got: Any, want: Any) -> None:
    for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_array_equal(one, other)


def assert_close(got: Any, want: Any, rtol: float = 1e-4) -> None:
    for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        one, other = (np.asarray(a).astype(np.float64) for a in (one, other))
        np.testing.assert_allclose(one, other, rtol=rtol, atol=1e-5)


def is_split(array: Any) -> bool:
    axes = [axis for entry in array.sharding.spec if entry for axis in np.atleast_1d(entry)]
    return "replica" in axes


def assert_state_is_shared(state: Any, params: Any) -> None:
    """Checks that what divides is split, and the rest whole."""
    for leaf in jax.tree.leaves(state):
        assert is_split(leaf) == (leaf.size > 1), f"{leaf.shape}: {leaf.sharding.spec}"
    assert not any(map(is_split, jax.tree.leaves(params)))


def exchanged_bytes(plan: Plan) -> dict[str, int]:
    """The bytes that each slice sends to those of its stage in other replicas."""
    sent: dict[str, int] = {}
    for step in plan.steps:
        if isinstance(step, Transfer) and step.src.partition("_r")[0] == step.dst.partition("_r")[0]:
            sent[step.src] = sent.get(step.src, 0) + plan.bytes_moved(step)
    return sent


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_updates_are_the_same_bits(name: str) -> None:
    params, batch = inputs(odd=False)
    step, optimizer = step_of(stages(2), OPTIMIZERS[name]), OPTIMIZERS[name]
    state = optimizer.init(params)
    split = trained(pw.program(step, zero1=True), params, state, batch)
    assert_equal(split, trained(pw.program(step), params, state, batch))
    assert_close(split, trained(jax.jit(step_of([layer] * 2, optimizer)), params, state, batch))
    assert_state_is_shared(split[2], split[1])


@pytest.mark.parametrize("name", CLIPPED)
def test_norms_are_added_up_of_blocks(name: str) -> None:
    params, batch = inputs()
    step, optimizer = step_of(stages(2), CLIPPED[name]), CLIPPED[name]
    state = optimizer.init(params)
    _, new, last = split = trained(pw.program(step, zero1=True), params, state, batch)
    assert_close(split, trained(jax.jit(step_of([layer] * 2, optimizer)), params, state, batch))
    assert any(map(is_split, jax.tree.leaves(last)))
    assert_copies_are_equal(new)
    assert_copies_are_equal(last)


def assert_copies_are_equal(tree: Any) -> None:
    for leaf in jax.tree.leaves(tree):
        copies: dict[str, list[bytes]] = {}
        for shard in leaf.addressable_shards:
            copies.setdefault(str(shard.index), []).append(np.asarray(shard.data).tobytes())
        assert all(len(set(same)) == 1 for same in copies.values())


@pytest.mark.parametrize("replicas", [2, 3, 4])
@pytest.mark.parametrize("schedule", [None, "1f1b", "zb-h1"])
def test_donated_state_is_taken_in_place_step_after_step(replicas: int, schedule: str | None) -> None:
    params, batch = inputs(odd=False)
    optimizer = optax.adam(1e-2)
    step = step_of(stages(replicas), optimizer)
    options: dict[str, Any] = {"schedule": schedule, "donate_argnums": (0, 1)}
    train = pw.program(step, zero1=True, **options)
    state = optimizer.init(params)
    split = trained(train, params, state, batch)
    assert_equal(split, trained(pw.program(step, **options), params, optimizer.init(params), batch))
    # What one step returns, the next takes as it is.
    given = jax.tree.leaves((*split[1:], batch))
    brought = train.calls[0].bring(given)
    results = len(jax.tree.leaves(split[1:]))
    assert all(one is other for one, other in zip(brought[:results], given[:results], strict=True))
    assert_state_is_shared(split[2], split[1])
    assert_copies_are_equal(split)


@pytest.mark.parametrize("replicas", [2, 4])
@pytest.mark.parametrize("shape", [(2,), (1, 2)])
@pytest.mark.parametrize("spec", [P("x"), P(None, "x"), P(), P("x", "y")])
def test_slices_of_several_devices(replicas: int, shape: tuple[int, ...], spec: P) -> None:
    if len(shape) < 2:
        spec = P(*[axis for axis in spec if axis != "y"])
    count = 4 // replicas
    params, batch = inputs(count)
    shardings = ({"w": spec, "b": P(), "scale": P()}, P("x"))
    optimizer = optax.chain(optax.clip_by_global_norm(0.05), optax.adam(1e-2))
    step = step_of(stages(replicas, count, shape, in_shardings=shardings), optimizer)
    state = optimizer.init(params)
    split = trained(pw.program(step, zero1=True), params, state, batch)
    assert_close(split, trained(jax.jit(step_of([layer] * count, optimizer)), params, state, batch))
    assert_state_is_shared(split[2], split[1])
    assert_copies_are_equal(split)
