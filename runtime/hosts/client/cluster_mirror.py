"""The state of a cluster as a client of a service knows it.

The service decides what becomes of islands; a client follows. Its own steps are `records.step.Step`s as those
of a process with workers of its own, so that failures and what they spoil are reported the same way.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pathways.runtime.control.core import REPORT_SECONDS
from pathways.runtime.control.effects import Effect, GangLeaving, GangLost, GangReturned, Log, RequestReports
from pathways.runtime.control.gang import GangView
from pathways.runtime.control.records.errors import Failure, failed
from pathways.runtime.control.records.events import GangKey, ReplyReceived, Tick
from pathways.runtime.control.records.replies import HostRequest, PendingReplies
from pathways.runtime.control.records.step import FunctionCall, Step
from pathways.runtime.control.stalls import Stall, Stalls, report_of
from pathways.runtime.control.steps import IssuedSteps

SERVICE = -1
"""The number of the service itself, among those of hosts that are asked something."""

_ANY = 1 << 60
"""Steps under way on an island, which the service bounds."""


class MirroredGang(GangView):
    """The workers of an island, as the service has told of them last.

    Args:
      key: which island's workers they are, and how often these were started before.
      hosts: their numbers.
    """

    def __init__(self, key: GangKey, hosts: Sequence[int]) -> None:
        super().__init__(key, hosts, _ANY, 0.0)
        self._failure: Failure | None = None
        self._leaving: Failure | None = None
        self._is_dead = False

    @property
    def failure(self) -> Failure | None:
        """See `GangView.failure`."""
        return self._failure

    @property
    def problem(self) -> Failure | None:
        """See `GangView.problem`."""
        return self._failure or self._leaving

    def is_replaced_soon(self) -> bool:
        """See `GangView.is_replaced_soon`."""
        return self._failure is not None and not self._is_dead

    def is_dead(self) -> bool:
        """See `GangView.is_dead`."""
        return self._is_dead

    def _leave(self, why: Failure) -> None:
        self._leaving = self._leaving or why

    def _lose(self, failure: Failure, is_dead: bool) -> None:
        self._failure = self._failure or failure
        self._is_dead = self._is_dead or is_dead


# What the service tells.


@dataclasses.dataclass(frozen=True, slots=True)
class StepRefused:
    """A step was not issued."""

    step: int
    why: Failure


@dataclasses.dataclass(frozen=True, slots=True)
class StepIndeterminate:
    """It is unknown what any host has made of a step."""

    step: int
    why: Failure


@dataclasses.dataclass(frozen=True, slots=True)
class StepCut:
    """What some hosts make of a step is an error, whether they are done with it some time or not."""

    step: int
    hosts: tuple[int, ...]
    why: Failure


@dataclasses.dataclass(frozen=True, slots=True)
class ServiceLost:
    """The service is gone, or has let go of this client."""

    why: Failure


ServiceEvent = GangLeaving | GangLost | GangReturned | StepRefused | StepIndeterminate | StepCut | ServiceLost


class ClusterMirror:
    """The state of the islands for a client; has the face of `ClusterCore`.

    Args:
      islands: for each island how often its workers were started before, and their numbers.
      first: the first of the numbers that are this client's.
      stall_report: seconds without progress after which a step is reported; None for never.

    Attributes:
      gangs: the current gang of each island.
      steps: what was asked for and is not done.
      replies: what was asked.
      ended: why the service is gone; None while it is there.
    """

    def __init__(
        self, islands: Iterable[tuple[int, Sequence[int]]], first: int, stall_report: float | None = None
    ) -> None:
        self.gangs = [
            MirroredGang(GangKey(number, start), hosts) for number, (start, hosts) in enumerate(islands)
        ]
        self.is_several = any(gang.is_several for gang in self.gangs)
        self.steps = IssuedSteps(self.is_several)
        self.replies = PendingReplies()
        self.ended: Failure | None = None
        self._next = first
        self._stalls = Stalls(stall_report, None)
        # What is reported when hosts have said what they are at.
        self._asked_for: dict[int, Stall] = {}

    def take_numbers(self, count: int = 1) -> int:
        """The first of so many numbers that nothing else has: of steps and arrays."""
        first = self._next
        self._next += count
        return first

    def issue(self, step: Step, gangs: Sequence[GangView], made: Iterable[Step | None]) -> None:
        """Notes a step that the service is about to be asked for, see `IssuedSteps.issue`.

        Raises:
          HostError: an island is gone or leaves, or what the step takes is spoiled.
        """
        self.steps.issue(step, gangs, made)

    def done(self, gang: GangView, host: int, run: int, now: float) -> None:
        """Notes that a host is done with a step, see `ClusterCore.done`."""
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
        """Notes a failure of a step, see `ClusterCore.fail`; the service has held it where necessary."""
        del took
        step = self.steps.get(run)
        if step is not None:
            if not step.is_beside:
                gang.pulses[host].progressed = now
            name = f"host {host} ({gang.name})"
            failure = None if error is None else failed(f"{name}: {error}")
            if step.done(host, failure, {at: failed(f"{name}: {what}") for at, what in wrong.items()}):
                self.steps.end(step)
        return []

    def called(self, host: int, call: int, answer: Any, failure: Failure | None) -> None:
        """A host has ended its part of a call, see `ClusterCore.called`."""
        step = self.steps.get(call)
        if isinstance(step, FunctionCall) and host in step.hosts:
            step.answers[host] = answer
            if step.done(host, failure):
                self.steps.end(step)

    def gang(self, key: GangKey) -> MirroredGang | None:
        """The current gang of an island, unless the key is that of an earlier one."""
        gang = self.gangs[key.island]
        return gang if gang.key == key else None

    def ask_reports(self, hosts: Iterable[int], now: float) -> tuple[HostRequest, list[Effect]]:
        """Asks hosts what they are at, those that are not gone; `HostReport`s are the answers."""
        gone = {host for gang in self.gangs if gang.failure for host in gang.hosts}
        request = self.replies.ask([host for host in hosts if host not in gone], now + REPORT_SECONDS)
        return request, [RequestReports(request.number, request.hosts)]

    def handle(self, event: ReplyReceived | Tick | ServiceEvent, now: float) -> list[Effect]:
        """Takes note of what was told."""
        match event:
            case ReplyReceived():
                request = self.replies.answer(event.host, event.request, event.value, is_last=event.is_last)
                return [] if request is None else self._answered(request)
            case Tick():
                return self._tick(now)
            case GangLeaving():
                if (gang := self.gang(event.gang)) is not None:
                    gang._leave(event.why)
            case GangLost():
                if (gang := self.gang(event.gang)) is not None:
                    self._lose(gang, event.why, event.is_dead)
            case GangReturned(key):
                before = self.gangs[key.island]
                if before.key.start < key.start:
                    assert before.failure is not None, f"{before} is back, and was not lost"
                    self.gangs[key.island] = MirroredGang(key, before.hosts)
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
                for gang in self.gangs:
                    self._lose(gang, event.why, is_dead=True)
        return []

    def _tick(self, now: float) -> list[Effect]:
        effects = [effect for request in self.replies.expire(now) for effect in self._answered(request)]
        asked_for = [stall.step for stall in self._asked_for.values()]
        for stall in self._stalls.look(self.steps.unfinished(), self.gangs, now):
            if stall.step not in asked_for:
                request, asked = self.ask_reports(stall.step.pending(), now)
                self._asked_for[request.number] = stall
                effects += asked
        return effects

    def _answered(self, request: HostRequest) -> list[Effect]:
        """Says of a step that makes no progress what its hosts have said."""
        stall = self._asked_for.pop(request.number, None)
        if stall is None:
            return []
        text = report_of(stall, self.gangs, {host: said[-1] for host, said in request.answers.items()})
        return [] if text is None else [Log(logging.WARNING, text)]

    def _end(self, number: int, why: Failure) -> None:
        step = self.steps.get(number)
        if step is not None:
            for host in step.pending():
                step.done(host, why)
            self.steps.end(step)

    def _lose(self, gang: MirroredGang, why: Failure, is_dead: bool) -> None:
        was_gone = gang.failure is not None
        gang._lose(why, is_dead)
        if not was_gone:
            self.steps.lose(gang, why)
            for request in self.replies.lose(gang.hosts, why):
                self._asked_for.pop(request.number, None)
