"""Core of a cluster: decides about its gangs, its steps and the requests to its hosts."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import override

from pathways.runtime.control.cluster_view import ClusterView
from pathways.runtime.control.effects import (
    AttachGang,
    ClientEffect,
    Disconnect,
    Effect,
    GangDraining,
    GangJoined,
    GangLeaving,
    GangLost,
    GangReturned,
    Log,
    StepFailed,
    TerminateGang,
    WakeWaiters,
)
from pathways.runtime.control.gang import Drained, Draining, Gang, Pausing, Replaced, Running, Terminating
from pathways.runtime.control.held_failures import HeldFailure, HeldFailures
from pathways.runtime.control.liveness import Liveness
from pathways.runtime.control.peer_reports import Peer, PeerReports
from pathways.runtime.control.records.errors import failed, lost
from pathways.runtime.control.records.events import (
    DrainRequested,
    Event,
    ExitOverdue,
    GangDrained,
    GangEvent,
    GangKey,
    HostDisconnected,
    HostLost,
    InputMissed,
    LeaveAllowed,
    LeaveDelayed,
    PeerReached,
    PeerUnreachable,
    ReplyReceived,
    RestartDue,
    ReturnRequested,
    Tick,
)
from pathways.runtime.control.records.reports import HostReport
from pathways.runtime.control.records.step import serial
from pathways.runtime.control.stalls import Stall, Stalls, causes


@dataclasses.dataclass(frozen=True, slots=True)
class Limits:
    """Limits of times and counts.

    Attributes:
      ahead: the maximum of steps in flight on an island.
      heartbeat: seconds without a message after which a host is lost.
      grace: seconds that a leaving island may take until it exits.
      stall_report: seconds without progress after which a step is reported; None for never.
      step_deadline: seconds without progress after which a step is terminated; None for never.
      restart_seconds: seconds for which the restart of lost workers is retried.
    """

    ahead: int = 4
    heartbeat: float = 10.0
    grace: float = 20.0
    stall_report: float | None = 60.0
    step_deadline: float | None = None
    restart_seconds: float = 300.0


class ClusterCore(ClusterView[Gang]):
    """Core of a cluster: decides about its gangs, its steps and its requests.

    Args:
      islands: the numbers of the hosts of each island.
      limits: the limits of times and counts.
      now: the time, in seconds of any clock that does not go back.
    """

    def __init__(self, islands: Iterable[Sequence[int]], limits: Limits, now: float) -> None:
        self._limits = limits
        gangs = [self._first_gang(number, hosts, now) for number, hosts in enumerate(islands)]
        super().__init__(gangs, 1, Stalls(limits.stall_report, limits.step_deadline))
        self._liveness = Liveness(limits.heartbeat, now)
        self._peers = PeerReports(limits.heartbeat)
        self._held = HeldFailures(sum(len(gang.hosts) for gang in gangs))

    def _first_gang(self, island: int, hosts: Sequence[int], now: float) -> Gang:
        """Returns the first workers of an island."""
        return Gang(
            GangKey(island, 0),
            hosts,
            ahead=self._limits.ahead,
            grace=self._limits.grace,
            now=now,
            restart_seconds=self._limits.restart_seconds,
        )

    def add_gang(self, hosts: Sequence[int], now: float) -> list[Effect]:
        """Adds a new island, whose workers are ready; returns the effects to carry out, in this order.

        Args:
          hosts: their numbers, which follow the numbers of all others.
          now: the time.
        """
        gang = self._first_gang(len(self.gangs), hosts, now)
        self._held.hosts += len(gang.hosts)
        self._add_gang(gang)
        return [
            AttachGang(gang.key),
            Log(
                logging.INFO, f"{gang.name} has joined: {len(gang.hosts)} hosts, from host {gang.hosts[0]} on"
            ),
            *self._announce(GangJoined(gang.key, gang.hosts), now),
        ]

    # The hot path.

    @override
    def done(self, gang: Gang, host: int, run: int, now: float) -> None:
        step = self.steps.get(run)
        # The end of a call does not show progress of the steps that it runs beside.
        if step is None or not step.is_unordered:
            gang.pulses[host].progressed = now
        if step is not None and step.done(host, None):
            self.steps.end(step)

    def fail(
        self,
        gang: Gang,
        host: int,
        run: int,
        error: str | None,
        wrong: Mapping[int, str],
        now: float,
        took: float = 0.0,
    ) -> list[Effect]:
        """See `ClusterView.fail`; the failure is held while a loss may be its cause, see `HeldFailures`."""
        gang.pulses[host].progressed = now
        step = self.steps.get(run)
        if step is None:
            return []
        failure = HeldFailure(step, gang.key, host, error, wrong, took)
        return [] if self._held.hold(failure, now) else self._fail(failure, now)

    def _fail(self, failure: HeldFailure, now: float) -> list[Effect]:
        """Notes a failure that is not held, or no longer."""
        step, host, error = failure.step, failure.host, failure.error
        effects: list[Effect] = []
        gang = self.gang(failure.gang)
        # Of a step on one of several hosts, the others expect nothing.
        is_shared = gang is not None and len(step.hosts.intersection(gang.hosts)) > 1
        if gang is not None and is_shared and not step.is_unordered and gang.failure is None:
            cause = error or next(iter(failure.wrong.values()))
            why = f"step {serial(step.number)} of program {step.program} failed there: {cause}"
            # The exit of processes that were to exit is not a loss, but their later results may be wrong.
            is_ending = isinstance(gang.state, Terminating)
            lost_there = ExitOverdue(gang.key) if is_ending else HostLost(gang.key, host, why)
            effects += self.handle(lost_there, now)
        self._finish(step, failure.gang, host, error, failure.wrong)
        return [*effects, StepFailed(failure)]

    def _release(self, now: float) -> list[Effect]:
        """Notes the failures that are no longer held."""
        effects: list[Effect] = []
        while released := self._held.release(now):
            for failure in released:
                effects += self._fail(failure, now)
        return effects

    # Other events.

    def handle(self, event: Event, now: float) -> list[Effect]:
        """Handles an event, and returns the effects to carry out, in this order."""
        match event:
            case ReplyReceived():
                request = self.replies.receive(event.host, event.request, event.value, is_last=event.is_last)
                return [] if request is None else self._complete(request, now)
            case Tick():
                return self._tick(now)
            case PeerUnreachable():
                return self._lose_peer(event, now)
            case PeerReached():
                self._peers.remove(Peer(event.by, event.by_host), Peer(event.gang, event.host))
                return []
            case InputMissed():
                self._note_missed_input(event)
                return []
            case LeaveDelayed():
                if (gang := self.gang(event.gang)) is not None:
                    gang.delay_leave(1)
                return []
            case LeaveAllowed():
                return self._allow_leave(event.gang, now)
            case HostDisconnected():
                if self.gang(event.gang) is not None:
                    self._held.note_exit(event.gang, event.host, now)
                return []
            case DrainRequested() | ReturnRequested():
                # The state may have changed since a user requested it.
                gang = self.gang(event.gang)
                state = Running if isinstance(event, DrainRequested) else Drained
                is_due = gang is not None and isinstance(gang.state, state)
                return self._handle_gang_event(event, now) if is_due else []
            case _:
                return self._handle_gang_event(event, now)

    def _handle_gang_event(self, event: GangEvent, now: float) -> list[Effect]:
        gang = self.gang(event.gang)
        if gang is None:
            return []
        was_open, was_lost, was = gang.problem is None, gang.failure is not None, gang.state_name()
        island = gang.key.island
        effects = gang.handle(event, now)
        if gang.failure is not None:
            # First: the other consequences of a loss may make clients issue steps.
            if not was_lost or gang.state_name() != was:
                lost_now = GangLost(gang.key, gang.failure, gang.is_dead(), gang.is_out)
                effects += self._announce(lost_now, now)
            if not was_lost:
                effects += self._lose_gang(gang, now)
        elif was_open:
            if isinstance(event, DrainRequested) and gang.leaving is not None:
                effects += self._announce(GangDraining(gang.key, gang.leaving), now)
            effects += self._close_leaving(gang, now)
        if isinstance(gang.state, Replaced):
            successor = self.gangs[island] = gang.successor(now)
            effects += self._announce(GangReturned(successor.key), now)
        return effects

    def _announce(self, effect: ClientEffect, now: float) -> list[Effect]:
        """Returns the notice of an island to the users of the cluster, and further effects of it."""
        return [effect]

    def _allow_leave(self, key: GangKey, now: float) -> list[Effect]:
        gang = self.gang(key)
        if gang is None:
            return []
        was_delayed = gang.is_delayed()
        gang.delay_leave(-1)
        return self._close_leaving(gang, now) if was_delayed else []

    def _close_leaving(self, gang: Gang, now: float) -> list[Effect]:
        """Tells clients that a gang accepts nothing new any more, if it leaves and none delays that."""
        if gang.problem is None:
            return []
        return self._announce(GangLeaving(gang.key, gang.problem), now)

    def _lose_peer(self, event: PeerUnreachable, now: float) -> list[Effect]:
        """Notes that a host does not reach another; once both report it, steps that need both are errors."""
        by, of = self.gang(event.by), self.gang(event.gang)
        if by is None or of is None or not (_exchanges(by) and _exchanges(of)):
            return []
        if not self._peers.add(Peer(by.key, event.by_host), Peer(of.key, event.host), event.why, now):
            return []
        names = f"{by.host_name(event.by_host)} and {of.host_name(event.host)}"
        text = f"{names} do not reach each other: {event.why}"
        self.steps.cut((event.by_host, event.host), lost(text))
        return [Log(logging.WARNING, text), WakeWaiters()]

    def _note_missed_input(self, event: InputMissed) -> None:
        """Notes that the results of a step are wrong."""
        gang, step = self.gang(event.gang), self.steps.get(event.run)
        if gang is not None and step is not None:
            step.spoil(failed(f"{gang.host_name(event.host)}: {event.why}"))

    def _lose_gang(self, gang: Gang, now: float) -> list[Effect]:
        """Turns everything that depends on a gang into errors."""
        failure = gang.failure
        assert failure is not None
        self._peers.remove_gang(gang.key)
        self._held.note_loss(gang.key)
        steps = self.steps.lose(gang, failure)
        effects: list[Effect] = [Disconnect(gang.key), *self._release(now)]
        effects += self._lose_requests(gang.hosts, failure, now)
        if gang.is_closed():
            return effects
        cancelled: dict[int, tuple[tuple[int, int], ...]] = {}
        for step in steps:
            for host in step.hosts.difference(gang.hosts):
                cancelled[host] = (*cancelled.get(host, ()), (step.loaded, step.number))
        return [*effects, TerminateGang(gang.key, cancelled)]

    def _tick(self, now: float) -> list[Effect]:
        effects = [*self._release(now), *self._expire(now)]
        silent, pings = self._liveness.check(self.gangs, now)
        for event in (*silent, *self._peers.check(now)):
            effects += self._handle_gang_event(event, now)
        effects += pings
        effects += self._check_stalls(now)
        for gang in [*self.gangs]:
            effects += self._advance(gang, now)
        return effects

    def _advance(self, gang: Gang, now: float) -> list[Effect]:
        """Continues a gang that is draining, terminating or pausing."""
        match gang.state:
            case Pausing(again=again) if now >= again:
                return self._handle_gang_event(RestartDue(gang.key), now)
            case Draining(seconds=seconds, deadline=deadline):
                unfinished = self.steps.of(gang)
                if now >= deadline:
                    if not unfinished:
                        return self._handle_gang_event(GangDrained(gang.key), now)
                    text = f", and was not done with {unfinished[0]} after {seconds:.0f} seconds"
                    return self._handle_gang_event(GangDrained(gang.key, text), now)
                if unfinished or gang.is_delayed():
                    return []
                return self._request_for(gang, gang.hosts, now)
            case Terminating(deadline=deadline) if now >= deadline:
                return self._handle_gang_event(ExitOverdue(gang.key), now)
        return []

    def _decide(self, subject: Gang | Stall, reports: Mapping[int, HostReport], now: float) -> list[Effect]:
        """See `ClusterView`; decides about a draining gang, too."""
        if isinstance(subject, Gang):
            return self._decide_drained(subject, reports, now)
        return super()._decide(subject, reports, now)

    def _decide_drained(self, gang: Gang, reports: Mapping[int, HostReport], now: float) -> list[Effect]:
        """Lets a gang terminate once no array of it is held."""
        holds_nothing = all(host in reports and not reports[host].arrays for host in gang.hosts)
        if not isinstance(gang.state, Draining) or gang.is_delayed():
            return []
        if not holds_nothing or self.steps.of(gang):
            return []
        return self._handle_gang_event(GangDrained(gang.key), now)

    def _end_stalled(self, stall: Stall, reports: Mapping[int, HostReport], now: float) -> list[Effect]:
        """Loses the hosts that the others wait for."""
        why = f"{stall.step} made no progress in {stall.seconds:.0f} seconds"
        effects: list[Effect] = []
        for host in causes(stall.step, reports):
            gang = next(gang for gang in self.gangs if host in gang.pulses)
            effects += self._handle_gang_event(HostLost(gang.key, host, why), now)
        return effects


def _exchanges(gang: Gang) -> bool:
    """Returns whether reports of its hosts about others, and the reverse, mean that the network is cut."""
    return isinstance(gang.state, Running | Draining)
