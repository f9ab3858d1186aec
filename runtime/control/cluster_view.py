"""State of a cluster as one process sees it: base of the core that decides, and of a client's copy."""

from __future__ import annotations

import abc
import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pathways.runtime.control.effects import Effect, Log, RequestReports
from pathways.runtime.control.gang import GangView
from pathways.runtime.control.records.errors import Failure, failed
from pathways.runtime.control.records.events import GangKey
from pathways.runtime.control.records.replies import HostRequest, PendingReplies
from pathways.runtime.control.records.reports import HostReport
from pathways.runtime.control.records.step import FunctionCall, Step
from pathways.runtime.control.stalls import Stall, Stalls, describe_stall
from pathways.runtime.control.steps import IssuedSteps

REPORT_SECONDS = 2.0
"""Seconds that a host may take to report its state."""


class ClusterView[G: GangView](abc.ABC):
    """Gangs, issued steps and pending requests of a cluster; events change them, and return effects.

    Args:
      gangs: the current gang of each island.
      first: the first of the numbers for steps and arrays that no other process uses.
      stalls: finds steps without progress.

    Attributes:
      gangs: the current gang of each island; further ones may join.
      has_multi_host_islands: whether any island has several hosts: a loss can spoil steps that were done.
      steps: the steps that were issued and are not done.
      replies: the requests that are not answered.
    """

    def __init__(self, gangs: list[G], first: int, stalls: Stalls) -> None:
        self.gangs = gangs
        self.has_multi_host_islands = any(gang.is_multi_host for gang in gangs)
        self.steps = IssuedSteps(self.has_multi_host_islands)
        self.replies = PendingReplies()
        self._next = first
        self._stalls = stalls
        # By the request for reports of hosts: the subject that is decided when they have come.
        self._subjects: dict[int, G | Stall] = {}

    @abc.abstractmethod
    def handle(self, event: Any, now: float) -> list[Effect]:
        """Handles an event, and returns the effects to carry out, in this order."""

    @abc.abstractmethod
    def done(self, gang: G, host: int, run: int, now: float) -> None:
        """Notes that a host is done with a step, and that nothing failed there.

        Args:
          gang: the workers of the host.
          host: its number.
          run: the number of the step.
          now: the time.
        """

    @abc.abstractmethod
    def fail(
        self,
        gang: G,
        host: int,
        run: int,
        error: str | None,
        wrong: Mapping[int, str],
        now: float,
        took: float = 0.0,
    ) -> list[Effect]:
        """Notes that a host is done with a step, and that something failed there.

        Args:
          gang: the workers of the host.
          host: its number.
          run: the number of the step.
          error: the reason if all results failed; None if only some did.
          wrong: the reasons for single results, by their positions.
          now: the time.
          took: the time for which the step had the devices there, in seconds.
        """

    def _finish(
        self, step: Step, gang: GangKey, host: int, error: str | None, wrong: Mapping[int, str]
    ) -> None:
        """Notes that a host is done with a step, with the failures there."""
        name = gang.host_name(host)
        failure = None if error is None else failed(f"{name}: {error}")
        if step.done(
            host, failure, {at: failed(f"{name}: {error_text}") for at, error_text in wrong.items()}
        ):
            self.steps.end(step)

    def take_numbers(self, count: int = 1) -> int:
        """Returns the first of `count` consecutive numbers, for steps, arrays and programs."""
        first = self._next
        self._next += count
        return first

    def issue(self, step: Step, gangs: Sequence[G], producers: Iterable[Step | None]) -> None:
        """Notes a step that is about to be sent to its hosts, as `IssuedSteps.issue` says.

        Raises:
          HostError: an island is lost or leaves, or an argument of the step is spoiled.
        """
        self.steps.issue(step, gangs, producers)

    def end_call(self, host: int, call: int, answer: Any, failure: Failure | None) -> None:
        """Notes that a host has finished its share of a call.

        Args:
          host: its number.
          answer: the returned value, encoded.
          failure: why it failed; None if it did not.
        """
        step = self.steps.get(call)
        if not isinstance(step, FunctionCall) or host not in step.hosts:
            return
        # First: a thread that sees the call done reads the answers.
        step.answers[host] = answer
        if step.done(host, failure):
            self.steps.end(step)

    def _add_gang(self, gang: G) -> None:
        """Adds the workers of a new island, which has the next number."""
        assert gang.key.island == len(self.gangs), gang
        # First: a step of the new island follows the steps before it.
        self.has_multi_host_islands = self.has_multi_host_islands or gang.is_multi_host
        self.steps.has_multi_host_islands = self.has_multi_host_islands
        self.gangs.append(gang)

    def gang(self, key: GangKey) -> G | None:
        """Returns the current gang of an island, or None if the key is of an earlier one."""
        gang = self.gangs[key.island]
        return gang if gang.key == key else None

    def request_reports(self, hosts: Iterable[int], now: float) -> tuple[HostRequest, list[Effect]]:
        """Requests the `HostReport`s of some hosts, except lost ones."""
        lost = {host for gang in self.gangs if gang.failure for host in gang.hosts}
        request = self.replies.create_request(
            [host for host in hosts if host not in lost], now + REPORT_SECONDS
        )
        return request, [RequestReports(request.number, request.hosts)]

    def _request_for(self, subject: G | Stall, hosts: Iterable[int], now: float) -> list[Effect]:
        """Requests reports to decide about a subject; once at a time for each."""
        if any(_is_same(subject, other) for other in self._subjects.values()):
            return []
        request, effects = self.request_reports(hosts, now)
        if not request.is_done():
            self._subjects[request.number] = subject
        return effects

    def _complete(self, request: HostRequest, now: float) -> list[Effect]:
        """Decides about the subject of a completed request for reports."""
        subject = self._subjects.pop(request.number, None)
        if subject is None:
            return []
        return self._decide(subject, {host: pieces[-1] for host, pieces in request.answers.items()}, now)

    def _decide(self, subject: G | Stall, reports: Mapping[int, HostReport], now: float) -> list[Effect]:
        """Decides about the subject of reports: here a step without progress, which is logged."""
        assert isinstance(subject, Stall), subject
        text = describe_stall(subject, self.gangs, reports)
        if text is None:
            return []
        if not subject.is_over:
            return [Log(logging.WARNING, text)]
        return [Log(logging.ERROR, text), *self._end_stalled(subject, reports, now)]

    def _end_stalled(self, stall: Stall, reports: Mapping[int, HostReport], now: float) -> list[Effect]:
        """Ends a step that is over its deadline."""
        raise AssertionError(f"{stall.step} has no deadline here")

    def _check_stalls(self, now: float) -> list[Effect]:
        """Requests reports of the hosts of steps that make no progress."""
        return [
            effect
            for stall in self._stalls.check(self.steps.unfinished(), self.gangs, now)
            for effect in self._request_for(stall, stall.step.pending(), now)
        ]

    def _expire(self, now: float) -> list[Effect]:
        """Ends the requests whose time is over."""
        return [e for request in self.replies.expire(now) for e in self._complete(request, now)]

    def _lose_requests(self, hosts: Iterable[int], failure: Failure, now: float) -> list[Effect]:
        """Ends the requests to hosts that are lost."""
        return [e for request in self.replies.lose(hosts, failure) for e in self._complete(request, now)]


def _is_same(subject: GangView | Stall, other: GangView | Stall) -> bool:
    if isinstance(subject, Stall):
        return isinstance(other, Stall) and subject.step is other.step
    return subject is other
