"""Training that goes on with fewer replicas while islands are lost, and with all when they are back.

Each step is compared, bit for bit, with one of a program that was made for as many replicas.
"""

from __future__ import annotations

import collections
import functools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
import optax
import pytest
from models import layer, squared_error

import pathways as pw

ROWS, MICROBATCHES = 24, 12
LONG = 400
"""Steps in which all happens that a test waits for; it ends before."""


@pytest.fixture(autouse=True)
def islands() -> Iterator[None]:
    """Has four islands of two devices, and two more devices for the steps to compare with."""
    pw.disconnect()
    pw.connect(cpu_devices=8, islands=4)
    yield
    pw.disconnect()


def batches(count: int = LONG, width: int = 12) -> list[Any]:
    rng = np.random.default_rng(1)
    return [tuple(rng.normal(size=(2, ROWS, width)).astype(np.float32)) for _ in range(count)]


class Trainer:
    """A step on replicas of two slices, as a program.

    Args:
      replicas: how many there are.
      width: the size of its layers.
      options: of its program.

    Attributes:
      step: the program of a state and a batch.
      state: the state that it begins with.
    """

    def __init__(self, replicas: int = 4, width: int = 12, **options: Any) -> None:
        devices = pw.make_virtual_device_set(replicas=replicas)
        layers = [pw.jit(layer, devices=devices.add_slice((1,), ("x",))) for _ in range(2)]
        adam = optax.adam(1e-2)
        gradients = pw.accumulate(jax.value_and_grad(squared_error(layers)), MICROBATCHES)

        def train(state: Any, batch: Any) -> tuple[Any, Any]:
            value, grads = gradients(state["params"], batch)
            updates, moments = adam.update(grads, state["moments"], state["params"])
            params = optax.apply_updates(state["params"], updates)
            return {"params": params, "moments": moments}, {"loss": value}

        self.step: Any = pw.program(train, donate_argnums=0, **{"schedule": "1f1b", **options})
        self.feeds = self.step, "batch"
        rng = np.random.default_rng(0)
        params = [(rng.normal(size=(width, width)) / 4).astype(np.float32) for _ in range(2)]
        self.state = {"params": params, "moments": jax.device_get(adam.init(params))}


class TwoPrograms:
    """A step that calls a program for gradients and another one for updates; see `Trainer`."""

    def __init__(self, replicas: int = 4) -> None:
        devices = pw.make_virtual_device_set(replicas=replicas)
        layers = [pw.jit(layer, devices=devices.add_slice((1,), ("x",))) for _ in range(2)]
        loss = jax.value_and_grad(squared_error(layers))
        self.gradients = pw.program(pw.accumulate(loss, MICROBATCHES), schedule="gpipe")
        # Without placed functions: it runs where its arguments are.
        self.update = pw.program(lambda w, grad, rate: w - rate * grad, donate_argnums=0)
        self.feeds = self.gradients, "batch"
        rng = np.random.default_rng(0)
        params = [(rng.normal(size=(12, 12)) / 4).astype(np.float32) for _ in range(2)]
        self.state = {"params": params, "key": jax.random.key(3), "count": 0}

    def step(self, state: Any, batch: Any) -> tuple[Any, Any]:
        value, grads = self.gradients(state["params"], batch)
        key, new = jax.random.split(state["key"])
        rate = 0.1 + float(jax.random.uniform(new)) / 10
        params = [self.update(w, grad, rate) for w, grad in zip(state["params"], grads, strict=True)]
        return {"params": params, "key": key, "count": state["count"] + 1}, {"loss": value}


def on_host(tree: Any) -> Any:
    """Returns a copy of a tree without devices; keys are as they are."""
    return jax.tree.map(lambda leaf: np.array(leaf) if not is_key(leaf) else leaf, jax.device_get(tree))


