"""`1f1b`: backwards as soon as there are any."""

from __future__ import annotations

from pathways.passes.schedule.policies.greedy import greedy
from pathways.passes.schedule.policies.pipeline import Order, Pipeline


def one_forward_one_backward(pipeline: Pipeline) -> Order:
    """A backward as soon as there is one, else a forward (PipeDream-Flush).

    Stage k of S works on at most S - k microbatches at once, the fewest that keep all slices busy. With one
    stage on each slice, stage k starts with S - k forwards, then does backwards and forwards in turn.
    """
    stages = len(pipeline.slices)
    most = pipeline.max_live or stages

    def limit(stage: int) -> int:
        return min(stages - stage, most)

    return greedy(pipeline, limit, lambda a: (a.kind == "F", a.microbatch, -a.stage))
