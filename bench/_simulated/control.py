"""Controller of hosts, around the core that tracks steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from _simulated.costs import ControlCosts
from _simulated.fleet import Fleet, FleetShape, FleetStep
from _simulated.processor import Job, Processor
from pathways.runtime.control.core import ClusterCore, Limits
from pathways.runtime.control.gang import Gang
from pathways.runtime.control.records.step import Step
from pathways.runtime.simulate.events import SimulatedTime

PartEnd = Callable[[FleetStep, int, bool, float], float]
"""Callback for an island that has finished its share of a step: gets the step, the island, whether it was the
last, and the moment; returns the moment at which the resulting work is done."""


class Control:
    """Core of a machine that sends steps to all hosts and handles their replies.

    Args:
      time: the time.
      shape: the hosts.
      costs: the costs of control.
      ended: called when an island has finished a step.
      ahead: the limit of steps in flight on an island.
      settle: see `Processor`.

    Attributes:
      core: the state machine.
      processor: the core of the machine.
      fleet: the hosts.
    """

    def __init__(
        self,
        time: SimulatedTime,
        shape: FleetShape,
        costs: ControlCosts,
        ended: PartEnd,
        ahead: int,
        settle: Job | None = None,
    ) -> None:
        # A group that gets one message is one host here.
        numbers, count = [], 0
        for groups in shape.groups():
            numbers.append(range(count, count + len(groups)))
            count += len(groups)
        # No host is lost here: a silent one only computes.
        self.core = ClusterCore(numbers, Limits(ahead=ahead, stall_report=None), time.now)
        self.processor = Processor(time, settle)
        self.fleet = Fleet(time, shape, costs, self.processor, self._answer)
        self._costs = costs
        self._ended = ended

    def gangs(self, islands: Sequence[int]) -> list[Gang]:
        """Returns the workers of islands."""
        return [self.core.gangs[n] for n in islands]

    def issue(self, islands: Sequence[int], seconds: float, owner: int, moment: float) -> tuple[Step, float]:
        """Sends a step to all hosts of islands; returns it, and the moment at which all messages are sent."""
        gangs = self.gangs(islands)
        number = self.core.take_numbers()
        hosts = [host for gang in gangs for host in gang.hosts]
        step = Step("f", number, hosts, began=moment)
        self.core.issue(step, gangs, ())
        return step, self.fleet.send(FleetStep(number, islands, seconds, owner), moment)

    def _answer(self, part: FleetStep, island: int, group: int, moment: float) -> float:
        gang = self.core.gangs[island]
        step = self.core.steps.get(part.number)
        assert step is not None
        self.core.done(gang, gang.hosts[group], part.number, moment)
        if step.is_done(gang.hosts):
            moment += self._costs.per_island / 2
            return self._ended(part, island, step.is_done(), moment)
        return moment
