"""Figures from costs: use of devices, deviation of shares, the computation that hides all control."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from _simulated.control import Control
from _simulated.costs import ControlCosts
from _simulated.fleet import FleetShape
from _simulated.own_controller import ControllerModel
from _simulated.service import ClientModel, ServiceModel, shares
from pathways.runtime.simulate.events import SimulatedTime

HIDDEN = 0.95
"""The fraction of time in which devices compute when all control is hidden."""

_CLOSE = 1.01
"""Precision of the smallest computation: the ratio of one that suffices to one that does not."""

_MAX_STEPS, _MIN_STEPS, _MESSAGES = 60, 12, 5000
"""Number of simulated steps of a program, and fewer if they are more messages than these."""


@dataclasses.dataclass(frozen=True)
class Usage:
    """Use of a cluster over some time.

    Attributes:
      busy: the fraction of it in which the devices computed, on the island where that is least.
      rate: steps per second, of all clients.
      control: the fraction of it in which the controlling core was busy.
      unfair: the deviation of clients' shares from their weights, 0.01 for one percent.
    """

    busy: float
    rate: float
    control: float
    unfair: float = 0.0


def used_alone(shape: FleetShape, costs: ControlCosts, seconds: float, ahead: int = 8) -> Usage:
    """Returns the use of a cluster by a program with a controller of its own.

    Args:
      shape: the hosts.
      costs: the costs of control.
      seconds: the time of a step on devices.
      ahead: the limit of steps in flight.
    """
    model = ControllerModel(shape, costs, seconds, ahead)
    steps = _steps(shape)
    model.run_steps(2 * (ahead + 1))
    return _usage(model.control, model.time, lambda: model.run_steps(steps), [1.0])


def _steps(shape: FleetShape) -> int:
    """Returns the number of simulated steps of a program."""
    return max(_MIN_STEPS, min(_MAX_STEPS, _MESSAGES // sum(shape.hosts)))


def longest(shape: FleetShape, costs: ControlCosts) -> float:
    """Returns an upper bound of the seconds of a step's control that nothing hides."""
    messages = sum(map(len, shape.groups())) * costs.per_host + len(shape.hosts) * costs.per_island
    handed_on = max(shape.heads or 0, 1) * costs.per_handed_on
    work = costs.per_worker * (1 + sum(shape.hosts) / (shape.cores or sum(shape.hosts)))
    return costs.per_step + messages + handed_on + work + 4 * costs.net


def used_together(
    shape: FleetShape, costs: ControlCosts, clients: Sequence[ClientModel], seconds: float, ahead: int = 4
) -> Usage:
    """Returns the use of a cluster by clients of a service in some seconds, after half a second."""
    model = ServiceModel(shape, costs, clients, ahead)
    model.run(0.5)
    weights = [client.weight for client in clients]
    return _usage(model.control, model.time, lambda: model.run(seconds), weights)


def _usage(control: Control, time: SimulatedTime, run: Callable[[], None], weights: Sequence[float]) -> Usage:
    fleet, processor = control.fleet, control.processor
    began, busy, served, ended = time.now, [*fleet.busy], {**fleet.served}, fleet.ended.total()
    working = processor.busy
    run()
    seconds = time.now - began
    least = min(after - before for after, before in zip(fleet.busy, busy, strict=True))
    return Usage(
        min(least / seconds, 1.0),
        (fleet.ended.total() - ended) / seconds,
        min((processor.busy - working) / seconds, 1.0),
        shares([fleet.served[n] - served.get(n, 0.0) for n in range(len(weights))], weights),
    )


def smallest_hidden(shape: FleetShape, costs: ControlCosts, ahead: int = 8) -> float:
    """Returns the shortest computation, in seconds, that hides all control of a program's own controller.

    Args:
      shape: the hosts.
      costs: the costs of control.
      ahead: the limit of steps in flight.
    """
    return least_hidden(
        lambda seconds: used_alone(shape, costs, seconds, ahead).busy >= HIDDEN, longest(shape, costs) / 4
    )


def smallest_served(shape: FleetShape, costs: ControlCosts, ahead: int = 8) -> float:
    """Returns the same for a single client of a service, which runs on all its islands."""
    islands = tuple(range(len(shape.hosts)))

    def is_hidden(seconds: float) -> bool:
        model = ServiceModel(shape, costs, [ClientModel(islands, seconds)], ahead)
        model.run_steps(2 * (ahead + 1))
        steps = _steps(shape)
        return _usage(model.control, model.time, lambda: model.run_steps(steps), [1.0]).busy >= HIDDEN

    return least_hidden(is_hidden, longest(shape, costs) / 4)


def least_hidden(is_hidden: Callable[[float], bool], guess: float) -> float:
    """Returns the shortest computation, in seconds, that hides all else.

    Args:
      is_hidden: whether a computation suffices; if it does, longer ones do, too.
      guess: the begin of the search; 0 for nothing to hide.
    """
    if not guess:
        return 0.0
    low = high = guess
    while is_hidden(low):
        low, high = low / 2, low
    while not is_hidden(high):
        low, high = high, 2 * high
    while high > low * _CLOSE:
        middle = (low * high) ** 0.5
        low, high = (low, middle) if is_hidden(middle) else (middle, high)
    return high
