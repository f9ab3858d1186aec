"""pathwaysutils' `elastic_retry`: training goes on while slices are lost and come back at random moments.

A thread of the program kills workers of the server, or has a server of one process lose and return its last
slice. Training is on the last slice of those left, and goes back to one that returns. With local JAX nothing
is lost, and the weights of the last step are the same.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import jax
import numpy as np
import pathwaysutils
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from pathwaysutils.elastic.manager import Manager, ScaleUpSignalError
from report import report

LOSSES = 50
STEPS = 400
DEVICES = 4
BATCH = np.arange(32.0, dtype=np.float32).reshape(8, 4)

server = os.getppid()
saved = {"step": 0, "weights": np.zeros(4, np.float32)}
losses = 0


def workers() -> list[int]:
    """Returns the processes of the workers that the server has started."""
    files = Path(f"/proc/{server}/task").glob("*/children")
    children = [int(child) for file in files for child in file.read_text().split()]
    found = []
    for pid in children:
        try:
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
        except FileNotFoundError:
            continue
        if b"worker_process" in command:
            found.append(pid)
    return found


def lose_slices() -> None:
    """Loses slices until enough were lost."""
    global losses
    moments = random.Random(0)
    while losses < LOSSES:
        time.sleep(moments.uniform(0.5, 3))
        present = workers()
        if len(present) == 2:
            os.kill(moments.choice(present), signal.SIGKILL)
        elif present:
            continue
        else:
            os.kill(server, signal.SIGUSR1)
            time.sleep(moments.uniform(0.1, 1))
            os.kill(server, signal.SIGUSR2)
        losses += 1


@jax.jit
def step(weights, batch):
    loss, slope = jax.value_and_grad(lambda weights: ((batch @ weights - 1) ** 2).mean())(weights)
    return loss, weights - 1e-4 * slope


def train(devices: Sequence[jax.Device], begins: Callable[[int], bool]) -> None:
    """Trains from the saved step on; `begins` returns whether a step is due, which is repeated until then."""
    mesh = Mesh(np.array(devices), ("data",))
    batch = jax.device_put(BATCH, NamedSharding(mesh, P("data")))
    weights = jax.device_put(saved["weights"], NamedSharding(mesh, P()))
    while saved["step"] < STEPS:
        loss, after = step(weights, batch)
        after = np.asarray(after)
        if begins(saved["step"]):
            saved.update(step=saved["step"] + 1, weights=after, loss=np.asarray(loss))
            weights = jax.device_put(after, NamedSharding(mesh, P()))


if "proxy" in (jax.config.jax_platforms or ""):
    pathwaysutils.initialize()
    manager = Manager()
    attempts = 0
    threading.Thread(target=lose_slices, daemon=True).start()

    def begins(number: int) -> bool:
        if manager.available_inactive_slices:
            raise ScaleUpSignalError
        return (number + 1) * LOSSES <= STEPS * losses

    @manager.elastic_retry(minimum_slice_count=1, poll_interval=0.2, timeout=60, max_retries=10 * LOSSES)
    def attempt() -> None:
        global attempts
        attempts += 1
        train(manager.slice_to_devices[max(manager.active_slice_indices)], begins)

    attempt()
    print(f"{losses} losses, {attempts} attempts", file=sys.stderr)
    assert losses == LOSSES < 2 * attempts
else:
    train(jax.devices()[:DEVICES], lambda number: True)
report("loss", saved["loss"])
report("weights", saved["weights"])
