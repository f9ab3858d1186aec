"""Threads that wait for arrays and compile, so that the thread of a session does neither."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

from pathways.runtime.resources.threads import start_thread

Work = Callable[[], None]
"""Must not raise."""


class WaitingThreads:
    """A number of threads of a session that are started when they are needed, and share a queue of work.

    Args:
      max_threads: how many threads there may be.
      max_pending: how many calls may have begun or wait for a thread, before `run` waits.
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
        """Has a thread call a function; waits while too many are pending; no-op after `close`."""
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
        """Ends the threads, each after the call that it is in; what has not begun is dropped."""
        with self._changed:
            self._is_closed = True
            for _ in range(self._threads):
                self._work.put(None)
            self._changed.notify_all()

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            if not self._is_closed:
                work()
            with self._changed:
                if self._pending == self._max_pending:
                    self._changed.notify_all()
                self._pending -= 1
