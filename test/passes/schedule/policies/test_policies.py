"""Policies give orders that can be met, with the idle time and memory that their papers promise."""

from __future__ import annotations

import dataclasses
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from works import most_live

from pathways.dialect.relations.graphs import topological_order
from pathways.passes.schedule.policies.actions import Action, ActionCycleError, start_times
from pathways.passes.schedule.policies.pipeline import Pipeline, PolicyError
from pathways.passes.schedule.policies.registry import BOUNDED, POLICIES, wants_halves

shapes = st.tuples(st.integers(1, 8), st.integers(1, 16))
"""Stages, one on each slice, and microbatches."""


@st.composite
def pipelines(draw) -> Pipeline:
    """Pipelines of any shape: slices own any stages, as long as each owns one."""
    slices = draw(st.integers(1, 4))
    extra = draw(st.lists(st.integers(0, slices - 1), max_size=4))
    owners = draw(st.permutations([*range(slices), *extra]))
    return Pipeline(tuple(owners), draw(st.integers(1, 9)), draw(st.booleans()))


def simulate(orders: list[list[Action]], stages: int) -> tuple[list[dict[Action, int]], int]:
    """Runs slices as processes in lockstep, an action a tick; returns when each ends what, and the last tick.

    Fails when nothing can run although something is left.
    """
    ends: list[dict[Action, int]] = [{} for _ in orders]
    clock = 0
    while any(len(end) < len(order) for end, order in zip(ends, orders, strict=True)):
        done = {action for end in ends for action in end}
        clock += 1
        for end, order in zip(ends, orders, strict=True):
            if len(end) == len(order):
                continue
            stage, kind, microbatch = order[len(end)]
            match kind:
                case "F":
                    needed = {("F", stage - 1)} if stage else set()
                case "W":
                    needed = {("I", stage)}
                case _:
                    needed = {("F", stage), *([(kind, stage + 1)] if stage + 1 < stages else [])}
            if all((s, k, microbatch) in done for k, s in needed):
                end[order[len(end)]] = clock
        assert len({action for end in ends for action in end}) > len(done), "the pipeline is stuck"
    return ends, clock


def idle(orders: list[list[Action]], stages: int) -> Fraction:
    """The part of its time that the busiest slice idles; all slices have equally many actions."""
    _, clock = simulate(orders, stages)
    return Fraction(clock - len(orders[0]), clock)


@pytest.mark.parametrize("policy", POLICIES)
@settings(deadline=None)
@given(pipeline=pipelines())
def test_policies_give_orders_that_can_be_met_or_refuse(policy: str, pipeline: Pipeline):
    try:
        orders = POLICIES[policy](pipeline)
    except PolicyError:
        return
    kinds = "F" + ("IW" if wants_halves(policy) else "B") * pipeline.backward
    for place, order in enumerate(orders):
        assert sorted(order) == sorted(
            Action(stage, kind, m)
            for stage in pipeline.stages_of(place)
            for kind in kinds
            for m in range(pipeline.microbatches)
        )
    simulate(orders, len(pipeline.slices))


@pytest.mark.parametrize("policy", ["gpipe", "1f1b", "interleaved-1f1b"])
@settings(deadline=None)
@given(shape=shapes, backward=st.booleans())
def test_policies_idle_as_little_as_their_papers_say(policy: str, shape: tuple[int, int], backward: bool):
    stages, microbatches = shape
    orders = POLICIES[policy](Pipeline(tuple(range(stages)), microbatches, backward))
    assert idle(orders, stages) == Fraction(stages - 1, microbatches + stages - 1)


@settings(deadline=None)
@given(st.integers(2, 5), st.integers(2, 4), st.integers(1, 4), st.booleans())
def test_interleaved_1f1b_divides_the_idle_time(width: int, rounds: int, groups: int, backward: bool):
    stages, microbatches = width * rounds, width * groups
    pipeline = Pipeline(tuple(range(width)) * rounds, microbatches, backward)
    orders = POLICIES["interleaved-1f1b"](pipeline)
    assert idle(orders, stages) == Fraction(width - 1, rounds * microbatches + width - 1)


@settings(deadline=None)
@given(shapes)
def test_gpipe_keeps_all_microbatches_alive(shape: tuple[int, int]):
    stages, microbatches = shape
    orders = POLICIES["gpipe"](Pipeline(tuple(range(stages)), microbatches))
    assert [most_live(order, k) for k, order in enumerate(orders)] == [microbatches] * stages


