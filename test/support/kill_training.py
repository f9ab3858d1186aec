"""Training with `pw.resilient` on hosts that are killed at random moments, compared with an undisturbed run.

  kill_training.py --kills 1000 [--seed 0] [--only NAME ...]

Workers are killed with SIGKILL: one, those of two islands at once, all, and ones that just start; while steps
run, while hosts write, copy or restore versions, and in the restarts after. Some lose the memory of their
island, too. Losses, metrics and the state of each run must be those of a run that loses nothing, bit for bit.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import dataclasses
import faulthandler
import logging
import os
import random
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax
from check import assert_equal
from models import layer
from resilient_training import trainer

import pathways as pw
from pathways.runtime.clusters.connect import controller
from pathways.runtime.hosts.client.host_session import HostSession

WIDTH, ROWS, STEPS = 8, 16, 60

CALLS = ("write", "receive", "fetch", "read", "keep", "open_run")
"""Functions of the store on hosts, in which workers are killed."""

LIMIT_S = 240.0
"""Seconds that a run may take without a step before it counts as hung."""

RESTARTS = 2
"""Kills of an island until a step is done: one that is lost again and again is not restarted."""

IDLE_S = 130.0
"""Seconds between kills of an island that runs no steps, after which its workers count as well."""

LINES = 60
"""Number of lines of the log that a failure shows."""


@dataclasses.dataclass(frozen=True)
class Training:
    """Training to be disturbed.

    Attributes:
      step: the program.
      state: the state that it begins with.
      source: the source of batches, at least `STEPS` of them.
      batches: the same batches, for an undisturbed run.
      idle: the islands that run no steps.
      options: more options of `pw.resilient`.
    """

    step: Any
    state: Any
    source: Any
    batches: Callable[[], Any]
    idle: frozenset[int] = frozenset()
    options: dict[str, Any] = dataclasses.field(default_factory=dict)


def batch_of(number: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(number)
    return tuple(rng.normal(size=(2, ROWS, WIDTH)).astype(np.float32))


def training(layers: Sequence[Any], idle: frozenset[int] = frozenset(), **options: Any) -> Training:
    """Returns the training of placed layers, in four microbatches, on batches that are read by number."""
    step, state = trainer(layers, optax.adam(1e-2), 4, **options)
    batches = [batch_of(number) for number in range(STEPS)]
    return Training(step, state, batches, lambda: batches, idle)


def slices(order: Sequence[int], islands: Sequence[int], devices: int = 1, **options: Any) -> Training:
    """Trains a pipeline whose stages are on slices of some islands, in this order of slices."""
    idle = options.pop("idle", frozenset())
    device_set = pw.make_virtual_device_set()
    placed = [device_set.add_slice((devices,), ("x",), island=f"island{n}") for n in islands]
    layers = [pw.jit(layer, devices=placed[place], stage=n) for n, place in enumerate(order)]
    return training(layers, idle, **options)


def replicas(count: int, **options: Any) -> Training:
    """Trains replicas of two stages, a replica on each island."""
    devices = pw.make_virtual_device_set(replicas=count)
    layers = [pw.jit(layer, devices=devices.add_slice((1,), ("x",))) for _ in range(2)]
    return training(layers, **options)


def of_grain() -> Training:
    """Trains a pipeline on batches of an iterator of Grain in this process."""
    import grain

    dataset = grain.MapDataset.range(STEPS).shuffle(seed=1).map(batch_of).to_iter_dataset()
    pipeline = slices((0, 1), (0, 1), schedule="1f1b")
    return dataclasses.replace(pipeline, source=dataset, batches=lambda: iter(dataset))


def of_hosts(function: str, **options: int) -> Training:
    """Trains a pipeline on batches that hosts make."""
    pipeline = slices((0, 1), (0, 1), schedule="1f1b")
    pipeline.step.place(pipeline.state, batch_of(0))
    source = pw.on_hosts(f"host_functions:{function}")

    def batches() -> Iterator[Any]:
        with pw.prefetch(source, pipeline.step, "batch", count=STEPS, **options) as read:
            yield from read

    return dataclasses.replace(pipeline, source=source, batches=batches, options=options)


@dataclasses.dataclass(frozen=True)
class Scenario:
    """Cluster, and what is trained on it.

    Attributes:
      islands: the islands.
      make: returns the training, once they are connected.
    """

    islands: Sequence[pw.Island]
    make: Callable[[], Training]


def _islands(count: int, **options: Any) -> list[pw.Island]:
    return [pw.Island(**options)] * count


SCENARIOS = {
    "pipeline": Scenario(_islands(3), lambda: slices((0, 1), (0, 1), schedule="1f1b", idle=frozenset((2,)))),
    "islands of two hosts": Scenario(
        _islands(2, hosts=2), lambda: slices((0, 1), (0, 1), 2, schedule="1f1b")
    ),
    "two replicas": Scenario(_islands(2, devices_per_host=2), lambda: replicas(2, schedule="1f1b")),
    "two replicas, zero1": Scenario(
        _islands(2, devices_per_host=2), lambda: replicas(2, schedule="zb-h1", zero1=True)
    ),
    "rows of hosts": Scenario(_islands(2), lambda: of_hosts("pairs", rows=ROWS)),
    "interleaved": Scenario(_islands(2), lambda: slices((0, 1, 0, 1), (0, 1), schedule="interleaved-1f1b")),
    "zero bubble": Scenario(_islands(2), lambda: slices((0, 1, 1, 0), (0, 1), schedule="zb-v")),
    "four replicas, zero1": Scenario(
        _islands(4, devices_per_host=2), lambda: replicas(4, schedule="1f1b", zero1=True)
    ),
    "shards of hosts": Scenario(_islands(2), lambda: of_hosts("shard_of_pairs", shards=2)),
    "grain": Scenario(_islands(2), of_grain),
}


class Killer:
    """Thread that kills workers while training runs; what it does follows from a seed, and from the time.

    Args:
      seed: of its choices.
      limit: how often it kills.
      report: called after each kill.

    Attributes:
      steps: how many steps the body of the loop was given.
      kills: how often it has killed.
      history: what it did.
    """

    def __init__(self, seed: str, limit: int, report: Callable[[], None]) -> None:
        self.steps = 0
        self.kills = 0
        self.history: list[str] = []
        self._run: Any = None
        self._limit = limit
        self._idle: frozenset[int] = frozenset()
        self._report = report
        self._chance = random.Random(seed)
        self._began = time.monotonic()
        # The kills of each island since a step was done that was issued later.
        self._since: collections.Counter[int] = collections.Counter()
        self._issued = 0
        self._idle_since: dict[int, float] = {}
        # How many losses had been noticed when memory was lost last.
        self._memory_lost_at = -1
        self._called = threading.Condition()
        self._calls: collections.Counter[str] = collections.Counter()
        self._stop = threading.Event()
        self._error: BaseException | None = None

    @contextlib.contextmanager
    def kills_in(self, run: Any, idle: frozenset[int]) -> Iterator[None]:
        """Kills workers of a run while the context is entered.

        Args:
          run: the run.
          idle: the islands that run no steps.
        """
        self._run, self._idle = run, idle
        thread = threading.Thread(target=self._work, daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._stop.set()
            thread.join()
        if self._error is not None:
            raise self._error

    def note_call(self, name: str) -> None:
        """Notes that hosts are about to run a function of the store."""
        with self._called:
            self._calls[name] += 1
            self._called.notify_all()

    def note_step(self) -> None:
        """Notes that the body of the loop was given a step."""
        self.steps += 1
        if self.steps > self._issued:
            self._since.clear()

    def _work(self) -> None:
        try:
            while self.kills < self._limit and not self._stop.is_set():
                when = self._wait()
                if self._stop.is_set():
                    return
                self._kill(when)
        except BaseException as error:
            self._error = error

    def _wait(self) -> str:
        """Waits for a moment to kill at; returns a description of it."""
        chance = self._chance
        how = chance.choice(("steps", "steps", "call", "call", "soon"))
        if how == "steps":
            until = self.steps + chance.randint(1, 6)
            self._until(lambda: self.steps >= until)
            time.sleep(chance.random() * 0.02)
            return "between steps"
        if how == "call":
            name = chance.choice(CALLS)
            count = self._calls[name] + chance.randint(1, 3)
            if self._until(lambda: self._calls[name] >= count, 3.0):
                time.sleep(chance.choice((0.0, chance.random() * 0.005)))
                return f"in {name}"
        time.sleep(chance.random() * 0.4)
        return "soon after"

    def _until(self, is_true: Callable[[], bool], seconds: float = 60.0) -> bool:
        deadline = time.monotonic() + seconds
        with self._called:
            while not is_true() and not self._stop.is_set() and time.monotonic() < deadline:
                self._called.wait(0.005)
        return is_true()

    def _kill(self, when: str) -> None:
        chance, client = self._chance, controller()
        count = len(client.pool.gangs)
        may = [n for n in range(count) if self._may_kill(n)]
        what = chance.choice(("one", "one", "one", "two", "all", "memory", "any process"))
        if what == "any process":
            self._kill_process(when)
            return
        if not may or (what == "all" and len(may) < count) or (what == "two" and len(may) < 2):
            time.sleep(0.01)
            return
        victims = may if what == "all" else chance.sample(may, 2 if what == "two" else 1)
        for island in victims:
            self._count(island)
        if what == "memory":
            losses = self._run._recovery.core.losses
            # A second loss of memory may come once the copies were made again.
            if not self._run.protected or losses <= self._memory_lost_at:
                return
            self._memory_lost_at = losses
            self._note(when, f"island{victims[0]} with its memory")
            self._run.lose(f"island{victims[0]}", memory=True)
            return
        hosts = [
            host
            for island in victims
            for host in (
                client.pool.gangs[island].hosts
                if chance.random() < 0.3
                else [chance.choice(client.pool.gangs[island].hosts)]
            )
        ]
        self._note(when, ", ".join(map(str, hosts)))
        for host in hosts:
            host.process.kill()

    def _kill_process(self, when: str) -> None:
        """Kills a worker of any kind: one that runs steps, one that just starts, or a spare."""
        ready = {host.process.pid: host for host in controller().hosts}
        pids = [
            pid
            for pid in workers_of_this_process()
            if pid not in ready or self._may_kill(ready[pid].gang.number)
        ]
        if not pids:
            return
        pid = self._chance.choice(pids)
        if pid in ready:
            self._count(ready[pid].gang.number)
        self._note(when, str(ready.get(pid, "a worker that starts, or a spare")))
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)

    def _count(self, island: int) -> None:
        """Notes that workers of an island are about to be killed."""
        self._since[island] += 1
        self._issued = max(self._issued, self._run.step)
        if island in self._idle:
            self._idle_since[island] = time.monotonic()

    def _may_kill(self, island: int) -> bool:
        if self._since[island] >= RESTARTS:
            return False
        return island not in self._idle or time.monotonic() - self._idle_since.get(island, -IDLE_S) >= IDLE_S

    def _note(self, when: str, what: str) -> None:
        phase = type(self._run._recovery.core.phase).__name__
        at = time.monotonic() - self._began
        self.history.append(f"{at:8.3f} s, step {self.steps}, {phase}, {when}: {what}")
        self.kills += 1
        self._report()


class LastLines(logging.Handler):
    """Handler that keeps the last lines of a log."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: collections.deque[str] = collections.deque(maxlen=LINES)

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(f"{record.relativeCreated / 1e3:.3f} s: {record.getMessage()}")


