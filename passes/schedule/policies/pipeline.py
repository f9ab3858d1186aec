"""Pipeline: the shape of a program, which is all that policies see."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable

from pathways.dialect.relations.graphs import topological_order
from pathways.passes.schedule.policies.actions import Action
from pathways.passes.schedule.policies.chains import stages_from_start, stages_to_loss

type Order = list[list[Action]]
"""The actions of each slice, in the order in which it does them."""


class PolicyError(ValueError):
    """Error of a policy that does not fit a pipeline; the message has the reason."""


@dataclasses.dataclass(frozen=True)
class Pipeline:
    """The shape of a pipeline, and the bound that its schedule keeps.

    The forward of a stage needs the forwards of the stages that it reads, and its backward needs its forward
    and the backwards of the stages that read it. Where backwards are cut in halves, that is so of the first
    half, I, and the second one, W, needs I. Each action is taken to last one unit of time.

    Attributes:
      slices: the slice of each stage, counted from 0 without gaps; one slice may have several stages.
      microbatches: how many there are.
      backward: whether there is a backward at all.
      max_live: on how many microbatches each stage may work at once, from their forward to their backward; 0
        for any number. The policies in `registry.BOUNDED` keep it; orders of others are checked.
      max_pending: for how many of them it may have done I but not W; 0 for any number. `zb-h1` and `zb-h2`
        keep it; orders of others are checked.
      reads: for each stage the earlier ones that it reads; that in front of it, unless given.
    """

    slices: tuple[int, ...]
    microbatches: int
    backward: bool = True
    max_live: int = 0
    max_pending: int = 0
    reads: tuple[frozenset[int], ...] = ()

    def __post_init__(self) -> None:
        if not self.reads:
            in_a_row = (frozenset({stage - 1} if stage else ()) for stage in range(len(self.slices)))
            object.__setattr__(self, "reads", tuple(in_a_row))

    @property
    def width(self) -> int:
        """The number of slices."""
        return max(self.slices) + 1

    def stages_of(self, place: int) -> list[int]:
        """Returns the stages of a slice, in order."""
        return [stage for stage, owner in enumerate(self.slices) if owner == place]

    @functools.cached_property
    def readers(self) -> list[list[int]]:
        """The stages that read each stage."""
        readers: list[list[int]] = [[] for _ in self.reads]
        for stage, read in enumerate(self.reads):
            for other in read:
                readers[other].append(stage)
        return readers

    @functools.cached_property
    def to_loss(self) -> list[int]:
        """Length of the longest chain from each stage to the loss, itself included."""
        chain = stages_to_loss(dict(enumerate(self.reads)))
        return [chain[stage] for stage in range(len(self.slices))]

    @functools.cached_property
    def from_start(self) -> list[int]:
        """Length of the longest chain to each stage, itself included."""
        chain = stages_from_start(dict(enumerate(self.reads)))
        return [chain[stage] for stage in range(len(self.slices))]

    @property
    def longest(self) -> int:
        """Length of the longest chain of stages."""
        return max(self.to_loss)

    @property
    def is_v(self) -> bool:
        """Whether stages go from the first slice to the last and back, two on each."""
        down = self.slices[: self.width]
        return self.slices == (*down, *reversed(down)) and len(set(down)) == self.width

    @property
    def is_interleaved(self) -> bool:
        """Whether stages go over all slices in rounds, equally many on each."""
        first = self.slices[: self.width]
        return self.slices == first * (len(self.slices) // self.width) and len(set(first)) == self.width

    def round_of_slices(self) -> tuple[int, ...]:
        """Returns the slices in the order of a round of stages.

        Raises:
          PolicyError: they do not.
        """
        if not self.is_interleaved:
            raise PolicyError(
                "needs slices in round-robin order, each with equally many stages: "
                "use 1f1b or a schedule file for other pipelines"
            )
        return self.slices[: self.width]

    def needs(self, action: Action) -> list[Action]:
        """Returns the actions whose results an action reads."""
        stage, kind, microbatch = action
        if kind == "F":
            return [Action(other, "F", microbatch) for other in sorted(self.reads[stage])]
        if kind == "W":
            return [Action(stage, "I", microbatch)]
        later = (Action(other, kind, microbatch) for other in self.readers[stage])
        return [Action(stage, "F", microbatch), *later]


def step_time(pipeline: Pipeline, orders: Order) -> int:
    """Returns the time of a step if forwards and halves of backwards take one unit, whole backwards two.

    Args:
      orders: of its slices; they can be met.
    """
    waits_for = {
        action: [*pipeline.needs(action), *row[max(n - 1, 0) : n]]
        for row in orders
        for n, action in enumerate(row)
    }
    end: dict[Action, int] = {}
    for action in topological_order(waits_for):
        begin = max((end[other] for other in waits_for[action]), default=0)
        end[action] = begin + (2 if action.kind == "B" else 1)
    return max(end.values(), default=0)


type Policy = Callable[[Pipeline], Order]
"""Function that orders the actions of a pipeline without a deadlock."""
