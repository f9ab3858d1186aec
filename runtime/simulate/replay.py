"""Replay of plans: the times of all launches and transfers, from their durations.

The steps of a plan are in an order that was proved free of deadlock: a step waits for earlier steps alone, so
a single pass in that order computes all times exactly, without an event queue.

The model is the same as in the proof, with times:

- a slice (or all slices that overlap, together) runs its launches and sends in order, one at a time;
- a send takes no time on its slice, but waits there until its channel has room: until the first reader of
  the value that was sent `capacity` sends earlier has started. Links with a latency connect hosts, where
  channels have room for all sends of a step (`pw-split-hosts`), so that no send waits;
- a link connects one slice to another, and carries one value at a time, in the order of the sends.
"""

from __future__ import annotations

from pathways.passes.analysis.links import Link
from pathways.passes.analysis.times import Times
from pathways.runtime.plan.plan import Launch, Plan, Slot, Transfer
from pathways.runtime.simulate.times import ReplayTimes, launches_of
from pathways.runtime.traces.timeline import StepSpan, Timeline, timeline_of


def simulate(
    plan: Plan, times: ReplayTimes | None = None, link: Link | None = None, title: str = "planned"
) -> Timeline:
    """Replays a plan.

    Args:
      times: the durations of launches; by default one unit for each placed call.
      link: the links between slices; by default transfers take no time.
    """
    times = times or Times()
    spans = _Replay(plan, times, link or Link()).spans()
    return timeline_of(plan, spans, times.unit, title)


def steady_step_time(plan: Plan, times: ReplayTimes, link: Link, steps: int) -> float:
    """Returns the mean time of consecutive steps, without the first.

    A slice starts the next step as soon as it has finished the current one, which can hide the idle time at
    the start and end of steps. Results that the next step reads are on its slice already.

    Args:
      times: the durations of launches, as for `simulate`.
      link: the links between slices.
      steps: the number of steps, at least 2.
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
        # Values are a time, and the step that determines it.
        self.ready: dict[Slot, tuple[float, int | None]] = {}
        self.queues: dict[str, tuple[float, int | None]] = {}
        self.links: dict[tuple[str, str], tuple[float, int | None]] = {}
        # When each transfer's place in its channel became free, and the transfers of each channel.
        self.received: dict[int, tuple[float, int | None]] = {}
        self.sent_on: dict[str, list[int]] = {}
        self.carried_by: dict[Slot, int] = {}

    def next_step(self) -> None:
        """Clears values and channels; slices and links stay busy until the times of the last step."""
        self.ready, self.received, self.sent_on, self.carried_by = {}, {}, {}, {}

    def spans(self) -> dict[int, StepSpan]:
        """Replays a step; returns the time spans of its launches and transfers."""
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
                # The value leaves its channel when its first reader starts, which waited for `after`.
                self.received.setdefault(self.carried_by[slot], (start, after))
        self.queues[queue] = end, n
        self.ready.update(dict.fromkeys(launch.results, (end, n)))
        return StepSpan(start, end, after)

    def transfer(self, n: int, transfer: Transfer) -> StepSpan:
        queue, between = self.queue(transfer.src), (transfer.src, transfer.dst)
        issued = self.latest(transfer.operands, self.queues.get(queue), self.room(n, transfer))
        self.queues[queue] = issued
        start, after = max(issued, self.links.get(between, (0.0, None)), key=lambda moment: moment[0])
        sent = start + self.plan.bytes_moved(transfer) / self.link.bandwidth
        arrived = sent + self.link.latency
        self.links[between] = sent, n
        self.ready.update(dict.fromkeys(transfer.results, (arrived, n)))
        self.carried_by.update(dict.fromkeys(transfer.results, n))
        return StepSpan(start, arrived, after)

    def room(self, n: int, transfer: Transfer) -> tuple[float, int | None] | None:
        """Returns the moment at which the channel of a transfer has room for it; None if it has room now."""
        if transfer.channel is None or self.link.latency:
            return None
        sent = self.sent_on.setdefault(transfer.channel, [])
        sent.append(n)
        place = len(sent) - 1 - self.plan.channels[transfer.channel]
        return self.received.get(sent[place]) if place >= 0 else None

    def latest(
        self, slots: tuple[Slot, ...], *other_moments: tuple[float, int | None] | None
    ) -> tuple[float, int | None]:
        """Returns the latest of other moments and of the moments at which values are ready."""
        moments = [self.ready[slot] for slot in slots if slot in self.ready]
        moments += [moment for moment in other_moments if moment is not None]
        return max(moments, key=lambda moment: moment[0], default=(0.0, None))

    def queue(self, slice: str) -> str:
        return "slices that overlap" if self.plan.slices[slice].overlap else slice
