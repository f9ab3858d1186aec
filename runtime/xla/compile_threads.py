"""The threads in which XLA compiles, and what is said of it while that takes."""

from __future__ import annotations

import atexit
import collections
import contextlib
import functools
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable
from typing import ClassVar, cast

from pathways.runtime.resources.status_line import StatusLine
from pathways.runtime.resources.threads import start_thread

Progress = Callable[[int, int], None]
"""Called with the number of computations that are ready and the number of all."""

type _Ended[K, T] = queue.SimpleQueue[tuple[K, T | None, BaseException | None]]
"""Tasks that ended, each with what it returned or raised."""

_workers: set[threading.Lock] = set()
"""What each thread that works holds until it ends."""


class ProgressLine:
    """How far a load is: told to `progress`, or on standard error when it takes longer than a second.

    A program of many shapes is compiled many times. Its line counts them, and where no terminal rewrites it,
    the first is written, the second, the fourth, and so on.

    Args:
      total: the number of computations to load.
      progress: is called as they get ready; None for a line on standard error.
      program: the name of the program.
    """

    _times: ClassVar[collections.Counter[str]] = collections.Counter()
    """How often each program was compiled long enough for a line, by its name."""

    def __init__(self, total: int, progress: Progress | None, program: str = "") -> None:
        self.total = total
        self.done = 0
        self.progress = progress
        self.program = program
        self.began = time.monotonic()
        self.is_due = False
        self.line = StatusLine()

    def patience(self) -> float | None:
        """How many seconds to wait before a line is due when nothing gets ready; None for any time."""
        if self.progress is not None or self.is_due:
            return None
        return max(0.0, self.began + 1.0 - time.monotonic())

    def add(self, count: int) -> None:
        """Says that so many more are ready."""
        self.done += count
        if self.progress is not None:
            self.progress(self.done, self.total)
        elif time.monotonic() - self.began >= 1.0:
            if not self.is_due:
                self.is_due = True
                self._times[self.program] += 1
            times = self._times[self.program]
            if times.bit_count() == 1 or sys.stderr.isatty():
                which = f" of program '{self.program}', {times} times so far" if times > 1 else ""
                self.line.write(f"pathways: compiling {self.done}/{self.total} computations{which} ...")

    def close(self) -> None:
        """Removes the line from a terminal."""
        self.line.close()


def in_threads[K, T](tasks: Iterable[tuple[K, Callable[[], T]]], line: ProgressLine) -> dict[K, T]:
    """Runs tasks on as many threads as there are processors; the first exception ends it.

    Raises:
      KeyboardInterrupt: at once; tasks that XLA is busy with finish in the background, and the process ends
        after them or with another Ctrl-C.
    """
    waiting = collections.deque(tasks)
    total = len(waiting)
    # Python raises KeyboardInterrupt between any two steps of this thread, also inside its own futures and
    # threads, which then leave a lock to a worker as it must not be. These here are one step each.
    ended: _Ended[K, T] = queue.SimpleQueue()
    results: dict[K, T] = {}
    try:
        for _ in range(min(total, os.cpu_count() or 1)):
            start_thread(functools.partial(_work, waiting, ended), "compile")
        while len(results) < total:
            try:
                key, result, error = ended.get(timeout=line.patience())
            except queue.Empty:
                line.add(0)
                continue
            if error is not None:
                raise error
            results[key] = cast(T, result)
            line.add(1)
    finally:
        # Without waiting: XLA cannot be interrupted, and the user who pressed Ctrl-C should not wait for it.
        waiting.clear()
    return results


def _work[K, T](waiting: collections.deque[tuple[K, Callable[[], T]]], ended: _Ended[K, T]) -> None:
    """Runs waiting tasks until there are none."""
    working = threading.Lock()
    with working:
        _workers.add(working)
        while True:
            try:
                key, task = waiting.popleft()
            except IndexError:
                break
            try:
                ended.put((key, task(), None))
            except BaseException as error:
                ended.put((key, None, error))
            # It may hold what the caller drops before this thread ends.
            del key, task
        _workers.discard(working)


@atexit.register
def _finish_before_exit() -> None:
    """Waits for what XLA still compiles after an interrupted load, unless the user presses Ctrl-C again.

    A process that ends while XLA works crashes; one that a signal kills does not.
    """
    busy = tuple(_workers)
    if busy and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        with contextlib.suppress(OSError, ValueError):  # Their reader may be gone.
            sys.stdout.flush()
            line = "pathways: waiting for XLA to finish what it compiles; Ctrl-C ends the process at once"
            print(line, file=sys.stderr, flush=True)
    for working in busy:
        working.acquire()
