"""Running averages on replicas: each adds up its own, and no replica waits for another."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from check import assert_close, assert_trains_as_jax
from jax.sharding import PartitionSpec as P
from models import carrying_step, place_on

import pathways as pw

WIDTH, ROWS, MICROBATCHES = 6, 32, 8
MOMENTUM = 0.9
Layer = Callable[..., Any]


def normalized_layer(w: jax.Array, stats: dict[str, jax.Array], x: jax.Array) -> tuple[jax.Array, Any]:
    """Applies a dense layer with a batch norm, and updates its averages by a microbatch."""
    h = x @ w
    mean, var = h.mean(0), h.var(0)
    new = {
        "mean": MOMENTUM * stats["mean"] + (1 - MOMENTUM) * mean,
        # Another spelling of it.
        "var": stats["var"] - (1 - MOMENTUM) * (stats["var"] - var),
        "seen": stats["seen"] + x.shape[0],
    }
    return jnp.tanh((h - mean) / jnp.sqrt(var + 1e-3)), jax.lax.stop_gradient(new)


def placed(replicas: int, shape: tuple[int, ...] = (1,), **options: Any) -> list[Layer]:
    devices = pw.make_virtual_device_set(replicas=replicas)
    return place_on([devices.add_slice(shape, ("x",), **options) for _ in range(2)], normalized_layer)


def step_of(layers: list[Layer]) -> Callable[..., Any]:
    def loss(params: list[jax.Array], stats: list[Any], x: jax.Array) -> Any:
        new = []
        for layer, w, each in zip(layers, params, stats, strict=True):
            x, averages = layer(w, each, x)
            new.append(averages)
        return (x**2).mean(), new

    return carrying_step(loss, MICROBATCHES)


def inputs() -> tuple[list[np.ndarray], list[Any], np.ndarray]:
    rng = np.random.default_rng(0)
    params = [rng.normal(size=(WIDTH, WIDTH)).astype(np.float32) for _ in range(2)]
    ones = np.ones(WIDTH, np.float32)
    first = {"mean": 3 * ones, "var": ones, "seen": np.float32(0)}
    return params, [first] * 2, rng.normal(size=(ROWS, WIDTH)).astype(np.float32)


@pytest.mark.parametrize(
    ("replicas", "schedule"), [(2, None), (4, "gpipe"), (2, "1f1b"), (4, "zb-h1"), (2, "eager")]
)
def test_averages_of_batch_norms(replicas: int, schedule: str | None) -> None:
    program = pw.program(step_of(placed(replicas)), schedule=schedule, donate_argnums=(0, 1))
    *state, x = inputs()
    assert_trains_as_jax(program, step_of([normalized_layer] * 2), state, x, steps=3, tolerance=1e-5)


@pytest.mark.parametrize("options", [{"shape": (2,)}, {"overlap": True}])
def test_averages_on_slices_of_several_devices_and_on_shared_ones(options: dict[str, Any]) -> None:
    program = pw.program(step_of(placed(2, **options)), schedule="1f1b")
    *state, x = inputs()
    assert_trains_as_jax(program, step_of([normalized_layer] * 2), state, x, steps=3, tolerance=1e-5)


def test_averages_keep_no_replica_waiting() -> None:
    """A step takes as long as the pipeline of one replica with its own microbatches."""
    replicas = 4
    lowered = pw.program(step_of(placed(replicas)), schedule="1f1b").lower(*inputs())
    remarks = [r.message for r in lowered.remarks if "replica before" in r.message]
    assert len(remarks) == 6
    assert all("nothing waits for the replica before" in message for message in remarks)
    timeline = lowered.compile().timeline({"kinds": {"fwd": "1ms", "bwd": "2ms"}})
    assert timeline.step_time == pytest.approx((MICROBATCHES // replicas + 1) * 3e-3)


def test_averages_exchanged_in_few_bits_round_only_terms_of_the_batch() -> None:
    """The first value is never sent."""
    program = pw.program(step_of(placed(2)), schedule="1f1b", exchange_dtype="bfloat16")
    params, stats, _ = inputs()
    zeros = np.zeros((ROWS, WIDTH), np.float32)
    _, _, ours = program(params, stats, zeros)
    np.testing.assert_allclose(ours[0]["mean"], 3 * MOMENTUM**MICROBATCHES, rtol=1e-6)


def test_averages_resharded_between_iterations() -> None:
    devices = pw.make_virtual_device_set(replicas=2)
    front, back = (devices.add_slice((size,), ("x",)) for size in (2, 1))

    def step_with(double: Layer, halve: Layer) -> Callable[..., Any]:
        def step(total: jax.Array, x: jax.Array) -> Any:
            def of_microbatch(total: jax.Array, x: jax.Array) -> Any:
                return halve(double(total)) + x.mean(0), x.sum()

            return pw.accumulate(of_microbatch, MICROBATCHES, carry_argnums=0)(total, x)

        return step

    def double(total: jax.Array) -> jax.Array:
        return 2 * total

    def halve(total: jax.Array) -> jax.Array:
        return total / 4

    placed = [
        pw.jit(fun, devices=slice_, in_shardings=P("x"), out_shardings=P("x"))
        for fun, slice_ in ((double, front), (halve, back))
    ]
    x = np.random.default_rng(0).normal(size=(ROWS, 8)).astype(np.float32)
    total = np.ones(8, np.float32)
    got = pw.program(step_with(*placed))(total, x)
    want = jax.jit(step_with(double, halve))(total, x)
    assert_close(got, want, 1e-5)
