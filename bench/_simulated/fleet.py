"""Hosts with their devices: they run steps in the order in which they receive them, and reply."""

from __future__ import annotations

import collections
import dataclasses
import functools
from collections.abc import Callable, Sequence

from _simulated.costs import ControlCosts
from _simulated.processor import Processor
from pathways.runtime.simulate.events import SimulatedTime


@dataclasses.dataclass(frozen=True)
class FleetShape:
    """Shape of a fleet: its hosts, and the way of messages to them.

    Attributes:
      hosts: the number of hosts of each island.
      heads: the number of hosts that share a head, the first of them, which forwards steps to the others and
        their replies back; None if each gets its own message.
      is_joined: whether devices of different islands begin a step together, as those of one do.
      cores: the number of cores that all hosts share; None if each has its own.
    """

    hosts: Sequence[int]
    heads: int | None = None
    is_joined: bool = True
    cores: int | None = None

    def groups(self) -> list[list[int]]:
        """Returns for each island the numbers of hosts that share one message."""
        if self.heads is None:
            return [[1] * count for count in self.hosts]
        size = self.heads
        return [[min(size, count - first) for first in range(0, count, size)] for count in self.hosts]


class FleetStep:
    """Step on hosts.

    Args:
      number: its number.
      islands: the numbers of its islands.
      seconds: its time on devices.
      owner: its client.

    Attributes:
      took: the time of each island: since it was ready for it there, or since the end of the one before.
      left: the number of islands that have not finished it.
    """

    __slots__ = ("islands", "left", "number", "owner", "ready", "seconds", "took", "untold")

    def __init__(self, number: int, islands: Sequence[int], seconds: float, owner: int) -> None:
        self.number = number
        self.islands = islands
        self.seconds = seconds
        self.owner = owner
        self.took: dict[int, float] = {}
        self.left = len(islands)
        # The time at which all hosts of an island have started their devices, and the number of its groups
        # that have not.
        self.ready: dict[int, float] = {}
        self.untold: dict[int, int] = {}


Answer = Callable[[FleetStep, int, int, float], float]
"""Handler of the reply of a group of hosts: gets its step, its island, its number there, and the moment;
returns the moment at which the resulting work is done."""


