"""The state of a cluster, whole: its gangs, its steps, and what its hosts were asked."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterable, Mapping, Sequence

from pathways.runtime.control.cluster_view import ClusterView
from pathways.runtime.control.effects import (
    Disconnect,
    Effect,
    GangLeaving,
    GangLost,
    GangReturned,
    Log,
    StepFailed,
    TerminateGang,
    WakeWaiters,
)
from pathways.runtime.control.gang import Draining, Gang, Pausing, Replaced, Running, Terminating
from pathways.runtime.control.held_failures import HeldFailure, HeldFailures
from pathways.runtime.control.liveness import Liveness
from pathways.runtime.control.peer_reports import Peer, PeerReports
from pathways.runtime.control.records.errors import failed, lost
from pathways.runtime.control.records.events import (
    Event,
    ExitOverdue,
    GangDrained,
    GangEvent,
    GangKey,
    HostDisconnected,
    HostLost,
    InputMissed,
    PeerReached,
    PeerUnreachable,
    ReplyReceived,
    RestartDue,
    Tick,
)
from pathways.runtime.control.records.reports import HostReport
from pathways.runtime.control.records.step import FunctionCall, serial
from pathways.runtime.control.sharing.scheduler import Policy, Scheduler
from pathways.runtime.control.sharing.scheduler_events import (
    ArrayArrived,
    ClientLeft,
    DispatchRequest,
    IslandLeaving,
    IslandLost,
    IslandReturned,
    IssueStep,
    QueuedStep,
    RefuseStep,
    SchedulerEvent,
    WorkSubmitted,
)
from pathways.runtime.control.stalls import Stall, Stalls, causes


@dataclasses.dataclass(frozen=True, slots=True)
class Limits:
    """How long things may take, and how many there may be.

    Attributes:
      ahead: how many steps may be under way on an island.
      heartbeat: seconds that a host may say nothing.
      grace: seconds that an island may take to end.
      stall_report: seconds without progress after which a step is reported; None for never.
      step_deadline: seconds without progress after which a step is ended; None for never.
      restart_seconds: seconds for which it is tried to start workers in the place of those that are lost.
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
      limits: how long things may take.
      now: the time, in seconds of any clock that does not go back.
      policy: whose step is next where clients share the islands, see `Scheduler`.

    Attributes:
      scheduler: decides whose step is next; without clients it has nothing to do.
    """

    def __init__(
        self, islands: Iterable[Sequence[int]], limits: Limits, now: float, policy: Policy = "fair"
    ) -> None:
        gangs = [
            Gang(
                GangKey(number, 0),
                hosts,
                ahead=limits.ahead,
                grace=limits.grace,
                now=now,
                restart_seconds=limits.restart_seconds,
            )
            for number, hosts in enumerate(islands)
        ]
        super().__init__(gangs, 1, Stalls(limits.stall_report, limits.step_deadline))
        self.scheduler = Scheduler(len(gangs), limits.ahead, policy)
        self._liveness = Liveness(limits.heartbeat, now)
        self._peers = PeerReports(
            limits.heartbeat, lambda peer: f"host {peer.host} (island{peer.gang.island})"
        )
        self._held = HeldFailures(sum(len(gang.hosts) for gang in gangs))

    # The hot path.

    def done(self, gang: Gang, host: int, run: int, now: float) -> None:
        """See `ClusterView.done`."""
        step = self.steps.get(run)
        # A call says nothing of the steps that it is beside.
        if step is None or not step.is_beside:
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
        """Notes a failure that is not held, or is no longer."""
        step, host, error = failure.step, failure.host, failure.error
        effects: list[Effect] = []
        gang = self.gang(failure.gang)
        if gang is not None and gang.is_several and not step.is_beside and gang.failure is None:
            what = error or next(iter(failure.wrong.values()))
            why = f"step {serial(step.number)} of program {step.program} failed there: {what}"
            # That processes end which were told to is no loss; what they make until then may be one.
            is_ending = isinstance(gang.state, Terminating)
            lost_there = ExitOverdue(gang.key) if is_ending else HostLost(gang.key, host, why)
            effects += self.handle(lost_there, now)
        name = f"host {host} (island{failure.gang.island})"
        is_last = step.done(
            host,
            None if error is None else failed(f"{name}: {error}"),
            {position: failed(f"{name}: {what}") for position, what in failure.wrong.items()},
        )
        if is_last:
            self.steps.end(step)
        return [*effects, StepFailed(failure)]

    def _release(self, now: float) -> list[Effect]:
        """Notes the failures that are no longer held."""
        effects: list[Effect] = []
        while released := self._held.release(now):
            for failure in released:
                effects += self._fail(failure, now)
        return effects

    # Many clients.

    def schedule(self, events: Iterable[SchedulerEvent], now: float) -> list[Effect]:
        """Takes note of what clients did and what became of it, all at the same time.

        Steps that have their turn are issued, in the order of the effects that say so. What is of clients
        that are gone, or is for workers that are, has no effect but that such steps are refused.
        """
        effects: list[Effect] = []
        current: list[SchedulerEvent] = []
        for event in events:
            match event:
                case WorkSubmitted(QueuedStep() as step) if not self._are_current(step.starts):
                    effects.append(RefuseStep(step, "the workers that it is for are gone"))
                case WorkSubmitted(item) if item.client not in self.scheduler.clients:
                    pass
                case ClientLeft(client) if client not in self.scheduler.clients:
                    pass
                case ArrayArrived() if not self._are_current({event.island: event.start}):
                    pass
                case _:
                    current.append(event)
        for effect in self.scheduler.handle_all(current, now):
            match effect:
                case IssueStep(step):
                    self._issue_queued(step, now)
                    effects.append(effect)
                case DispatchRequest(item) if item.is_call:
                    effects.append(self._begin_call(effect, now))
                case _:
                    effects.append(effect)
        return effects

    def _are_current(self, starts: Mapping[int, int]) -> bool:
        gangs = [self.gang(GangKey(island, start)) for island, start in starts.items()]
        return all(gang is not None and gang.failure is None for gang in gangs)

    def _issue_queued(self, step: QueuedStep, now: float) -> None:
        step.began = now
        # It would be refused if an island were not open.
        self.issue(step, [self.gangs[island] for island in step.islands], ())

    def _begin_call(self, turn: DispatchRequest, now: float) -> DispatchRequest:
        """Issues a call that has its turn; or says why it is not made."""
        item = turn.item
        gang = self.gangs[item.island]
        why = gang.problem if turn.is_there else failed("an array that it takes is not there")
        if why is not None:
            return dataclasses.replace(turn, why=why)
        self.issue(FunctionCall(item.name, item.number, item.hosts, now), (gang,), ())
        return turn

    # All else.

    def handle(self, event: Event, now: float) -> list[Effect]:
        """Takes note of what was seen, and returns what is to be done, in this order."""
        match event:
            case ReplyReceived():
                request = self.replies.answer(event.host, event.request, event.value, is_last=event.is_last)
                return [] if request is None else self._answered(request, now)
            case Tick():
                return self._tick(now)
            case PeerUnreachable():
                return self._lose_peer(event, now)
            case PeerReached():
                self._peers.find(Peer(event.by, event.by_host), Peer(event.gang, event.host))
                return []
            case InputMissed():
                self._miss(event)
                return []
            case HostDisconnected():
                if self.gang(event.gang) is not None:
                    self._held.note_exit(event.gang, event.host, now)
                return []
            case _:
                return self._change(event, now)

    def _change(self, event: GangEvent, now: float) -> list[Effect]:
        gang = self.gang(event.gang)
        if gang is None:
            return []
        was_open, was_gone, was_dead = gang.problem is None, gang.failure is not None, gang.is_dead()
        island = gang.key.island
        effects = gang.handle(event, now)
        if gang.failure is not None:
            if not was_gone or gang.is_dead() > was_dead:
                effects.append(GangLost(gang.key, gang.failure, gang.is_dead()))
            if not was_gone:
                # First: what else follows from the loss may have others issue steps.
                effects += self.schedule([IslandLost(island, gang.failure.text)], now)
                effects += self._lose(gang, now)
        elif was_open and gang.problem is not None:
            effects.append(GangLeaving(gang.key, gang.problem))
            effects += self.schedule([IslandLeaving(island, gang.problem.text)], now)
        if isinstance(gang.state, Replaced):
            successor = self.gangs[island] = gang.successor(now)
            effects += [GangReturned(successor.key), *self.schedule([IslandReturned(island)], now)]
        return effects

    def _lose_peer(self, event: PeerUnreachable, now: float) -> list[Effect]:
        """Notes that a host does not reach another one; when both say so, what needs both is an error."""
        by, of = self.gang(event.by), self.gang(event.gang)
        if by is None or of is None or not (_exchanges(by) and _exchanges(of)):
            return []
        if not self._peers.lose(Peer(by.key, event.by_host), Peer(of.key, event.host), event.why, now):
            return []
        text = f"{by.named(event.by_host)} and {of.named(event.host)} do not reach each other: {event.why}"
        self.steps.cut((event.by_host, event.host), lost(text))
        return [Log(logging.WARNING, text), WakeWaiters()]

    def _miss(self, event: InputMissed) -> None:
        """Notes that what a step makes is not what it should be."""
        gang, step = self.gang(event.gang), self.steps.get(event.run)
        if gang is not None and step is not None:
            step.spoil(failed(f"{gang.named(event.host)}: {event.why}"))

    def _lose(self, gang: Gang, now: float) -> list[Effect]:
        """Everything that depends on a gang is an error from now on."""
        failure = gang.failure
        assert failure is not None
        self._peers.forget(gang.key)
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
        gone, pings = self._liveness.look(self.gangs, now)
        for event in (*gone, *self._peers.look(now)):
            effects += self._change(event, now)
        effects += pings
        effects += self._check_stalls(now)
        for gang in [*self.gangs]:
            effects += self._go_on(gang, now)
        return effects

    def _go_on(self, gang: Gang, now: float) -> list[Effect]:
        """What is next for a gang that was asked to end, or that is to be started anew."""
        match gang.state:
            case Pausing(again=again) if now >= again:
                return self._change(RestartDue(gang.key), now)
            case Draining(deadline=deadline):
                unfinished = self.steps.of(gang)
                if now >= deadline:
                    if not unfinished:
                        return self._change(GangDrained(gang.key), now)
                    text = f", and was not done with {unfinished[0]} after {gang.grace:.0f} seconds"
                    return self._change(GangDrained(gang.key, text), now)
                return [] if unfinished else self._request_for(gang, gang.hosts, now)
            case Terminating(deadline=deadline) if now >= deadline:
                return self._change(ExitOverdue(gang.key), now)
        return []

    def _decide(self, subject: Gang | Stall, reports: Mapping[int, HostReport], now: float) -> list[Effect]:
        """See `ClusterView`; a gang that drains is decided about, too."""
        if isinstance(subject, Gang):
            return self._drained(subject, reports, now)
        return super()._decide(subject, reports, now)

    def _drained(self, gang: Gang, reports: Mapping[int, HostReport], now: float) -> list[Effect]:
        """Lets a gang end of which nothing is held."""
        holds_nothing = all(host in reports and not reports[host].arrays for host in gang.hosts)
        if not isinstance(gang.state, Draining) or not holds_nothing or self.steps.of(gang):
            return []
        return self._change(GangDrained(gang.key), now)

    def _end_stalled(self, stall: Stall, reports: Mapping[int, HostReport], now: float) -> list[Effect]:
        """Ends the hosts that the others wait for."""
        why = f"{stall.step} made no progress in {stall.seconds:.0f} seconds"
        effects: list[Effect] = []
        for host in causes(stall.step, reports):
            gang = next(gang for gang in self.gangs if host in gang.pulses)
            effects += self._change(HostLost(gang.key, host, why), now)
        return effects


def _exchanges(gang: Gang) -> bool:
    """Whether what its hosts say of others, and others of them, means that the network is cut."""
    return isinstance(gang.state, Running | Draining)
