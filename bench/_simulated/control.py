"""Who controls hosts, around the core that knows what was issued and who is done with it."""

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
"""An island is done with its part of a step: the step, the island, whether it was the last, and the moment.
Returns the moment at which all is done that follows."""


class Control:
    """One core of a machine that sends steps to all hosts and takes their answers.

    Args:
      time: the time.
      shape: the hosts.
      costs: what control costs.
      ended: is told when an island is done with a step.
      ahead: how many steps may be under way on an island.
      settle: see `Processor`.

    Attributes:
      core: what decides.
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
        # A group that is told by one message is one host here.
        numbers, count = [], 0
        for groups in shape.groups():
            numbers.append(range(count, count + len(groups)))
            count += len(groups)
        # Nothing is lost here: that hosts say nothing for long is only that they compute.
        self.core = ClusterCore(numbers, Limits(ahead=ahead, stall_report=None), time.now)
        self.processor = Processor(time, settle)
        self.fleet = Fleet(time, shape, costs, self.processor, self._answer)
        self._costs = costs
        self._ended = ended

    def gangs(self, islands: Sequence[int]) -> list[Gang]:
        """Returns the workers of islands."""
        return [self.core.gangs[n] for n in islands]

    def issue(self, islands: Sequence[int], seconds: float, owner: int, moment: float) -> tuple[Step, float]:
        """Sends a step to all hosts of islands; returns it, and the moment at which that is done."""
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
        self.core.done(gang, gang.hosts[group], part.number, None, {}, moment)
        if step.is_done(gang.hosts):
            moment += self._costs.per_island / 2
            return self._ended(part, island, step.is_done(), moment)
        return moment
