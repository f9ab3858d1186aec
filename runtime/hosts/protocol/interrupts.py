"""Protection of code that Ctrl-C must not interrupt."""

from __future__ import annotations

# The functions of `signal` convert handlers to enums, which takes three times as long.
import _signal  # type: ignore[import-not-found]
import threading
from types import FrameType, TracebackType


class uninterrupted:
    """Context that postpones KeyboardInterrupt until its end; within another one it has no effect.

    Half a message would break a connection, and a step that was sent to only some of its hosts would hang.
    """

    _is_active = False
    """Whether the main thread is in such a context."""

    def __enter__(self) -> None:
        # Python runs handlers in the main thread only. Other threads read `_is_active` for nothing.
        self._is_set = not uninterrupted._is_active and threading.current_thread() is threading.main_thread()
        if self._is_set:
            self._pending: tuple[int, FrameType | None] | None = None
            self._before = _signal.signal(_signal.SIGINT, self._postpone)
            uninterrupted._is_active = True

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._is_set:
            return
        uninterrupted._is_active = False
        # None represents a handler that was not set by Python, and cannot be restored.
        _signal.signal(_signal.SIGINT, _signal.SIG_DFL if self._before is None else self._before)
        if self._pending is not None and callable(self._before):
            self._before(*self._pending)

    def _postpone(self, number: int, frame: FrameType | None) -> None:
        self._pending = number, frame
