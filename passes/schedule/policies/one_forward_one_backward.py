"""`1f1b`: backwards as soon as there are any."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from pathways.passes.schedule.policies.actions import Action
from pathways.passes.schedule.policies.greedy import greedy
from pathways.passes.schedule.policies.pipeline import Order, Pipeline, step_time


def one_forward_one_backward(pipeline: Pipeline) -> Order:
    """A backward as soon as there is one, else a forward (PipeDream-Flush).

    A stage works on at most as many microbatches at once as the longest chain from it to the loss has stages,
    the fewest that keep all slices busy: S - k for stage k of S in a row. With one stage on each slice, it
    starts with so many forwards, then does backwards and forwards in turn.

    Where a slice has stages of several branches, which of them goes first decides, and no rule is the best
    for all pipelines. The fastest is taken: this order, one that goes through the branches as if they stood
    in a row, or, where both take longer, that one with S - k microbatches.
    """
    order = _order(pipeline, pipeline.to_loss)
    in_a_row = dataclasses.replace(pipeline, reads=())
    if pipeline.width == len(pipeline.slices) or pipeline == in_a_row:
        return order
    orders = [order, _order(in_a_row, pipeline.to_loss), _order(in_a_row, in_a_row.to_loss)]
    return min(orders, key=lambda order: step_time(pipeline, order))


def _order(pipeline: Pipeline, alive: Sequence[int]) -> Order:
    """The order in which each stage works on so many microbatches at once."""
    most = pipeline.max_live or max(alive)

    def rank(action: Action) -> tuple[int, ...]:
        return action.kind == "F", action.microbatch, -pipeline.from_start[action.stage], -action.stage

    return greedy(pipeline, lambda stage: min(alive[stage], most), rank)
