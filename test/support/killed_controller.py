"""Training with `pw.resilient` on two hosts, in a process that kills itself."""

from __future__ import annotations

import argparse
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
from models import layer, squared_error

import pathways as pw
from pathways.runtime.clusters.connect import controller

WIDTH, ROWS, STEPS = 8, 16, 16


def batches() -> list[tuple[np.ndarray, np.ndarray]]:
    rng = np.random.default_rng(1)
    return [tuple(rng.normal(size=(2, ROWS, WIDTH)).astype(np.float32)) for _ in range(STEPS)]


def trainer() -> tuple[Callable[[Any, Any], Any], pw.Program, Any]:
    """Returns a step, the program in it that reads the batches, and a state that is not all on hosts."""
    devices = pw.make_virtual_device_set()
    count = len(controller().pool.gangs)
    slices = [devices.add_slice((1,), ("x",), island=f"island{n % count}") for n in (0, 1)]
    loss = jax.value_and_grad(squared_error([pw.jit(layer, devices=one) for one in slices]))

    def update(params: Any, batch: Any, noise: Any, rate: Any) -> tuple[Any, Any]:
        value, grads = loss(params, batch)
        return [w - rate * (g + noise) for w, g in zip(params, grads, strict=True)], value

    program = pw.program(update, donate_argnums=0)

    def train_step(state: Any, batch: Any) -> tuple[Any, Any]:
        noise = np.asarray(jax.random.normal(jax.random.fold_in(state["key"], state["count"]), (WIDTH,)))
        params, value = program(state["params"], batch, noise * np.float32(0.01), state["rate"])
        later = {"params": params, "count": state["count"] + 1, "key": jax.random.split(state["key"])[0]}
        return later | {"rate": state["rate"] * np.float32(0.9)}, {"loss": value}

    rng = np.random.default_rng(0)
    params = [(rng.normal(size=(WIDTH, WIDTH)) / 4).astype(np.float32) for _ in slices]
    state = {"params": params, "count": 0, "key": jax.random.key(3), "rate": np.float32(0.05)}
    return train_step, program, state


def resilient(disk: str | os.PathLike[str], state: Any = None, **options: Any) -> Any:
    """Returns a run: a version every 4 steps; every second one is saved to disk."""
    step, program, start = trainer()
    options = {"every": 4, "disk_every": 2} | options
    given = start if state is None else state
    return pw.resilient(step, given, batches(), feeds=(program, "batch"), directory=disk, **options)


def settle(run: Any, step: int) -> None:
    """Waits until versions up to a step are committed, and none is being saved."""
    table = run._recovery.core.table
    while (table.pending is not None and table.pending.key.step <= step) or table.saving is not None:
        run._recovery.drain()
        run._store.wait(0.05)


def copied(run: Any) -> None:
    """Waits until the version that is not committed has all its copies."""
    while run._recovery.core.table.pending.pending:
        run._recovery.drain()
        run._store.wait(0.05)


def recorded(run: Any, memory: Path) -> None:
    """Waits until both hosts have the record of the last version that was committed, and no older version."""
    step = run._recovery.core.table.committed.key.step
    while len([*memory.glob(f"kept-*/host*/{step}.*/committed")]) < 2:
        time.sleep(0.01)
    while any(int(path.name.partition(".")[0]) < step for path in memory.glob("kept-*/host*/*.*")):
        time.sleep(0.01)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("disk")
    parser.add_argument("memory")
    parser.add_argument("last", type=int, help="the step after whose metrics the process is killed")
    parser.add_argument("--uncommitted", action="store_true", help="with a version that is not committed")
    options = parser.parse_args()
    pw.connect(hosts=2, options=pw.HostOptions(snapshot_folder=options.memory))
    with resilient(options.disk) as run:
        for n, metrics in run.steps(STEPS):
            with Path(options.disk, "metrics").open("a") as file:
                file.write(f"{n} {float(metrics['loss']).hex()}\n")
            if n == options.last and options.uncommitted:
                copied(run)
            else:
                settle(run, n + 1)
            if n == options.last:
                recorded(run, Path(options.memory))
                os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main()
