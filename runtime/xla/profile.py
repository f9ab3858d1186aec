"""When executions really ran: XLA's own profile of this process, taken in pieces.

XLA:CPU notes each thunk that it runs, and the end of each execution, with the `launch_id` that the execution
was given and the device. Other platforms note other things, in which nothing is found.
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
"""Ends with its execution, on the device that the event names."""

_NO_THUNKS = ("ThreadpoolListener::", "Wait for ", "end: ", "CommonPjRt", "BatchedCopy", "Handle input")
"""Beginnings of the names of most other events, which need no closer look."""

_CLOCK = "pathways clock"
_SETTLE = 0.01
"""Seconds."""

Moments = tuple[int, int]
"""When something began and ended, in nanoseconds of `time.monotonic_ns`."""


class Profile:
    """A piece of the profile that is being taken. A process has one at a time."""

    def __init__(self, session: Any) -> None:
        self._session = session

    @classmethod
    def start(cls) -> Profile | None:
        """Begins a piece; None while anybody else takes a profile, such as `jax.profiler.trace`."""
        _keep_types()
        session = pjrt.start_profile()
        if session is None:
            return None
        # A profile has a clock of its own, which this event tells.
        with jax.profiler.TraceAnnotation(_CLOCK, at=time.monotonic_ns()):
            return cls(session)

    def stop(self) -> dict[int, list[Moments]]:
        """Ends it; gives when the executions that ended within it ran: by launch id, once for each device.

        What ran already when it began may have begun before the time that is given.
        """
        # XLA says that an execution has ended before it notes so.
        time.sleep(_SETTLE)
        data = pjrt.stop_profile(self._session)
        host = None if data is None else data.find_plane_with_name("/host:CPU")
        return {} if host is None else _executions(event for line in host.lines for event in line.events)


@functools.cache
def _keep_types() -> tuple[object, ...]:
    """Iterators over a profile, whose types live as long as they do.

    To make such a type is warned of, and where warnings are errors that aborts the process.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        data = jax.profiler.ProfileData.from_text_proto("planes { lines { events { stats {} } } }")
        planes = iter(data.planes)
        lines = iter(next(planes).lines)
        events = iter(next(lines).events)
        return planes, lines, events, iter(next(events).stats)


def _executions(events: Iterable[jax.profiler.ProfileEvent]) -> dict[int, list[Moments]]:
    begun: dict[tuple[int, int], float] = {}
    ended: dict[tuple[int, int], float] = {}
    ahead: int | None = None
    for event in events:
        name = event.name
        if name.startswith(_NO_THUNKS):
            continue
        stats = dict(event.stats)
        if name == _CLOCK:
            ahead = stats["at"] - int(event.start_ns)
        if "run_id" in stats and "device_ordinal" in stats:
            key = stats["run_id"], stats["device_ordinal"]
            begun[key] = min(event.start_ns, begun.get(key, event.start_ns))
            if name == _DONE:
                ended[key] = event.end_ns
    executions: dict[int, list[Moments]] = {}
    if ahead is not None:
        for key, end in ended.items():
            executions.setdefault(key[0], []).append((int(begun[key]) + ahead, int(end) + ahead))
    return executions
