"""Costs that the tables of `bench/paper.py` are simulated with."""

from __future__ import annotations

import dataclasses

from _simulated.costs import ControlCosts, CostsFile


@dataclasses.dataclass(frozen=True)
class Inputs:
    """Costs of a simulation.

    Attributes:
      file: the costs.
      what_if: changes of them.
    """

    file: CostsFile
    what_if: str

    def controller(self, messages: int) -> ControlCosts:
        """Returns the costs of a controller that sends so many messages itself, to all hosts or to heads."""
        return self._controller(messages).changed(self.what_if)

    def service(self, messages: int) -> ControlCosts:
        """Returns the measured costs of a service, with its scheduler."""
        seconds = self.file.seconds
        costs = dataclasses.replace(
            self._controller(messages),
            per_step=seconds("clients", "served_step"),
            per_host=seconds("clients", "served_host"),
            per_island=seconds("clients", "served_island"),
        )
        return costs.changed(self.what_if)

    def _controller(self, messages: int) -> ControlCosts:
        seconds = self.file.seconds
        many = 64 if messages <= 64 else 512
        return ControlCosts(
            per_step=seconds("hosts", "per_step"),
            per_host=seconds("network", f"per_host_{many}"),
            per_island=seconds("network", f"per_island_{many}"),
            per_worker=seconds("hosts", "per_worker"),
            per_client=seconds("clients", "per_client"),
            # A head has few connections.
            per_handed_on=seconds("network", "per_host_64"),
            net=seconds("network", "net"),
        )


def milliseconds(seconds: float) -> str:
    """Returns a time as text."""
    return f"{seconds * 1e3:.3g} ms"


def microseconds(seconds: float) -> str:
    """Returns a short time as text."""
    return f"{seconds * 1e6:.2f} us"


def costs_text(costs: ControlCosts) -> str:
    """Returns the costs of control, as text."""
    return (
        f"{microseconds(costs.per_step)} a step, {microseconds(costs.per_host)} a host and "
        f"{microseconds(costs.per_island)} an island of one core"
    )
