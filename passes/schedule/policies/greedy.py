"""List scheduling, by rank, and the policies that are a rank and a limit: `1f1b` and `eager`."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence

from pathways.passes.schedule.policies.actions import Action
from pathways.passes.schedule.policies.pipeline import Order, Pipeline, step_time


def merged(
    pipeline: Pipeline, orders: Sequence[Sequence[Action]], rank: Callable[[Action], tuple[int, ...]]
) -> Order:
    """Runs the orders of all stages step by step; each slice takes the action of least rank that is ready.

    Orders that can be met on a slice for each stage can be met here as well: the next action of some stage is
    ready, and the slice with this stage runs it.
    """
    position = [0] * len(orders)
    needs = functools.cache(pipeline.needs)
    done: set[Action] = set()
    stages_of = [pipeline.stages_of(place) for place in range(pipeline.width)]
    slices: Order = [[] for _ in stages_of]
    count = sum(map(len, orders))
    while len(done) < count:
        started = []
        for place, order in enumerate(slices):
            coming = (orders[k][position[k]] for k in stages_of[place] if position[k] < len(orders[k]))
            ready = (action for action in coming if done.issuperset(needs(action)))
            action = min(ready, key=rank, default=None)
            if action is not None:
                order.append(action)
                started.append(action)
        for action in started:
            done.add(action)
            position[action.stage] += 1
    return slices


def greedy(
    pipeline: Pipeline, limit: Callable[[int], int], rank: Callable[[Action], tuple[int, ...]]
) -> Order:
    """Runs a pipeline step by step; each slice takes the ready action of least rank.

    A stage starts a forward only while it works on fewer microbatches than `limit`, which is at least 1. The
    order cannot get stuck: microbatches enter a stage in order, so nothing holds back the oldest one that is
    not done.
    """
    stages = range(len(pipeline.slices))
    # An action waits for many steps, and its needs are checked in each.
    needs = functools.cache(pipeline.needs)
    done: set[Action] = set()
    next_forward = [0] * len(stages)
    next_backward = [0 if pipeline.backward else pipeline.microbatches] * len(stages)

    def ready(stage: int) -> Iterator[Action]:
        live = next_forward[stage] - next_backward[stage] if pipeline.backward else 0
        candidates = [Action(stage, "B", next_backward[stage])]
        if live < limit(stage):
            candidates.append(Action(stage, "F", next_forward[stage]))
        for action in candidates:
            if action.microbatch < pipeline.microbatches and done.issuperset(needs(action)):
                yield action

    stages_of = [pipeline.stages_of(place) for place in range(pipeline.width)]
    orders: Order = [[] for _ in stages_of]
    while min(*next_forward, *next_backward) < pipeline.microbatches:
        started = []
        for place, order in enumerate(orders):
            choice = (action for stage in stages_of[place] for action in ready(stage))
            action = min(choice, key=rank, default=None)
            if action is not None:
                order.append(action)
                started.append(action)
        # Only after all slices have chosen: results are ready in the next step.
        for action in started:
            done.add(action)
            (next_forward if action.kind == "F" else next_backward)[action.stage] += 1
    return orders


def one_forward_one_backward(pipeline: Pipeline) -> Order:
    """Returns a backward as soon as there is one, else a forward (PipeDream-Flush).

    A stage works on at most as many microbatches at once as the longest chain from it to the loss has stages,
    the fewest that keep all slices busy: S - k for stage k of S in a row. With one stage on each slice, it
    starts with so many forwards, then does backwards and forwards in turn.

    Where a slice has stages of several branches, which of them goes first decides, and no rule is the best
    for all pipelines. The fastest is taken: this order, one that goes through the branches as if they stood
    in a row, or, where both take longer, that one with S - k microbatches.
    """
    order = _order_by_1f1b(pipeline, pipeline.to_loss)
    in_a_row = dataclasses.replace(pipeline, reads=())
    if pipeline.width == len(pipeline.slices) or pipeline == in_a_row:
        return order
    orders = [order, _order_by_1f1b(in_a_row, pipeline.to_loss), _order_by_1f1b(in_a_row, in_a_row.to_loss)]
    return min(orders, key=lambda order: step_time(pipeline, order))


def _order_by_1f1b(pipeline: Pipeline, alive: Sequence[int]) -> Order:
    """Returns the order in which each stage works on so many microbatches at once."""
    most = pipeline.max_live or max(alive)

    def rank(action: Action) -> tuple[int, ...]:
        return action.kind == "F", action.microbatch, -pipeline.from_start[action.stage], -action.stage

    return greedy(pipeline, lambda stage: min(alive[stage], most), rank)


def eager(pipeline: Pipeline) -> Order:
    """Orders actions by their distance from the end of the step, farthest first: the critical path.

    Forwards are further from the end than backwards, so that without a bound this needs as much memory as
    `gpipe`.
    """
    limit = pipeline.max_live or pipeline.microbatches
    from_start = pipeline.from_start
    back = [0] * len(from_start)
    """From the beginning of a forward over the loss to the end of the last backward that waits for it."""
    for stage, readers in reversed(list(enumerate(pipeline.readers))):
        # From the loss the way back goes through as many backwards as the way there has forwards.
        back[stage] = 1 + max((back[reader] for reader in readers), default=from_start[stage])

    def to_the_end(action: Action) -> int:
        return back[action.stage] if action.kind == "F" else from_start[action.stage]

    return greedy(pipeline, lambda _: limit, lambda a: (-to_the_end(a), a.microbatch))
