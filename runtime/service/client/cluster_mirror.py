"""State of a cluster as a client of a service knows it.

The service decides about islands; a client follows. The client's steps are `records.step.Step`s, as in a
process with its own workers, so that failures and the results that they spoil are reported the same way.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import override

from pathways.runtime.control.cluster_view import ClusterView
from pathways.runtime.control.effects import (
    Effect,
    GangDraining,
    GangJoined,
    GangLeaving,
    GangLost,
    GangReturned,
)
from pathways.runtime.control.gang import GangView
from pathways.runtime.control.records.errors import Failure
from pathways.runtime.control.records.events import GangClosed, GangKey, ReplyReceived, Tick
from pathways.runtime.control.stalls import Stalls

SERVICE = -1
"""The number of the service itself in requests, beside the numbers of hosts."""

_ANY = 1 << 60
"""Limit of steps in flight on an island: none, since the service limits them."""


class MirroredGang(GangView):
    """Workers of an island, as the service has last reported them.

    Args:
      key: the island, and how often its workers were started before.
      hosts: their numbers.
    """

    def __init__(self, key: GangKey, hosts: Sequence[int]) -> None:
        super().__init__(key, hosts, _ANY, 0.0)
        self._is_dead = False

    @override
    def is_replaced_soon(self) -> bool:
        return self.failure is not None and not self._is_dead and not self.is_out

    @override
    def is_dead(self) -> bool:
        return self._is_dead

    def _drain(self, *, is_moved: bool, why: Failure) -> None:
        if self.problem is None:
            self.is_draining = True
            self.leaving = why if is_moved else self.leaving

    def _leave(self, why: Failure) -> None:
        if self.problem is None:
            self.leaving = self.problem = why
            self.is_draining = False

    def _lose(self, failure: Failure, is_dead: bool, is_out: bool = False) -> None:
        self.problem = self.failure = self.failure or failure
        self.leaving = None
        self.is_draining = False
        self._is_dead = self._is_dead or is_dead
        self.is_out = is_out


# Reports of the service.


@dataclasses.dataclass(frozen=True, slots=True)
class IslandMoved:
    """Notice of this process that all has moved off a drained island that could.

    Until `GangLeaving` the island accepts steps.
    """

    gang: GangKey
    why: Failure


@dataclasses.dataclass(frozen=True, slots=True)
class StepRefused:
    """Notice that a step was not issued."""

    step: int
    why: Failure


@dataclasses.dataclass(frozen=True, slots=True)
class StepIndeterminate:
    """Notice that the results of all hosts in a step are unknown."""

    step: int
    why: Failure


@dataclasses.dataclass(frozen=True, slots=True)
class StepCut:
    """Notice that some hosts' results of a step are errors, whether they ever are done with it or not."""

    step: int
    hosts: tuple[int, ...]
    why: Failure


@dataclasses.dataclass(frozen=True, slots=True)
class ServiceLost:
    """Notice that the service is lost, or has disconnected this client."""

    why: Failure


ServiceEvent = (
    GangClosed
    | IslandMoved
    | GangDraining
    | GangLeaving
    | GangLost
    | GangReturned
    | GangJoined
    | StepRefused
    | StepIndeterminate
    | StepCut
    | ServiceLost
)


class ClusterMirror(ClusterView[MirroredGang]):
    """State of the islands for a client of a service.

    Args:
      islands: for each island how often its workers were started before, and their numbers.
      first: the first of the numbers of this client.
      stall_report: seconds without progress after which a step is reported; None for never.

    Attributes:
      ended: why the service is disconnected; None while it is connected.
    """

    def __init__(
        self, islands: Iterable[tuple[int, Sequence[int]]], first: int, stall_report: float | None = None
    ) -> None:
        gangs = [MirroredGang(GangKey(number, start), hosts) for number, (start, hosts) in enumerate(islands)]
        # The service alone ends steps that are over their deadline.
        super().__init__(gangs, first, Stalls(stall_report, None))
        self.ended: Failure | None = None

    @override
    def done(self, gang: GangView, host: int, run: int, now: float) -> None:
        self.fail(gang, host, run, None, {}, now)

    def fail(
        self,
        gang: GangView,
        host: int,
        run: int,
        error: str | None,
        wrong: Mapping[int, str],
        now: float,
        took: float = 0.0,
    ) -> list[Effect]:
        """See `ClusterView.fail`; the service has held the failure where necessary."""
        del took
        step = self.steps.get(run)
        if step is not None:
            if not step.is_unordered:
                gang.pulses[host].progressed = now
            self._finish(step, gang.key, host, error, wrong)
        return []

    def handle(self, event: ReplyReceived | Tick | ServiceEvent, now: float) -> list[Effect]:
        """Handles a report of the service, and returns the effects to carry out."""
        match event:
            case ReplyReceived():
                request = self.replies.receive(event.host, event.request, event.value, is_last=event.is_last)
                return [] if request is None else self._complete(request, now)
            case Tick():
                return [*self._expire(now), *self._check_stalls(now)]
            case GangDraining() | IslandMoved():
                if (gang := self.gang(event.gang)) is not None:
                    gang._drain(is_moved=isinstance(event, IslandMoved), why=event.why)
            case GangLeaving():
                if (gang := self.gang(event.gang)) is not None:
                    gang._leave(event.why)
            case GangLost():
                if (gang := self.gang(event.gang)) is not None:
                    return self._lose(gang, event.why, event.is_dead, now, is_out=event.is_out)
            case GangReturned(key):
                before = self.gangs[key.island]
                if before.key.start < key.start:
                    assert before.failure is not None, f"{before} is back, and was not lost"
                    self.gangs[key.island] = MirroredGang(key, before.hosts)
            case GangJoined(key, hosts):
                self._join(MirroredGang(key, hosts))
            case GangClosed():
                if (gang := self.gang(event.gang)) is not None:
                    return self._lose(gang, gang.closed_failure(event.ending), is_dead=True, now=now)
            case StepRefused():
                self._end(event.step, event.why)
            case StepIndeterminate():
                if (step := self.steps.get(event.step)) is not None:
                    step.spoil(event.why)
                self._end(event.step, event.why)
            case StepCut():
                if (step := self.steps.get(event.step)) is not None:
                    step.cut(event.hosts, event.why)
            case ServiceLost():
                self.ended = self.ended or event.why
                self.replies.lose([SERVICE], event.why)
                gangs = [*self.gangs]
                return [e for gang in gangs for e in self._lose(gang, event.why, is_dead=True, now=now)]
        return []

    def _join(self, gang: MirroredGang) -> None:
        """Adds an island, unless this client was admitted with it."""
        if gang.key.island < len(self.gangs):
            return
        if self.ended is not None:
            gang._lose(self.ended, is_dead=True)
        self._add_gang(gang)

    def _end(self, number: int, why: Failure) -> None:
        step = self.steps.get(number)
        if step is not None:
            for host in step.pending():
                step.done(host, why)
            self.steps.end(step)

    def _lose(
        self, gang: MirroredGang, why: Failure, is_dead: bool, now: float, *, is_out: bool = False
    ) -> list[Effect]:
        was_lost = gang.failure is not None
        gang._lose(why, is_dead, is_out)
        if was_lost:
            return []
        self.steps.lose(gang, why)
        return self._lose_requests(gang.hosts, why, now)