@settings(deadline=None)
@given(shapes)
def test_one_f_one_b_alternates_after_its_warm_up(shape: tuple[int, int]):
    stages, microbatches = shape
    orders = POLICIES["1f1b"](Pipeline(tuple(range(stages)), microbatches))
    for stage, order in enumerate(orders):
        warm_up = min(stages - stage, microbatches)
        steady = "BF" * (microbatches - warm_up)
        assert "".join(action.kind for action in order) == "F" * warm_up + steady + "B" * warm_up
        assert most_live(order, stage) == warm_up


@settings(deadline=None)
@given(pipelines())
def test_one_f_one_b_keeps_few_microbatches_alive(pipeline: Pipeline):
    stages = len(pipeline.slices)
    orders = POLICIES["1f1b"](pipeline)
    if pipeline.backward:
        for stage, place in enumerate(pipeline.slices):
            assert most_live(orders[place], stage) <= min(stages - stage, pipeline.microbatches)


@pytest.mark.parametrize("policy", BOUNDED)
@settings(deadline=None)
@given(pipeline=pipelines(), bound=st.integers(1, 4))
def test_policies_keep_to_max_live(policy: str, pipeline: Pipeline, bound: int):
    try:
        orders = POLICIES[policy](dataclasses.replace(pipeline, max_live=bound))
    except PolicyError:
        return
    simulate(orders, len(pipeline.slices))
    if pipeline.backward:
        for stage, place in enumerate(pipeline.slices):
            assert most_live(orders[place], stage) <= bound


Times = tuple[int, int, int]
"""Durations of F, I and W; the formulas of the papers hold where these are about equal."""


def spans(pipeline: Pipeline, orders: list[list[Action]], times: Times) -> list[tuple[int, int]]:
    """For each slice how long it takes from its first to its last action, and how long it works."""
    forward, first, second = times
    takes = {"F": forward, "I": first, "W": second, "B": first + second}
    end: dict[Action, int] = {}
    free = [0] * len(orders)
    begin: list[int] = []
    waits = {
        action: [*pipeline.needs(action), *row[max(n - 1, 0) : n]]
        for row in orders
        for n, action in enumerate(row)
    }
    for action in topological_order(waits):
        end[action] = max((end[other] for other in waits[action]), default=0) + takes[action.kind]
    for place, row in enumerate(orders):
        begin.append(end[row[0]] - takes[row[0].kind])
        free[place] = end[row[-1]]
    return [
        (free[place] - begin[place], sum(takes[action.kind] for action in row))
        for place, row in enumerate(orders)
    ]


def bubble(policy: str, pipeline: Pipeline, times: Times) -> int:
    """The longest time that a slice idles between its first and its last action."""
    orders = POLICIES[policy](pipeline)
    return max(span - work for span, work in spans(pipeline, orders, times))


@settings(deadline=None)
@given(shapes, st.sampled_from([(1, 1, 1), (10, 11, 9), (3, 3, 2)]))
def test_zero_bubble_leaves_the_bubbles_of_its_formulas(shape: tuple[int, int], times: Times):
    stages, more = shape
    pipeline = Pipeline(tuple(range(stages)), 2 * stages - 1 + more)
    forward, first, second = times
    assert bubble("1f1b", pipeline, times) == (stages - 1) * (forward + first + second)
    assert bubble("zb-h1", pipeline, times) == (stages - 1) * (forward + first - second)
    assert bubble("zb-h2", pipeline, times) == (stages - 1) * (forward + first - 2 * second)


@settings(deadline=None)
@given(st.integers(1, 8), st.integers(0, 16))
def test_zero_bubble_v_has_no_bubble(width: int, more: int):
    places = range(width)
    pipeline = Pipeline((*places, *reversed(places)), 2 * width - 1 + more)
    assert bubble("zb-v", pipeline, (1, 1, 1)) == 0
    for order in POLICIES["zb-v"](pipeline):
        assert most_live(order) <= 2 * width


@settings(deadline=None)
@given(st.integers(2, 8), st.integers(2, 4), st.integers(2, 4))
def test_interleaved_zb_has_almost_no_bubble(width: int, rounds: int, groups: int):
    pipeline = Pipeline(tuple(range(width)) * rounds, width * groups)
    assert bubble("interleaved-1f1b", pipeline, (1, 1, 1)) == (width - 1) * 3
    assert bubble("interleaved-zb", pipeline, (1, 1, 1)) == max(0, width - 4)
    alive = [most_live(order) for order in POLICIES["interleaved-zb"](pipeline)]
    assert alive == [(rounds + 1) * width - 1] * width


