"""Threads in which XLA compiles, and the progress line that is shown meanwhile."""

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

from pathways.runtime.resources.threads import start_thread

Progress = Callable[[int, int], None]
"""Called with the number of computations that are ready and the number of all."""

type _Outcomes[K, T] = queue.SimpleQueue[tuple[K, T | None, BaseException | None]]
"""Finished tasks, each with its result or its exception."""

_busy: set[threading.Lock] = set()
"""Locks of the compiling threads, each held until its thread has no tasks left."""

_later: set[threading.Lock] = set()
"""Locks of the threads of `run_later`, each held until its task has ended."""


class StatusLine:
    """Line that is rewritten on a terminal; elsewhere only the first text is written, for logs.

    Attributes:
      written: whether any text was written.
    """

    def __init__(self) -> None:
        self.written = False

    def write(self, text: str) -> None:
        """Replaces the text of the line."""
        if sys.stderr.isatty():
            print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)
        elif not self.written:
            print(text, file=sys.stderr, flush=True)
        self.written = True

    def close(self) -> None:
        """Removes the line from a terminal."""
        if self.written and sys.stderr.isatty():
            print("\r\033[K", end="", file=sys.stderr, flush=True)


class ProgressLine:
    """Progress of a load: calls of `progress`, or a line on standard error if it takes longer than a second.

    A program that is called with many shapes is compiled many times. Its line counts these compilations;
    without a terminal, only the lines of the first, the second, the fourth, and so on, are written.

    Args:
      total: the number of computations to load.
      progress: called whenever computations become ready; None for a line on standard error.
    """

    _times: ClassVar[collections.Counter[str]] = collections.Counter()
    """Number of compilations of each program, by its name, that were long enough for a line."""

    def __init__(self, total: int, progress: Progress | None, program: str = "") -> None:
        self.total = total
        self.done = 0
        self.progress = progress
        self.program = program
        self.start = time.monotonic()
        self.is_due = False
        self.line = StatusLine()

    def seconds_until_due(self) -> float | None:
        """Returns the seconds until the line must be written if nothing becomes ready; None for never."""
        if self.progress is not None or self.is_due:
            return None
        return max(0.0, self.start + 1.0 - time.monotonic())

    def add(self, count: int) -> None:
        """Reports that a number of further computations are ready."""
        self.done += count
        if self.progress is not None:
            self.progress(self.done, self.total)
        elif time.monotonic() - self.start >= 1.0:
            if not self.is_due:
                self.is_due = True
                self._times[self.program] += 1
            times = self._times[self.program]
            if times.bit_count() == 1 or sys.stderr.isatty():
                program = f" of program '{self.program}', {times} times so far" if times > 1 else ""
                self.line.write(f"pathways: compiling {self.done}/{self.total} computations{program} ...")

    def close(self) -> None:
        """Removes the line from a terminal."""
        self.line.close()


def in_threads[K, T](tasks: Iterable[tuple[K, Callable[[], T]]], line: ProgressLine) -> dict[K, T]:
    """Runs tasks on as many threads as there are processors; raises the first exception of a task.

    Raises:
      KeyboardInterrupt: at once; tasks that XLA is busy with finish in the background, and the process exits
        after them or at another Ctrl-C.
    """
    pending = collections.deque(tasks)
    total = len(pending)
    # Python may raise KeyboardInterrupt between any two bytecodes of this thread, also inside
    # `concurrent.futures` and `threading`, whose locks then stay in a state that hangs the workers. So only
    # calls that are atomic, implemented in C, are used here: of SimpleQueue, deque and start_thread.
    outcomes: _Outcomes[K, T] = queue.SimpleQueue()
    results: dict[K, T] = {}
    try:
        for _ in range(min(total, os.cpu_count() or 1)):
            start_thread(functools.partial(_run_tasks, pending, outcomes), "compile")
        while len(results) < total:
            try:
                key, result, error = outcomes.get(timeout=line.seconds_until_due())
            except queue.Empty:
                line.add(0)
                continue
            if error is not None:
                raise error
            results[key] = cast(T, result)
            line.add(1)
    finally:
        # Does not wait: XLA cannot be interrupted, and the user who pressed Ctrl-C should not wait for it.
        pending.clear()
    return results


def run_later(task: Callable[[], None]) -> None:
    """Runs a short task in its own thread; the process exits after it."""
    lock = threading.Lock()
    lock.acquire()

    def run() -> None:
        try:
            task()
        finally:
            lock.release()
            _later.discard(lock)

    start_thread(run, "later")
    _later.add(lock)
    if not lock.locked():  # The task has ended before.
        _later.discard(lock)


def _run_tasks[K, T](
    pending: collections.deque[tuple[K, Callable[[], T]]], outcomes: _Outcomes[K, T]
) -> None:
    """Runs pending tasks until there are none."""
    lock = threading.Lock()
    with lock:
        _busy.add(lock)
        while True:
            try:
                key, task = pending.popleft()
            except IndexError:
                break
            try:
                outcomes.put((key, task(), None))
            except BaseException as error:
                outcomes.put((key, None, error))
            # The task may refer to objects that the caller expects to be freed before this thread exits.
            del key, task
        _busy.discard(lock)


@atexit.register
def _finish_before_exit() -> None:
    """Waits for `run_later`, and compilations of an interrupted load, unless the user presses Ctrl-C again.

    A process that exits while XLA compiles crashes; one that a signal kills does not.
    """
    busy = tuple(_busy)
    if busy and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        with contextlib.suppress(OSError, ValueError):  # The reader of the pipe may have exited.
            sys.stdout.flush()
            line = "pathways: waiting for XLA to finish compiling; Ctrl-C ends the process at once"
            print(line, file=sys.stderr, flush=True)
    for lock in (*busy, *tuple(_later)):
        lock.acquire()
