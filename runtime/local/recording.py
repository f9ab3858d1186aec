"""Recording of traces to files: `pw.trace` and PW_TRACE."""

from __future__ import annotations

import atexit
import contextlib
import functools
import itertools
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Protocol

from pathways.passes.analysis.measured.events import TraceSpan
from pathways.passes.analysis.measured.trace_file import TraceFile
from pathways.runtime.local.call_trace import RecordedCall, RecordedSpan, timeline_of_call
from pathways.runtime.local.recorder import Recorder, TraceSink
from pathways.runtime.resources.paths import path_in_environment

_NANOSECOND = 1e-9


@contextlib.contextmanager
def trace(path: str | os.PathLike[str]) -> Iterator[None]:
    """Records every call of a program while the context is entered.

    The file is for Perfetto (ui.perfetto.dev) and for `pw-viz`, and grows with each step. The exit of the
    context waits for all steps. With PW_TRACE=<path> in the environment, the whole process is recorded. For
    programs on hosts, the controller writes the steps of all hosts, on one clock; a host that is lost
    meanwhile is missing from then on, and a warning names it.

    Args:
      path: the file to write; an existing one is replaced.

    Raises:
      OSError: the file cannot be written.
      RuntimeError: another trace is being recorded.

    Example:
      ```python
      step(params, batch)  # compiles
      with pw.trace("run.json"):
          for _ in range(3):
              params = step(params, batch)
      ```
    """
    recorder = start(lambda: FileSink(Path(path)))
    try:
        yield
    finally:
        stop(recorder)
        recorder.close()


class Traceable(Protocol):
    """Source of traces: a loaded program, or the workers of a cluster."""

    def observe(self, recorder: Recorder | None) -> None:
        """Reports all calls to a recorder from now on; stops reporting for None."""


class FileSink:
    """Sink that writes the calls of a trace to a file; any thread may use it.

    Args:
      path: the file; an existing one is replaced.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = TraceFile(path)
        self._start = time.monotonic_ns()
        self._calls = itertools.count()
        self._writing = threading.Lock()

    def __str__(self) -> str:
        return str(self._path)

    def begin(self) -> int:
        """Returns the number of calls that started before."""
        return next(self._calls)

    def write(self, calls: Iterable[RecordedCall]) -> None:
        """Writes finished calls."""
        for call in calls:
            origin, timeline = timeline_of_call(
                call.plan, call.observed, call.executed, f"measured, step {call.name}", call.hosts
            )
            with self._writing:
                self._file.append(timeline, (origin - self._start) * _NANOSECOND)

    def write_span(self, span: RecordedSpan) -> None:
        """Writes work that belongs to no call."""
        # It may have begun before the trace.
        start, end = (max(0, time - self._start) * _NANOSECOND for time in (span.start, span.end))
        with self._writing:
            if not self._file.is_closed:
                self._file.append_span(TraceSpan(span.track, span.row, span.name, start, end))

    def close(self) -> None:
        """Closes the file."""
        with self._writing:
            self._file.close()


_state = threading.RLock()
_traceable: weakref.WeakSet[Any] = weakref.WeakSet()
_current: Recorder | None = None


def register(source: Traceable) -> None:
    """Includes a loaded program, or the workers of a cluster, in traces from now on.

    Raises:
      OSError: PW_TRACE names no file that can be written.
    """
    _start_from_environment()
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


@functools.cache
def _start_from_environment() -> None:
    path = path_in_environment("PW_TRACE")
    if not path:
        return
    try:
        recorder = start(lambda: FileSink(Path(path)))
    except OSError as error:
        raise OSError(error.errno, f"PW_TRACE names no file to write: {error.strerror}", path) from None

    def finish() -> None:
        stop(recorder)
        recorder.close()

    atexit.register(finish)
