"""Policies: which order of actions each slice of a pipeline gets, from its shape alone.

References, by the names that the docstrings use:

- GPipe: Huang et al., GPipe: Efficient Training of Giant Neural Networks using Pipeline Parallelism, 2019.
- PipeDream-Flush: Narayanan et al., Memory-Efficient Pipeline-Parallel DNN Training, 2021.
- Megatron-LM: Narayanan et al., Efficient Large-Scale Language Model Training on GPU Clusters Using
  Megatron-LM, 2021.
- Breadth-first: Lamy-Poirier, Breadth-First Pipeline Parallelism, 2023.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator

from pathways.passes.schedule.actions import Action

POLICIES = ("program", "gpipe", "1f1b", "interleaved-1f1b", "eager")
"""The names of all policies; `program` keeps the order of the program and makes no actions."""

Order = list[list[Action]]


class PolicyError(ValueError):
    """A policy does not fit a pipeline; the message says why."""


@dataclasses.dataclass(frozen=True)
class Pipeline:
    """The shape of a pipeline.

    The forward of stage k needs that of stage k - 1, and its backward needs its forward and the backward of
    stage k + 1. Each action is taken to last one unit of time.

    Attributes:
      slices: the slice of each stage, counted from 0 without gaps; one slice may have several stages.
      microbatches: how many there are.
      backward: whether there is a backward at all.
    """

    slices: tuple[int, ...]
    microbatches: int
    backward: bool = True

    @property
    def width(self) -> int:
        """The number of slices."""
        return max(self.slices) + 1

    def stages_of(self, place: int) -> list[int]:
        """The stages of a slice, in order."""
        return [stage for stage, owner in enumerate(self.slices) if owner == place]

    def needs(self, action: Action) -> list[Action]:
        """The actions whose results an action reads."""
        stage, kind, microbatch = action
        if kind == "F":
            return [Action(stage - 1, "F", microbatch)] if stage > 0 else []
        later = [Action(stage + 1, "B", microbatch)] if stage + 1 < len(self.slices) else []
        return [Action(stage, "F", microbatch), *later]


def orders_of(policy: str, pipeline: Pipeline, max_live: int = 0) -> Order:
    """The actions of each slice in the order that a policy gives them.

    The orders can always be met: no slice waits for another one that waits for it.

    Args:
      policy: one of `POLICIES` other than `program`.
      pipeline: the shape of the pipeline.
      max_live: for `eager`, on how many microbatches each stage may work at once, from their forward to their
        backward; 0 for any number.

    Raises:
      PolicyError: when the policy does not fit the pipeline.
    """
    match policy:
        case "gpipe":
            return _gpipe(pipeline)
        case "1f1b":
            return _one_forward_one_backward(pipeline)
        case "interleaved-1f1b":
            return _interleaved(pipeline)
        case "eager":
            return _eager(pipeline, max_live)
    raise AssertionError(policy)


def _gpipe(pipeline: Pipeline) -> Order:
    """All forwards, then all backwards (GPipe).

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


def _one_forward_one_backward(pipeline: Pipeline) -> Order:
    """A backward as soon as there is one, else a forward (PipeDream-Flush).

    Stage k of S works on at most S - k microbatches at once, the fewest that keep all slices busy. With one
    stage on each slice, stage k starts with S - k forwards, then does backwards and forwards in turn.
    """
    stages = len(pipeline.slices)
    return _greedy(pipeline, lambda stage: stages - stage, lambda a: (a.kind == "F", a.microbatch, -a.stage))


def _eager(pipeline: Pipeline, max_live: int) -> Order:
    """What is furthest from the end of the step comes first: list scheduling by the critical path.

    Forwards are further from the end than backwards, so that without a bound this needs as much memory as
    `gpipe`.
    """
    stages = len(pipeline.slices)
    limit = max_live or pipeline.microbatches

    def to_the_end(action: Action) -> int:
        return 2 * stages - action.stage if action.kind == "F" else action.stage + 1

    return _greedy(pipeline, lambda _: limit, lambda a: (-to_the_end(a), a.microbatch))


def _greedy(
    pipeline: Pipeline, limit: Callable[[int], int], rank: Callable[[Action], tuple[int, ...]]
) -> Order:
    """Runs a pipeline step by step; each slice takes the action of least rank among those that are ready.

    A stage starts a forward only while it works on fewer microbatches than `limit` says, which is at least 1.
    It cannot get stuck: microbatches enter a stage in order, so nothing holds back the oldest one that is not
    done.
    """
    stages = range(len(pipeline.slices))
    done: set[Action] = set()
    next_forward = [0] * len(stages)
    next_backward = [0 if pipeline.backward else pipeline.microbatches] * len(stages)

    def ready(stage: int) -> Iterator[Action]:
        live = next_forward[stage] - next_backward[stage] if pipeline.backward else 0
        candidates = [Action(stage, "B", next_backward[stage])]
        if live < limit(stage):
            candidates.append(Action(stage, "F", next_forward[stage]))
        for action in candidates:
            if action.microbatch < pipeline.microbatches and done.issuperset(pipeline.needs(action)):
                yield action

    stages_of = [pipeline.stages_of(place) for place in range(pipeline.width)]
    orders: Order = [[] for _ in stages_of]
    while min(*next_forward, *next_backward) < pipeline.microbatches:
        started = []
        for place, order in enumerate(orders):
            choice = (action for stage in stages_of[place] for action in ready(stage))
            action = min(choice, key=rank, default=None)
            if action is not None:
                order.append(action)
                started.append(action)
        for action in started:
            done.add(action)
            (next_forward if action.kind == "F" else next_backward)[action.stage] += 1
    return orders


def _interleaved(pipeline: Pipeline) -> Order:
    """1F1B over slices with several stages each, which take turns (Megatron-LM).

    With S slices of v stages, a slice does S microbatches with its first stage, the same with its second,
    and so on; backwards likewise from the last stage. Slice k starts with (v - 1) S + 2 (S - k - 1) forwards,
    then does forwards and backwards in turn. The idle time is that of 1F1B divided by v, for more transfers.
    """
    width, count = pipeline.width, len(pipeline.slices)
    if count == width:
        return _one_forward_one_backward(pipeline)
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
