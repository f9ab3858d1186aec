"""What Ctrl-C must not leave half done."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Lets Ctrl-C wait for the end of the block, which must not take long.

    Half of a message makes no sense to a worker, and a step that only some hosts know blocks them for ever.
    """
    handler = signal.getsignal(signal.SIGINT)
    # Only the main thread is interrupted, and only when the handler is one of Python.
    if threading.current_thread() is not threading.main_thread() or not callable(handler):
        yield
        return
    caught: list[tuple[int, FrameType | None]] = []
    signal.signal(signal.SIGINT, lambda number, frame: caught.append((number, frame)))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if caught:
            handler(*caught[0])
