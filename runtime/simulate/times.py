"""The durations of a program in a simulation: given, or measured."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pathways.passes.schedule.times import Times, kind_of, times_of
from pathways.passes.util.quantities import SECONDS, UNITS
from pathways.runtime.plan.plan import Launch, Plan
from pathways.runtime.timelines.events import EventLog, TimelineEvent


def launches_of(plan: Plan) -> list[Launch]:
    """The launches of a program."""
    return [step for step in plan.steps if isinstance(step, Launch)]


_WHOLE = ""
"""In place of the name of a piece."""


def read_times(durations: Mapping[str, Any], plan: Plan) -> Times:
    """Reads durations for a program.

    Args:
      durations: the mapping that `passes.schedule.times` describes.
      plan: the program; every name must be in it.

    Raises:
      TimesError: an unknown name, a number that is negative or not finite, or units and seconds mixed.
    """
    return times_of(durations, launches_of(plan), plan.computations)


def measured_durations(timelines: Sequence[EventLog]) -> dict[str, Any]:
    """The median times of each stage and kind in measured steps, as a mapping that `read_times` reads."""
    suffix = "s" if timelines and timelines[0].unit == SECONDS else ""
    stages = _by_stage(_counted(timelines))
    return {
        "stages": {
            str(stage): {kind: f"{time:.9g}{suffix}" if suffix else time for kind, time in kinds.items()}
            for stage, kinds in stages.items()
        }
    }


def measured_times(timelines: Sequence[EventLog], plan: Plan) -> Times:
    """The median time of each launch, each computation and each action of a stage in measured steps.

    The time of a launch goes from when its slice was free and all that it reads was made until it ended. So
    it holds what its start cost, and what its operands took from another slice, and a replay takes as long as
    the step did. Launches whose times are estimated do not count, unless all are. Computations that this
    program does not have are left out, so that a measured run can be replayed in another schedule. There the
    halves of a backward take half of a measured whole each, and a whole takes what measured halves take.
    """
    by_label: dict[str, list[float]] = {}
    by_computation: dict[str, list[float]] = {}
    counted = _counted(timelines)
    for event, time in counted:
        by_label.setdefault(event.label, []).append(time)
        by_computation.setdefault(event.label.partition("[")[0], []).append(time)
    computations = {name: statistics.median(by_computation[name]) for name in by_computation}
    return Times(
        timelines[0].unit if timelines else UNITS,
        stages=_by_stage(counted),
        computations={name: time for name, time in computations.items() if name in plan.computations},
        launches={label: statistics.median(times) for label, times in by_label.items()},
    )


def _counted(timelines: Sequence[EventLog]) -> list[tuple[TimelineEvent, float]]:
    """Each launch and the time that it took, without those that are estimated, unless all are."""
    taken = [pair for timeline in timelines for pair in _times_taken(timeline)]
    return [pair for pair in taken if not pair[0].estimated] or taken


def _by_stage(taken: Sequence[tuple[TimelineEvent, float]]) -> dict[int, dict[str, float]]:
    """The median time of each kind of call of each stage.

    Calls that were fused into one launch share its time, a whole backward twice as much as others. They count
    where a kind is in no launch of its own. Where a call was cut into several launches, the medians of their
    computations count together.
    """
    alone: dict[tuple[int, str], dict[str, list[float]]] = {}
    shared: dict[tuple[int, str], dict[str, list[float]]] = {}
    for event, time in taken:
        weights = [(2 if kind_of(call) == "bwd" else 1) / (call.pieces or 1) for call in event.origins]
        table = alone if len(weights) == 1 else shared
        for call, weight in zip(event.origins, weights, strict=True):
            if call.stage is not None:
                piece = _WHOLE if call.pieces is None else event.label.partition("[")[0]
                of_call = table.setdefault((call.stage, kind_of(call)), {})
                of_call.setdefault(piece, []).append(time * weight / sum(weights))
    stages: dict[int, dict[str, float]] = {}
    for stage, kind in sorted({*alone, *shared}):
        pieces = shared.get((stage, kind), {}) | alone.get((stage, kind), {})
        counted = [pieces[_WHOLE]] if _WHOLE in pieces else pieces.values()
        stages.setdefault(stage, {})[kind] = sum(map(statistics.median, counted))
    for kinds in stages.values():
        halves = [time for kind, time in kinds.items() if kind.startswith("bwd.")]
        if halves:
            kinds.setdefault("bwd", sum(halves))
    return stages


def _times_taken(timeline: EventLog) -> Iterator[tuple[TimelineEvent, float]]:
    """Each launch of a step, and how long it took since it could have begun."""
    made: list[float] = []
    free: dict[str, float] = {}
    for event in timeline.events:
        ready = [made[n] for n in event.reads]
        if event.kind == "transfer":
            made.append(max(ready, default=event.start))
            continue
        if event.slice in free:
            ready.append(free[event.slice])
        # Clocks of several threads may say that it began before that.
        yield event, event.end - min(event.start, max(ready, default=event.start))
        made.append(event.end)
        free[event.slice] = event.end
