"""Core of a cluster whose islands clients share: a scheduler chooses the next step."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import override

import msgspec

from pathways.runtime.control.core import ClusterCore, Limits
from pathways.runtime.control.effects import ClientEffect, Effect, GangLeaving, GangLost, GangReturned
from pathways.runtime.control.records.errors import failed
from pathways.runtime.control.records.step import FunctionCall
from pathways.runtime.service.sharing.rules import SharingRules
from pathways.runtime.service.sharing.scheduler import Scheduler
from pathways.runtime.service.sharing.scheduler_events import (
    ArrayArrived,
    ArrayOffered,
    ClientChanged,
    ClientLeft,
    DenyArray,
    DispatchRequest,
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


class ServiceCore(ClusterCore):
    """Core of a cluster that clients share.

    Args:
      islands: the numbers of the hosts of each island.
      limits: the limits of times and counts.
      now: the time, in seconds of any clock that does not go back.
      rules: the rules by which clients share the islands.

    Attributes:
      scheduler: chooses the next step of clients.
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
        self.scheduler = Scheduler(count, limits.ahead, rules.policy, rules.memory(count), rules.ageing)

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
                case WorkSubmitted(QueuedStep() as step) if not self._are_current(step.starts):
                    effects.append(RefuseStep(step, "its workers are lost"))
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

    def _issue_queued(self, step: QueuedStep, now: float) -> None:
        step.began = now
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
            case GangLost(key, why):
                event: SchedulerEvent = IslandLost(key.island, why.text)
            case GangLeaving(key, why):
                event = IslandLeaving(key.island, why.text)
            case GangReturned(key):
                event = IslandReturned(key.island)
        return [effect, *self.schedule([event], now)]
