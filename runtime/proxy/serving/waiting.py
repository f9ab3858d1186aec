"""Threads that wait for arrays and compile, so that the thread of a session does neither."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

from pathways.runtime.resources.threads import start_thread

Work = Callable[[], None]
"""Function that a thread calls; it must not raise."""


class WaitingThreads:
    """Thread pool of a session, whose threads start when they are needed and share a queue.

    Args:
      max_threads: the maximum of threads.
      max_pending: the maximum of calls that run or wait for a thread, beyond which `run` waits.
    """

    def __init__(self, max_threads: int, max_pending: int) -> None:
        self._max_threads = max_threads
        self._max_pending = max_pending
        self._work: queue.SimpleQueue[Work | None] = queue.SimpleQueue()
        self._changed = threading.Condition()
        self._threads = 0
        self._pending = 0
        self._is_closed = False

    def run(self, work: Work) -> None:
        """Calls a function in a thread; waits while too many are pending; no-op after `close`."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_closed or self._pending < self._max_pending)
            if self._is_closed:
                return
            self._pending += 1
            if self._pending > self._threads and self._threads < self._max_threads:
                self._threads += 1
                start_thread(self._run, "proxy waits")
        self._work.put(work)

    def close(self) -> None:
        """Stops the threads, each after its current call; calls that have not started are dropped."""
        with self._changed:
            self._is_closed = True
            for _ in range(self._threads):
                self._work.put(None)
            self._changed.notify_all()

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            if not self._is_closed:
                work()
            # Otherwise its arrays would stay in memory until the next call.
            del work
            with self._changed:
                if self._pending == self._max_pending:
                    self._changed.notify_all()
                self._pending -= 1
