"""What comes of costs: how busy devices are, how far shares are off, what hides all control."""

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
"""The part of the time for which devices compute when all else is hidden."""

_CLOSE = 1.01
"""How exactly the smallest computation is found: the ratio of one that is enough to one that is not."""

_MOST_STEPS, _LEAST_STEPS, _MESSAGES = 60, 12, 5000
"""For how many steps a program is looked at, and fewer where they are more messages than these."""


@dataclasses.dataclass(frozen=True)
class Usage:
    """How a cluster was used for some time.

    Attributes:
      busy: for which part of it the devices computed, those of the island where that is least.
      rate: steps in a second, of all clients.
      control: for which part of it the core of who controls was busy.
      unfair: how far the shares of clients are from those of their weights, 0.01 for one percent.
    """

    busy: float
    rate: float
    control: float
    unfair: float = 0.0


def used_alone(shape: FleetShape, costs: ControlCosts, seconds: float, ahead: int = 8) -> Usage:
    """Returns what a program with a controller of its own makes of a cluster.

    Args:
      shape: the hosts.
      costs: what control costs.
      seconds: how long devices have a step.
      ahead: how many steps may be under way.
    """
    model = ControllerModel(shape, costs, seconds, ahead)
    steps = _steps(shape)
    model.run_steps(2 * (ahead + 1))
    return _usage(model.control, model.time, lambda: model.run_steps(steps), [1.0])


def _steps(shape: FleetShape) -> int:
    """For how many steps a program is looked at."""
    return max(_LEAST_STEPS, min(_MOST_STEPS, _MESSAGES // sum(shape.hosts)))


def longest(shape: FleetShape, costs: ControlCosts) -> float:
    """Returns the seconds of all control of a step that nothing hides, and no less."""
    messages = sum(map(len, shape.groups())) * costs.per_host + len(shape.hosts) * costs.per_island
    handed_on = max(shape.heads or 0, 1) * costs.per_handed_on
    work = costs.per_worker * (1 + sum(shape.hosts) / (shape.cores or sum(shape.hosts)))
    return costs.per_step + messages + handed_on + work + 4 * costs.net


def used_together(
    shape: FleetShape,
    costs: ControlCosts,
    clients: Sequence[ClientModel],
    seconds: float,
    ahead: int = 4,
) -> Usage:
    """Returns what clients of a service make of a cluster in so many seconds, after half a second."""
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
    """Returns the shortest computation, in seconds, that hides all control of a program with a controller of
    its own.

    Args:
      shape: the hosts.
      costs: what control costs.
      ahead: how many steps may be under way.
    """
    return least_hidden(
        lambda seconds: used_alone(shape, costs, seconds, ahead).busy >= HIDDEN, longest(shape, costs) / 4
    )


def smallest_served(shape: FleetShape, costs: ControlCosts, ahead: int = 8) -> float:
    """Returns the same for a client of a service, which has the cluster for itself and runs on all its
    islands."""
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
      is_hidden: whether one does; if it does, longer ones do, too.
      guess: where the search begins; 0 for nothing to hide.
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
