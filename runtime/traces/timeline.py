"""Timelines of steps of programs, from the times of their launches, with report, page and trace file."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path

from pathways.passes.analysis.measured.events import Curve, EventLog, TimelineEvent
from pathways.passes.analysis.measured.trace_file import TraceFile
from pathways.runtime.plan.lifetimes import BEFORE, slot_changes
from pathways.runtime.plan.plan import Launch, Plan, Receive, Release, Send, Slot, Transfer
from pathways.runtime.traces.page import frame_of, page_of
from pathways.runtime.traces.report import report

_Moment = tuple[float, int, int]
"""A time, the number of a step, and 0 for its start or 1 for its end: memory that is freed at a time is
available to later steps that start at that time."""

_Change = tuple[_Moment, int]
"""Moment at which the live bytes of a slice change, and the number of bytes."""


@dataclasses.dataclass(frozen=True)
class Timeline(EventLog):
    """Timeline of a step, planned, simulated or measured; `str` shows its figures and its critical path."""

    def __str__(self) -> str:
        return report(self)

    def _repr_html_(self) -> str:
        """Returns the page of the timeline, for a notebook."""
        return frame_of(self)

    def save_trace(self, path: str | Path) -> None:
        """Writes the timeline for Perfetto and `chrome://tracing`; see `passes.analysis.measured`."""
        with TraceFile(path) as file:
            file.append(self)

    def save_html(self, path: str | Path, *below: EventLog) -> None:
        """Draws the timeline, and `below` below it, as one HTML page that needs no other file."""
        Path(path).write_text(page_of([self, *below]), encoding="utf-8")


@dataclasses.dataclass(frozen=True)
class StepSpan:
    """Time span of a step.

    Attributes:
      start: the time at which it started.
      end: the time at which it was complete.
      after: the number of the step that it waited for last, None for none.
      estimated: whether the times are derived, because the step was not recorded.
    """

    start: float
    end: float
    after: int | None = None
    estimated: bool = False


def timeline_of(
    plan: Plan, spans: Mapping[int, StepSpan], unit: str, title: str, hosts: Mapping[str, int] | None = None
) -> Timeline:
    """Returns the timeline of a plan whose steps ran at these times.

    Args:
      spans: the time span of each launch, transfer and receive, by the number of its step. Where one is
        missing, because it was not recorded, the memory of its slice is unknown.
      hosts: the host of each slice, where the program runs on several.
    """
    numbers = {step: n for n, step in enumerate(spans)}
    producers: dict[Slot, int] = {}
    events: list[TimelineEvent] = []
    for number, span in spans.items():
        step = plan.steps[number]
        assert not isinstance(step, Send | Release)
        reads = tuple(dict.fromkeys(producers[slot] for slot in step.operands if slot in producers))
        after = None if span.after is None else numbers[span.after]
        producers.update(dict.fromkeys(step.results, len(events)))
        match step:
            case Launch():
                event = TimelineEvent(
                    "launch",
                    step.slice,
                    step.label,
                    span.start,
                    span.end,
                    origins=step.origins,
                    microbatch=step.microbatch,
                    reads=reads,
                    after=after,
                    estimated=span.estimated,
                )
            case Transfer() | Receive():
                event = TimelineEvent(
                    "transfer",
                    step.src,
                    f"{step.src} -> {step.dst}",
                    span.start,
                    span.end,
                    # A transfer belongs to the microbatch of the event whose result it moves.
                    microbatch=events[reads[0]].microbatch if reads else None,
                    dst=step.dst,
                    nbytes=plan.bytes_moved(step),
                    reads=reads,
                    after=after,
                )
        events.append(event)
    # Received arrays come from slices of other hosts, which the plan does not list.
    sources = [step.src for step in plan.steps if isinstance(step, Receive)]
    slices = tuple(dict.fromkeys([*plan.slices, *sources]))
    return Timeline(plan.name, title, unit, slices, tuple(events), _memory(plan, spans), hosts or {})


def _memory(plan: Plan, spans: Mapping[int, StepSpan]) -> dict[str, Curve]:
    """Returns the live bytes in the default memory of each slice over time.

    A result lives from the start of its step, a released array until its last reader is complete.
    """
    # The end and the number of the last step that reads or fills each slot.
    last: dict[Slot, tuple[float, int]] = {}
    unknown = {
        step.slice if isinstance(step, Launch) else step.dst
        for n, step in enumerate(plan.steps)
        if n not in spans and not isinstance(step, Send | Release)
    }
    curves: dict[str, list[_Change]] = {name: [] for name in plan.slices if name not in unknown}

    def change(slot: Slot, moment: _Moment, sign: int) -> None:
        slice = plan.slot_slices[slot]
        if slice in unknown or plan.memory_kind(slot) is not None:
            return
        curves[slice].append((moment, sign * plan.shard_type(slot).nbytes * plan.slices[slice].size))

    for changes in slot_changes(plan):
        n = changes.step
        step = None if n == BEFORE else plan.steps[n]
        if isinstance(step, Send) or (step is not None and n not in spans and not isinstance(step, Release)):
            continue
        if isinstance(step, Release):
            for slot in changes.freed:
                change(slot, (*last.get(slot, (0.0, n)), 1), -1)
            continue
        start = 0.0 if step is None else spans[n].start
        for slot in changes.freed:
            change(slot, (start, n, 0), -1)
        for slot in changes.filled:
            change(slot, (start, n, 0), 1)
        if step is not None:
            for slot in (*step.operands, *step.results):
                last[slot] = max(last.get(slot, (0.0, 0)), (spans[n].end, n))
    return {name: _curve(moves) for name, moves in curves.items()}


def _curve(changes: Sequence[_Change]) -> Curve:
    """Returns the running sums of changes; changes of one moment count together."""
    sums: dict[_Moment, int] = {}
    for moment, nbytes in sorted(changes):
        sums[moment] = sums.get(moment, 0) + nbytes
    totals = itertools.accumulate(sums.values())
    return tuple((time, total) for (time, _, _), total in zip(sums, totals, strict=True))
