"""Training on hosts that recovers by itself: the costs of snapshots, losses and the loop.

python bench/resilience.py [--only snapshot] [--mib 64] [--hosts 4] [--quick]

A state of f32 is trained by a chain of stages, one on each host, that compute one after the other, as in a
pipeline of one microbatch; hosts share the cores of this machine. Rows with fewer replicas train a state on
each host instead, in this process or on hosts. A row names the target.
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
from pathways.runtime.clusters.connect import controller


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
        if found := re.search(r"resuming from version \d+ in memory, (a|\d+) steps? ", record.getMessage()):
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
        *weights, last = state
        # The first stage of a step waits for the last one of the step before, as for a backward.
        new, x = [], batch + last * 0.0
        for one, w in zip(stages, weights, strict=True):
            w, x = one(w, x)
            new.append(w)
        return [*new, x], x

    weights = [np.ones((rows, 1024), np.float32)] * options.hosts
    return pw.program(train, donate_argnums=0), [*weights, np.float32(0)]


def replica_trainer(options: argparse.Namespace, seconds: float = 0.0) -> tuple[pw.Program, Any]:
    """Returns a step on as many replicas as hosts, whose microbatches compute for some seconds, and a state.

    A step changes one row of the state, so that what it takes does not grow with the state.
    """
    count = iterations_of(seconds)

    def layer(w: jax.Array, x: jax.Array) -> jax.Array:
        first = jax.lax.stop_gradient(x[0])
        return w * x.mean() + jax.lax.fori_loop(0, count, lambda n, y: y * 0.5 + n, first) * 0.0

    devices = pw.make_virtual_device_set(replicas=options.hosts)
    one = pw.jit(layer, devices=devices.add_slice((1,), ("x",)))
    gradients = pw.accumulate(jax.value_and_grad(lambda w, x: one(w, x).sum()), microbatches_of(options))

    def train(state: Any, batch: jax.Array) -> tuple[Any, jax.Array]:
        value, grads = gradients(state["w"], batch)
        return {"w": state["w"] - grads, "moments": state["moments"].at[0].add(grads)}, value

    state = {"w": np.zeros(1024, np.float32), "moments": np.zeros((int(options.mib * 256), 1024), np.float32)}
    return pw.program(train, donate_argnums=0), state


def microbatches_of(options: argparse.Namespace) -> int:
    """Returns a number of microbatches that all replicas and all but one divide."""
    return options.hosts * (options.hosts - 1)


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
    step, state = trainer(options, options.stage_s)
    pairs = [
        [mean_step(step, state, every, options.steps) for every in (10, 10**6)] for _ in range(options.rounds)
    ]
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
            if kills == options.kills:
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
    found = kills_of(options, 1, options.stage_s).again
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
    step, state = trainer(options, options.stage_s / 5)
    count = 3 * options.steps

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
    pairs = [(ours(), bare()) for _ in range(options.rounds)]
    own, other = (statistics.median(column) / count * 1e6 for column in zip(*pairs, strict=True))
    ratio = statistics.median(mine / theirs for mine, theirs in pairs)
    yield (
        f"CPU of the controller a step: {own:.0f} us, bare loop {other:.0f}, ratio {ratio:.2f} "
        "(to reach 1.02)"
    )


class CountedStep:
    """Step that notices when the number of its replicas changes.

    Args:
      step: the program.

    Attributes:
      run: the run that calls it; None before that.
      replicas: the number of replicas of the last call.
      changed_at: when the first step was done on that number.
      stop_s: the seconds from the call before that one, until it was done.
    """

    def __init__(self, step: pw.Program) -> None:
        self.step = step
        self.run: Any = None
        self.replicas = 0
        self.changed_at = 0.0
        self.stop_s = 0.0
        self._last_call = 0.0

    def __call__(self, state: Any, batch: Any) -> Any:
        called = time.perf_counter()
        result = self.step(state, batch)
        if self.run is not None and (replicas := self.run.status().replicas) != self.replicas:
            np.asarray(result[1])
            self.replicas, self.changed_at = replicas, time.perf_counter()
            self.stop_s = self.changed_at - self._last_call
        self._last_call = called
        return result


def replica_run(options: argparse.Namespace, seconds: float, every: int) -> tuple[CountedStep, Any]:
    """Returns a step on replicas, and a run of it in which one island may be missing."""
    program, state = replica_trainer(options, seconds)
    step = CountedStep(program)
    source = [np.ones(microbatches_of(options), np.float32)] * 10**6
    least = options.hosts - 1
    return step, pw.resilient(step, state, source, feeds=(program, "batch"), every=every, min_replicas=least)


def connect_replicas(options: argparse.Namespace, *, on_hosts: bool, restart_seconds: float = 60.0) -> None:
    """Connects to an island for each replica, of one host, or of one device of this process."""
    pw.disconnect()
    if on_hosts:
        pw.connect(hosts=options.hosts, options=pw.HostOptions(restart_seconds=restart_seconds))
    else:
        pw.connect(cpu_devices=options.hosts, islands=options.hosts)


def lose(run: Any, island: int, *, on_hosts: bool) -> float:
    """Loses an island, which returns by itself only on hosts; returns when."""
    if on_hosts:
        os.kill(controller().hosts[island].process.pid, signal.SIGKILL)
    else:
        run.lose(f"island{island}", returns=False)
    return time.perf_counter()


def fewer(options: argparse.Namespace, *, on_hosts: bool) -> Iterable[str]:
    """Measures how long steps without work stop when an island is lost, and when it is back."""
    connect_replicas(options, on_hosts=on_hosts)
    step, resilient = replica_run(options, 0.0, every=4)
    shrinks, stops, island, lost_at = [], [], 0, 0.0
    with resilient as run:
        step.run = run
        for n, _ in run.steps(10**6):
            if lost_at and step.replicas < options.hosts:
                shrinks.append(step.changed_at - lost_at)
                lost_at = 0.0
                if not on_hosts:
                    run.return_island(f"island{island}")
            elif len(stops) < len(shrinks) and step.replicas == options.hosts:
                stops.append(step.stop_s)
                island = (island + 1) % options.hosts
            elif len(stops) == options.kills:
                break
            elif len(stops) == len(shrinks) and not lost_at and n > 8 and run.protected:
                lost_at = lose(run, island, on_hosts=on_hosts)
    yield (
        f"{options.hosts} replicas to {options.hosts - 1}, {_where(on_hosts)}, of {options.mib:g} MiB each: "
        f"loss to the first step after it, median {statistics.median(shrinks):.2f} s (to reach 0.58); "
        f"growing back: steps stop for {statistics.median(stops):.2f} s (to reach 0.26)"
    )


def rates(options: argparse.Namespace, *, on_hosts: bool) -> list[float]:
    """Returns the steps per second of all replicas, and without one."""
    # An island that returned would take cores from the others while it starts.
    connect_replicas(options, on_hosts=on_hosts, restart_seconds=0.1)
    step, resilient = replica_run(options, options.stage_s, every=10)
    found, replicas, changed = [], 0, 0
    with resilient as run:
        step.run = run
        for n, _ in run.steps(10**6):
            if step.replicas != replicas:
                replicas, changed = step.replicas, n
            if n == changed + 8:
                began = time.perf_counter()
            if n == changed + 8 + options.steps:
                found.append(options.steps / (time.perf_counter() - began))
                if len(found) == 2:
                    return found
                lose(run, options.hosts - 1, on_hosts=on_hosts)
    raise AssertionError


def throughput(options: argparse.Namespace, *, on_hosts: bool) -> Iterable[str]:
    """Measures the steps per second without one replica."""
    cores, count = len(os.sched_getaffinity(0)), options.hosts
    # The time of a step's computation, if cores are fewer than replicas as well.
    shortest = [max(1 / replicas, 1 / cores) for replicas in (count, count - 1)]
    pairs = [rates(options, on_hosts=on_hosts) for _ in range(options.rounds)]
    ratio = statistics.median(few / every for every, few in pairs)
    every, few = (statistics.median(column) for column in zip(*pairs, strict=True))
    yield (
        f"throughput with {count - 1} of {count} replicas, {_where(on_hosts)}: {few:.1f} steps/s, with all "
        f"{every:.1f}: {ratio * shortest[1] / shortest[0]:.2f} of what {cores} cores allow, "
        f"{shortest[0] / shortest[1]:.2f} (to reach 0.97)"
    )


def _where(on_hosts: bool) -> str:
    return "on hosts" if on_hosts else "in one process"


CASES: dict[str, Callable[[argparse.Namespace], Iterable[str]]] = {
    "snapshot": snapshots,
    "kill-with-spare": lambda options: losses(options, spares=1),
    "kill": lambda options: losses(options, spares=0),
    "again": again,
    "loop": loop,
    "fewer-local": functools.partial(fewer, on_hosts=False),
    "fewer-hosts": functools.partial(fewer, on_hosts=True),
    "throughput-local": functools.partial(throughput, on_hosts=False),
    "throughput-hosts": functools.partial(throughput, on_hosts=True),
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", help="only cases with this text in their names")
    parser.add_argument("--mib", type=float, default=64, help="size of the state (default: %(default)s)")
    parser.add_argument("--hosts", type=int, default=4, help="hosts (default: %(default)s)")
    parser.add_argument("--quick", action="store_true", help="run once and briefly, to try the bench itself")
    options = parser.parse_args()
    options.rounds, options.kills, options.steps = (1, 1, 3) if options.quick else (5, 10, 30)
    # Of a stage of a slow step, or a microbatch: on four hosts 100 ms in all.
    options.stage_s = 0.001 if options.quick else 0.025
    # Before JAX starts: rows in this process have a device for each host.
    jax.config.update("jax_num_cpu_devices", max(jax.config.jax_num_cpu_devices, options.hosts))
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
