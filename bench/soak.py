"""Programs on islands of one and of several hosts, while hosts are killed, stopped, cut off and starved.

  python bench/soak.py [--seconds 120] [--seed 0] [--step-deadline 20] [--acts kill,stop,slow]

Three islands, the first of two hosts, run programs that go through all of them from many threads; each
value is an integer, so that it is right or wrong. Meanwhile a random host is killed, stopped for good,
stopped for a moment, limited in memory, cut off from another one, or sent SIGTERM. Lost values must be errors
within the time below, all others right; the islands come back, and the same programs go on. At the end no
array, step, process or thread may be left. Exits with 1 and the reason otherwise.
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import gc
import logging
import os
import random
import resource
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import _cables
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P

import pathways as pw
from pathways.runtime.clusters.connect import controller
from pathways.runtime.control.records.errors import HostError
from pathways.runtime.hosts.cluster.host import WorkerHandle

HEARTBEAT = 2.0
STEP_DEADLINE = 20.0
"""Deadline for a host without memory that still replies, but does nothing else."""

GRACE = 2.0

MAX_SECONDS = 60.0
"""Time limit of a value, or of its error: a lost island restarts meanwhile."""

THREADS = 3
ISLANDS = (pw.Island(hosts=2, devices_per_host=1), pw.Island(devices_per_host=2), pw.Island())


def on_wide(x: Any) -> Any:
    return (x * 3 + jnp.sum(x)) % 1009


def on_pair(x: Any) -> Any:
    return (x * 5 + 7) % 1009


def on_single(x: Any) -> Any:
    return (x + x[::-1]) % 1009


class Programs:
    """The programs, and their expected results."""

    def __init__(self) -> None:
        devices = pw.make_virtual_device_set()
        slices = [
            devices.add_slice((count,), ("x",), island=f"island{n}") for n, count in enumerate((2, 2, 1))
        ]
        wide, pair, single = (
            pw.jit(fun, devices=slice, in_shardings=P("x"))
            for fun, slice in zip((on_wide, on_pair, on_single), slices, strict=True)
        )
        self.all = [
            (pw.program(lambda x: single(pair(wide(x)))), [on_wide, on_pair, on_single]),
            (pw.program(lambda x: wide(single(wide(x)))), [on_wide, on_single, on_wide]),
            (pw.program(lambda x: pair(single(x))), [on_single, on_pair]),
            (pw.program(lambda x: pair(wide(pair(x))), donate_argnums=0), [on_pair, on_wide, on_pair]),
        ]


class Counts:
    """Numbers of events."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.of: dict[str, int] = {}
        self.slowest = 0.0

    def add(self, what: str, seconds: float = 0.0) -> None:
        with self.lock:
            self.of[what] = self.of.get(what, 0) + 1
            self.slowest = max(self.slowest, seconds)


def work(seed: str, programs: Programs, end: float, counts: Counts) -> None:
    """Runs programs on results of others, and compares theirs."""
    chosen = random.Random(seed)
    value = expected = np.arange(8, dtype=np.int32) + chosen.randrange(1000)
    while time.monotonic() < end:
        program, functions = chosen.choice(programs.all)
        began = time.monotonic()
        try:
            for _ in range(chosen.randrange(1, 5)):
                value = program(value)
                for function in functions:
                    expected = np.asarray(function(expected))
            found = np.asarray(value)
        except (HostError, RuntimeError) as error:
            if not isinstance(error, HostError) and "deleted" not in str(error):
                raise
            value = expected = np.arange(8, dtype=np.int32) + chosen.randrange(1000)
            counts.add("errors", time.monotonic() - began)
            # A leaving island rejects work at once.
            time.sleep(0.05)
            continue
        np.testing.assert_array_equal(found, expected)
        counts.add("values", time.monotonic() - began)
        if time.monotonic() - began > MAX_SECONDS:
            raise AssertionError(f"a value took {time.monotonic() - began:.0f} seconds")


def kill(host: WorkerHandle, chosen: random.Random) -> None:
    os.kill(host.process.pid, signal.SIGKILL)


def stop(host: WorkerHandle, chosen: random.Random) -> None:
    os.kill(host.process.pid, signal.SIGSTOP)


def slow(host: WorkerHandle, chosen: random.Random) -> None:
    os.kill(host.process.pid, signal.SIGSTOP)
    time.sleep(chosen.random() * HEARTBEAT / 2)
    os.kill(host.process.pid, signal.SIGCONT)


def starve(host: WorkerHandle, chosen: random.Random) -> None:
    used = int(Path(f"/proc/{host.process.pid}/statm").read_text().split()[0]) * resource.getpagesize()
    resource.prlimit(host.process.pid, resource.RLIMIT_AS, (used, used))


def cut(host: WorkerHandle, chosen: random.Random) -> None:
    workers = controller()
    assert workers is not None
    _cables.cut(host, chosen.choice([other for other in workers.hosts if other is not host]))


