"""States and metrics of `pw.resilient` that share memory, are typed keys, or have no elements."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
import pytest

import pathways as pw

STEPS = 8


@pytest.fixture(autouse=True, params=["here", pytest.param("hosts", marks=pytest.mark.hosts)])
def islands(request: pytest.FixtureRequest) -> Iterator[None]:
    """Connects to two islands of a device."""
    pw.disconnect()
    pw.connect(hosts=2) if request.param == "hosts" else pw.connect(cpu_devices=2, islands=2)
    yield
    pw.disconnect()


def counting() -> Any:
    """Returns a program that counts steps and adds batches up, and donates both."""
    devices = pw.make_virtual_device_set()
    one = pw.jit(lambda n, w, x: (n + 1, w + x), devices=devices.add_slice((1,), ("x",)))

    @pw.program(donate_argnums=0)
    def step(state: Any, x: Any) -> Any:
        n, w = one(state["n"], state["w"], x)
        return {"n": n, "w": w}, {"loss": w * w}

    return step


def start() -> Any:
    return {"n": np.float32(0), "w": np.float32(0)}


def batches() -> list[Any]:
    return [np.float32(n) for n in range(STEPS)]


# Metrics.


def as_leaf(state: Any) -> Any:
    return state["n"]


def nested(state: Any) -> Any:
    return [{"all": state}, (state["n"],)]


def as_same_buffer(state: Any) -> Any:
    """An array with the same memory."""
    n = state["n"]
    return jax.device_put(n, n.sharding) if isinstance(n, jax.Array) else n


def only_later(state: Any) -> Any:
    """An array beside the state, but for one step."""
    return state["n"] if float(state["w"]) == 10 else state["n"] + 0


@pytest.mark.parametrize("metrics_of", [as_leaf, nested, as_same_buffer, only_later])
def test_resilient_metrics_may_share_memory_with_a_state_that_is_donated(
    metrics_of: Callable[[Any], Any],
) -> None:
    step = counting()

    def train_step(state: Any, x: Any) -> Any:
        state, metrics = step(state, x)
        return state, {**metrics, "n": metrics_of(state)}

    found = []
    with pw.resilient(train_step, start(), batches(), feeds=(step, "x"), every=3) as run:
        for n, metrics in run.steps(STEPS):
            assert all(leaf in (n + 1, n * (n + 1) / 2) for leaf in jax.tree.leaves(metrics["n"]))
            found.append(n)
    assert found == [*range(STEPS)]


def test_resilient_copies_metrics_in_numpy_that_a_step_writes_to() -> None:
    step = counting()

    def train_step(state: Any, x: Any) -> Any:
        state["seen"] += 1
        new, metrics = step({"n": state["n"], "w": state["w"]}, x)
        return {**new, "seen": state["seen"]}, {**metrics, "seen": state["seen"], "view": state["seen"][:1]}

    state = {**start(), "seen": np.zeros(2)}
    with pw.resilient(train_step, state, batches(), feeds=(step, "x"), every=3) as run:
        for n, metrics in run.steps(STEPS):
            assert [metrics["seen"][0], metrics["view"][0]] == [n + 1, n + 1]


def test_resilient_names_metrics_that_the_step_has_donated_itself() -> None:
    step = counting()
    start_on_slices = step(start(), np.float32(0))[0]

    def train_step(state: Any, x: Any) -> Any:
        new, metrics = step(state, x)
        return new, {**metrics, "old": state["n"]}

    with (
        pytest.raises(
            ValueError, match=r"metrics\['old'\] has been deleted: a program of the step has donat"
        ),
        pw.resilient(train_step, start_on_slices, batches(), feeds=(step, "x")) as run,
    ):
        list(run.steps(STEPS))


def test_resilient_metrics_may_be_typed_keys() -> None:
    one = pw.jit(
        lambda k, x: jax.random.fold_in(k, 1), devices=pw.make_virtual_device_set().add_slice((1,), ("x",))
    )

    @pw.program(donate_argnums=0)
    def step(key: Any, x: Any) -> Any:
        return one(key, x), None

    def train_step(key: Any, x: Any) -> Any:
        key, _ = step(key, x)
        return key, {"key": key}

    # Another one is the state, which may be donated.
    key, first = (jax.random.key(0, impl="rbg") for _ in range(2))
    with pw.resilient(train_step, first, batches(), feeds=(step, "x"), every=3) as run:
        for _, metrics in run.steps(STEPS):
            key = jax.random.fold_in(key, 1)
            assert metrics["key"].dtype == key.dtype
            np.testing.assert_array_equal(*map(jax.random.key_data, (metrics["key"], key)))


# States.


@pytest.mark.parametrize("lost", [None, 1])
def test_resilient_keeps_the_state_of_the_call(lost: int | None) -> None:
    devices = pw.make_virtual_device_set()
    a, b = (
        pw.jit(lambda w, x: w + x, devices=devices.add_slice((1,), ("x",), island=f"island{n}"))
        for n in range(2)
    )

    @pw.program
    def step(state: Any, x: Any) -> Any:
        return {"w": b(a(state["w"], x), 0 * x)}, state["w"][0]

    state = {"w": np.zeros(8, np.float32)}
    found = []
    run = pw.resilient(step, state, [np.full(8, n, np.float32) for n in range(5)], every=3)
    # The caller uses its array for something else.
    state["w"][:] = 50
    with run:
        state["w"][:] = 100
        for n, value in run.steps(5):
            found.append(float(value))
            if n == lost:
                run.lose("island0")
    assert found == [0, 0, 1, 3, 6]


def test_resilient_restores_a_state_in_numpy_that_steps_write_to() -> None:
    step = counting()

    def train_step(state: Any, x: Any) -> Any:
        state["seen"] += 1
        new, metrics = step({"n": state["n"], "w": state["w"]}, x)
        return {**new, "seen": state["seen"]}, metrics

    state = {**start(), "seen": np.zeros(2)}
    with pw.resilient(train_step, state, batches(), feeds=(step, "x"), every=3) as run:
        for n, _ in run.steps(STEPS):
            if n in (4, 5):
                run.lose("island0")
        assert [*run.state["seen"]] == [STEPS, STEPS]
    assert [*state["seen"]] == [0, 0]
