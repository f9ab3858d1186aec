"""Threads that run, or are an error: `Thread.start` may wait for ever.

A process that has no memory left can make a thread that ends before its first line, and
`threading.Thread.start` waits for that line (https://github.com/python/cpython/issues/140746).
"""

from __future__ import annotations

import _thread
from collections.abc import Callable
from typing import Any

_SECONDS = 10.0
"""How long a thread may take to begin."""


def start_thread(work: Callable[..., object], *args: Any) -> None:
    """Calls a function in a thread of its own, which does not keep the process from ending.

    Returns when the thread has begun. It is not among those of `threading.enumerate`.

    Raises:
      RuntimeError: the system gives no thread, or it does not begin.
    """
    begun = _thread.allocate_lock()
    begun.acquire()

    def run() -> None:
        begun.release()
        work(*args)

    _thread.start_new_thread(run, ())
    # One step, so that Ctrl-C leaves nothing half done.
    if not begun.acquire(timeout=_SECONDS):
        raise RuntimeError("a new thread does not begin; the process may have no memory left")
