"""Work of pipelines, which schedules order."""

from __future__ import annotations

from collections.abc import Sequence

from pathways.passes.schedule.policies.actions import Action
from pathways.passes.schedule.policies.pipeline import Pipeline
from pathways.passes.schedule.policies.schedule_file import Work


def needs_of(pipeline: Pipeline, halves: bool = False) -> dict[Action, list[Action]]:
    """Returns the actions of a pipeline, whose backwards may be in halves, with those that they need."""
    kinds = "F" + ("IW" if halves else "B") * pipeline.backward
    stages = range(len(pipeline.slices))
    actions = [Action(s, k, m) for s in stages for k in kinds for m in range(pipeline.microbatches)]
    return {action: pipeline.needs(action) for action in actions}


def work_of(pipeline: Pipeline, halves: bool = False) -> Work:
    """Returns the work of a pipeline, whose slices are `s0`, `s1`, ..."""
    return Work(
        [f"s{n}" for n in range(pipeline.width)],
        {stage: f"s{place}" for stage, place in enumerate(pipeline.slices)},
        pipeline.microbatches,
        needs_of(pipeline, halves),
    )


def most_live(order: Sequence[Action], stage: int | None = None) -> int:
    """Returns the maximum of microbatches that a stage, or a slice, has done forward and not yet backward."""
    live = most = 0
    for action in order:
        if stage is None or action.stage == stage:
            live += {"F": 1, "I": 0}.get(action.kind, -1)
            most = max(most, live)
    return most
