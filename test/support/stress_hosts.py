"""Stress test of programs on two hosts from many threads for some seconds: `stress_hosts.py SEED SECONDS`.

P goes A, B, A and Q goes B, A, B; a third program goes both ways at once. If hosts did not run them in one
order, one could begin on A and the other on B, and both would wait for ever. All values are integers, so that
results are exact.
"""

from __future__ import annotations

import dataclasses
import gc
import itertools
import queue
import random
import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

import pathways as pw

THREADS, READERS = 8, 3
SIZES = (3, 1 << 18)  # Elements of 4 bytes: small arrays and large ones have connections of their own.


def on_a(x: Any) -> Any:
    return x * 3 + 1


def on_b(x: Any) -> Any:
    return x * 5 - 2


@dataclasses.dataclass
class Held:
    """Handle and its expected value.

    Attributes:
      array: the handle.
      expected: its value.
      is_shared: whether other threads have it, so that it is not donated.
    """

    array: Any
    expected: np.ndarray
    is_shared: bool = False


class Programs:
    """Programs over two slices on a host each."""

    def __init__(self) -> None:
        devices = pw.make_virtual_device_set()
        a, b = (
            pw.jit(fun, devices=devices.add_slice((1,), ("x",), island=f"island{host}"))
            for host, fun in enumerate((on_a, on_b))
        )
        self.p = [pw.program(lambda x: a(b(a(x))), donate_argnums=d) for d in ((), 0)]
        self.q = [pw.program(lambda x: b(a(b(x))), donate_argnums=d) for d in ((), 0)]
        self.swap = [pw.program(lambda x, y: (a(b(y)), b(a(x))), donate_argnums=d) for d in ((), (0, 1))]


class Thread:
    """Thread that has an array on A, and one on B.

    Args:
      seed: the seed of its choices.
      programs: the programs.
      common: arrays that all threads read.
      readers: a queue of arrays that other threads are to read.
    """

    def __init__(
        self, seed: str, programs: Programs, common: list[Held], readers: queue.SimpleQueue[Held | None]
    ) -> None:
        self.random = random.Random(seed)
        self.programs = programs
        self.common = common
        self.readers = readers
        self.size = self.random.choice(SIZES)
        self.kept: list[Held] = []
        self.calls = 0
        self.x, self.y = self.new(), self.new()

    def new(self) -> Held:
        """Returns an array of this process, whose values are the thread's own."""
        value = np.arange(self.size, dtype=np.int32) + self.random.randrange(1 << 20)
        return Held(value, value, is_shared=True)

    def run(self, end: float) -> None:
        """Runs random operations until the end."""
        actions = [
            self.p,
            self.q,
            self.swap,
            self.cross,
            self.drop,
            self.read,
            self.keep,
            self.renew,
            self.share,
        ]
        weights = [6, 6, 6, 2, 2, 4, 1, 1, 2]
        while time.monotonic() < end:
            self.random.choices(actions, weights)[0]()
            if self.random.random() < 0.3:
                time.sleep(self.random.random() * 0.004)
            if self.random.random() < 0.02:
                gc.collect()

    def held(self) -> list[Held]:
        """Returns all its arrays."""
        return [self.x, self.y, *self.kept]

    def call(self, programs: list[Any], fun: Callable[..., Any], *held: Held) -> Any:
        """Returns the result of a program, which may donate its arguments, and the expected one."""
        self.calls += 1
        donates = self.random.random() < 0.5 and not any(one.is_shared for one in held)
        results = programs[donates](*(one.array for one in held))
        return jax.tree.map(Held, results, fun(*(one.expected for one in held)))

    def p(self) -> None:
        self.x = self.call(self.programs.p, lambda x: on_a(on_b(on_a(x))), self.x)

    def q(self) -> None:
        self.y = self.call(self.programs.q, lambda y: on_b(on_a(on_b(y))), self.y)

    def swap(self) -> None:
        self.x, self.y = self.call(
            self.programs.swap, lambda x, y: (on_a(on_b(y)), on_b(on_a(x))), self.x, self.y
        )

    def cross(self) -> None:
        """Runs each program on an array of the other host, through the controller."""
        self.x, self.y = self.y, self.x

    def drop(self) -> None:
        """Drops a result at once, or after a moment."""
        self.x.is_shared = True
        dropped = self.call(self.programs.p, lambda x: x, self.x)
        time.sleep(self.random.random() * 0.002)
        del dropped

    def read(self) -> None:
        """Lets another thread read it, now or later, while this one continues."""
        for held in (self.x, self.y):
            held.is_shared = True
            self.readers.put(held)

    def keep(self) -> None:
        self.x.is_shared = True
        self.kept.append(self.x)
        if len(self.kept) > 5:
            del self.kept[self.random.randrange(3)]

    def renew(self) -> None:
        self.x, self.y = self.new(), self.new()

    def share(self) -> None:
        """Shares an array with all threads, which read it on both hosts, maybe at the same time."""
        mine = [n for n, held in enumerate(self.common) if held.expected.size == self.size]
        if self.random.random() < 0.3:
            self.x.is_shared = True
            self.common[self.random.choice(mine)] = self.x
        self.x, self.y = (self.common[self.random.choice(mine)] for _ in range(2))


