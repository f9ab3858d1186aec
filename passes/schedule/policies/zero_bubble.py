"""`zb-h1` and `zb-h2`: weights' halves of backwards fill the bubbles."""

from __future__ import annotations

from pathways.passes.schedule.actions import Action
from pathways.passes.schedule.policies.pipeline import Order, Pipeline, PolicyError


def zb_h1(pipeline: Pipeline) -> Order:
    """1F1B whose weights' halves run later, as late as its memory allows (Zero bubble, section 2.3: ZB-H1).

    Stage k of S starts with S - k forwards, and keeps the weights' halves of k microbatches pending: S
    microbatches are alive on every slice. Slices idle for (S - 1) (F + I - W).
    """
    stages = len(pipeline.slices)
    return [_turns(pipeline, k, stages - k, k) for k in _one_each(pipeline)]


def zb_h2(pipeline: Pipeline) -> Order:
    """The same with more forwards ahead, so that nothing idles (Zero bubble, section 2.3: ZB-H2).

    Stage k of S starts with 2 (S - k) - 1 forwards and keeps 2 k weights' halves pending: 2 S - 1
    microbatches are alive on every slice. Slices idle for (S - 1) (F + I - 2 W) between their first and
    their last action; a slice starts later, and ends later, than the one before it.
    """
    stages, places = len(pipeline.slices), _one_each(pipeline)
    wanted = 2 * stages - 1
    if pipeline.backward and pipeline.microbatches < wanted:
        needs = f"needs at least {wanted} microbatches for {stages} stages"
        raise PolicyError(f"{needs}, got {pipeline.microbatches}: use zb-h1")
    return [_turns(pipeline, k, 2 * (stages - k) - 1, 2 * k) for k in places]


def _one_each(pipeline: Pipeline) -> list[int]:
    """The stage of each slice."""
    stages = len(pipeline.slices)
    if stages != pipeline.width:
        raise PolicyError(
            "needs one stage on each slice: use interleaved-zb where slices take turns, zb-v for a V"
        )
    return [stage for place in range(stages) for stage in pipeline.stages_of(place)]


def _turns(pipeline: Pipeline, stage: int, ahead: int, pending: int) -> list[Action]:
    """Some forwards, then I, W and F in turns; W is behind I by `pending` microbatches."""
    count = pipeline.microbatches
    if not pipeline.backward:
        return [Action(stage, "F", m) for m in range(count)]
    if pipeline.max_live:
        ahead = min(ahead, pipeline.max_live)
        pending = min(pending, pipeline.max_live - ahead)
    if pipeline.max_pending:
        pending = min(pending, pipeline.max_pending - 1)
    order = [Action(stage, "F", m) for m in range(min(ahead, count))]
    for m in range(count):
        order.append(Action(stage, "I", m))
        if m >= pending:
            order.append(Action(stage, "W", m - pending))
        if m + ahead < count:
            order.append(Action(stage, "F", m + ahead))
    order += [Action(stage, "W", m) for m in range(max(count - pending, 0), count)]
    return order
