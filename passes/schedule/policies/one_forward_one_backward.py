"""`1f1b`: backwards as soon as there are any."""

from __future__ import annotations

from pathways.passes.schedule.actions import Action
from pathways.passes.schedule.policies.greedy import greedy
from pathways.passes.schedule.policies.pipeline import Order, Pipeline


def one_forward_one_backward(pipeline: Pipeline) -> Order:
    """A backward as soon as there is one, else a forward (PipeDream-Flush).

    A stage works on at most as many microbatches at once as the longest chain from it to the loss has stages,
    the fewest that keep all slices busy: S - k for stage k of S in a row. With one stage on each slice, it
    starts with so many forwards, then does backwards and forwards in turn.
    """
    most = pipeline.max_live or pipeline.longest

    def limit(stage: int) -> int:
        return min(pipeline.to_loss[stage], most)

    def rank(action: Action) -> tuple[int, ...]:
        return action.kind == "F", action.microbatch, -pipeline.from_start[action.stage], -action.stage

    return greedy(pipeline, limit, rank)
