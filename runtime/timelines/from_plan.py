"""The timeline of a plan, from when each of its steps ran."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping

from pathways.runtime.plan.plan import Launch, Plan, Release, Slot, Transfer
from pathways.runtime.timelines.events import Curve, TimelineEvent
from pathways.runtime.timelines.timeline import Timeline


@dataclasses.dataclass(frozen=True)
class StepSpan:
    """When a step ran.

    Attributes:
      start: when it began.
      end: when it was done.
      after: the number of the step that it waited for last, None for none.
    """

    start: float
    end: float
    after: int | None = None


def timeline_of(plan: Plan, spans: Mapping[int, StepSpan], unit: str, title: str) -> Timeline:
    """The timeline of a plan whose steps ran at these times.

    Args:
      plan: the plan.
      spans: for each launch and transfer, by the number of its step, when it ran.
      unit: the unit of the times.
      title: the title of the timeline.
    """
    numbers = {step: n for n, step in enumerate(spans)}
    made_by: dict[Slot, int] = {}
    events: list[TimelineEvent] = []
    for number, span in spans.items():
        step = plan.steps[number]
        assert not isinstance(step, Release)
        reads = tuple(dict.fromkeys(made_by[slot] for slot in step.operands if slot in made_by))
        after = None if span.after is None else numbers[span.after]
        made_by.update(dict.fromkeys(step.results, len(events)))
        match step:
            case Launch():
                event = TimelineEvent(
                    "launch",
                    step.slice,
                    step.label,
                    span.start,
                    span.end,
                    stage=step.stage,
                    phase=step.phase,
                    microbatch=step.microbatch,
                    part=step.part,
                    fused=step.fused,
                    reads=reads,
                    after=after,
                )
            case Transfer():
                event = TimelineEvent(
                    "transfer",
                    step.src,
                    f"{step.src} -> {step.dst}",
                    span.start,
                    span.end,
                    # A transfer belongs to the microbatch of what it moves.
                    microbatch=events[reads[0]].microbatch if reads else None,
                    dst=step.dst,
                    nbytes=plan.bytes_moved(step),
                    reads=reads,
                    after=after,
                )
        events.append(event)
    return Timeline(plan.name, title, unit, tuple(plan.slices), tuple(events), _memory(plan, spans))


def _memory(plan: Plan, spans: Mapping[int, StepSpan]) -> dict[str, Curve]:
    """The live bytes of each slice: a result lives from the start of its step, what is released until its
    last reader is done."""
    homes = dict(_homes(plan))
    ends: dict[Slot, tuple[float, int]] = {}
    # (time, number of the step, 0 for a beginning and 1 for an end): what ends at a time makes room for
    # what later steps begin at that time.
    changes: dict[str, list[tuple[float, int, int, int]]] = {name: [] for name in plan.slices}

    def change(slot: Slot, moment: tuple[float, int, int], sign: int) -> None:
        slice = homes[slot]
        nbytes = plan.shard_type(slot, slice).nbytes * math.prod(plan.slices[slice].shape)
        changes[slice].append((*moment, sign * nbytes))

    for argument in plan.arguments:
        for slot in argument.slots.values():
            change(slot, (0.0, -1, 0), 1)
    for n, step in enumerate(plan.steps):
        if isinstance(step, Release):
            for slot in step.slots:
                change(slot, (*ends.get(slot, (0.0, n)), 1), -1)
            continue
        span = spans[n]
        for slot in (*step.operands, *step.results):
            ends[slot] = max(ends.get(slot, (0.0, 0)), (span.end, n))
        for slot in step.results:
            change(slot, (span.start, n, 0), 1)
        if isinstance(step, Launch):
            for operand in plan.computations[step.computation].donated:
                change(step.operands[operand], (span.start, n, 0), -1)
    return {name: _curve(moves) for name, moves in changes.items()}


def _homes(plan: Plan) -> Iterator[tuple[Slot, str]]:
    """The slice of each slot."""
    for argument in plan.arguments:
        yield from ((slot, name) for name, slot in argument.slots.items())
    for step in plan.steps:
        if not isinstance(step, Release):
            slice = step.slice if isinstance(step, Launch) else step.dst
            yield from ((slot, slice) for slot in step.results)


def _curve(changes: list[tuple[float, int, int, int]]) -> Curve:
    """The sums of changes in the order of their moments; those of one moment count at once."""
    sums: dict[tuple[float, int, int], int] = {}
    for *moment, nbytes in sorted(changes):
        key = (moment[0], int(moment[1]), int(moment[2]))
        sums[key] = sums.get(key, 0) + nbytes
    curve: list[tuple[float, int]] = []
    now = 0
    for (time, _, _), nbytes in sums.items():
        now += nbytes
        curve.append((time, now))
    return tuple(curve)
