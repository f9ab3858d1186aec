"""`eager`: list scheduling by the critical path."""

from __future__ import annotations

from pathways.passes.schedule.actions import Action
from pathways.passes.schedule.policies.greedy import greedy
from pathways.passes.schedule.policies.pipeline import Order, Pipeline


def eager(pipeline: Pipeline) -> Order:
    """What is furthest from the end of the step comes first: list scheduling by the critical path.

    Forwards are further from the end than backwards, so that without a bound this needs as much memory as
    `gpipe`.
    """
    stages = len(pipeline.slices)
    limit = pipeline.max_live or pipeline.microbatches

    def to_the_end(action: Action) -> int:
        return 2 * stages - action.stage if action.kind == "F" else action.stage + 1

    return greedy(pipeline, lambda _: limit, lambda a: (-to_the_end(a), a.microbatch))
