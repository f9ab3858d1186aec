"""Ctrl-C at random moments of calls, puts and reads on two hosts.

  interrupt_steps.py COUNT [SEED] [own|attached]

After each hundred interrupts nothing may be in flight or held that the program does not hold, and values must
be those of the calls that returned. `attached` uses a service in threads in place of `own` workers.
"""

from __future__ import annotations

import gc
import os
import random
import signal
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
from worker_pool import WorkerPool

import pathways as pw
from pathways.runtime.clusters.connect import controller

PATIENCE_S = 30.0
"""Seconds that hosts may take to finish steps and free arrays after the last interrupt."""


class Interrupter:
    """Thread that sends SIGINT to this process at random moments, while it is switched on."""

    def __init__(self, seed: int) -> None:
        self.is_on = threading.Event()
        self.sent = 0
        self._random = random.Random(seed)
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        while True:
            self.is_on.wait()
            time.sleep(self._random.random() * 0.004)
            # Counted first: the main thread may switch it off as soon as the signal arrives.
            if self.is_on.is_set():
                self.sent += 1
                os.kill(os.getpid(), signal.SIGINT)


class Calls:
    """Calls of a program over two hosts, each on the result of the one before."""

    def __init__(self) -> None:
        devices = pw.make_virtual_device_set()
        a, b = (
            pw.jit(lambda x: x + 1, devices=devices.add_slice((1,), ("x",), island=f"island{host}"))
            for host in range(2)
        )
        self._program = pw.program(lambda x: b(a(x)))
        self.expected = np.arange(1 << 10, dtype=np.int32)
        self.state: Any = self._program(self.expected)
        self.expected = self.expected + 2
        # Compiled here: an interrupt would make it start over each time.
        np.asarray(self._program(self.state))

    def run(self) -> None:
        """Calls, puts and reads until an interrupt."""
        while True:
            result = self._program(self.state)
            # No interrupt comes between the two: an assignment of a tuple is one step of the interpreter.
            self.state, self.expected = result, self.expected + 2
            if self.expected[0] % 3 == 0:
                np.asarray(self._program(self.expected))

    def check(self) -> None:
        """Checks values and counters once nothing is in flight."""
        np.testing.assert_array_equal(np.asarray(self.state), self.expected)
        gc.collect()
        deadline = time.monotonic() + PATIENCE_S
        while (left := self._left()) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert not left, left

    def _left(self) -> str:
        client = controller()
        client.poll()
        if steps := client.unfinished():
            return f"in flight: {', '.join(map(str, steps))}"
        for gang in client.gangs:
            if blocker := gang.window.blocker():
                return f"{gang} has no room: {blocker}"
        # An interrupted call may have copied its argument to the first host already.
        expected = [len(self.state.locations) - 1, 1]
        held = [host.arrays for host in pw.status().hosts]
        return "" if held == expected else f"arrays of hosts: {held}, not {expected}"


def interrupt(count: int, seed: int) -> None:
    """Interrupts calls the given number of times.

    Raises:
      AssertionError: a value or a counter is wrong.
    """
    calls, interrupter, seen = Calls(), Interrupter(seed), 0
    while seen < count:
        try:
            try:
                interrupter.is_on.set()
                calls.run()
            finally:
                interrupter.is_on.clear()
        except KeyboardInterrupt:
            seen += 1
        try:
            # The last signal may still be on its way.
            time.sleep(0.005 if seen % 100 == 0 else 0)
            if seen % 100 == 0:
                calls.check()
                print(f"\r{seen} of {count} interrupts", end="", flush=True)
        except KeyboardInterrupt:
            seen += 1
    print(f"\n{interrupter.sent} signals, {seen} interrupts, {calls.expected[0] // 2} calls: all right")


def main(count: int, seed: int, how: str) -> None:
    """Runs the script."""
    with tempfile.TemporaryDirectory() as folder:
        pool = WorkerPool(lambda: Path(folder), 1)
        with pool.lend(how, lambda: True):
            pw.connect(hosts=2)
            interrupt(count, seed)
        pool.close()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]) if sys.argv[2:] else 0, sys.argv[3] if sys.argv[3:] else "own")
