"""State that microbatches hand on, on replicas, is what it is in one `jax.jit`, and one for all replicas."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pathways as pw

WIDTH, ROWS, MICROBATCHES = 8, 24, 6
POLICIES = ("program", "gpipe", "1f1b", "zb-h1", "eager")


def layer(w: jax.Array, x: jax.Array) -> jax.Array:
    return jnp.tanh(x @ w)


def placed(replicas: int, shape: tuple[int, ...] = (1,), **options: Any) -> list[Callable[..., Any]]:
    devices = pw.make_virtual_device_set(replicas=replicas)
    return [pw.jit(layer, devices=devices.add_slice(shape, ("x",), **options)) for _ in range(2)]


def step_of(layers: list[Callable[..., Any]], loss: Callable[..., Any]) -> Callable[..., Any]:
    """A step of training; its loss is of the layers, the parameters, a microbatch and the state."""

    def step(params: list[jax.Array], state: Any, x: jax.Array) -> Any:
        def of_microbatch(params: list[jax.Array], state: Any, x: jax.Array) -> Any:
            grad = jax.value_and_grad(lambda p: loss(layers, p, x, state), has_aux=True)
            (value, state), grads = grad(params)
            return state, (value, grads)

        state, (value, grads) = pw.accumulate(of_microbatch, MICROBATCHES, carry_argnums=1)(params, state, x)
        return value, [w - 0.1 * g for w, g in zip(params, grads, strict=True)], state

    return step


def inputs() -> tuple[list[np.ndarray], np.ndarray]:
    rng = np.random.default_rng(0)
    first, second = (rng.normal(size=(WIDTH, WIDTH)).astype(np.float32) / 2 for _ in range(2))
    return [first, second], rng.normal(size=(ROWS, WIDTH)).astype(np.float32)


def assert_close(ours: Any, theirs: Any) -> None:
    """Equal but for the order of additions, and equal to the last bit on all replicas."""
    for got, want in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        if jnp.issubdtype(want.dtype, jax.dtypes.prng_key):
            got, want = jax.random.key_data(got), jax.random.key_data(want)
        assert (got.shape, got.dtype) == (want.shape, want.dtype)
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
        whole = np.asarray(got)
        for shard in got.addressable_shards:
            np.testing.assert_array_equal(shard.data, whole[shard.index])


def assert_trains_as_jax(program: Any, plain: Callable[..., Any], state: Any, steps: int = 2) -> None:
    (params, x), ours, theirs = inputs(), None, None
    for _ in range(steps):
        # First, since ours may be given the arguments for good.
        theirs = jax.jit(plain)(*(theirs[1:] if theirs else (params, state)), x)
        ours = program(*(ours[1:] if ours else (params, state)), x)
        assert_close(ours, theirs)


def normalized(layers: list[Callable[..., Any]], params: Any, x: Any, state: Any) -> Any:
    """Forwards on both slices read the means of those before them, and a key of their own."""
    key, mask = jax.random.split(state["key"])
    h = layers[0](params[0], x * jax.random.bernoulli(mask, 0.8, x.shape) - state["front"])
    y = layers[1](params[1], h - state["back"])
    means = {name: 0.9 * state[name] + 0.1 * v.mean(0) for name, v in (("front", x), ("back", h))}
    return (y**2).mean(), {**jax.lax.stop_gradient(means), "key": key, "seen": state["seen"] + 1}


def first_state() -> dict[str, Any]:
    zeros = {name: np.zeros(WIDTH, np.float32) for name in ("front", "back")}
    return {**zeros, "key": jax.random.key(0), "seen": jnp.int32(0)}


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("replicas", [2, 3])
def test_state_that_forwards_read_goes_from_replica_to_replica(replicas: int, policy: str) -> None:
    program = pw.program(step_of(placed(replicas), normalized), schedule=policy, donate_argnums=(0, 1))
    assert_trains_as_jax(program, step_of([layer] * 2, normalized), first_state())


@pytest.mark.parametrize("options", [{"shape": (2,)}, {"overlap": True}])
def test_state_on_slices_of_several_devices_and_on_shared_ones(options: dict[str, Any]) -> None:
    program = pw.program(step_of(placed(2, **options), normalized), schedule="1f1b")
    assert_trains_as_jax(program, step_of([layer] * 2, normalized), first_state())


def test_state_that_no_microbatch_changes() -> None:
    """It only goes from one replica to the other and back."""

    def shifted(layers: list[Callable[..., Any]], params: Any, x: Any, state: Any) -> Any:
        return (layers[1](params[1], layers[0](params[0], x)) ** 2).mean() + state.sum(), state

    program = pw.program(step_of(placed(2), shifted), schedule="1f1b")
    assert_trains_as_jax(program, step_of([layer] * 2, shifted), np.ones(3, np.float32), steps=1)
