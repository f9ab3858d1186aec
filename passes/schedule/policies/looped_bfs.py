"""`looped-bfs`: slices whose stages take turns, each for all microbatches."""

from __future__ import annotations

from pathways.passes.schedule.policies.gpipe import gpipe
from pathways.passes.schedule.policies.pipeline import Order, Pipeline


def looped_bfs(pipeline: Pipeline) -> Order:
    """All microbatches with the first stage of a slice, then all with its second, and so on (Breadth-first).

    Backwards go the same way from the last stage. All microbatches are alive on every stage. The idle time is
    that of GPipe divided by the stages on a slice, and what is sent from one stage of a slice has the time
    of M actions to arrive, which hides slow links.
    """
    pipeline.turns()
    return gpipe(pipeline)
