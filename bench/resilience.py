"""Training on hosts that recovers by itself: the costs of snapshots, losses and the loop.

python bench/resilience.py [--only snapshot] [--mib 64] [--hosts 4]

A state of f32 is trained by a chain of stages, one on each host, that compute one after the other, as in a
pipeline of one microbatch; hosts share the cores of this machine. A row names the target.
"""

from __future__ import annotations

import argparse
import functools
import logging
import os
import re
import signal
import statistics
import sys
import time
from collections.abc import Callable, Iterable
from typing import Any

import jax
import numpy as np

import pathways as pw
from pathways.compiler.resilience.resilient import STEPS_AHEAD
from pathways.runtime.hosts.client.connect import controller

ROUNDS = 5
KILLS = 10
STAGE_S = 0.025
"""Seconds that a stage of a slow step computes, on four hosts 100 ms in all."""


class Log(logging.Handler):
    """Log handler for the lines of `pw.resilient`.

    Attributes:
      again: the numbers of steps that are run again, of all recoveries.
      killed_at: when the last worker was killed; 0 once steps are done again.
      times: the seconds from each kill to the first step that was done after it.
    """

    def __init__(self) -> None:
        super().__init__()
        self.again: list[int] = []
        self.killed_at = 0.0
        self.times: list[float] = []
        self._has_resumed = False

    def emit(self, record: logging.LogRecord) -> None:
        """Notes the number of repeated steps that a line reports."""
        if found := re.search(r"going on from version \d+ in memory, (a|\d+) steps? ", record.getMessage()):
            self.again.append(1 if found[1] == "a" else int(found[1]))
            self._has_resumed = True

    def kill(self, host: int) -> None:
        """Kills a worker."""
        os.kill(controller().hosts[host].process.pid, signal.SIGKILL)
        self.killed_at = time.perf_counter()

    def time_first(self, step: pw.Program, state: Any, batch: Any) -> Any:
        """Runs a step; waits for the first one after a kill."""
        result = step(state, batch)
        if self._has_resumed:
            self._has_resumed = False
            np.asarray(result[1])
            self.times.append(time.perf_counter() - self.killed_at)
            self.killed_at = 0.0
        return result


def iterations_of(seconds: float) -> int:
    """Returns the number of iterations that make a stage compute for some seconds."""
    if not seconds:
        return 1
    count = 1 << 20
    spin = jax.jit(lambda x: jax.lax.fori_loop(0, count, lambda n, x: x * 0.5 + n, x))
    spin(0.0).block_until_ready()
    began = time.perf_counter()
    spin(1.0).block_until_ready()
    return max(1, int(count * seconds / (time.perf_counter() - began)))