class Fleet:
    """All hosts.

    Args:
      time: the time.
      shape: their shape.
      costs: the costs of control.
      control: the core that sends them steps.
      answer: handles replies, on that core.

    Attributes:
      busy: the time in which the devices of each island had a step that has finished, in seconds.
      served: the time in which each owner had devices of islands, added up.
      ended: the number of finished steps of each owner, on all their islands.
    """

    def __init__(
        self, time: SimulatedTime, shape: FleetShape, costs: ControlCosts, control: Processor, answer: Answer
    ) -> None:
        self.busy = [0.0] * len(shape.hosts)
        self.served: dict[int, float] = collections.defaultdict(float)
        self.ended: collections.Counter[int] = collections.Counter()
        self._time = time
        self._shape = shape
        self._costs = costs
        self._control = control
        self._answer = answer
        self._groups = shape.groups()
        self._heads = [[Processor(time) for _ in island] for island in self._groups]
        # The times at which the core of a host, and the devices of an island, are free.
        self._free = [0.0] * (shape.cores or sum(shape.hosts))
        self._first = [sum(shape.hosts[:n]) for n in range(len(shape.hosts))]
        self._devices_free = [0.0] * len(shape.hosts)
        self._queues: list[collections.deque[FleetStep]] = [collections.deque() for _ in shape.hosts]

    def send(self, step: FleetStep, moment: float) -> float:
        """Sends a step to all hosts, from a moment on; returns that at which all messages are sent."""
        message = self._costs.per_host / 2
        for n in step.islands:
            self._queues[n].append(step)
        for n in step.islands:
            moment += self._costs.per_island / 2
            if self._shape.heads is None:
                step.ready[n], moment = self._send_in_turn(
                    self._first[n], self._shape.hosts[n], message, moment
                )
                self._begin(n)
                continue
            step.untold[n] = len(self._groups[n])
            for group, head in enumerate(self._heads[n]):
                moment += message
                head.add_at(moment + self._costs.net, functools.partial(self._hand_on, step, n, group))
        return moment

    def _send_in_turn(self, first: int, count: int, message: float, moment: float) -> tuple[float, float]:
        """Sends a step to hosts in turn; returns when all have started their devices, and when all messages
        are sent."""
        costs, free = self._costs, self._free
        cores, net, work = len(free), costs.net, costs.per_worker
        ready = 0.0
        for host in range(first, first + count):
            moment += message
            core = host % cores
            began = moment + net
            if free[core] > began:
                began = free[core]
            free[core] = started = began + work
            if started > ready:
                ready = started
        return ready, moment

    def _hand_on(self, step: FleetStep, island: int, group: int, moment: float) -> float:
        """Forwards a step from a head to its group, then starts its own devices."""
        assert self._shape.heads is not None
        first = self._first[island] + group * self._shape.heads
        count = self._groups[island][group]
        ready, moment = self._send_in_turn(first + 1, count - 1, self._costs.per_handed_on / 2, moment)
        moment += self._costs.per_worker
        step.ready[island] = max(step.ready.get(island, 0.0), ready, moment)
        step.untold[island] -= 1
        if not step.untold[island]:
            self._begin(island)
        return moment

    def _begin(self, island: int) -> None:
        """Lets devices begin the first steps in their queues that all their hosts have.

        They begin when the step is ready and they are free. That is known now, though it may be later.
        """
        looked = [island]
        while looked:
            queue = self._queues[looked[-1]]
            step = queue[0] if queue else None
            if step is None:
                looked.pop()
                continue
            together = step.islands if self._shape.is_joined else (looked[-1],)
            if not all(
                n in step.ready and not step.untold.get(n) and self._queues[n][0] is step for n in together
            ):
                looked.pop()
                continue
            start = max([max(step.ready[n], self._devices_free[n]) for n in together])
            end = start + step.seconds
            for n in together:
                self._queues[n].popleft()
                step.took[n] = end - max(step.ready[n], self._devices_free[n])
                self._devices_free[n] = end
                self._time.at(end, functools.partial(self._end, step, n))
            looked += [n for n in together if n != looked[-1]]

    def _end(self, step: FleetStep, island: int) -> None:
        """Ends a step on the devices of an island."""
        self.busy[island] += step.seconds
        self.served[step.owner] += step.seconds
        step.left -= 1
        if not step.left:
            self.ended[step.owner] += 1
        net = self._costs.net
        if self._shape.heads is None:
            self._control.add_at(self._time.now + net, functools.partial(self._take, step, island))
            return
        for group, head in enumerate(self._heads[island]):
            if self._groups[island][group] == 1:
                # Its own reply needs no other thread of it.
                self._send_back(step, island, group, self._time.now)
            else:
                back = functools.partial(self._hand_back, step, island, group)
                head.add_at(self._time.now + net, back)

    def _take(self, step: FleetStep, island: int, moment: float) -> float:
        """Handles the replies of all hosts of an island, which arrive at the same time."""
        message = self._costs.per_host / 2
        for group in range(len(self._groups[island])):
            moment = self._answer(step, island, group, moment + message)
        return moment

    def _hand_back(self, step: FleetStep, island: int, group: int, moment: float) -> float:
        """Collects the replies of a head's group, and sends one for all."""
        moment += (self._groups[island][group] - 1) * self._costs.per_handed_on / 2
        self._send_back(step, island, group, moment)
        return moment

    def _send_back(self, step: FleetStep, island: int, group: int, moment: float) -> None:
        """Sends the reply of a whole group."""
        costs = self._costs

        def take(began: float) -> float:
            return self._answer(step, island, group, began + costs.per_host / 2)

        self._control.add_at(moment + costs.net, take)
