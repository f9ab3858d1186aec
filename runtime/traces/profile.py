"""Measured times of executions: XLA's own profile of this process, recorded in pieces.

XLA:CPU records each thunk that it runs, and the end of each execution, with its device and its `launch_id`.
Other platforms record other events, in which no executions are found.
"""

from __future__ import annotations

import functools
import time
import warnings
from collections.abc import Iterable
from typing import Any

import jax

from pathways.runtime.xla import pjrt

_DONE = "ThunkExecutor::Execute (wait for completion)"
"""Event that ends with its execution, on the device that it names."""

_OTHER_PREFIXES = ("ThreadpoolListener::", "Wait for ", "end: ", "CommonPjRt", "BatchedCopy", "Handle input")
"""Prefixes of the names of most other events, whose statistics are not read: that is slow."""

_CLOCK = "pathways clock"
_SETTLE_S = 0.01

TimeSpan = tuple[int, int]
"""Start and end, in nanoseconds of `time.monotonic_ns`."""


class Profile:
    """Piece of the profile that is being recorded. A process has one at a time."""

    def __init__(self, session: Any) -> None:
        self._session = session

    @classmethod
    def start(cls) -> Profile | None:
        """Starts a piece; returns None while another profile is recorded, such as by `jax.profiler.trace`."""
        _keep_types()
        session = pjrt.start_profile()
        if session is None:
            return None
        # A profile has its own clock; this event, with the time as a statistic, gives the offset.
        with jax.profiler.TraceAnnotation(_CLOCK, at=time.monotonic_ns()):
            return cls(session)

    def stop(self) -> dict[int, list[TimeSpan]]:
        """Stops the piece; returns the time spans of the executions that ended within it.

        The spans are by launch id, one for each device. An execution that was running when the piece started
        may have started earlier than its span.
        """
        # XLA reports an execution as complete before it records its end.
        time.sleep(_SETTLE_S)
        data = pjrt.stop_profile(self._session)
        host = None if data is None else data.find_plane_with_name("/host:CPU")
        return {} if host is None else _executions(event for line in host.lines for event in line.events)


@functools.cache
def _keep_types() -> tuple[object, ...]:
    """Returns iterators over a profile, and so keeps their types alive.

    Creating such a type issues a warning, which aborts the process if warnings are errors. So the types are
    created once, with warnings off.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        data = jax.profiler.ProfileData.from_text_proto("planes { lines { events { stats {} } } }")
        planes = iter(data.planes)
        lines = iter(next(planes).lines)
        events = iter(next(lines).events)
        return planes, lines, events, iter(next(events).stats)


def _executions(events: Iterable[jax.profiler.ProfileEvent]) -> dict[int, list[TimeSpan]]:
    starts: dict[tuple[int, int], float] = {}
    ends: dict[tuple[int, int], float] = {}
    offset: int | None = None
    for event in events:
        name = event.name
        if name.startswith(_OTHER_PREFIXES):
            continue
        stats = dict(event.stats)
        if name == _CLOCK:
            offset = stats["at"] - int(event.start_ns)
        if "run_id" in stats and "device_ordinal" in stats:
            key = stats["run_id"], stats["device_ordinal"]
            starts[key] = min(event.start_ns, starts.get(key, event.start_ns))
            if name == _DONE:
                ends[key] = event.end_ns
    executions: dict[int, list[TimeSpan]] = {}
    if offset is not None:
        for key, end in ends.items():
            executions.setdefault(key[0], []).append((int(starts[key]) + offset, int(end) + offset))
    return executions