def trainer(options: argparse.Namespace, seconds: float = 0.0) -> tuple[pw.Program, list[np.ndarray]]:
    """Returns a step whose stages compute for some seconds each, and a state."""
    count = iterations_of(seconds)
    rows = int(options.mib * 2**18) // options.hosts // 1024

    def stage(w: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        spun = jax.lax.fori_loop(0, count, lambda n, y: y * 0.5 + n, x)
        return w * 0.999 + 0.001, x + spun * 0.0 + w[0, 0]

    devices = pw.make_virtual_device_set()
    stages = [
        pw.jit(stage, devices=devices.add_slice((1,), ("x",), island=f"island{n}"))
        for n in range(options.hosts)
    ]

    def train(state: list[jax.Array], batch: jax.Array) -> tuple[list[jax.Array], jax.Array]:
        new, x = [], batch
        for one, w in zip(stages, state, strict=True):
            w, x = one(w, x)
            new.append(w)
        return new, x

    return pw.program(train, donate_argnums=0), [np.ones((rows, 1024), np.float32)] * options.hosts


def batches(count: int) -> list[np.ndarray]:
    return [np.float32(n) for n in range(count)]


def mean_step(step: pw.Program, state: Any, every: int, count: int) -> float:
    """Returns the seconds of a step, as the mean of all."""
    with pw.resilient(step, state, batches(count + 12), every=every) as run:
        list(run.steps(12))
        began = time.perf_counter()
        list(run.steps(count + 12))
        return (time.perf_counter() - began) / count


def snapshots(options: argparse.Namespace) -> Iterable[str]:
    """Measures the delay of steps of 100 ms by snapshots at `every=10`."""
    pw.connect(hosts=options.hosts)
    step, state = trainer(options, STAGE_S)
    pairs = [[mean_step(step, state, every, 30) for every in (10, 10**6)] for _ in range(ROUNDS)]
    ours, bare = (statistics.median(column) for column in zip(*pairs, strict=True))
    ratio = statistics.median(own / other for own, other in pairs) - 1
    yield (
        f"snapshot of {options.mib} MiB, every=10: steps of {ours * 1e3:.1f} ms, without {bare * 1e3:.1f}: "
        f"{10 * (ours - bare) * 1e3:.0f} ms each, {100 * ratio:.1f} % (to reach 3)"
    )


def kills_of(options: argparse.Namespace, spares: int, seconds: float) -> Log:
    """Kills workers, one after the other, while steps run whose stages compute for some seconds."""
    pw.connect(hosts=options.hosts, options=pw.HostOptions(spares=spares))
    step, state = trainer(options, seconds)
    log = Log()
    logging.getLogger("pathways").addHandler(log)
    train = functools.partial(log.time_first, step)
    with pw.resilient(train, state, batches(10**6), feeds=(step, "batch"), every=4) as run:
        kills, last = 0, 0
        for n, _ in run.steps(10**6):
            if log.killed_at or n < last + 13 or not run.protected or not has_spares(spares):
                continue
            if kills == KILLS:
                break
            log.kill(kills % options.hosts)
            kills, last = kills + 1, n
    logging.getLogger("pathways").removeHandler(log)
    return log


def losses(options: argparse.Namespace, spares: int) -> Iterable[str]:
    """Measures the time from a kill to the first step after it, of steps without work."""
    times = kills_of(options, spares, 0.0).times
    how, target = ("with a spare", 0.5) if spares else ("without spares", 3.5)
    yield (
        f"kill to the first step after it, {how}: median {statistics.median(times):.2f} s, best "
        f"{min(times):.2f}, worst {max(times):.2f} (to reach {target})"
    )


def again(options: argparse.Namespace) -> Iterable[str]:
    """Measures how many steps of 100 ms are run again, at `every=4`."""
    found = kills_of(options, 1, STAGE_S).again
    yield (
        f"steps run again a kill, every=4: mean {statistics.mean(found):.1f}, most {max(found)} (to reach "
        f"{4 + STEPS_AHEAD + 1})"
    )


def has_spares(count: int) -> bool:
    """Returns whether all spares are ready."""
    found = controller().spares()
    return count == 0 or (found is not None and found.ready >= count)


def loop(options: argparse.Namespace) -> Iterable[str]:
    """Measures the CPU of the controller a step, beside a loop that reads metrics two steps later."""
    pw.connect(hosts=options.hosts)
    step, state = trainer(options, STAGE_S / 5)
    count = 100

    def bare() -> float:
        own, metrics = state, []
        with pw.prefetch(batches(count + 12), step, "batch") as ready:
            for n, batch in enumerate(ready):
                if n == 12:
                    began = time.process_time()
                own, values = step(own, batch)
                metrics.append(values)
                if n > 1:
                    np.asarray(metrics.pop(0))
        return time.process_time() - began

    def ours() -> float:
        with pw.resilient(step, state, batches(count + 12), every=10**6) as run:
            list(run.steps(12))
            began = time.process_time()
            list(run.steps(count + 12))
            return time.process_time() - began

    bare()
    pairs = [(ours(), bare()) for _ in range(ROUNDS)]
    own, other = (statistics.median(column) / count * 1e6 for column in zip(*pairs, strict=True))
    ratio = statistics.median(mine / theirs for mine, theirs in pairs)
    yield (
        f"CPU of the controller a step: {own:.0f} us, bare loop {other:.0f}, ratio {ratio:.2f} "
        "(to reach 1.02)"
    )


CASES: dict[str, Callable[[argparse.Namespace], Iterable[str]]] = {
    "snapshot": snapshots,
    "kill-with-spare": lambda options: losses(options, spares=1),
    "kill": lambda options: losses(options, spares=0),
    "again": again,
    "loop": loop,
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", help="only cases with this text in their names")
    parser.add_argument("--mib", type=float, default=64, help="size of the state (default: %(default)s)")
    parser.add_argument("--hosts", type=int, default=4, help="hosts (default: %(default)s)")
    options = parser.parse_args()
    print(f"command: {' '.join(['python', *sys.argv])}")
    print(f"jax {jax.__version__}, {len(os.sched_getaffinity(0))} cores")
    for name, case in CASES.items():
        if options.only not in name:
            continue
        try:
            for line in case(options):
                print(line, flush=True)
        finally:
            pw.disconnect()


if __name__ == "__main__":
    main()