def leave(host: WorkerHandle, chosen: random.Random) -> None:
    os.kill(host.process.pid, signal.SIGTERM)


Act = Callable[[WorkerHandle, random.Random], None]
ACTS: dict[str, Act] = {act.__name__: act for act in (kill, stop, slow, starve, cut, leave)}


def hurt(seed: str, end: float, counts: Counts, acts: Sequence[Act]) -> None:
    """Harms random hosts, again and again, each time when all are connected."""
    chosen = random.Random(seed)
    while time.monotonic() < end:
        time.sleep(chosen.random() * 3)
        workers = controller()
        assert workers is not None
        deadline = time.monotonic() + MAX_SECONDS
        while not workers.is_whole():
            assert workers.is_usable(), "an island does not start anew"
            assert time.monotonic() < deadline, "an island does not come back"
            time.sleep(0.05)
        act = chosen.choice(acts)
        counts.add(act.__name__)
        with contextlib.suppress(ProcessLookupError, FileNotFoundError):
            act(chosen.choice(workers.hosts), chosen)


def check_once(program: Any, functions: Sequence[Callable[[Any], Any]]) -> None:
    """Runs a program; an overloaded machine may lose a host that was not harmed."""
    value = np.arange(8, dtype=np.int32)
    deadline = time.monotonic() + MAX_SECONDS
    while True:
        try:
            found = np.asarray(program(value))
            break
        except HostError:
            if time.monotonic() > deadline:
                raise
    for function in functions:
        value = np.asarray(function(value))
    np.testing.assert_array_equal(found, value)


def wait_for(what: str, is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + MAX_SECONDS
    while not is_so():
        assert time.monotonic() < deadline, f"{what}\n{pw.status()}"
        gc.collect()
        time.sleep(0.1)


def count_threads() -> int:
    """Returns the threads of this process that are not those of cables."""
    return sum(not thread.name.startswith(_cables.NAME) for thread in threading.enumerate())


def children() -> list[int]:
    """Returns the child processes of this one."""
    pids: list[int] = []
    for task in Path("/proc/self/task").iterdir():
        # A thread may exit in between.
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            pids += map(int, (task / "children").read_text().split())
    return pids


def soak(seed: str, seconds: float, step_deadline: float | None, acts: Sequence[Act]) -> Counts:
    """Runs the soak for some seconds.

    Raises:
      AssertionError: something hangs, is wrong, or is left.
    """
    _cables.install()
    pw.connect(
        islands=ISLANDS, options=pw.HostOptions(heartbeat=HEARTBEAT, step_deadline=step_deadline, grace=GRACE)
    )
    programs, counts, errors = Programs(), Counts(), list[str]()
    for program, _ in programs.all:
        np.asarray(program(np.arange(8, dtype=np.int32)))
    threads = count_threads()
    end = time.monotonic() + seconds

    def start(target: Callable[..., None], *args: Any) -> threading.Thread:
        def guarded() -> None:
            try:
                target(*args)
            except BaseException:
                errors.append(traceback.format_exc())

        thread = threading.Thread(target=guarded, daemon=True)
        thread.start()
        return thread

    running = [start(work, f"{seed} {n}", programs, end, counts) for n in range(THREADS)]
    running.append(start(hurt, f"{seed} hurt", end, counts, acts))
    for thread in running:
        thread.join(max(0.0, end - time.monotonic()) + 2 * MAX_SECONDS)
        if thread.is_alive():
            faulthandler.dump_traceback()
            raise AssertionError(f"a thread hangs\n{pw.status()}")
    assert not errors, errors[0]
    workers = controller()
    assert workers is not None
    wait_for("an island does not come back", workers.is_whole)
    for program, functions in programs.all:
        check_once(program, functions)
    wait_for("steps are left", lambda: not pw.status().steps)
    wait_for("arrays are left", lambda: all(host.arrays == 0 for host in pw.status().hosts))
    wait_for("processes are left", lambda: len(children()) == len(workers.hosts))
    wait_for("threads are left", lambda: count_threads() <= threads + 1)
    pw.disconnect()
    wait_for("processes are left", lambda: not children())
    return counts


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--seed", default="0")
    parser.add_argument("--step-deadline", type=float, default=STEP_DEADLINE, help="0 for none")
    parser.add_argument("--acts", default=",".join(ACTS), help=f"some of {', '.join(ACTS)}")
    options = parser.parse_args()
    # Losses are the subject here.
    logging.getLogger("pathways").setLevel(logging.CRITICAL)
    faulthandler.dump_traceback_later(options.seconds + 5 * MAX_SECONDS, exit=True)
    counts = soak(
        options.seed,
        options.seconds,
        options.step_deadline or None,
        [ACTS[name] for name in options.acts.split(",")],
    )
    print(", ".join(f"{count} {what}" for what, count in sorted(counts.of.items())))
    print(f"nothing hung, nothing was wrong, nothing is left; the slowest took {counts.slowest:.1f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
