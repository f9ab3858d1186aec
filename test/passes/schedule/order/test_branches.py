"""Pipelines with branches, random trees and graphs of stages, keep what their longest chains need."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Iterator

import pytest
from works import most_live, needs_of, work_of

from pathways.passes.schedule.order.ordering import Costs, orders_by
from pathways.passes.schedule.policies.actions import Action
from pathways.passes.schedule.policies.chains import stages_read, stages_to_loss
from pathways.passes.schedule.policies.pipeline import Order, Pipeline, PolicyError, step_time
from pathways.passes.schedule.policies.registry import POLICIES, wants_halves
from pathways.passes.schedule.policies.request import ScheduleRequest

SEEDS = range(200)

TOWERS = (*(frozenset(), frozenset({0}), frozenset(), frozenset({2}), frozenset({3})), frozenset({1, 4}))
"""Two towers of two and three stages, and what joins them."""


def tree(rng: random.Random, stages: int) -> tuple[frozenset[int], ...]:
    """Each stage but the last is read by one later stage: branches that join."""
    reader = [rng.randint(stage + 1, stages - 1) for stage in range(stages - 1)]
    return tuple(frozenset(k for k, other in enumerate(reader) if other == stage) for stage in range(stages))


def graph(rng: random.Random, stages: int) -> tuple[frozenset[int], ...]:
    """Each stage reads some earlier ones: skips, several inputs, several losses."""
    return tuple(frozenset(rng.sample(range(k), rng.randint(0, min(k, 3)))) for k in range(stages))


def drawn(seed: int, *, shared: bool = False) -> Pipeline:
    """A pipeline on a slice for each stage, or on fewer."""
    rng = random.Random(f"{seed}, {shared}")
    stages = rng.randint(2, 6)
    reads = rng.choice([tree, graph])(rng, stages)
    width = rng.randint(1, stages - 1) if shared else stages
    owners = [*range(width), *(rng.randrange(width) for _ in range(stages - width))]
    rng.shuffle(owners)
    return Pipeline(tuple(owners), 2 * stages - 1 + rng.randint(0, 3), reads=reads)


def in_a_row(pipeline: Pipeline) -> Pipeline:
    """The same stages as if each read the one in front of it: they keep S - k microbatches."""
    return dataclasses.replace(pipeline, reads=())


def alive_by_stage(pipeline: Pipeline, orders: Order) -> list[int]:
    """Returns the most microbatches that each stage has in flight at once."""
    return [most_live(orders[place], stage) for stage, place in enumerate(pipeline.slices)]


BOUNDS: dict[str, Callable[[Pipeline], list[int]]] = {
    "1f1b": lambda p: p.to_loss,
    "zb-h1": lambda p: [p.longest] * len(p.slices),
    "zb-h2": lambda p: [2 * p.longest - 1] * len(p.slices),
}
"""The most that a stage keeps by these policies."""


def ordered(policy: str, pipelines: Iterator[Pipeline]) -> Iterator[tuple[Pipeline, Order]]:
    """The pipelines that a policy accepts, with its orders, which have every action once."""
    kinds = "FIW" if wants_halves(policy) else "FB"
    taken = 0
    for pipeline in pipelines:
        try:
            orders = POLICIES[policy](pipeline)
        except PolicyError:
            continue
        taken += 1
        every = range(pipeline.microbatches)
        assert sorted(action for row in orders for action in row) == sorted(
            Action(stage, kind, m) for stage in range(len(pipeline.slices)) for kind in kinds for m in every
        )
        yield pipeline, orders
    assert taken > 20


@pytest.mark.parametrize("policy", BOUNDS)
def test_branches_on_own_slices_take_no_longer_than_a_row_and_keep_less(policy: str):
    for pipeline, orders in ordered(policy, map(drawn, SEEDS)):
        alive, bound = alive_by_stage(pipeline, orders), BOUNDS[policy](pipeline)
        assert all(kept <= most for kept, most in zip(alive, bound, strict=True))
        row = in_a_row(pipeline)
        assert all(most <= before for most, before in zip(bound, BOUNDS[policy](row), strict=True))
        assert step_time(pipeline, orders) <= step_time(pipeline, POLICIES[policy](row))


@pytest.mark.parametrize("policy", ["zb-h1", "zb-h2"])
def test_branches_in_halves_on_shared_slices_keep_to_the_bound(policy: str):
    for pipeline, orders in ordered(policy, (drawn(seed, shared=True) for seed in SEEDS)):
        step_time(pipeline, orders)  # can be met
        alive = alive_by_stage(pipeline, orders)
        assert all(kept <= most for kept, most in zip(alive, BOUNDS[policy](pipeline), strict=True))


def test_branches_on_shared_slices_take_no_longer_than_a_row_and_mostly_keep_less():
    beyond = 0
    for pipeline, orders in ordered("1f1b", (drawn(seed, shared=True) for seed in SEEDS)):
        row = in_a_row(pipeline)
        assert step_time(pipeline, orders) <= step_time(pipeline, POLICIES["1f1b"](row))
        kept = alive_by_stage(pipeline, orders)
        assert all(now <= most for now, most in zip(kept, row.to_loss, strict=True))
        beyond += any(now > most for now, most in zip(kept, pipeline.to_loss, strict=True))
    assert beyond < len(SEEDS) // 8


@pytest.mark.parametrize("policy", ["interleaved-1f1b", "interleaved-zb"])
def test_branches_interleaved_take_no_longer_than_a_row(policy: str):
    for seed in SEEDS:
        rng = random.Random(seed)
        width, rounds = rng.randint(2, 4), 2
        reads = rng.choice([tree, graph])(rng, width * rounds)
        pipeline = Pipeline((*range(width),) * rounds, width * rng.randint(1, 3), reads=reads)
        orders, before = POLICIES[policy](pipeline), POLICIES[policy](in_a_row(pipeline))
        assert step_time(pipeline, orders) <= step_time(pipeline, before)
        pairs = zip(alive_by_stage(pipeline, orders), alive_by_stage(pipeline, before), strict=True)
        assert all(kept <= most for kept, most in pairs)


def test_branches_of_two_towers_keep_the_need_of_their_own_stages():
    towers = Pipeline((0, 1, 2, 3, 4, 5), 8, reads=TOWERS)
    orders = POLICIES["1f1b"](towers)
    assert alive_by_stage(towers, orders) == [3, 2, 4, 3, 2, 1]
    assert step_time(towers, orders) == 33
    assert step_time(towers, POLICIES["zb-h1"](towers)) == 27
    assert alive_by_stage(towers, POLICIES["zb-h2"](towers)) == [7] * 6


@pytest.mark.parametrize("slices", [(0, 1, 0, 1, 2, 3), (0, 1, 1, 0, 2, 3)])
def test_branches_in_halves_may_share_a_slice(slices: tuple[int, ...]):
    towers = Pipeline(slices, 8, reads=TOWERS)
    orders = POLICIES["zb-h1"](towers)
    assert alive_by_stage(towers, orders) == [4] * 6
    # Two stages work for 48 units.
    assert step_time(towers, orders) in (48, 49)
    assert step_time(towers, POLICIES["1f1b"](towers)) > 50


@pytest.mark.parametrize(
    ("slices", "fitting"),
    [((0, 1, 0, 1), "use interleaved-zb"), ((0, 1, 1, 0), "use zb-v"), ((0, 1, 2, 0), "use 1f1b or search")],
)
@pytest.mark.parametrize("policy", ["zb-h1", "zb-h2"])
def test_branches_in_halves_refuse_a_slice_visited_twice(policy: str, slices: tuple[int, ...], fitting: str):
    with pytest.raises(PolicyError, match=f"to which no microbatch comes back for another stage: {fitting}"):
        POLICIES[policy](Pipeline(slices, 8))


def test_branches_by_zb_h2_need_microbatches_for_the_longest_chain():
    towers = Pipeline((0, 1, 2, 3, 4, 5), 6, reads=TOWERS)
    with pytest.raises(PolicyError, match="needs at least 7 microbatches for a chain of 4 stages, got 6"):
        POLICIES["zb-h2"](towers)
    POLICIES["zb-h2"](dataclasses.replace(towers, microbatches=7))


def test_stages_read_follows_from_needs_of_actions():
    for pipeline in map(drawn, SEEDS):
        read = stages_read(needs_of(pipeline))
        assert [read[stage] for stage in sorted(read)] == list(pipeline.reads)


def test_stages_to_loss_ends_chains_at_stages_without_forward():
    # Of the last stage, only what its backward computes is needed.
    needs = needs_of(Pipeline((0, 1, 2), 2))
    needs = {
        action: {Action(1, "F", action.microbatch)} if action[:2] == (2, "B") else before
        for action, before in needs.items()
        if action[:2] != (2, "F")
    }
    assert stages_to_loss(stages_read(needs)) == {0: 3, 1: 2, 2: 1}


def test_stages_to_loss_ignores_needs_of_other_microbatches():
    first, second = Action(0, "F", 0), Action(1, "F", 0)
    needs = {first: set(), second: set(), Action(0, "F", 1): {second}, Action(1, "F", 1): {first}}
    assert stages_to_loss(stages_read(needs)) == {0: 1, 1: 1}


@pytest.mark.parametrize("policy", ["1f1b", "zb-h1", "zb-h2", "eager"])
def test_branches_with_times_keep_to_the_longest_chain(policy: str):
    towers = Pipeline((0, 1, 2, 3, 4, 5), 8, reads=TOWERS)
    work = work_of(towers, wants_halves(policy))
    # Image stages take three times as long.
    durations = {a: (3.0 if a.stage < 2 else 1.0) * (1 + (a.kind == "B")) for a in work.needs}
    orders = [list(row) for row in orders_by(ScheduleRequest(policy), work, Costs(durations), str)]
    if policy in BOUNDS:
        pairs = zip(alive_by_stage(towers, orders), BOUNDS[policy](towers), strict=True)
        assert all(kept <= most for kept, most in pairs)
