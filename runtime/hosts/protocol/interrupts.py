"""Code that Ctrl-C must not interrupt."""

from __future__ import annotations

# Those of `signal` look handlers up among enums, which takes three times as long.
import _signal  # type: ignore[import-not-found]
import threading
from types import FrameType, TracebackType


class uninterrupted:
    """A context that postpones KeyboardInterrupt until its end; within another one it has no effect.

    Half a message would break a connection, and a step that was sent to some of its hosts would wait for
    ever.
    """

    _is_active = False
    """Whether the main thread is in one."""

    def __enter__(self) -> None:
        # Python calls handlers in its main thread alone. In other threads it does not matter what is read.
        self._is_set = not uninterrupted._is_active and threading.current_thread() is threading.main_thread()
        if self._is_set:
            self._pending: tuple[int, FrameType | None] | None = None
            self._before = _signal.signal(_signal.SIGINT, self._note)
            uninterrupted._is_active = True

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._is_set:
            return
        uninterrupted._is_active = False
        # None is a handler of another language, which Python cannot set again.
        _signal.signal(_signal.SIGINT, _signal.SIG_DFL if self._before is None else self._before)
        if self._pending is not None and callable(self._before):
            self._before(*self._pending)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._pending = number, frame
