"""Recording of calls, by one recorder at a time."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

from pathways.runtime.plan.plan import Plan


@dataclasses.dataclass(frozen=True)
class RecordedSpan:
    """Record of work that belongs to no call, such as a snapshot; times in nanoseconds of one clock.

    Attributes:
      track: see `TraceSpan`; empty for this host.
      row: see `TraceSpan`.
      name: the name of the work.
      start: when it began.
      end: when it ended.
      client: on a worker, the number of the client for which it was done.
    """

    track: str
    row: str
    name: str
    start: int
    end: int
    client: int = 0


class CallRecorder(Protocol):
    """Recorder of calls and spans, see `traces.recorder`; `str` of its sink names the sink."""

    sink: Any

    def observer_of(self, plan: Plan, profiled: bool, devices: Mapping[str, int]) -> Any:
        """Returns the observer of the calls of a program, for `codegen.generate`.

        Args:
          profiled: whether profiles have the times of its launches.
          devices: the number of devices of this process in each slice.
        """

    def wait_for(self, wait: Callable[[], None]) -> None:
        """Registers a function that `close` calls first, which waits for other writers of the sink."""

    def write_span(self, span: RecordedSpan) -> None:
        """Writes work that belongs to no call; any thread may call it."""

    def close(self) -> None:
        """Waits until all dispatched calls are complete and written."""


class Traceable(Protocol):
    """Source of traces: a loaded program, or the workers of a cluster."""

    def observe(self, recorder: CallRecorder | None) -> None:
        """Reports all calls to a recorder from now on, instead of another; stops for None."""


_state = threading.RLock()
_traceable: weakref.WeakSet[Any] = weakref.WeakSet()
_current: CallRecorder | None = None


def register(source: Traceable) -> None:
    """Includes a loaded program, or the workers of a cluster, in traces from now on."""
    with _state:
        _traceable.add(source)
        if _current is not None:
            source.observe(_current)


def start[R: CallRecorder](make: Callable[[], R], replaced: CallRecorder | None = None) -> R:
    """Records every call from now on.

    Args:
      make: creates the recorder.
      replaced: the recorder that stops then, so that each call has one of both; None for none.

    Raises:
      RuntimeError: another trace is being recorded.
    """
    global _current
    with _state:
        if _current is not replaced:
            raise RuntimeError(f"a trace is being recorded to {_current and _current.sink} already")
        _current = recorder = make()
        try:
            for source in list(_traceable):
                source.observe(recorder)
        except BaseException:
            stop(recorder)
            recorder.close()
            raise
        return recorder


def stop(recorder: CallRecorder) -> None:
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
        recorder.write_span(span)


@contextlib.contextmanager
def span(row: str, name: str, *, track: str = "", client: int = 0) -> Iterator[None]:
    """Records the work in this context as a span; see `RecordedSpan`."""
    start = time.monotonic_ns()
    try:
        yield
    finally:
        record_span(RecordedSpan(track, row, name, start, time.monotonic_ns(), client))
