"""List scheduling, for policies that rank actions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from pathways.passes.schedule.policies.actions import Action
from pathways.passes.schedule.policies.pipeline import Order, Pipeline


def merged(
    pipeline: Pipeline, orders: Sequence[Sequence[Action]], rank: Callable[[Action], tuple[int, ...]]
) -> Order:
    """Runs the orders of all stages step by step; each slice takes the action of least rank that is ready.

    Orders that can be met on a slice for each stage can be met so as well: what is next of some stage is
    ready, and a slice that has several stages does it.
    """
    position = [0] * len(orders)
    done: set[Action] = set()
    stages_of = [pipeline.stages_of(place) for place in range(pipeline.width)]
    slices: Order = [[] for _ in stages_of]
    count = sum(map(len, orders))
    while len(done) < count:
        started = []
        for place, order in enumerate(slices):
            coming = (orders[k][position[k]] for k in stages_of[place] if position[k] < len(orders[k]))
            ready = (action for action in coming if done.issuperset(pipeline.needs(action)))
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
    """Runs a pipeline step by step; each slice takes the action of least rank among those that are ready.

    A stage starts a forward only while it works on fewer microbatches than `limit` says, which is at least 1.
    It cannot get stuck: microbatches enter a stage in order, so nothing holds back the oldest one that is not
    done.
    """
    stages = range(len(pipeline.slices))
    done: set[Action] = set()
    next_forward = [0] * len(stages)
    next_backward = [0 if pipeline.backward else pipeline.microbatches] * len(stages)

    def ready(stage: int) -> Iterator[Action]:
        live = next_forward[stage] - next_backward[stage] if pipeline.backward else 0
        candidates = [Action(stage, "B", next_backward[stage])]
        if live < limit(stage):
            candidates.append(Action(stage, "F", next_forward[stage]))
        for action in candidates:
            if action.microbatch < pipeline.microbatches and done.issuperset(pipeline.needs(action)):
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
        for action in started:
            done.add(action)
            (next_forward if action.kind == "F" else next_backward)[action.stage] += 1
    return orders