def is_key(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array) and jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def bits(tree: Any) -> list[bytes]:
    leaves = jax.tree.leaves(on_host(tree))
    return [np.asarray(jax.random.key_data(one) if is_key(one) else one).tobytes() for one in leaves]


class CheckedStep:
    """A step whose calls are compared with those of a program that was made for as many replicas.

    Args:
      made_for: makes a trainer for some replicas.

    Attributes:
      trainer: the trainer of four replicas, whose step it is.
      run: the run that calls it.
      counts: the number of replicas of each call.
      mistakes: what was wrong. A run calls a step again that fails while an island is lost.
    """

    def __init__(self, made_for: Callable[[int], Any]) -> None:
        self.trainer = made_for(4)
        self.run: Any = None
        self.counts: list[int] = []
        self.mistakes: list[str] = []
        self._made_for = functools.cache(made_for)
        # The bits of the states that were computed before each step.
        self._states = collections.defaultdict(list, {0: [bits(self.trainer.state)]})

    def __call__(self, state: Any, batch: Any) -> Any:
        if self.run is None:
            return self.trainer.step(state, batch)
        n, before = self.run.step, on_host(state)
        if bits(before) not in self._states[n]:
            self.mistakes.append(f"the state before step {n} was never computed")
        result = self.trainer.step(state, batch)
        count = len(result[1]["loss"].devices())
        self.counts.append(count)
        if bits(result) != bits(self._made_for(count).step(before, on_host(batch))):
            self.mistakes.append(f"step {n} of {count} replicas has other values")
        self._states[n + 1].append(bits(result[0]))
        return result

    def resilient(self, source: Any, **options: Any) -> Any:
        """Returns a run of it."""
        run = pw.resilient(self, self.trainer.state, source, feeds=self.trainer.feeds, **options)
        return run


def train(run: Any, step: CheckedStep, act: Callable[[int], bool | None]) -> None:
    """Runs steps until `act`, which is called after each of them, says so."""
    step.run = run
    for expected, (n, metrics) in enumerate(run.steps(LONG)):
        assert n == expected
        assert np.isfinite(metrics["loss"])
        if act(n):
            break
    else:
        pytest.fail(f"{LONG} steps were not enough: {step.counts}")
    assert not step.mistakes


def islands_of(tree: Any) -> set[str]:
    """Returns the islands that have some of the arrays on slices."""
    arrays = [leaf for leaf in jax.tree.leaves(tree) if isinstance(leaf, jax.Array) and leaf.committed]
    return {f"island{device.id // 2}" for array in arrays for device in array.devices()}


MODELS: dict[str, Callable[[int], Any]] = {
    "replicas": Trainer,
    "zero1": functools.partial(Trainer, zero1=True),
    # Three replicas cannot share 8 rows of a moment, which four do.
    "zero1 that does not divide": functools.partial(Trainer, zero1=True, width=8),
    "zero1 and zero bubble": functools.partial(Trainer, zero1=True, schedule="zb-h1"),
    "two programs": TwoPrograms,
}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("lost", ["island0", "island2"])
def test_fewer_replicas_have_the_bits_of_as_many(name: str, lost: str) -> None:
    """Steps are those of four replicas, then of three, whichever are left, then of four again."""
    step = CheckedStep(MODELS[name])
    width = 8 if "not divide" in name else 12
    with step.resilient(batches(width=width), every=3, minimum=3) as run:

        def act(n: int) -> bool | None:
            if n == 4:
                run.lose(lost, memory=True, returns=False)
            if n == 9:
                assert islands_of(run.state) == {f"island{k}" for k in range(4)} - {lost}
                assert run.status().replicas == 3
                run.return_island(lost)
            return n > 9 and step.counts[-1] == 4 and step.counts[-2] == 4

        train(run, step, act)
        assert islands_of(run.state) == {f"island{k}" for k in range(4)}
    switches = [a for a, b in zip(step.counts, [*step.counts[1:], 0], strict=True) if a != b]
    assert switches == [4, 3, 4]
