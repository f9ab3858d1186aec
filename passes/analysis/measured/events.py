"""Events of one step of a program, and figures of it. Plain data."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Literal

from pathways.dialect.attributes.origins import Origin

Curve = tuple[tuple[float, int], ...]
"""Live bytes over time: each pair holds from its time on, until that of the next."""


def launch_name(origins: Sequence[Origin], microbatch: int | None, label: str) -> str:
    """Returns the name of a launch as papers write it, such as `F3`; its label outside microbatches."""
    letters = "".join(origin.letter for origin in origins)
    return label if microbatch is None or not letters else f"{letters}{microbatch}"


@dataclasses.dataclass(frozen=True)
class TimelineEvent:
    """A launch, or a transfer from one slice to another.

    Attributes:
      kind: `launch` or `transfer`.
      slice: the slice that it runs on, or that it leaves.
      label: the computation and microbatch of a launch, the two slices of a transfer.
      start: when it began, since the step began.
      end: when it was done; of a transfer, when the value had arrived.
      origins: the placed calls that a launch represents; none for glue.
      microbatch: the microbatch that it belongs to, None outside loops.
      dst: the slice that a transfer goes to.
      nbytes: the bytes that a transfer moves.
      reads: the numbers of the events that produce its operands.
      after: the number of the event that it waited for last, None when it waited for nothing.
      estimated: whether the times of a measured launch were derived, because nothing measured it.
    """

    kind: Literal["launch", "transfer"]
    slice: str
    label: str
    start: float
    end: float
    origins: tuple[Origin, ...] = ()
    microbatch: int | None = None
    dst: str | None = None
    nbytes: int = 0
    reads: tuple[int, ...] = ()
    after: int | None = None
    estimated: bool = False

    @property
    def duration(self) -> float:
        """Time from start to end."""
        return self.end - self.start

    @property
    def name(self) -> str:
        """Name of the launch, by `launch_name`."""
        return launch_name(self.origins, self.microbatch, self.label)

    @property
    def calls(self) -> tuple[tuple[Origin | None, str], ...]:
        """The placed calls in a launch and their names; of glue its own."""
        calls = tuple((o, launch_name((o,), self.microbatch, self.label)) for o in self.origins)
        return calls or ((None, self.label),)

    @property
    def stage(self) -> int | None:
        """The pipeline stage of a launch: that of its first placed call."""
        return self.origins[0].stage if self.origins else None


@dataclasses.dataclass(frozen=True)
class TraceSpan:
    """Work in a trace that belongs to no step of a program, such as a snapshot.

    Attributes:
      track: the name of the group of rows, such as `island1`.
      row: the name of the row, in which spans do not overlap.
      name: the operation.
      start: when it began, in seconds since the trace began.
      end: when it ended.
    """

    track: str
    row: str
    name: str
    start: float
    end: float


@dataclasses.dataclass(frozen=True)
class EventLog:
    """One step of a program, planned, simulated or measured.

    Attributes:
      title: its title, such as `planned, times=units` or `measured, step 3`.
      unit: the unit of all times, `s` for seconds, `units` for units of the schedule, or `flops`.
      slices: the names of the slices, in the order of the program.
      events: all launches and transfers; an event reads only results of earlier events.
      memory: the live bytes on each slice, over all its devices, without temporaries inside computations.
      hosts: the number of the host that each slice is on, where the program runs on several.
    """

    program: str
    title: str
    unit: str
    slices: tuple[str, ...]
    events: tuple[TimelineEvent, ...] = dataclasses.field(repr=False)
    memory: Mapping[str, Curve] = dataclasses.field(default_factory=dict, repr=False)
    hosts: Mapping[str, int] = dataclasses.field(default_factory=dict, repr=False)

    @property
    def step_time(self) -> float:
        """Time at which the last event ends."""
        return max((event.end for event in self.events), default=0.0)

    @property
    def launches(self) -> tuple[TimelineEvent, ...]:
        """The launches among the events."""
        return tuple(event for event in self.events if event.kind == "launch")

    @property
    def transfers(self) -> tuple[TimelineEvent, ...]:
        """The transfers among the events."""
        return tuple(event for event in self.events if event.kind == "transfer")

    def busy(self, slice: str) -> float:
        """Returns the time in which a slice computes."""
        return sum(event.duration for event in self.launches if event.slice == slice)

    def bubble(self, slice: str) -> float:
        """Returns the fraction of the step in which a slice does not compute."""
        total = self.step_time
        return max(0.0, 1 - self.busy(slice) / total) if total else 0.0

    def idle(self, slice: str) -> float:
        """Returns the idle fraction of the time from the first to the last launch of a slice."""
        launches = [event for event in self.launches if event.slice == slice]
        begin = min((event.start for event in launches), default=0.0)
        total = max((event.end for event in launches), default=0.0) - begin
        return max(0.0, 1 - self.busy(slice) / total) if total else 0.0

    @property
    def mean_bubble(self) -> float:
        """The bubble over all slices that compute at all."""
        working = {event.slice for event in self.launches}
        return sum(map(self.bubble, working)) / len(working) if working else 0.0

    def peak_bytes(self, slice: str) -> int:
        """Returns the most bytes alive at once on a slice."""
        return max((size for _, size in self.memory.get(slice, ())), default=0)

    @property
    def critical_path(self) -> tuple[int, ...]:
        """The numbers of events that each waited for the one before, up to the one that ends last."""
        if not self.events:
            return ()
        path = [max(range(len(self.events)), key=lambda n: (self.events[n].end, n))]
        while (before := self.events[path[-1]].after) is not None:
            path.append(before)
        return tuple(reversed(path))
