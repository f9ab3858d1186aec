"""What a policy sees of a program."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from pathways.passes.schedule.actions import Action

type Order = list[list[Action]]
"""The actions of each slice, in the order in which it does them."""


class PolicyError(ValueError):
    """A policy does not fit a pipeline; the message says why."""


@dataclasses.dataclass(frozen=True)
class Pipeline:
    """The shape of a pipeline, and the bound that its schedule keeps.

    The forward of stage k needs that of stage k - 1, and its backward needs its forward and the backward of
    stage k + 1. Where backwards are cut in halves, that is so of the first half, I, and the second one, W,
    needs I. Each action is taken to last one unit of time.

    Attributes:
      slices: the slice of each stage, counted from 0 without gaps; one slice may have several stages.
      microbatches: how many there are.
      backward: whether there is a backward at all.
      max_live: on how many microbatches each stage may work at once, from their forward to their backward; 0
        for any number. The policies in `registry.BOUNDED` keep it; orders of others are checked.
      max_pending: for how many of them it may have done I but not W; 0 for any number. `zb-h1` and `zb-h2`
        keep it; orders of others are checked.
    """

    slices: tuple[int, ...]
    microbatches: int
    backward: bool = True
    max_live: int = 0
    max_pending: int = 0

    @property
    def width(self) -> int:
        """The number of slices."""
        return max(self.slices) + 1

    def stages_of(self, place: int) -> list[int]:
        """The stages of a slice, in order."""
        return [stage for stage, owner in enumerate(self.slices) if owner == place]

    def turns(self) -> tuple[int, ...]:
        """The slices in the order in which they take turns.

        Raises:
          PolicyError: they do not.
        """
        first_turn = self.slices[: self.width]
        count = len(self.slices)
        if self.slices != first_turn * (count // self.width) or len(set(first_turn)) < self.width:
            raise PolicyError(
                "needs slices that take turns, each with equally many stages: "
                "use 1f1b or a schedule file for other pipelines"
            )
        return first_turn

    def needs(self, action: Action) -> list[Action]:
        """The actions whose results an action reads."""
        stage, kind, microbatch = action
        if kind == "F":
            return [Action(stage - 1, "F", microbatch)] if stage > 0 else []
        if kind == "W":
            return [Action(stage, "I", microbatch)]
        later = [Action(stage + 1, kind, microbatch)] if stage + 1 < len(self.slices) else []
        return [Action(stage, "F", microbatch), *later]


type Policy = Callable[[Pipeline], Order]
"""Orders the actions of a pipeline, so that no slice waits for another one that waits for it."""
