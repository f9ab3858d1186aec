"""`eager`: list scheduling by the critical path."""

from __future__ import annotations

from pathways.passes.schedule.policies.actions import Action
from pathways.passes.schedule.policies.greedy import greedy
from pathways.passes.schedule.policies.pipeline import Order, Pipeline


def eager(pipeline: Pipeline) -> Order:
    """What is furthest from the end of the step comes first: list scheduling by the critical path.

    Forwards are further from the end than backwards, so that without a bound this needs as much memory as
    `gpipe`.
    """
    limit = pipeline.max_live or pipeline.microbatches
    from_start = pipeline.from_start
    back = [0] * len(from_start)
    """From the beginning of a forward over the loss to the end of the last backward that waits for it."""
    for stage, readers in reversed(list(enumerate(pipeline.readers))):
        back[stage] = 1 + max((back[reader] for reader in readers), default=from_start[stage])

    def to_the_end(action: Action) -> int:
        return back[action.stage] if action.kind == "F" else from_start[action.stage]

    return greedy(pipeline, lambda _: limit, lambda a: (-to_the_end(a), a.microbatch))
