"""Training runs that tests disturb, and the same runs undisturbed."""

from __future__ import annotations

import contextlib
import hashlib
import os
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
import optax
import pytest
from check import assert_equal
from models import layer, squared_error

import pathways as pw
from pathways.compiler.resilience.memory.memory_calls import MemoryCalls
from pathways.runtime.clusters.connect import controller
from pathways.runtime.resilience.snapshots.host_snapshots import default_snapshot_folder

WIDTH, ROWS, STEPS = 8, 16, 16


def batches(count: int = STEPS) -> list[tuple[np.ndarray, np.ndarray]]:
    rng = np.random.default_rng(1)
    return [tuple(rng.normal(size=(2, ROWS, WIDTH)).astype(np.float32)) for _ in range(count)]


def trainer(
    layers: Any,
    optimizer: Any = optax.sgd(0.05, momentum=0.9),  # noqa: B008 # it has no state
    microbatches: int = 2,
    **options: Any,
) -> tuple[pw.Program, Any]:
    """Returns a program that trains layers, and an initial state."""
    gradients = pw.accumulate(jax.value_and_grad(squared_error(layers)), microbatches)

    def train(state: Any, batch: Any) -> tuple[Any, Any]:
        value, grads = gradients(state["params"], batch)
        updates, moments = optimizer.update(grads, state["moments"], state["params"])
        return {"params": optax.apply_updates(state["params"], updates), "moments": moments}, {"loss": value}

    rng = np.random.default_rng(0)
    params = [(rng.normal(size=(WIDTH, WIDTH)) / 4).astype(np.float32) for _ in layers]
    state = {"params": params, "moments": jax.device_get(optimizer.init(params))}
    return pw.program(train, donate_argnums=0, **options), state


def stages(islands: tuple[int, ...] = (0, 1), devices_of_stage: int = 1) -> tuple[pw.Program, Any]:
    """Places a pipeline with a stage on each island: no other island has the same bytes."""
    devices = pw.make_virtual_device_set()
    slices = [devices.add_slice((devices_of_stage,), ("x",), island=f"island{n}") for n in islands]
    return trainer([pw.jit(layer, devices=one) for one in slices])


def digest(metrics: Any, state: Any) -> str:
    """Returns a hash of all bits of metrics and a state."""
    leaves = [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves((metrics, state))]
    return hashlib.sha256(b"".join(leaves)).hexdigest()


def undisturbed(step: Callable[..., Any], state: Any, source: list[Any]) -> tuple[list[Any], Any]:
    metrics = []
    for batch in source:
        state, values = step(state, batch)
        metrics.append(jax.device_get(values))
    return metrics, jax.device_get(state)


def kill(*hosts: int) -> None:
    for host in hosts:
        # The others of its island are killed with the first host that is lost.
        with contextlib.suppress(ProcessLookupError):
            os.kill(controller().hosts[host].process.pid, signal.SIGKILL)


def lose_all() -> None:
    """Kills all workers, and waits until that is noticed."""
    gangs = controller().pool.gangs[:]
    kill(*range(len(controller().hosts)))
    while not all(gang.is_lost() for gang in gangs):
        time.sleep(0.01)


def train(run: Any, losses: dict[int, Callable[[], Any]], count: int = STEPS) -> list[Any]:
    """Returns the metrics of all steps, and checks their numbers; calls `losses` after some steps.

    Steps without work take less time than copies, so the body waits for each version.
    """
    found: list[Any] = []
    for n, metrics in run.steps(count):
        assert n == len(found)
        found.append(metrics)
        losses.get(n, lambda: None)()
        while (pending := run._recovery.core.table.pending) is not None and pending.key.step <= n + 1:
            run._recovery.drain()
            run._store.wait(0.1)
    return found


def train_through_kills(caplog: pytest.LogCaptureFixture) -> None:
    """Trains while workers are killed during steps: one that keeps copies for another, and all at once."""
    step, state = stages()
    source = batches()
    expected = undisturbed(step, state, source)
    caplog.set_level("INFO", "pathways")
    with pw.resilient(step, state, source, every=3) as run:
        losses = {
            3: lambda: kill(1),
            7: lambda: kill(2),
            11: lambda: (is_protected_again(run), kill(0, 1, 2)),
        }
        metrics = train(run, losses)
        assert_equal((metrics, jax.device_get(run.state)), expected)
        assert run.status().losses >= 4
    going_on = [record.message for record in caplog.records if "resuming from version" in record.message]
    assert going_on[0].startswith(
        "pw.resilient: island1 is lost (its process has ended (killed by signal 9)); "
    )


def is_protected_again(run: Any) -> None:
    """Waits until lost copies are replaced, while no steps run."""
    while not run.protected:
        run._recovery.drain()
        run._store.wait(0.1)


@contextlib.contextmanager
def nothing_left() -> Iterator[None]:
    """Checks that no snapshots of this process are left."""
    yield
    folder = default_snapshot_folder()
    assert [path.name for path in folder.glob(f"run-*-{os.getpid()}-*")] == []


class KillsInCalls:
    """Injector that ends workers while hosts run a call of a function of the store.

    Args:
      monkeypatch: changes the store.
      function: the name of the function.
      when: the numbers of the calls, from 0.
      victim: returns the host from the arguments of the call.
      end: ends the worker of a host.
    """

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        function: str,
        when: tuple[int, ...],
        victim: Callable[[Any, Any], int],
        end: Callable[[int], None] = kill,
    ) -> None:
        self.left = len(when)
        count = 0
        called = MemoryCalls.call

        def call(
            store: Any, name: str, gang: Any, hosts: Any, lane: int, named: Any, *rest: Any, **more: Any
        ):
            nonlocal count
            result = called(store, name, gang, hosts, lane, named, *rest, **more)
            if name == function:
                if count in when:
                    self.left -= 1
                    end(victim(hosts, named))
                count += 1
            return result

        monkeypatch.setattr(MemoryCalls, "call", call)
