"""List scheduling, for policies that rank actions."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from pathways.passes.schedule.actions import Action
from pathways.passes.schedule.policies.pipeline import Order, Pipeline


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
