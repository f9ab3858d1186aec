"""Clients that share a cluster through a service, which runs on one core."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Sequence

from _simulated.control import Control
from _simulated.costs import ControlCosts
from _simulated.fleet import FleetShape, FleetStep
from _simulated.processor import Processor
from pathways.runtime.service.sharing.places import MAX_UNFINISHED
from pathways.runtime.service.sharing.scheduler import Scheduler
from pathways.runtime.service.sharing.scheduler_events import (
    ClientJoined,
    IslandStepDone,
    IssueStep,
    QueuedStep,
    RoundTripMeasured,
    SchedulerEvent,
    WorkSubmitted,
)
from pathways.runtime.simulate.events import SimulatedTime


@dataclasses.dataclass(frozen=True)
class ClientModel:
    """Client that repeats one step.

    Attributes:
      islands: the islands of its step.
      seconds: its time on devices.
      weight: its share when other clients want devices, too.
      under_way: the number of its requested steps that it has no reply for.
    """

    islands: Sequence[int]
    seconds: float
    weight: float = 1.0
    under_way: int = 8


class ServiceModel:
    """Service, its clients, each with a core of its own, and the hosts.

    Args:
      shape: the hosts.
      costs: the costs of control.
      clients: the clients.
      ahead: the limit of steps in flight on an island.

    Attributes:
      time: the time.
      control: the service.
      scheduler: chooses the next step.

    Raises:
      ValueError: a client keeps more steps in flight than a service allows.
    """

    def __init__(
        self, shape: FleetShape, costs: ControlCosts, clients: Sequence[ClientModel], ahead: int = 4
    ) -> None:
        self.time = SimulatedTime()
        self.control = Control(self.time, shape, costs, self._ended, ahead, self._settle)
        self.scheduler = Scheduler(len(shape.hosts), ahead)
        self._costs = costs
        self._clients = clients
        self._processors = [Processor(self.time) for _ in clients]
        self._numbers = itertools.count(1)
        # By their numbers on hosts.
        self._queued: dict[int, QueuedStep] = {}
        # The events for the scheduler once all messages are read.
        self._events: list[SchedulerEvent] = []
        for island in range(len(shape.hosts)):
            self.scheduler.handle(RoundTripMeasured(island, 2 * costs.net), 0.0)
        for number, client in enumerate(clients):
            if not 0 < client.under_way <= MAX_UNFINISHED:
                raise ValueError(f"client {number}: under_way={client.under_way}, not 1 to {MAX_UNFINISHED}")
            self.scheduler.handle(ClientJoined(number, client.weight), 0.0)
            for _ in range(client.under_way):
                self._processors[number].add(functools.partial(self._request, number))

    def run(self, seconds: float) -> None:
        """Advances the time by some seconds."""
        self.time.run_until(self.time.now + seconds)

    def run_steps(self, count: int) -> None:
        """Advances the time until some more steps of all clients have finished."""
        ended = self.control.fleet.ended
        until = ended.total() + count
        while ended.total() < until:
            self.time.step()

    def _request(self, number: int, moment: float) -> float:
        """Requests the next step of a client."""
        moment += self._costs.per_client
        islands = self._clients[number].islands
        nothing: dict[int, tuple[int, ...]] = dict.fromkeys(islands, ())
        step = QueuedStep(number, next(self._numbers), number, nothing, nothing)
        self.control.processor.add_at(moment + self._costs.net, functools.partial(self._take, step))
        return moment

    def _take(self, step: QueuedStep, moment: float) -> float:
        """Handles the request of a client for a step."""
        self._events.append(WorkSubmitted(step))
        return moment + self._costs.per_step

    def _settle(self, moment: float) -> float:
        """Passes the events of all read messages to the scheduler, and sends the steps that it issues."""
        events, self._events = self._events, []
        for effect in self.scheduler.handle_all(events, moment):
            # No client leaves here, none breaks the protocol, and no island is lost.
            assert isinstance(effect, IssueStep)
            queued = effect.step
            seconds = self._clients[queued.client].seconds
            sent, moment = self.control.issue(queued.islands, seconds, queued.client, moment)
            self._queued[sent.number] = queued
        return moment

    def _ended(self, part: FleetStep, island: int, is_last: bool, moment: float) -> float:
        queued = self._queued[part.number]
        self._events.append(IslandStepDone(queued, island, part.took[island]))
        if is_last:
            del self._queued[part.number]
            client = self._processors[queued.client]
            client.add_at(moment + self._costs.net, functools.partial(self._request, queued.client))
        return moment


def shares(served: Sequence[float], weights: Sequence[float]) -> float:
    """Returns the deviation of clients' shares from their weights: the largest fraction by which one is off;
    0 while none had anything."""
    total = sum(served) / sum(weights)
    if not total:
        return 0.0
    return max(abs(own / (weight * total) - 1) for own, weight in zip(served, weights, strict=True))
