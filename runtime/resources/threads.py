"""Threads that start or fail within a time limit, and waits that Ctrl-C ends.

In a process without free memory, a new thread can exit before its first line, and `threading.Thread.start`
waits for that line forever (https://github.com/python/cpython/issues/140746).
"""

from __future__ import annotations

import _thread
import threading
from collections.abc import Callable
from typing import Any

_START_TIMEOUT_S = 10.0
"""Time limit for the start of a thread."""


class Condition(threading.Condition):
    """Condition whose wait Ctrl-C ends as KeyboardInterrupt, at any moment.

    In `threading.Condition.wait` the interrupt may come right after the release of the lock, which is then
    not acquired again: the end of the `with` block would raise a RuntimeError in place of KeyboardInterrupt.
    """

    def __exit__(self, kind: Any, *error: Any) -> None:
        try:
            super().__exit__(kind, *error)
        except RuntimeError:
            if kind is None:
                raise


class RunningThread:
    """Thread that has started.

    Attributes:
      ident: its number, as of `threading.get_ident`.
    """

    def __init__(self) -> None:
        self.ident = 0
        self._has_exited = False
        # Held by the thread until it exits.
        self._running = _thread.allocate_lock()
        self._running.acquire()
        # The thread and `cancel` race for it: the first to acquire it decides whether the thread runs.
        self._decision = _thread.allocate_lock()

    def join(self, timeout: float | None = None) -> bool:
        """Waits until the thread exits; returns whether it has.

        Args:
          timeout: the maximum of seconds to wait; None for no limit.
        """
        # Not the lock alone: Ctrl-C may come after `acquire`, and keep it held.
        if not self._has_exited and self._running.acquire(
            timeout=-1 if timeout is None else max(0.0, timeout)
        ):
            self._running.release()
        return self._has_exited

    def cancel(self) -> bool:
        """Keeps the thread from calling its function; returns False if it has started already."""
        return self._decision.acquire(blocking=False)

    def _run(self, work: Callable[[], object], name: str, started: _thread.LockType) -> None:
        self.ident = _thread.get_ident()
        if not self._decision.acquire(blocking=False):
            return
        thread = threading.current_thread()
        thread.name = name
        started.release()
        try:
            work()
        finally:
            # `threading.enumerate` lists the thread for a moment after `join` has returned.
            thread.name = "ended"
            self._has_exited = True
            self._running.release()


def start_thread(work: Callable[[], object], name: str) -> RunningThread:
    """Calls a function in a new thread, which does not keep the process alive; returns when it has started.

    Args:
      work: the function.
      name: the name of the thread, after `pathways`.

    Raises:
      RuntimeError: the system cannot start a thread, or it does not start in time; then `work` is never
        called.
    """
    started = _thread.allocate_lock()
    started.acquire()
    thread = RunningThread()
    _thread.start_new_thread(thread._run, (work, f"pathways {name}", started))
    # A single call waits, so that Ctrl-C cannot leave a thread that may or may not run.
    if not started.acquire(timeout=_START_TIMEOUT_S) and thread.cancel():
        raise RuntimeError("cannot start a new thread; the process may have no memory left")
    return thread
