"""Replays a plan: when would every launch and transfer run, given how long each takes?

The steps of a plan stand in an order that was proved free of deadlock, so all that a step waits for stands
before it and one pass in that order gives every time exactly: no event queue is needed.

The model is that of the proof, with times:

- a slice (or all slices that overlap together) takes its launches and sends in order and does one thing at
  a time;
- a send takes no time of its slice, but waits there until its channel has room: until the first reader of
  the value sent `capacity` places before it has begun;
- a link leads from one slice to another, and carries one value at a time, in the order of sending.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping

from pathways.runtime.plan.plan import Launch, Plan, Release, Slot, Transfer
from pathways.runtime.simulate.times import Link, Times
from pathways.runtime.timelines.timeline import Curve, Event, Timeline


@dataclasses.dataclass(frozen=True)
class Span:
    """When a step ran.

    Attributes:
      start: when it began.
      end: when it was done.
      after: the number of the step that it waited for last, None for none.
    """

    start: float
    end: float
    after: int | None = None


def simulate(plan: Plan, times: Times | None = None, link: Link | None = None, title: str = "") -> Timeline:
    """Replays a plan.

    Args:
      plan: the plan.
      times: how long launches take; by default one unit for each placed call.
      link: the links between slices; by default transfers take no time.
      title: the title of the timeline; by default says which times it is of.
    """
    times = times or Times()
    spans = _Replay(plan, times, link or Link()).spans()
    return timeline_of(plan, spans, times.unit, title or ("simulated" if times.given else "planned"))


class _Replay:
    def __init__(self, plan: Plan, times: Times, link: Link) -> None:
        self.plan = plan
        self.times = times
        self.link = link
        # Each is a time, and the step that it stems from.
        self.made: dict[Slot, tuple[float, int | None]] = {}
        self.queues: dict[str, tuple[float, int | None]] = {}
        self.links: dict[tuple[str, str], tuple[float, int | None]] = {}
        self.received: dict[int, tuple[float, int | None]] = {}
        self.sent_on: dict[str, list[int]] = {}
        self.carried_by: dict[Slot, int] = {}

    def spans(self) -> dict[int, Span]:
        found: dict[int, Span] = {}
        for n, step in enumerate(self.plan.steps):
            match step:
                case Launch():
                    found[n] = self.launch(n, step)
                case Transfer():
                    found[n] = self.transfer(n, step)
        return found

    def launch(self, n: int, launch: Launch) -> Span:
        queue = self.queue(launch.slice)
        start, after = self.latest(launch.operands, self.queues.get(queue))
        end = start + self.times.of(launch)
        for slot in launch.operands:
            if slot in self.carried_by:
                # The value leaves its channel when its first reader begins, which `after` kept waiting.
                self.received.setdefault(self.carried_by[slot], (start, after))
        self.queues[queue] = end, n
        self.made.update(dict.fromkeys(launch.results, (end, n)))
        return Span(start, end, after)

    def transfer(self, n: int, transfer: Transfer) -> Span:
        queue, between = self.queue(transfer.src), (transfer.src, transfer.dst)
        issued = self.latest(transfer.operands, self.queues.get(queue), self.room(n, transfer))
        self.queues[queue] = issued
        start, after = max(issued, self.links.get(between, (0.0, None)), key=lambda moment: moment[0])
        sent = start + self.plan.bytes_moved(transfer) / self.link.bandwidth
        arrived = sent + self.link.latency
        self.links[between] = sent, n
        self.made.update(dict.fromkeys(transfer.results, (arrived, n)))
        self.carried_by.update(dict.fromkeys(transfer.results, n))
        return Span(start, arrived, after)

    def room(self, n: int, transfer: Transfer) -> tuple[float, int | None] | None:
        """When the channel of a transfer has room for it."""
        if transfer.channel is None:
            return None
        sent = self.sent_on.setdefault(transfer.channel, [])
        sent.append(n)
        place = len(sent) - 1 - self.plan.channels[transfer.channel]
        return self.received.get(sent[place]) if place >= 0 else None

    def latest(
        self, slots: tuple[Slot, ...], *others: tuple[float, int | None] | None
    ) -> tuple[float, int | None]:
        """The last of the moments at which values are there and other things have happened."""
        moments = [self.made[slot] for slot in slots if slot in self.made]
        moments += [moment for moment in others if moment is not None]
        return max(moments, key=lambda moment: moment[0], default=(0.0, None))

    def queue(self, slice: str) -> str:
        return "slices that overlap" if self.plan.slices[slice].overlap else slice


def timeline_of(plan: Plan, spans: Mapping[int, Span], unit: str, title: str) -> Timeline:
    """The timeline of a plan whose steps ran at these times.

    Args:
      plan: the plan.
      spans: for each launch and transfer, by the number of its step, when it ran.
      unit: the unit of the times.
      title: the title of the timeline.
    """
    numbers = {step: n for n, step in enumerate(spans)}
    made_by: dict[Slot, int] = {}
    events: list[Event] = []
    for number, span in spans.items():
        step = plan.steps[number]
        assert not isinstance(step, Release)
        reads = tuple(dict.fromkeys(made_by[slot] for slot in step.operands if slot in made_by))
        after = None if span.after is None else numbers[span.after]
        made_by.update(dict.fromkeys(step.results, len(events)))
        match step:
            case Launch():
                event = Event(
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
                event = Event(
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


def _memory(plan: Plan, spans: Mapping[int, Span]) -> dict[str, Curve]:
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
