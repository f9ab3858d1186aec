"""Core of a cluster whose islands clients share: a scheduler chooses the next step."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import override

import msgspec

from pathways.runtime.control.core import ClusterCore, Limits
from pathways.runtime.control.effects import (
    ClientEffect,
    Effect,
    GangDraining,
    GangJoined,
    GangLeaving,
    GangLost,
    GangReturned,
)
from pathways.runtime.control.gang import Draining, Gang, Running
from pathways.runtime.control.records.errors import failed
from pathways.runtime.control.records.events import DrainRequested, GangEvent, GangKey, HostLost
from pathways.runtime.control.records.step import SESSION_BITS, FunctionCall
from pathways.runtime.service.sharing.memory import DeviceLimits
from pathways.runtime.service.sharing.program_charges import ProgramCharges
from pathways.runtime.service.sharing.rules import SharingRules
from pathways.runtime.service.sharing.scheduler import Scheduler
from pathways.runtime.service.sharing.scheduler_events import (
    ArrayArrived,
    ArrayOffered,
    ClientChanged,
    ClientJoined,
    ClientLeft,
    ClientMoved,
    DenyArray,
    DispatchRequest,
    IslandJoined,
    IslandLeaving,
    IslandLost,
    IslandReturned,
    IslandStepDone,
    IssueStep,
    QueuedStep,
    RefuseStep,
    SchedulerEvent,
    WorkSubmitted,
)
from pathways.runtime.service.sharing.step_limits import StepLimits


class ServiceCore(ClusterCore):
    """Core of a cluster that clients share.

    Args:
      islands: the numbers of the hosts of each island.
      limits: the limits of times and counts.
      now: the time, in seconds of any clock that does not go back.
      rules: the rules by which clients share the islands.

    Attributes:
      scheduler: chooses the next step of clients.
      charges: the losses of islands that are charged to programs.
    """

    def __init__(
        self,
        islands: Iterable[Sequence[int]],
        limits: Limits,
        now: float,
        rules: SharingRules | None = None,
    ) -> None:
        super().__init__(islands, limits, now)
        rules = rules or SharingRules()
        count = len(self.gangs)
        self.scheduler = Scheduler(count, limits.ahead, rules.sharing, rules.memory(count), rules.ageing)
        self.charges = ProgramCharges()
        self._step_limits = StepLimits()
        # The limits of connected clients that have one.
        self._client_limits: dict[int, float] = {}
        # The clients that have not moved off islands that are drained.
        self._movers: dict[GangKey, set[int]] = {}

    def movers(self, key: GangKey) -> frozenset[int]:
        """Returns the clients that have not moved off an island that is drained, or was drained without."""
        return frozenset(self._movers.get(key, ()))

    @override
    def add_gang(self, hosts: Sequence[int], now: float, limits: DeviceLimits | None = None) -> list[Effect]:
        """See `ClusterCore.add_gang`.

        Args:
          limits: the memory of the devices of the island; None where it is not limited.

        Raises:
          ValueError: all quotas together exceed this memory without its pool; then nothing has changed.
        """
        self.scheduler.memory.check_island(limits)
        effects = super().add_gang(hosts, now)
        return [*effects, *self.schedule([IslandJoined(len(self.gangs) - 1, limits)], now)]

    def schedule(self, events: Iterable[SchedulerEvent], now: float) -> list[Effect]:
        """Passes simultaneous events of clients and their steps to the scheduler.

        Steps that the scheduler chooses are issued, in the order of the returned effects. Events of clients
        that have left, or for lost workers, are ignored, except that such steps are refused.
        """
        effects: list[Effect] = []
        current: list[SchedulerEvent] = []
        for event in events:
            match event:
                case IslandStepDone():
                    current.append(event)
                case ClientMoved(client):
                    self._end_move(client, GangKey(event.island, event.start))
                case WorkSubmitted(QueuedStep() as step) if not self._are_current(step.starts):
                    effects.append(RefuseStep(step, "its workers are lost"))
                case WorkSubmitted(QueuedStep() as step) if why := self._refusal(step):
                    effects.append(RefuseStep(step, why))
                case WorkSubmitted(item) if item.client not in self.scheduler.clients:
                    pass
                case ClientLeft(client) if client not in self.scheduler.clients:
                    pass
                case ArrayArrived() if not self._are_current({event.island: event.start}):
                    pass
                case ArrayOffered() if not self._are_current({event.island: event.start}):
                    effects.append(DenyArray(event, None))
                case ClientChanged(client) if client not in self.scheduler.clients:
                    pass
                case _:
                    self._note_client(event)
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
        for island, start in starts.items():
            gang = self.gangs[island]
            if gang.key.start != start or gang.failure is not None:
                return False
        return True

    def _note_client(self, event: SchedulerEvent) -> None:
        match event:
            case ClientJoined(client, step_limit=limit) if limit is not None:
                self._client_limits[client] = limit
            case ClientLeft(client):
                self._client_limits.pop(client, None)
                for key in self._movers:
                    self._end_move(client, key)

    def _refusal(self, step: QueuedStep) -> str | None:
        return self.charges.refusal(step.identity, step.program, step.islands)

    def _issue_queued(self, step: QueuedStep, now: float) -> None:
        step.began = now
        if (limit := self._client_limits.get(step.client)) is not None:
            self._step_limits.add(step, limit)
        # All islands are open, or the scheduler would have refused it.
        self.issue(step, [self.gangs[island] for island in step.islands], ())

    def _begin_call(self, dispatch: DispatchRequest, now: float) -> DispatchRequest:
        """Issues a dispatched call, or adds the failure that prevents it."""
        item = dispatch.item
        gang = self.gangs[item.island]
        why = gang.problem if dispatch.has_arguments else failed("an argument is not available")
        if why is not None:
            return msgspec.structs.replace(dispatch, why=why)
        self.issue(FunctionCall(item.name, item.number, item.hosts, now), (gang,), ())
        return dispatch

    @override
    def _announce(self, effect: ClientEffect, now: float) -> list[Effect]:
        match effect:
            case GangDraining():
                return [effect]
            case GangLost(key, why):
                event: SchedulerEvent = IslandLost(key.island, why.text)
            case GangLeaving(key, why):
                event = IslandLeaving(key.island, why.text)
            case GangReturned(key):
                event = IslandReturned(key.island)
            case GangJoined():
                # `add_gang` passes it to the scheduler, with its limits.
                return [effect]
        return [effect, *self.schedule([event], now)]

    # Islands that are drained.

    @override
    def _advance(self, gang: Gang, now: float) -> list[Effect]:
        effects = super()._advance(gang, now)
        movers = self._movers.get(gang.key)
        # Steps that clients submitted before they moved still wait for their turn.
        is_left = movers is not None and not movers and not self.scheduler.has_queued(gang.key.island)
        if not is_left or not gang.is_delayed():
            return effects
        return [*effects, *self._allow_leave(gang.key, now)]

    def _end_move(self, client: int, key: GangKey) -> None:
        """Notes that a client needs nothing on an island; too late once that may exit."""
        gang = self.gang(key)
        if gang is not None and isinstance(gang.state, Draining) and key in self._movers:
            self._movers[key].discard(client)

    def _expect_moves(self, drain: DrainRequested) -> None:
        """Notes the clients that have to move off an island before it accepts nothing more."""
        # The record of an earlier drain of the island is of no more interest.
        island = drain.gang.island
        self._movers = {key: left for key, left in self._movers.items() if key.island != island}
        self._movers[drain.gang] = {*drain.movers}.intersection(self.scheduler.clients)
        if self._movers[drain.gang]:
            self.gangs[island].delay_leave(1)

    # Losses that programs cause.

    @override
    def _tick(self, now: float) -> list[Effect]:
        effects = super()._tick(now)
        for step, limit in self._step_limits.find_overdue(self.steps.unfinished(), now):
            why = (
                f"{step} of client '{step.identity.client}' ran for longer than its step_limit of {limit:g} s"
            )
            # Before any loss, which ends the step on all hosts of its island.
            pending = set(step.pending_hosts)
            for island in step.islands:
                gang = self.gangs[island]
                host = next((host for host in gang.hosts if host in pending), None)
                if host is None or not isinstance(gang.state, Running | Draining):
                    continue
                self.charges.add(step.identity, island)
                effects += self._handle_gang_event(HostLost(gang.key, host, why, is_charged=True), now)
        return effects

    @override
    def _handle_gang_event(self, event: GangEvent, now: float) -> list[Effect]:
        """See `ClusterCore`; a crash is charged to the program of the step that was running."""
        if isinstance(event, DrainRequested):
            self._expect_moves(event)
        if isinstance(event, HostLost) and event.is_crash and (step := self._running_step(event.gang)):
            self.charges.add(step.identity, event.gang.island)
            event = dataclasses.replace(event, is_charged=True)
        return super()._handle_gang_event(event, now)

    def _running_step(self, key: GangKey) -> QueuedStep | None:
        """Returns the step that runs on an island that is not lost; None if a call may have crashed it."""
        gang = self.gang(key)
        if gang is None or not isinstance(gang.state, Running | Draining):
            return None
        unfinished = [step for step in self.steps.of(gang) if not step.is_done(gang.hosts)]
        first = next((step for step in unfinished if isinstance(step, QueuedStep)), None)
        if first is None or not first.identity.digest:
            return None
        # The calls of other clients run beside it.
        has_other_calls = any(
            step.is_unordered and step.number >> SESSION_BITS != first.client for step in unfinished
        )
        return None if has_other_calls else first
