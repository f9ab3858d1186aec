"""Replays a plan: when would every launch and transfer run, given how long each takes?

The steps of a plan are in an order that was proved free of deadlock, so all that a step waits for comes
before it and one pass in that order gives every time exactly: no event queue is needed.

The model is that of the proof, with times:

- a slice (or all slices that overlap together) takes its launches and sends in order and does one thing at
  a time;
- a send takes no time of its slice, but waits there until its channel has room: until the first reader of
  the value sent `capacity` places before has begun. Links with a latency lead between hosts, where channels
  have room for all that a step sends (`pw-split-hosts`), and no send waits;
- a link leads from one slice to another, and carries one value at a time, in the order of sending.
"""

from __future__ import annotations

from pathways.passes.analysis.links import Link
from pathways.passes.analysis.times import Times
from pathways.runtime.plan.plan import Launch, Plan, Slot, Transfer
from pathways.runtime.simulate.times import ReplayTimes, launches_of
from pathways.runtime.timelines.from_plan import StepSpan, timeline_of
from pathways.runtime.timelines.timeline import Timeline


def simulate(
    plan: Plan, times: ReplayTimes | None = None, link: Link | None = None, title: str = "planned"
) -> Timeline:
    """Replays a plan.

    Args:
      plan: the plan.
      times: how long launches take; by default one unit for each placed call.
      link: the links between slices; by default transfers take no time.
      title: the title of the timeline.
    """
    times = times or Times()
    spans = _Replay(plan, times, link or Link()).spans()
    return timeline_of(plan, spans, times.unit, title)


def steady_step_time(plan: Plan, times: ReplayTimes, link: Link, steps: int) -> float:
    """How long a step takes when steps follow each other: the mean of all but the first.

    A slice begins the next step as soon as it is done with this one, so that what it idles at the beginning
    and the end of steps may vanish. What a step reads of the one before it finds on its slice.

    Args:
      plan: the plan.
      times: how long launches take, as for `simulate`.
      link: the links between slices.
      steps: how many steps are replayed, at least 2.
    """
    replay = _Replay(plan, times, link)
    ends: list[float] = []
    for _ in range(steps):
        replay.next_step()
        ends.append(max((span.end for span in replay.spans().values()), default=0.0))
    return (ends[-1] - ends[0]) / (steps - 1)


class _Replay:
    def __init__(self, plan: Plan, times: ReplayTimes, link: Link) -> None:
        self.plan = plan
        self.times = times.in_program(launches_of(plan))
        self.link = link
        # Each is a time, and the step that it stems from.
        self.made: dict[Slot, tuple[float, int | None]] = {}
        self.queues: dict[str, tuple[float, int | None]] = {}
        self.links: dict[tuple[str, str], tuple[float, int | None]] = {}
        self.received: dict[int, tuple[float, int | None]] = {}
        self.sent_on: dict[str, list[int]] = {}
        self.carried_by: dict[Slot, int] = {}

    def next_step(self) -> None:
        """Forgets values and channels; slices and links are taken as long as they were."""
        self.made, self.received, self.sent_on, self.carried_by = {}, {}, {}, {}

    def spans(self) -> dict[int, StepSpan]:
        """When everything in a step begins and ends."""
        spans: dict[int, StepSpan] = {}
        for n, step in enumerate(self.plan.steps):
            match step:
                case Launch():
                    spans[n] = self.launch(n, step)
                case Transfer():
                    spans[n] = self.transfer(n, step)
        return spans

    def launch(self, n: int, launch: Launch) -> StepSpan:
        queue = self.queue(launch.slice)
        start, after = self.latest(launch.operands, self.queues.get(queue))
        end = start + self.times.of(launch)
        for slot in launch.operands:
            if slot in self.carried_by:
                # The value leaves its channel when its first reader begins, which `after` kept waiting.
                self.received.setdefault(self.carried_by[slot], (start, after))
        self.queues[queue] = end, n
        self.made.update(dict.fromkeys(launch.results, (end, n)))
        return StepSpan(start, end, after)

    def transfer(self, n: int, transfer: Transfer) -> StepSpan:
        queue, between = self.queue(transfer.src), (transfer.src, transfer.dst)
        issued = self.latest(transfer.operands, self.queues.get(queue), self.room(n, transfer))
        self.queues[queue] = issued
        start, after = max(issued, self.links.get(between, (0.0, None)), key=lambda moment: moment[0])
        sent = start + self.plan.bytes_moved(transfer) / self.link.bandwidth
        arrived = sent + self.link.latency
        self.links[between] = sent, n
        self.made.update(dict.fromkeys(transfer.results, (arrived, n)))
        self.carried_by.update(dict.fromkeys(transfer.results, n))
        return StepSpan(start, arrived, after)

    def room(self, n: int, transfer: Transfer) -> tuple[float, int | None] | None:
        """When the channel of a transfer has room for it."""
        if transfer.channel is None or self.link.latency:
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
