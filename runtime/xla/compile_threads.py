"""The threads in which XLA compiles, and what is said of it while that takes."""

from __future__ import annotations

import atexit
import collections
import concurrent.futures
import contextlib
import os
import signal
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterable

Progress = Callable[[int, int], None]
"""Called with the number of computations that are ready and the number of all."""

_compilers: weakref.WeakSet[threading.Thread] = weakref.WeakSet()


class ProgressLine:
    """How far a load is: told to `progress`, or on standard error when it takes longer than a second.

    Args:
      total: the number of computations to load.
      progress: is called as they get ready; None for a line on standard error.
    """

    def __init__(self, total: int, progress: Progress | None) -> None:
        self.total = total
        self.done = 0
        self.progress = progress
        self.began = time.monotonic()
        self.written = False

    def patience(self) -> float | None:
        """How many seconds to wait before a line is due when nothing gets ready; None for any time."""
        if self.progress is not None or self.written:
            return None
        return max(0.0, self.began + 1.0 - time.monotonic())

    def add(self, count: int) -> None:
        """Says that so many more are ready."""
        self.done += count
        if self.progress is not None:
            self.progress(self.done, self.total)
        elif time.monotonic() - self.began >= 1.0:
            terminal = sys.stderr.isatty()
            if terminal or not self.written:
                text = f"pathways: compiling {self.done}/{self.total} computations ..."
                print(
                    f"\r{text}" if terminal else text,
                    end="" if terminal else "\n",
                    file=sys.stderr,
                    flush=True,
                )
            self.written = True

    def close(self) -> None:
        """Removes the line from a terminal."""
        if self.written and sys.stderr.isatty():
            print("\r\033[K", end="", file=sys.stderr, flush=True)


def in_threads[K, T](tasks: Iterable[tuple[K, Callable[[], T]]], line: ProgressLine) -> dict[K, T]:
    """Runs tasks on as many threads as there are processors; the first exception ends it.

    Raises:
      KeyboardInterrupt: at once; tasks that XLA is busy with finish in the background, and the process ends
        after them or with another Ctrl-C.
    """
    futures: dict[concurrent.futures.Future[T], K] = {}
    waiting: collections.deque[tuple[concurrent.futures.Future[T], Callable[[], T]]] = collections.deque()
    for key, task in tasks:
        future: concurrent.futures.Future[T] = concurrent.futures.Future()
        futures[future] = key
        waiting.append((future, task))
    for _ in range(min(len(waiting), os.cpu_count() or 1)):
        # A daemon, because Python waits for other threads before it asks `_finish_before_exit`.
        thread = threading.Thread(target=_work, args=(waiting,), name="pathways-compile", daemon=True)
        _compilers.add(thread)
        thread.start()
    results: dict[K, T] = {}
    pending = set(futures)
    try:
        while pending:
            done, pending = concurrent.futures.wait(
                pending, line.patience(), concurrent.futures.FIRST_COMPLETED
            )
            for future in done:
                results[futures[future]] = future.result()
            line.add(len(done))
    finally:
        # Without waiting: XLA cannot be interrupted, and the user who pressed Ctrl-C should not wait for it.
        waiting.clear()
    return results


def _work[T](waiting: collections.deque[tuple[concurrent.futures.Future[T], Callable[[], T]]]) -> None:
    """Runs waiting tasks until there are none."""
    while True:
        try:
            future, task = waiting.popleft()
        except IndexError:
            return
        try:
            future.set_result(task())
        except BaseException as error:
            future.set_exception(error)


@atexit.register
def _finish_before_exit() -> None:
    """Waits for what XLA still compiles after an interrupted load, unless the user presses Ctrl-C again.

    A process that ends while XLA works crashes; one that a signal kills does not.
    """
    busy = [thread for thread in _compilers if thread.is_alive()]
    if busy and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        with contextlib.suppress(OSError, ValueError):  # Nobody may read them any more.
            sys.stdout.flush()
            line = "pathways: waiting for XLA to finish what it compiles; Ctrl-C ends the process at once"
            print(line, file=sys.stderr, flush=True)
    for thread in busy:
        thread.join()
