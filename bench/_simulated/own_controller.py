"""Program with a controller of its own, which issues steps as far ahead as it may."""

from __future__ import annotations

from _simulated.control import Control
from _simulated.costs import ControlCosts
from _simulated.fleet import FleetShape, FleetStep
from pathways.runtime.simulate.events import SimulatedTime


class ControllerModel:
    """Controller whose program repeats one step on all islands.

    Args:
      shape: the hosts.
      costs: the costs of control.
      seconds: the time of each step on the devices.
      ahead: the limit of steps in flight.

    Attributes:
      time: the time.
      control: the controller.
    """

    def __init__(self, shape: FleetShape, costs: ControlCosts, seconds: float, ahead: int = 8) -> None:
        self.time = SimulatedTime()
        self.control = Control(self.time, shape, costs, self._ended, ahead)
        self._islands = tuple(range(len(shape.hosts)))
        self._gangs = self.control.gangs(self._islands)
        self._costs = costs
        self._seconds = seconds
        self._waits = False
        self.control.processor.add(self._issue)

    def run_steps(self, count: int) -> None:
        """Advances the time until some more steps have finished."""
        ended = self.control.fleet.ended
        until = ended[0] + count
        while ended[0] < until:
            self.time.step()

    def _issue(self, moment: float) -> float:
        """Issues the next step, if there is room."""
        if any(gang.window.blocker() is not None for gang in self._gangs):
            self._waits = True
            return moment
        _, moment = self.control.issue(self._islands, self._seconds, 0, moment + self._costs.per_step)
        # Earlier replies are handled first.
        self.control.processor.add_at(moment, self._issue)
        return moment

    def _ended(self, part: FleetStep, island: int, is_last: bool, moment: float) -> float:
        if self._waits and is_last:
            self._waits = False
            self.control.processor.add_at(moment, self._issue)
        return moment
