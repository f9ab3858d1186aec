"""Units of a pipeline schedule: actions, and the times at which they can start.

An action is the work of one stage for one microbatch: its forward (F), its backward (B), or one half of a
backward that was split into the gradients of inputs (I) and of weights (W). A schedule is the order of
the actions on each slice.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple

from pathways.dialect.attributes.origins import Origin
from pathways.dialect.relations import graphs


class Action(NamedTuple):
    """Work of a stage for a microbatch; `str` writes it as `torch.distributed.pipelining` does: `0F1`."""

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


def action_of(origin: Origin) -> Action | None:
    """Returns the action of a placed call; None for one without a stage or microbatch, or repeated."""
    if origin.stage is None or origin.microbatch is None or origin.kind == "recompute":
        return None
    kind = "F" if origin.is_forward else {None: "B", "input": "I", "weight": "W"}[origin.part]
    return Action(origin.stage, kind, origin.microbatch)


def parse_action(text: str) -> Action | None:
    """Parses the text form of an action, as `str` writes it; None for any other text."""
    match = re.fullmatch(r"([0-9]{1,9})([FBIW])([0-9]{1,9})", text)
    return Action(int(match[1]), match[2], int(match[3])) if match else None


class ActionCycleError(Exception):
    """Actions that wait for each other.

    Attributes:
      cycle: the actions, each waiting for the next and the last for the first, with whether it reads its
        result; if not, it comes after it in the order of their slice.
    """

    def __init__(self, cycle: list[tuple[Action, bool]]) -> None:
        super().__init__("the order has a cycle")
        self.cycle = cycle

    def describe(self, name: Callable[[Action], str], slices: Mapping[int, str]) -> str:
        """Describes the deadlock, with the cycle below it.

        Args:
          name: writes an action.
          slices: the slice of each stage.
        """
        return f"deadlock: the order has a cycle\n{self.waits(name, slices)}"

    def waits(self, name: Callable[[Action], str], slices: Mapping[int, str]) -> str:
        """Returns the cycle, one line for each wait, for the arguments of `describe`."""
        lines = []
        for n, (action, reads) in enumerate(self.cycle):
            following, _ = self.cycle[(n + 1) % len(self.cycle)]
            why = "it reads its result" if reads else f"@{slices[action.stage]} runs in this order"
            lines.append(f"  {name(action)} waits for {name(following)}: {why}")
        return "\n".join(lines)


def start_times(orders: Orders, needs: Needs) -> dict[Action, int]:
    """Returns the start of each action, if each takes one unit of time and transfers take none.

    Raises:
      ActionCycleError: when some would wait for ever.
    """
    waits_for = {
        action: {*needs.get(action, ()), *row[max(n - 1, 0) : n]}
        for row in orders
        for n, action in enumerate(row)
    }
    try:
        order = graphs.topological_order(waits_for)
    except graphs.CycleError as error:
        after = [*error.cycle[1:], error.cycle[0]]
        pairs = zip(error.cycle, after, strict=True)
        raise ActionCycleError(
            [(action, other in needs.get(action, ())) for action, other in pairs]
        ) from None
    times: dict[Action, int] = {}
    for action in order:
        before = (times[other] + 1 for other in waits_for[action] if other in times)
        times[action] = max(before, default=0)
    return times
