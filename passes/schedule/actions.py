"""Actions, the units of a pipeline schedule, and when each of them can start.

An action is what one stage does for one microbatch: its forward (F), its backward (B), or one half of a
backward that was split into the gradients of inputs (I) and those of weights (W). A schedule is the order of
the actions on each slice.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple


class Action(NamedTuple):
    """What a stage does for a microbatch; `str` writes it as `torch.distributed.pipelining` does: `0F1`."""

    stage: int
    kind: str
    """`F`, `B`, `I` or `W`."""
    microbatch: int

    def __str__(self) -> str:
        return f"{self.stage}{self.kind}{self.microbatch}"


Orders = Sequence[Sequence[Action]]
"""The actions of each slice in the order in which it runs them."""

Needs = Mapping[Action, Collection[Action]]
"""The actions whose results each action reads."""


def parse_action(text: str) -> Action | None:
    """Reads what `str` of an action writes; None when it is something else."""
    found = re.fullmatch(r"([0-9]{1,9})([FBIW])([0-9]{1,9})", text)
    return Action(int(found[1]), found[2], int(found[3])) if found else None


class CycleError(Exception):
    """Actions that wait for each other.

    Attributes:
      cycle: the actions, each waiting for the next and the last for the first, with whether it reads its
        result; if not, it stands behind it in the order of their slice.
    """

    def __init__(self, cycle: list[tuple[Action, bool]]) -> None:
        super().__init__("the order has a cycle")
        self.cycle = cycle

    def describe(self, name: Callable[[Action], str], slices: Mapping[int, str]) -> str:
        """The cycle, one line for each wait.

        Args:
          name: how to write an action.
          slices: the slice of each stage.
        """
        lines = ["deadlock: the order has a cycle"]
        for n, (action, reads) in enumerate(self.cycle):
            following, _ = self.cycle[(n + 1) % len(self.cycle)]
            why = "it reads its result" if reads else f"@{slices[action.stage]} runs in this order"
            lines.append(f"  {name(action)} waits for {name(following)}: {why}")
        return "\n".join(lines)


def start_times(orders: Orders, needs: Needs) -> dict[Action, int]:
    """When each action starts, if each takes one unit of time and transfers take none.

    Raises:
      CycleError: when some would wait for ever.
    """
    waits_for = {
        action: {*needs.get(action, ()), *row[max(n - 1, 0) : n]}
        for row in orders
        for n, action in enumerate(row)
    }
    frees: dict[Action, list[Action]] = {}
    for action, others in waits_for.items():
        for other in others:
            frees.setdefault(other, []).append(action)
    missing = {action: len(others) for action, others in waits_for.items()}
    times = {action: 0 for action, count in missing.items() if count == 0}
    for action in (ready := list(times)):
        for freed in frees.get(action, ()):
            times[freed] = max(times.get(freed, 0), times[action] + 1)
            missing[freed] -= 1
            if missing[freed] == 0:
                ready.append(freed)
    if len(ready) < len(waits_for):
        raise _cycle(
            {a: {o for o in waits_for[a] if missing[o] > 0} for a, n in missing.items() if n > 0}, needs
        )
    return times


def _cycle(waits_for: Mapping[Action, Collection[Action]], needs: Needs) -> CycleError:
    """A cycle among actions that all wait, found by walking back until one repeats."""
    path = [min(waits_for)]
    while (before := min(waits_for[path[-1]])) not in path:
        path.append(before)
    cycle = path[path.index(before) :]
    return CycleError(
        [(action, cycle[(n + 1) % len(cycle)] in needs.get(action, ())) for n, action in enumerate(cycle)]
    )
