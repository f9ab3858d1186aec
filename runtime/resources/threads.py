"""Threads that run, or are an error: `Thread.start` may wait for ever.

A process that has no memory left can make a thread that ends before its first line, and
`threading.Thread.start` waits for that line (https://github.com/python/cpython/issues/140746).
"""

from __future__ import annotations

import _thread
import threading
from collections.abc import Callable

_SECONDS = 10.0
"""How long a thread may take to begin."""


class RunningThread:
    """A thread that has begun.

    Attributes:
      ident: its number, as of `threading.get_ident`.
    """

    def __init__(self) -> None:
        self.ident = 0
        self._running = _thread.allocate_lock()
        self._running.acquire()
        self._first = _thread.allocate_lock()

    def join(self, timeout: float | None = None) -> bool:
        """Waits until it has ended, for some seconds or for ever; returns whether it has."""
        ended = self._running.acquire(timeout=-1 if timeout is None else max(0.0, timeout))
        if ended:
            self._running.release()
        return ended

    def give_up(self) -> bool:
        """Keeps a thread that has not begun from doing anything; returns whether it has not."""
        return self._first.acquire(blocking=False)

    def _run(self, work: Callable[[], object], name: str, begun: _thread.LockType) -> None:
        self.ident = _thread.get_ident()
        if not self._first.acquire(blocking=False):
            return
        thread = threading.current_thread()
        thread.name = name
        begun.release()
        try:
            work()
        finally:
            # Python forgets it a little later.
            thread.name = "ended"
            self._running.release()


def start_thread(work: Callable[[], object], name: str) -> RunningThread:
    """Calls a function in a thread of its own, which does not keep the process from ending.

    Returns when the thread has begun.

    Args:
      work: the function.
      name: what to call the thread, after `pathways`.

    Raises:
      RuntimeError: the system gives no thread, or it does not begin in time; then it never calls it.
    """
    begun = _thread.allocate_lock()
    begun.acquire()
    started = RunningThread()
    _thread.start_new_thread(started._run, (work, f"pathways {name}", begun))
    # One step, so that Ctrl-C leaves nothing half done.
    if not begun.acquire(timeout=_SECONDS) and started.give_up():
        raise RuntimeError("cannot start a new thread; the process may have no memory left")
    return started
