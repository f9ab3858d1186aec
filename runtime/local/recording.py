"""Recording of calls, by one recorder at a time."""

from __future__ import annotations

import contextlib
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from pathways.runtime.local.recorder import RecordedSpan, Recorder, TraceSink


class Traceable(Protocol):
    """Source of traces: a loaded program, or the workers of a cluster."""

    def observe(self, recorder: Recorder | None) -> None:
        """Reports all calls to a recorder from now on; stops reporting for None."""


_state = threading.RLock()
_traceable: weakref.WeakSet[Any] = weakref.WeakSet()
_current: Recorder | None = None


def register(source: Traceable) -> None:
    """Includes a loaded program, or the workers of a cluster, in traces from now on."""
    with _state:
        _traceable.add(source)
        if _current is not None:
            source.observe(_current)


def start(make_sink: Callable[[], TraceSink]) -> Recorder:
    """Records every call from now on.

    Args:
      make_sink: opens the sink of the calls.

    Raises:
      RuntimeError: another trace is being recorded.
    """
    global _current
    with _state:
        if _current is not None:
            raise RuntimeError(f"a trace is being recorded to {_current.sink} already")
        _current = Recorder(make_sink())
        for source in list(_traceable):
            source.observe(_current)
        return _current


def stop(recorder: Recorder) -> None:
    """Stops recording: calls that start later are not recorded. `recorder.close()` waits for earlier ones."""
    global _current
    with _state:
        if _current is not recorder:
            return
        _current = None
        for source in list(_traceable):
            source.observe(None)


def record_span(span: RecordedSpan) -> None:
    """Records work that belongs to no call of a program, if a trace is being recorded."""
    recorder = _current
    if recorder is not None:
        recorder.sink.write_span(span)


@contextlib.contextmanager
def span(row: str, name: str, *, track: str = "", client: int = 0) -> Iterator[None]:
    """Records what runs in this context as a span; see `RecordedSpan`."""
    start = time.monotonic_ns()
    try:
        yield
    finally:
        record_span(RecordedSpan(track, row, name, start, time.monotonic_ns(), client))
