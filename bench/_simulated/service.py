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
from pathways.runtime.control.sharing.items import (
    ClientJoined,
    Issue,
    PartDone,
    QueuedStep,
    RoundTripMeasured,
    SchedulerEvent,
    WorkAsked,
)
from pathways.runtime.control.sharing.scheduler import MOST_UNFINISHED, Scheduler
from pathways.runtime.simulate.events import SimulatedTime


@dataclasses.dataclass(frozen=True)
class ClientModel:
    """A client that repeats one step.

    Attributes:
      islands: where its step runs.
      seconds: how long devices have it.
      weight: its share of what others want, too.
      under_way: how many steps it has asked for that it has not heard of.
    """

    islands: Sequence[int]
    seconds: float
    weight: float = 1.0
    under_way: int = 8


class ServiceModel:
    """A service, its clients, each with a core of its own, and the hosts.

    Args:
      shape: the hosts.
      costs: what control costs.
      clients: the clients.
      ahead: how many steps may be under way on an island.

    Attributes:
      time: the time.
      control: the service.
      scheduler: decides whose step is next.

    Raises:
      ValueError: a client has more under way than a service lets it have.
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
        # By the numbers that they have on hosts.
        self._queued: dict[int, QueuedStep] = {}
        # What the scheduler is told when all is read that there was.
        self._events: list[SchedulerEvent] = []
        for island in range(len(shape.hosts)):
            self.scheduler.handle(RoundTripMeasured(island, 2 * costs.net), 0.0)
        for number, client in enumerate(clients):
            if not 0 < client.under_way <= MOST_UNFINISHED:
                raise ValueError(f"client {number}: under_way={client.under_way}, not 1 to {MOST_UNFINISHED}")
            self.scheduler.handle(ClientJoined(number, client.weight), 0.0)
            for _ in range(client.under_way):
                self._processors[number].add(functools.partial(self._ask, number))

    def run(self, seconds: float) -> None:
        """Lets so much time go by."""
        self.time.run_until(self.time.now + seconds)

    def run_steps(self, count: int) -> None:
        """Lets so much time go by as it takes until so many more steps of all clients have ended."""
        ended = self.control.fleet.ended
        until = ended.total() + count
        while ended.total() < until:
            self.time.step()

    def _ask(self, number: int, moment: float) -> float:
        """Returns the job of a client: its next step."""
        moment += self._costs.per_client
        islands = self._clients[number].islands
        nothing: dict[int, tuple[int, ...]] = dict.fromkeys(islands, ())
        step = QueuedStep(number, next(self._numbers), number, nothing, nothing)
        self.control.processor.add_at(moment + self._costs.net, functools.partial(self._take, step))
        return moment

    def _take(self, step: QueuedStep, moment: float) -> float:
        """Returns the job of the service: a step that a client asks for."""
        self._events.append(WorkAsked(step))
        return moment + self._costs.per_step

    def _settle(self, moment: float) -> float:
        """Returns what the service does when it has read all: it tells the scheduler, and sends what it
        issues."""
        events, self._events = self._events, []
        for effect in self.scheduler.handle_all(events, moment):
            # No client leaves here, none does what it may not, and no island is lost.
            assert isinstance(effect, Issue)
            queued = effect.step
            seconds = self._clients[queued.client].seconds
            sent, moment = self.control.issue(queued.islands, seconds, queued.client, moment)
            self._queued[sent.number] = queued
        return moment

    def _ended(self, part: FleetStep, island: int, is_last: bool, moment: float) -> float:
        queued = self._queued[part.number]
        self._events.append(PartDone(queued, island, part.took[island]))
        if is_last:
            del self._queued[part.number]
            client = self._processors[queued.client]
            client.add_at(moment + self._costs.net, functools.partial(self._ask, queued.client))
        return moment


def shares(served: Sequence[float], weights: Sequence[float]) -> float:
    """Returns how far the shares of clients are from those of their weights: the largest part of one by which
    it is off; 0 while none had anything."""
    total = sum(served) / sum(weights)
    if not total:
        return 0.0
    return max(abs(own / (weight * total) - 1) for own, weight in zip(served, weights, strict=True))
