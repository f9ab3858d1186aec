"""Random updates of parameters and state, in blocks on replicas and by `jax.jit`."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from check import assert_close, assert_copies_equal
from models import layer

import pathways as pw

OPERATIONS: list[Callable[..., Any]] = [
    lambda x, y: jnp.tanh(x) + y,
    lambda x, y: 0.9 * x + 0.1 * y,
    lambda x, y: x - jnp.max(y, axis=1)[:, None],
    lambda x, y: jnp.where(x > y.mean(axis=0), x, y),
    lambda x, y: x * jnp.minimum(1.0, 1 / (1 + jnp.sum(y * y))),
    lambda x, _: x + jnp.arange(len(x), dtype=x.dtype)[:, None] / len(x),
    lambda x, _: x * np.linspace(0.5, 1.5, x.size, dtype=np.float32).reshape(x.shape),
    lambda x, _: x.astype(jnp.bfloat16).astype(x.dtype),
    lambda x, y: (x.T * 0.5 + y.T).T,
    lambda x, y: jnp.concatenate([x[:, :2], y[:, 2:]], axis=1),
    lambda x, y: jax.lax.cond(
        jnp.sum(x) > 0, lambda a, b: a * 0.5 + b, lambda a, b: jnp.clip(b, -0.1, 0.1), x, y
    ),
    lambda x, _: jnp.clip(x, -0.3, 0.4),
]


def random_step(layer: Callable[..., Any], seed: int) -> Callable[..., Any]:
    def step(w, states, batch):
        def loss(w, batch):
            return ((layer(w, batch[0]) - batch[1]) ** 2).mean()

        value, gradient = pw.accumulate(jax.value_and_grad(loss), 12)(w, batch)
        rng = random.Random(seed)
        # Every new state depends on the gradient.
        values = [gradient]
        for _ in range(rng.randint(2, 8)):
            other = rng.choice([w, *states, *values])
            values.append(rng.choice(OPERATIONS)(rng.choice(values), other))
        states = [0.9 * state + 0.1 * rng.choice(values) for state in states]
        return value, w - 0.01 * rng.choice([*values, *states]), states

    return step


@pytest.mark.parametrize(
    ("seed", "replicas", "devices"), [(0, 2, 1), (1, 2, 2), (2, 3, 1), (3, 4, 2), (4, 2, 2), (5, 3, 1)]
)
def test_zero1_random_updates(seed: int, replicas: int, devices: int) -> None:
    slice = pw.make_virtual_device_set(replicas=replicas).add_slice((devices,), ("x",))
    arrays = np.random.default_rng(seed)
    w, *states = (arrays.normal(size=(24, 12)).astype(np.float32) / 2 for _ in range(3))
    batch = tuple(arrays.normal(size=(24, width)).astype(np.float32) for width in (24, 12))
    program = pw.program(random_step(pw.jit(layer, devices=slice), seed), zero1=True)
    plain = jax.jit(random_step(layer, seed))
    got, expected = (w, states), (w, states)
    for _ in range(2):
        value, *got = program(*got, batch)
        wanted, *expected = plain(*expected, batch)
        assert_close((value, got), (wanted, expected), 1e-4)
    assert any("replica" in str(state.sharding.spec) for state in got[1])
    assert_copies_equal(got)
