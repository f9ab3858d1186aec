"""State that microbatches hand on: values of one `jax.jit`, and the same bits on all replicas."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from check import assert_trains_as_jax
from models import carrying_step, layer, place_on

import pathways as pw

WIDTH, ROWS, MICROBATCHES = 8, 24, 6


def placed(replicas: int, shape: tuple[int, ...] = (1,), **options: Any) -> list[Callable[..., Any]]:
    devices = pw.make_virtual_device_set(replicas=replicas)
    return place_on([devices.add_slice(shape, ("x",), **options) for _ in range(2)])


def step_of(layers: list[Callable[..., Any]], loss: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a training step for a loss of layers, parameters, the state and a microbatch."""
    return carrying_step(functools.partial(loss, layers), MICROBATCHES)


def inputs() -> tuple[list[np.ndarray], np.ndarray]:
    rng = np.random.default_rng(0)
    first, second = (rng.normal(size=(WIDTH, WIDTH)).astype(np.float32) / 2 for _ in range(2))
    return [first, second], rng.normal(size=(ROWS, WIDTH)).astype(np.float32)


def normalized(layers: list[Callable[..., Any]], params: Any, state: Any, x: Any) -> Any:
    """Returns a loss whose forwards read the means of those before them, and a key of their own."""
    key, mask = jax.random.split(state["key"])
    h = layers[0](params[0], x * jax.random.bernoulli(mask, 0.8, x.shape) - state["front"])
    y = layers[1](params[1], h - state["back"])
    means = {name: 0.9 * state[name] + 0.1 * v.mean(0) for name, v in (("front", x), ("back", h))}
    return (y**2).mean(), {**jax.lax.stop_gradient(means), "key": key, "seen": state["seen"] + 1}


def first_state() -> dict[str, Any]:
    zeros = {name: np.zeros(WIDTH, np.float32) for name in ("front", "back")}
    return {**zeros, "key": jax.random.key(0), "seen": jnp.int32(0)}


@pytest.mark.parametrize(
    ("replicas", "schedule"), [(3, None), (2, "gpipe"), (3, "1f1b"), (2, "zb-h1"), (3, "eager")]
)
def test_state_that_forwards_read_goes_from_replica_to_replica(replicas: int, schedule: str | None) -> None:
    program = pw.program(step_of(placed(replicas), normalized), schedule=schedule, donate_argnums=(0, 1))
    params, x = inputs()
    assert_trains_as_jax(program, step_of([layer] * 2, normalized), [params, first_state()], x)


@pytest.mark.parametrize("options", [{"shape": (2,)}, {"overlap": True}])
def test_state_on_slices_of_several_devices_and_on_shared_ones(options: dict[str, Any]) -> None:
    program = pw.program(step_of(placed(2, **options), normalized), schedule="1f1b")
    params, x = inputs()
    assert_trains_as_jax(program, step_of([layer] * 2, normalized), [params, first_state()], x)


def test_state_that_no_microbatch_changes() -> None:
    """State only moves from one replica to the other and back."""

    def shifted(layers: list[Callable[..., Any]], params: Any, state: Any, x: Any) -> Any:
        return (layers[1](params[1], layers[0](params[0], x)) ** 2).mean() + state.sum(), state

    program = pw.program(step_of(placed(2), shifted), schedule="1f1b")
    (params, x), state = inputs(), np.ones(3, np.float32)
    assert_trains_as_jax(program, step_of([layer] * 2, shifted), [params, state], x, steps=1)
