"""`interleaved-1f1b` and `interleaved-zb`: 1F1B with several stages on each slice, in rounds."""

from __future__ import annotations

from collections.abc import Iterator

from pathways.passes.schedule.policies.actions import Action
from pathways.passes.schedule.policies.chains import stages_to_loss
from pathways.passes.schedule.policies.greedy import one_forward_one_backward
from pathways.passes.schedule.policies.pipeline import Order, Pipeline, PolicyError
from pathways.passes.schedule.policies.zero_bubble import zb_h2


def interleaved(pipeline: Pipeline) -> Order:
    """Returns 1F1B over slices with several stages each, in rounds (Megatron-LM).

    With S slices of v stages, a slice does S microbatches with its first stage, the same with its second,
    and so on; backwards likewise from the last stage. A slice from which the longest chain within a round
    has n slices, S - k for slice k of a line, starts with (v - 1) S + 2 (n - 1) forwards, then does
    forwards and backwards in turn. The idle time is that of 1F1B divided by v, for more transfers.
    """
    if len(pipeline.slices) == pipeline.width:
        return one_forward_one_backward(pipeline)
    orders: Order = [[] for _ in range(pipeline.width)]
    to_end = _to_end_of_round(pipeline)
    for position, place in enumerate(_round_of_slices(pipeline)):
        forwards = list(_actions(pipeline, "F", position))
        if not pipeline.backward:
            orders[place] = forwards
            continue
        backwards = list(_actions(pipeline, "B", position))
        ahead = _ahead(pipeline, to_end[position])
        pairs = zip(forwards[ahead:], backwards, strict=False)
        orders[place] = [
            *forwards[:ahead],
            *(action for pair in pairs for action in pair),
            *backwards[len(forwards) - ahead :],
        ]
    return orders


def interleaved_zb(pipeline: Pipeline) -> Order:
    """Returns the same with weights' halves in its bubbles, as `zb-h2` has them (Zero bubble).

    Slice k keeps the weights' halves of 2 k actions pending, so that (v + 1) S - 1 stages of microbatches are
    alive on every slice, as on the first slice without halves. With one stage on each slice it is `zb-h2`.
    """
    if len(pipeline.slices) == pipeline.width:
        return zb_h2(pipeline)
    orders: Order = [[] for _ in range(pipeline.width)]
    to_end = _to_end_of_round(pipeline)
    for position, place in enumerate(_round_of_slices(pipeline)):
        forwards = list(_actions(pipeline, "F", position))
        ahead, pending = _ahead(pipeline, to_end[position]), 2 * (max(to_end) - to_end[position])
        order = forwards[: ahead if pipeline.backward else len(forwards)]
        firsts = list(_actions(pipeline, "I", position)) if pipeline.backward else []
        seconds = [action._replace(kind="W") for action in firsts]
        for n, first in enumerate(firsts):
            order += [*forwards[n + ahead : n + ahead + 1], first]
            if n >= pending:
                order.append(seconds[n - pending])
        orders[place] = [*order, *seconds[max(len(seconds) - pending, 0) :]]
    return orders


def _round_of_slices(pipeline: Pipeline) -> tuple[int, ...]:
    """Returns the slices in the order of a round."""
    width = pipeline.width
    first_round = pipeline.round_of_slices()
    if pipeline.microbatches % width != 0:
        raise PolicyError(
            f"needs a multiple of {width} microbatches, the number of slices, got {pipeline.microbatches}"
        )
    return first_round


def _to_end_of_round(pipeline: Pipeline) -> list[int]:
    """Returns the length of the longest chain from each position within a round, itself included."""
    width = pipeline.width
    read: dict[int, set[int]] = {position: set() for position in range(width)}
    for stage, stages in enumerate(pipeline.reads):
        round_, position = divmod(stage, width)
        read[position] |= {other % width for other in stages if other // width == round_}
    chain = stages_to_loss({position: frozenset(later) for position, later in read.items()})
    return [chain[position] for position in range(width)]


def _ahead(pipeline: Pipeline, to_end: int) -> int:
    """Returns the number of forwards with which a slice starts."""
    width, count = pipeline.width, len(pipeline.slices)
    return min(count - width + 2 * (to_end - 1), count // width * pipeline.microbatches)


def _actions(pipeline: Pipeline, kind: str, position: int) -> Iterator[Action]:
    """Yields the actions of one kind of a slice."""
    width = pipeline.width
    rounds = len(pipeline.slices) // width
    # As many microbatches as there are slices go through all rounds before the next ones begin.
    for n in range(rounds * pipeline.microbatches):
        group, inside = divmod(n, width * rounds)
        round_ = inside // width if kind == "F" else rounds - 1 - inside // width
        yield Action(round_ * width + position, kind, group * width + inside % width)
