"""`zb-v`: two stages on each slice, in a V, with halves of backwards in the bubbles."""

from __future__ import annotations

import collections

from pathways.passes.schedule.policies.actions import Action
from pathways.passes.schedule.policies.pipeline import Order, Pipeline, PolicyError


def zb_v(pipeline: Pipeline) -> Order:
    """Microbatches go down the slices and back up (Controllable memory, section 3: V-ZB).

    Slice k of S has the stages k and 2 S - 1 - k, so that a microbatch goes down and up on the last slice
    without being sent, and the first one has the loss. In order, a slice does

    1. 2 (S - k) - 1 forwards downwards, then k times one upwards and one downwards;
    2. S - k times all that there is of a microbatch upwards: F, I and W;
    3. F, I and W downwards and upwards in turn, until there are no more forwards;
    4. k times an I downwards and one upwards, then I and W downwards, and the remaining halves.

    At most 2 S stages of microbatches are alive on a slice, as much as 1F1B keeps on its first slice. With
    F = I = W and M >= 2 S - 1 no slice idles between its first and its last action.
    """
    width, count = pipeline.width, len(pipeline.slices)
    down = pipeline.slices[:width]
    if not pipeline.is_v:
        raise PolicyError(
            "needs two stages on each slice in a V, such as s0, s1, s1, s0, each with its own `stage=`: "
            "use zb-h1 for one stage on each slice, interleaved-zb for slices in round-robin order"
        )
    least = 2 * width - 1
    if pipeline.backward and pipeline.microbatches < least:
        raise PolicyError(
            f"needs at least {least} microbatches for {width} slices, got {pipeline.microbatches}: use 1f1b"
        )
    orders: Order = [[] for _ in range(width)]
    for stage, place in enumerate(down):
        orders[place] = _Row(stage, count - 1 - stage, pipeline).order()
    return orders


class _Row:
    """The order of one slice in the making.

    Args:
      down: its stage on the way down.
      up: its stage on the way up.
    """

    def __init__(self, down: int, up: int, pipeline: Pipeline) -> None:
        self.down, self.up = down, up
        self.pipeline = pipeline
        self.actions: list[Action] = []
        self.done: collections.Counter[tuple[int, str]] = collections.Counter()

    def order(self) -> list[Action]:
        """Returns all actions in order."""
        down, up, every = self.down, self.up, self.pipeline.microbatches
        if not self.pipeline.backward:
            self.repeat(every, (down, "F"))
            self.repeat(every, (up, "F"))
            return self.actions
        after = self.pipeline.width - down
        whole_down, whole_up = ((down, "F"), (down, "I"), (down, "W")), ((up, "F"), (up, "I"), (up, "W"))
        self.repeat(2 * after - 1, (down, "F"))
        self.repeat(down, (up, "F"), (down, "F"))
        self.repeat(after, *whole_up)
        self.repeat(every - self.done[up, "F"], *whole_down, *whole_up)
        self.repeat(down, (down, "I"), (up, "I"))
        self.repeat(every, (down, "I"), (down, "W"))
        self.repeat(every, (up, "W"))
        return self.actions

    def repeat(self, times: int, *steps: tuple[int, str]) -> None:
        """Does some steps in turn, each for the next microbatch that it has not been done for."""
        for _ in range(times):
            for stage, kind in steps:
                microbatch = self.done[stage, kind]
                if microbatch < self.pipeline.microbatches:
                    self.done[stage, kind] += 1
                    self.actions.append(Action(stage, kind, microbatch))
