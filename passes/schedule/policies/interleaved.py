"""`interleaved-1f1b`: the same with slices whose stages take turns."""

from __future__ import annotations

from collections.abc import Iterator

from pathways.passes.schedule.actions import Action
from pathways.passes.schedule.policies.one_forward_one_backward import one_forward_one_backward
from pathways.passes.schedule.policies.pipeline import Order, Pipeline, PolicyError


def interleaved(pipeline: Pipeline) -> Order:
    """1F1B over slices with several stages each, which take turns (Megatron-LM).

    With S slices of v stages, a slice does S microbatches with its first stage, the same with its second,
    and so on; backwards likewise from the last stage. Slice k starts with (v - 1) S + 2 (S - k - 1) forwards,
    then does forwards and backwards in turn. The idle time is that of 1F1B divided by v, for more transfers.
    """
    width, count = pipeline.width, len(pipeline.slices)
    if count == width:
        return one_forward_one_backward(pipeline)
    first_turn = pipeline.slices[:width]
    for stage, place in enumerate(pipeline.slices):
        if place != first_turn[stage % width] or len(set(first_turn)) < width or count % width != 0:
            raise PolicyError(
                "needs slices that take turns, each with equally many stages: "
                "use 1f1b or a schedule file for other pipelines"
            )
    if pipeline.microbatches % width != 0:
        raise PolicyError(
            f"needs a multiple of {width} microbatches, the number of slices, got {pipeline.microbatches}"
        )
    rounds = count // width
    total = rounds * pipeline.microbatches

    def actions(kind: str, position: int) -> Iterator[Action]:
        for n in range(total):
            group, inside = divmod(n, width * rounds)
            turn = inside // width if kind == "F" else rounds - 1 - inside // width
            yield Action(turn * width + position, kind, group * width + inside % width)

    orders: Order = [[] for _ in range(width)]
    for position, place in enumerate(first_turn):
        forwards = list(actions("F", position))
        if not pipeline.backward:
            orders[place] = forwards
            continue
        backwards = list(actions("B", position))
        ahead = min((rounds - 1) * width + 2 * (width - position - 1), total)
        pairs = zip(forwards[ahead:], backwards, strict=False)
        orders[place] = [
            *forwards[:ahead],
            *(action for pair in pairs for action in pair),
            *backwards[total - ahead :],
        ]
    return orders