def read_all(given: queue.SimpleQueue[Held | None], seed: str) -> None:
    """Compares arrays from threads with their expected values."""
    chosen = random.Random(seed)
    while (held := given.get()) is not None:
        time.sleep(chosen.random() * 0.002)
        check(held)


def check(held: Held) -> None:
    np.testing.assert_array_equal(np.asarray(held.array), held.expected)


def holds(kept: list[Held]) -> list[tuple[int, int]]:
    """Returns the arrays and bytes that each host must hold for handles."""
    arrays = {id(held.array): held.array for held in kept if not isinstance(held.array, np.ndarray)}
    return [
        (len(on_host), sum(array.nbytes for array in on_host))
        for host in range(2)
        for on_host in [[array for array in arrays.values() if host in array.hosts]]
    ]


def wait_until_hosts_hold(kept: list[Held]) -> None:
    """Waits until hosts have freed the other arrays, in batches, a moment later."""
    deadline = time.monotonic() + 10
    while True:
        status = pw.status()
        if [(host.arrays, host.bytes) for host in status.hosts] == holds(kept) and not status.steps:
            return
        assert time.monotonic() < deadline, f"{holds(kept)} expected\n{status}"
        time.sleep(0.05)


def main(seed: str, seconds: float) -> None:
    sys.setswitchinterval(1e-4)
    pw.connect(hosts=2)
    programs = Programs()
    errors: list[str] = []

    def start(work: Callable[..., None], *args: Any) -> threading.Thread:
        def guarded() -> None:
            try:
                work(*args)
            except BaseException:
                errors.append(traceback.format_exc())

        thread = threading.Thread(target=guarded)
        thread.start()
        return thread

    common = [
        Held(value, value, is_shared=True)
        for size in SIZES
        for value in [np.arange(size, dtype=np.int32)] * 2
    ]
    given: queue.SimpleQueue[Held | None] = queue.SimpleQueue()
    threads = [Thread(f"{seed} {n}", programs, common, given) for n in range(THREADS)]
    end = time.monotonic() + seconds
    running = [start(thread.run, end) for thread in threads]
    readers = [start(read_all, given, f"{seed} reader {n}") for n in range(READERS)]
    join(running)
    for _ in readers:
        given.put(None)
    join(readers)
    assert not errors, errors[0]
    kept = [*common, *itertools.chain(*(thread.held() for thread in threads))]
    print(f"{sum(thread.calls for thread in threads)} calls, {len(kept)} arrays kept")
    common.clear()
    threads.clear()
    gc.collect()
    wait_until_hosts_hold(kept)
    while kept:
        check(kept.pop())
    wait_until_hosts_hold([])


def join(threads: list[threading.Thread]) -> None:
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]))
