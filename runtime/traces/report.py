"""Timelines as text."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from pathways.passes.analysis.measured.events import EventLog, TimelineEvent
from pathways.runtime.resources.tables import duration, duration_with_unit, percent, size, table

_MAX_SHOWN = 6
"""Number of launches in a row on one slice that the critical path names before it leaves some out."""


def report(timeline: EventLog) -> str:
    """Returns the figures of a timeline as text."""

    def time(value: float) -> str:
        return duration(value, timeline.unit)

    moved = sum(event.nbytes for event in timeline.transfers)
    slices = [
        (
            name,
            str(sum(event.slice == name for event in timeline.launches)),
            time(timeline.busy(name)),
            percent(timeline.bubble(name)),
            size(timeline.peak_bytes(name)),
        )
        for name in timeline.slices
    ]
    estimated = sum(event.estimated for event in timeline.launches)
    launches = f"{len(timeline.launches)}{f', {estimated} of them estimated' if estimated else ''}"
    path = [
        (slice_name, _names([_name(event) for event in run]), f"{time(run[0].start)} to {time(run[-1].end)}")
        for slice_name, run in _runs(timeline)
    ]
    lines = [
        f"program {timeline.program}, {timeline.title}",
        table(
            [
                ("step time", duration_with_unit(timeline.step_time, timeline.unit)),
                ("bubble", percent(timeline.mean_bubble)),
                ("launches", launches),
                ("transfers", f"{len(timeline.transfers)}, {size(moved)}"),
            ]
        ),
        "",
        table([("slice", "launches", "busy", "bubble", "peak memory"), *slices]),
    ]
    if path:
        lines += ["", "critical path", table(path)]
    return "\n".join(lines)


def _runs(timeline: EventLog) -> Iterator[tuple[str, list[TimelineEvent]]]:
    """Yields the critical path in runs of events on one slice or one link."""
    path = [timeline.events[n] for n in timeline.critical_path]
    timed = [event for event in path if event.duration > 0]
    for place, run in itertools.groupby(timed, lambda e: e.slice if e.kind == "launch" else e.label):
        yield place, list(run)


def _name(event: TimelineEvent) -> str:
    return event.name if event.kind == "launch" else size(event.nbytes)


def _names(names: Sequence[str]) -> str:
    if len(names) <= _MAX_SHOWN:
        return " ".join(names)
    return f"{' '.join(names[: _MAX_SHOWN - 2])} ... {names[-1]} ({len(names)})"
