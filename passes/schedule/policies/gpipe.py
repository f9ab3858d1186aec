"""`gpipe` and `looped-bfs`: all microbatches on one stage, then all on the next one of its slice."""

from __future__ import annotations

from pathways.passes.schedule.policies.actions import Action
from pathways.passes.schedule.policies.pipeline import Order, Pipeline


def gpipe(pipeline: Pipeline) -> Order:
    """Returns all forwards, then all backwards (GPipe).

    A stage works on up to M microbatches at once. Slices with several stages finish one stage before the next
    (Breadth-first). Backwards run in the order of the microbatches, as in every other policy: gradients are
    summed in that order, so that all schedules give the same bits.
    """
    every = range(pipeline.microbatches)
    orders: Order = []
    for place in range(pipeline.width):
        stages = pipeline.stages_of(place)
        orders.append([Action(stage, "F", m) for stage in stages for m in every])
        if pipeline.backward:
            orders[-1] += [Action(stage, "B", m) for stage in reversed(stages) for m in every]
    return orders


def looped_bfs(pipeline: Pipeline) -> Order:
    """Returns all microbatches on the first stage of a slice, then all on its second, ... (Breadth-first).

    Backwards go the same way from the last stage. All microbatches are alive on every stage. The idle time is
    that of GPipe divided by the stages on a slice, and values from one stage of a slice have the time of M
    actions to arrive, which hides slow links.
    """
    pipeline.round_of_slices()
    return gpipe(pipeline)