@settings(deadline=None)
@given(shapes)
def test_zero_bubble_keeps_as_much_alive_as_its_paper_says(shape: tuple[int, int]):
    stages, more = shape
    pipeline = Pipeline(tuple(range(stages)), 2 * stages - 1 + more)
    for policy, alive in (("zb-h1", stages), ("zb-h2", 2 * stages - 1)):
        orders = POLICIES[policy](pipeline)
        assert [most_live(order, k) for k, order in enumerate(orders)] == [alive] * stages


@settings(deadline=None)
@given(pipelines())
def test_start_times_are_those_of_a_run_in_lockstep(pipeline: Pipeline):
    orders = POLICIES["1f1b"](pipeline)
    needs = {action: pipeline.needs(action) for order in orders for action in order}
    ends, _ = simulate(orders, len(pipeline.slices))
    assert start_times(orders, needs) == {action: end - 1 for row in ends for action, end in row.items()}


def test_one_f_one_b_orders_four_stages():
    orders = POLICIES["1f1b"](Pipeline((0, 1, 2, 3), 4))
    assert [" ".join(map(str, order)) for order in orders] == [
        "0F0 0F1 0F2 0F3 0B0 0B1 0B2 0B3",
        "1F0 1F1 1F2 1B0 1F3 1B1 1B2 1B3",
        "2F0 2F1 2B0 2F2 2B1 2F3 2B2 2B3",
        "3F0 3B0 3F1 3B1 3F2 3B2 3F3 3B3",
    ]


def test_interleaved_1f1b_orders_two_slices_of_two_stages():
    orders = POLICIES["interleaved-1f1b"](Pipeline((0, 1, 0, 1), 4))
    assert [" ".join(map(str, order)) for order in orders] == [
        "0F0 0F1 2F0 2F1 0F2 2B0 0F3 2B1 2F2 0B0 2F3 0B1 2B2 2B3 0B2 0B3",
        "1F0 1F1 3F0 3B0 3F1 3B1 1F2 1B0 1F3 1B1 3F2 3B2 3F3 3B3 1B2 1B3",
    ]


@pytest.mark.parametrize(
    ("policy", "slices", "microbatches", "message"),
    [
        ("zb-h1", (0, 1, 0, 1), 4, "to which no microbatch comes back for another stage: use interl"),
        ("zb-v", (0, 1, 0, 1), 4, "needs two stages on each slice in a V"),
        ("zb-v", (0, 1, 1, 0), 2, "needs at least 3 microbatches for 2 slices, got 2: use 1f1b"),
        ("interleaved-zb", (0, 1, 1, 0), 2, "needs slices in round-robin order"),
        ("looped-bfs", (0, 1, 1, 0), 2, "needs slices in round-robin order"),
        ("zb-h2", (0, 1, 2), 4, "needs at least 5 microbatches for a chain of 3 stages, got 4: use zb-h1"),
    ],
)
def test_zero_bubble_names_its_needs(policy: str, slices: tuple[int, ...], microbatches: int, message: str):
    with pytest.raises(PolicyError, match=message):
        POLICIES[policy](Pipeline(slices, microbatches))


@pytest.mark.parametrize(
    ("slices", "microbatches", "message"),
    [
        ((0, 1, 0, 1), 3, "needs a multiple of 2 microbatches, the number of slices, got 3"),
        ((0, 1, 2, 1, 0), 3, "needs slices in round-robin order"),
        ((0, 1, 0), 2, "needs slices in round-robin order"),
        ((0, 1, 1, 0), 2, "needs slices in round-robin order"),
    ],
)
def test_interleaved_1f1b_names_its_needs(slices: tuple[int, ...], microbatches: int, message: str):
    with pytest.raises(PolicyError, match=message):
        POLICIES["interleaved-1f1b"](Pipeline(slices, microbatches))


def test_start_times_name_a_cycle():
    first, second = Action(0, "F", 0), Action(0, "F", 1)
    on_next = [Action(1, "F", 0), Action(1, "F", 1)]
    needs = {first: [on_next[1]], second: [], on_next[0]: [first], on_next[1]: []}
    with pytest.raises(ActionCycleError) as caught:
        start_times([[first, second], on_next], needs)
    assert caught.value.cycle == [(first, True), (on_next[1], False), (on_next[0], True)]