def workers_of_this_process() -> list[int]:
    """Returns the processes of workers that this process has started, spares and starting ones included."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            parent = int((path / "stat").read_text().rpartition(")")[2].split()[1])
            if parent == os.getpid() and b"pathways.runtime.hosts.worker" in (path / "cmdline").read_bytes():
                found.append(int(path.name))
    return sorted(found)


@contextlib.contextmanager
def _noted_calls(killer: Killer) -> Iterator[None]:
    """Has a killer notice calls of the store."""
    called = HostSession.call

    def call(client: HostSession, name: str, *rest: Any, **more: Any) -> Any:
        killer.note_call(name.rpartition(" ")[2])
        return called(client, name, *rest, **more)

    HostSession.call = call  # type: ignore[method-assign]
    try:
        yield
    finally:
        HostSession.call = called  # type: ignore[method-assign]


class ProgressWatch:
    """Thread that ends this process when a run makes no progress, and says what the run was."""

    def __init__(self, described: Callable[[], str]) -> None:
        self._described = described
        self._deadline = time.monotonic() + LIMIT_S
        self._stop = threading.Event()

    def __enter__(self) -> ProgressWatch:
        threading.Thread(target=self._work, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()

    def note_step(self) -> None:
        self._deadline = time.monotonic() + LIMIT_S

    def _work(self) -> None:
        while not self._stop.wait(1.0):
            if time.monotonic() > self._deadline:
                print(f"no step for {LIMIT_S:.0f} s: {self._described()}", flush=True)
                faulthandler.dump_traceback(all_threads=True)
                os._exit(3)


def undisturbed(training: Training) -> tuple[list[Any], Any]:
    """Returns the metrics of all steps, and the last state."""
    state, metrics = training.state, []
    for batch in training.batches():
        state, values = training.step(state, batch)
        metrics.append(jax.device_get(values))
    assert len(metrics) == STEPS
    return metrics, jax.device_get(state)


def play(name: str, seed: str, limit: int, report: Callable[[], None] = lambda: None) -> int:
    """Runs a scenario once; returns how often it killed.

    Args:
      name: the scenario.
      seed: of the kills.
      limit: the maximum number of kills.
      report: called after each kill.

    Raises:
      AssertionError: a value is wrong, or the run ended with an error; has the history of kills.
    """
    killer, lines = Killer(seed, limit, report), LastLines()

    def described() -> str:
        killed = "\n  ".join(["", *killer.history, "The log ends with", *lines.lines])
        return f"scenario {name!r}, seed {seed!r}:{killed}"

    pw.disconnect()
    logging.getLogger("pathways").addHandler(lines)
    try:
        with ProgressWatch(described) as watch:
            _play(SCENARIOS[name], killer, watch)
    except Exception as error:
        raise AssertionError(described()) from error
    finally:
        pw.disconnect()
        logging.getLogger("pathways").removeHandler(lines)
    return killer.kills


def _play(scenario: Scenario, killer: Killer, watch: ProgressWatch) -> None:
    pw.connect(islands=scenario.islands, options=pw.HostOptions(spares=1))
    chosen = scenario.make()
    expected = undisturbed(chosen)
    metrics = []
    run = pw.resilient(chosen.step, chosen.state, chosen.source, every=3, **chosen.options)
    with _noted_calls(killer), run, killer.kills_in(run, chosen.idle):
        for n, values in run.steps(STEPS):
            assert n == len(metrics)
            metrics.append(values)
            killer.note_step()
            watch.note_step()
    assert_equal((metrics, jax.device_get(run.state)), expected)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--kills", type=int, default=1000, metavar="N", help="how many (default: %(default)s)"
    )
    parser.add_argument(
        "--seed", type=int, default=0, metavar="S", help="the first seed (default: %(default)s)"
    )
    parser.add_argument("--only", nargs="+", choices=SCENARIOS, metavar="NAME", help="these scenarios alone")
    options = parser.parse_args()
    names = options.only or [*SCENARIOS]
    began, total, wrong, run = time.monotonic(), 0, 0, 0

    def report() -> None:
        nonlocal total
        total += 1
        if total % 100 == 0:
            seconds = time.monotonic() - began
            print(f"{total} kills in {run + 1} runs and {seconds:.0f} s, {wrong} runs wrong", flush=True)

    while total < options.kills:
        name = names[run % len(names)]
        try:
            play(name, f"{options.seed} {run}", options.kills - total, report)
        except AssertionError:
            wrong += 1
            traceback.print_exc()
        run += 1
    print(f"{total} kills in {run} runs of {len(names)} scenarios: {wrong or 'nothing'} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
