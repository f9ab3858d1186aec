"""`zb-h1` and `zb-h2`: weights' halves of backwards fill the bubbles."""

from __future__ import annotations

from pathways.passes.schedule.policies.actions import Action
from pathways.passes.schedule.policies.chains import comes_back
from pathways.passes.schedule.policies.greedy import merged
from pathways.passes.schedule.policies.pipeline import Order, Pipeline, PolicyError


def zb_h1(pipeline: Pipeline) -> Order:
    """Returns 1F1B with weights' halves as late as its memory allows (Zero bubble, section 2.3: ZB-H1).

    S stages are in the longest chain, S - k in that from a stage to the loss. The stage starts with S - k
    forwards, and keeps the weights' halves of k microbatches pending: S microbatches are alive on every
    stage. Slices with one stage idle for (S - 1) (F + I - W).
    """
    _check_visits(pipeline)
    longest = pipeline.longest
    return _by_stages(pipeline, [(left, longest - left) for left in pipeline.to_loss])


def zb_h2(pipeline: Pipeline) -> Order:
    """Returns the same with more forwards ahead, so that nothing idles (Zero bubble, section 2.3: ZB-H2).

    The stage starts with 2 (S - k) - 1 forwards and keeps 2 k weights' halves pending: 2 S - 1 microbatches
    are alive on every stage. Slices idle for (S - 1) (F + I - 2 W) between their first and their last action;
    a slice starts later, and ends later, than the one before it.
    """
    _check_visits(pipeline)
    longest = pipeline.longest
    least = 2 * longest - 1
    if pipeline.backward and pipeline.microbatches < least:
        needs = f"needs at least {least} microbatches for a chain of {longest} stages"
        raise PolicyError(f"{needs}, got {pipeline.microbatches}: use zb-h1")
    return _by_stages(pipeline, [(2 * left - 1, 2 * (longest - left)) for left in pipeline.to_loss])


def _check_visits(pipeline: Pipeline) -> None:
    """Checks that no microbatch comes back to a slice: stages of one slice are of different branches."""
    if not comes_back(dict(enumerate(pipeline.reads)), pipeline.slices):
        return
    fitting = "zb-v" if pipeline.is_v else "interleaved-zb" if pipeline.is_interleaved else "1f1b or search"
    raise PolicyError(f"needs slices to which no microbatch comes back for another stage: use {fitting}")


def _by_stages(pipeline: Pipeline, numbers: list[tuple[int, int]]) -> Order:
    """Merges the orders of the stages of each slice, with their forwards ahead and halves pending."""
    orders = [
        _order_of_stage(pipeline, stage, ahead, pending) for stage, (ahead, pending) in enumerate(numbers)
    ]
    return merged(pipeline, orders, lambda a: ("IFW".index(a.kind), a.microbatch, -a.stage))


def _order_of_stage(pipeline: Pipeline, stage: int, ahead: int, pending: int) -> list[Action]:
    """Returns some forwards, then I, W and F in turn; W is after I by `pending` microbatches."""
    count = pipeline.microbatches
    if not pipeline.backward:
        return [Action(stage, "F", m) for m in range(count)]
    if pipeline.max_live:
        ahead = min(ahead, pipeline.max_live)
        # A microbatch is alive until its W: `ahead` of them wait for their I, and `pending` for their W.
        pending = min(pending, pipeline.max_live - ahead)
    if pipeline.max_pending:
        # Between an I and the W after it one more is pending.
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
