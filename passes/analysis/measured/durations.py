"""Durations of the calls of each stage in measured steps."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from typing import Any

from pathways.dialect.attributes.origins import Origin
from pathways.passes.analysis.measured.events import EventLog, TimelineEvent
from pathways.passes.analysis.quantities import SECONDS
from pathways.passes.analysis.times import kind_of

_UNSPLIT = ""
"""Placeholder for the name of a piece of an unsplit call."""


def measured_durations(timelines: Sequence[EventLog]) -> dict[str, Any]:
    """Returns the median times of each stage and kind in measured steps, as `times_of` reads them."""
    suffix = "s" if timelines and timelines[0].unit == SECONDS else ""
    stages = by_stage(launch_times(timelines))
    return {
        "stages": {
            str(stage): {kind: f"{time:.9g}{suffix}" if suffix else time for kind, time in kinds.items()}
            for stage, kinds in stages.items()
        }
    }


def of_program(timelines: Sequence[EventLog], name: str) -> Sequence[EventLog]:
    """Returns the steps of a program; all if there are none, since it may have had another name."""
    return [timeline for timeline in timelines if timeline.program == name] or timelines


def launch_times(timelines: Sequence[EventLog]) -> list[tuple[TimelineEvent, float]]:
    """Returns each launch and its time, without estimated times unless all are estimates."""
    pairs = [pair for timeline in timelines for pair in _in_step(timeline)]
    return [pair for pair in pairs if not pair[0].estimated] or pairs


def by_stage(launches: Sequence[tuple[TimelineEvent, float]]) -> dict[int, dict[str, float]]:
    """Returns the median time of each kind of call of each stage.

    Calls that were fused into one launch share its time, a whole backward or a gradient with a stage of its
    own twice as much as others. They count where a kind is in no launch of its own. Where a call was cut into
    several launches, the medians of their computations count together.
    """
    alone: dict[tuple[int, str], dict[str, list[float]]] = {}
    shared: dict[tuple[int, str], dict[str, list[float]]] = {}
    for event, time in launches:
        weights = [_weight(call) / (call.pieces or 1) for call in event.origins]
        table = alone if len(weights) == 1 else shared
        for call, weight in zip(event.origins, weights, strict=True):
            if call.stage is not None:
                piece = _UNSPLIT if call.pieces is None else event.label.partition("[")[0]
                of_call = table.setdefault((call.stage, kind_of(call)), {})
                of_call.setdefault(piece, []).append(time * weight / sum(weights))
    stages: dict[int, dict[str, float]] = {}
    for stage, kind in sorted({*alone, *shared}):
        pieces = shared.get((stage, kind), {}) | alone.get((stage, kind), {})
        counted = [pieces[_UNSPLIT]] if _UNSPLIT in pieces else pieces.values()
        stages.setdefault(stage, {})[kind] = sum(map(statistics.median, counted))
    for kinds in stages.values():
        halves = [time for kind, time in kinds.items() if kind.startswith("bwd.")]
        if halves:
            kinds.setdefault("bwd", sum(halves))
    return stages


def _weight(call: Origin) -> int:
    """Returns the weight of a call in the time of a launch that it shares with others."""
    return 2 if kind_of(call) in ("bwd", "grad") else 1


def _in_step(timeline: EventLog) -> Iterator[tuple[TimelineEvent, float]]:
    """Yields each launch of a step, and how long it took since it could have begun."""
    ready_times: list[float] = []
    free: dict[str, float] = {}
    for event in timeline.events:
        ready = [ready_times[n] for n in event.reads]
        if event.kind == "transfer":
            ready_times.append(max(ready, default=event.start))
            continue
        if event.slice in free:
            ready.append(free[event.slice])
        # Timed by several threads, it may seem to start before its operands are ready.
        yield event, event.end - min(event.start, max(ready, default=event.start))
        ready_times.append(event.end)
        free[event.slice] = event.end
