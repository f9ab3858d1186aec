"""Traces in files: `pw.trace` and PW_TRACE."""

from __future__ import annotations

import atexit
import contextlib
import functools
import itertools
import os
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from pathways.passes.analysis.measured.events import TraceSpan
from pathways.passes.analysis.measured.trace_file import TraceFile
from pathways.runtime.local.recording import RecordedSpan, start, stop
from pathways.runtime.resources.paths import path_in_environment
from pathways.runtime.traces.call_timeline import timeline_of_call
from pathways.runtime.traces.recorder import RecordedCall, Recorder

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
    recorder = start(lambda: Recorder(FileSink(Path(path))))
    try:
        yield
    finally:
        stop(recorder)
        recorder.close()


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


@functools.cache
def start_from_environment() -> None:
    """Starts the trace that PW_TRACE names, if it does; later calls have no effect.

    Raises:
      OSError: it names no file that can be written.
    """
    path = path_in_environment("PW_TRACE")
    if not path:
        return
    try:
        recorder = start(lambda: Recorder(FileSink(Path(path))))
    except OSError as error:
        raise OSError(error.errno, f"PW_TRACE names no file to write: {error.strerror}", path) from None

    def finish() -> None:
        stop(recorder)
        recorder.close()

    atexit.register(finish)
