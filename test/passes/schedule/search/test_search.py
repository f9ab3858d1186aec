"""A search gives orders that can be met, keep to the limits, and are no slower than any policy."""

from __future__ import annotations

import itertools
import random
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from examples import examples
from pathways.passes.schedule.order.ordering import Costs, orders_by
from pathways.passes.schedule.policies.actions import Action
from pathways.passes.schedule.policies.pipeline import PolicyError
from pathways.passes.schedule.policies.registry import NAMES, POLICIES, PROGRAM
from pathways.passes.schedule.policies.request import ScheduleRequest, read_request
from pathways.passes.schedule.policies.schedule_file import Work, read_schedules, write_schedules
from pathways.passes.schedule.search.exact import NoSolverError
from pathways.passes.schedule.search.replay import replay
from pathways.passes.schedule.search.scheduling_problem import Held, Limit, SearchProblem, counted
from pathways.passes.schedule.search.search import Budget, search

Row = list[Action]


def work_of_line(owners: tuple[int, ...], microbatches: int, halves: bool, trained: int = 0) -> Work:
    """Stages one behind the other; the first one that is trained has no half for inputs."""
    needs: dict[Action, set[Action]] = {}
    stages = len(owners)
    for m in range(microbatches):
        for k in range(stages):
            needs[Action(k, "F", m)] = {Action(k - 1, "F", m)} if k else set()
            if k < trained:
                continue
            first = "I" if halves and k > trained else "W" if halves else "B"
            waits = {Action(k, "F", m)}
            if k + 1 < stages:
                waits.add(Action(k + 1, "I" if halves else "B", m))
            needs[Action(k, first, m)] = waits
            if first == "I":
                needs[Action(k, "W", m)] = {Action(k, "I", m), Action(k, "F", m)}
    rows = [f"s{n}" for n in range(max(owners) + 1)]
    return Work(rows, {k: rows[owner] for k, owner in enumerate(owners)}, microbatches, needs)


@st.composite
def works(draw) -> Work:
    slices = draw(st.integers(1, 4))
    owners = [*range(slices), *draw(st.lists(st.integers(0, slices - 1), max_size=3))]
    owners = draw(st.permutations(owners))
    trained = draw(st.sampled_from([0, 0, 1, len(owners)]))
    return work_of_line(tuple(owners), draw(st.integers(1, 6)), draw(st.booleans()), trained)


def step_time(
    orders: list[Row],
    work: Work,
    durations: dict[Action, float],
    delays: dict[tuple[Action, Action], float] | None = None,
) -> float:
    """Runs slices as processes, one action at a time; fails when they are stuck."""
    delays = delays or {}
    end: dict[Action, float] = {}
    at, free = [0] * len(orders), [0.0] * len(orders)
    while len(end) < len(work.needs):
        before = len(end)
        for n, row in enumerate(orders):
            while at[n] < len(row) and work.needs[row[at[n]]] <= end.keys():
                action = row[at[n]]
                start = max(
                    [free[n], *(end[need] + delays.get((need, action), 0.0) for need in work.needs[action])]
                )
                free[n] = end[action] = start + durations[action]
                at[n] += 1
        assert len(end) > before, "the pipeline is stuck"
    assert at == [len(row) for row in orders]
    return max(end.values(), default=0.0)


def most_live(row: Row, stage: int, work: Work) -> int:
    """The most microbatches that a stage has begun and not ended."""
    live = most = 0
    for action in row:
        if action.stage != stage:
            continue
        last = next((k for k in "WBI" if action._replace(kind=k) in work.needs), None)
        if last is not None and action.kind == "F":
            live += 1
            most = max(most, live)
        if action.kind == last:
            live -= 1
    return most


def some_durations(work: Work, seed: int) -> dict[Action, float]:
    rng = random.Random(seed)
    kinds = sorted({action[:2] for action in work.needs})
    takes = {kind: rng.choice([0.0, 1.0, rng.uniform(0.5, 2.0), rng.uniform(0.5, 2.0)]) for kind in kinds}
    return {action: takes[action[:2]] for action in work.needs}


def over_links(work: Work, takes: float) -> dict[tuple[Action, Action], float]:
    """The time that values take from slice to slice."""
    return {
        (need, action): takes
        for action, needs in work.needs.items()
        for need in needs
        if work.slices[need.stage] != work.slices[action.stage]
    }


def ignore(_: str) -> None:
    pass


@settings(max_examples=examples(80), deadline=None)
@given(works(), st.integers(0, 99), st.sampled_from([0.3, 1.0, 7.0]), st.integers(0, 3))
def test_search_is_no_slower_than_any_policy_over_links(work: Work, seed: int, takes: float, max_live: int):
    durations, delays = some_durations(work, seed), over_links(work, takes)
    costs = Costs(durations, delays=delays)
    times = {}
    for policy in (*POLICIES, "search"):
        options = {"iterations": 60, "seed": seed} if policy == "search" else {}
        try:
            orders = orders_by(ScheduleRequest(policy, max_live=max_live, **options), work, costs, ignore)
        except PolicyError:
            continue
        times[policy] = step_time([list(row) for row in orders], work, durations, delays)
    place = {stage: work.rows.index(name) for stage, name in work.slices.items()}
    problem = SearchProblem(place, work.needs, durations, counted(work.needs, max_live), delays)
    if "search" in times:
        assert problem.lower_bound() <= times["search"] * (1 + 1e-9)
        assert times["search"] <= min(times.values()) * (1 + 1e-9)


@settings(deadline=None, max_examples=40)
@given(works(), st.integers(0, 99))
def test_search_breaks_ties_by_units(work: Work, seed: int):
    """Stages that do little take next to nothing by their operations, and one unit as all others do."""
    durations = {a: d if a.stage == 0 else 0.0 for a, d in some_durations(work, seed).items()}
    units = dict.fromkeys(work.needs, 1.0)
    costs = Costs(durations, ties=units)
    times = {}
    for policy in (*POLICIES, "search"):
        options = {"iterations": 20, "seed": seed} if policy == "search" else {}
        try:
            orders = orders_by(ScheduleRequest(policy, **options), work, costs, ignore)
        except PolicyError:
            continue
        rows = [list(row) for row in orders]
        times[policy] = round(step_time(rows, work, durations), 6), step_time(rows, work, units)
    assert times["search"] <= min(times.values())


def every_order(row: list[int], problem: SearchProblem) -> list[list[int]]:
    """All orders of a slice in which microbatches stay in order."""
    letters = [problem.actions[n][:2] for n in row]
    orders: list[list[int]] = []
    for word in set(itertools.permutations(letters)):
        queues = {letter: iter(numbers) for letter, numbers in problem.letters.items()}
        orders.append([next(queues[letter]) for letter in word])
    return orders


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 999), st.sampled_from([(0, 1), (0, 1, 1), (0, 1, 0)]), st.integers(0, 3))
def test_search_lower_bound_holds_for_every_order(seed: int, owners: tuple[int, ...], max_live: int):
    """All orders of a pipeline that is small enough; at times one of them is as fast as the bound."""
    work = work_of_line(owners, 3 if owners == (0, 1) else 1, halves=False)
    durations, delays = some_durations(work, seed), over_links(work, 0.4 * (seed % 3))
    place = {stage: work.rows.index(name) for stage, name in work.slices.items()}
    problem = SearchProblem(place, work.needs, durations, counted(work.needs, max_live), delays)
    best = min(
        run.step_time
        for orders in itertools.product(*(every_order(row, problem) for row in problem.rows))
        if not any(map(problem.broken, orders)) and (run := replay(problem, orders)) is not None
    )
    assert problem.lower_bound() <= best * (1 + 1e-9)


def test_search_lower_bound_knows_limits_on_live_microbatches():
    """Four stages and two microbatches at once: every third one begins when the first has come back."""
    work = work_of_line((0, 1, 2, 3), 6, halves=False)
    durations = dict.fromkeys(work.needs, 1.0)
    place = dict(enumerate(range(4)))
    problem = SearchProblem(place, work.needs, durations, counted(work.needs, 2))
    assert problem.lower_bound() == 26
    assert SearchProblem(place, work.needs, durations).lower_bound() == 18


def test_search_puts_forwards_further_ahead_over_slow_links():
    """Two stages: at once, one forward is ahead of its backward; a link that takes longer wants more."""
    work = work_of_line((0, 1), 8, halves=False)
    durations = dict.fromkeys(work.needs, 1.0)
    request = ScheduleRequest("search", iterations=100)
    for takes, most in ((0.0, 2), (2.0, 4)):
        delays = over_links(work, takes)
        orders = orders_by(request, work, Costs(durations, delays=delays), ignore)
        assert most_live(list(orders[0]), 0, work) == most
        assert step_time([list(row) for row in orders], work, durations, delays) <= 18 + 2 * takes


@settings(max_examples=examples(80), deadline=None)
@given(works(), st.integers(0, 99), st.integers(0, 4), st.integers(0, 3))
def test_search_keeps_to_limits_and_is_no_slower_than_any_policy(
    work: Work, seed: int, max_live: int, max_pending: int
):
    durations = some_durations(work, seed)
    times: dict[str, float] = {}
    for policy in (*POLICIES, "search"):
        options = {"iterations": 60, "seed": seed} if policy == "search" else {}
        request = ScheduleRequest(policy, max_live=max_live, max_pending=max_pending, **options)
        try:
            orders = [list(row) for row in orders_by(request, work, Costs(durations), ignore)]
        except PolicyError:
            # With several stages on a slice a limit may leave no way out: a search alone tries them all.
            assert policy != "search" or max_live
            continue
        times[policy] = step_time(orders, work, durations)
        assert sorted(itertools.chain(*orders)) == sorted(work.needs)
        for stage, slice in work.slices.items():
            live = most_live(orders[work.rows.index(slice)], stage, work)
            assert not max_live or live <= max_live
        # What is written is read again.
        assert read_schedules(write_schedules({"l": (orders, work.needs)}), {"l": work}) == {"l": orders}
    if "search" in times:
        assert all(times["search"] <= time * (1 + 1e-9) for time in times.values())


@settings(deadline=None)
@given(works(), st.integers(0, 99))
def test_search_finds_nothing_below_its_lower_bound(work: Work, seed: int):
    durations = some_durations(work, seed)
    place = {stage: work.rows.index(slice) for stage, slice in work.slices.items()}
    problem = SearchProblem(place, work.needs, durations)
    found = search(problem, {}, Budget(iterations=40))
    assert found.step_time >= problem.lower_bound() * (1 - 1e-9)
    assert found.step_time == pytest.approx(step_time(problem.named(found.orders), work, durations))


@settings(deadline=None, max_examples=50)
@given(works(), st.integers(0, 99), st.integers(1, 40))
def test_search_keeps_to_limits_on_bytes(work: Work, seed: int, most: int):
    """Each forward holds some bytes until two actions have read them, whichever comes last."""
    rng = random.Random(seed)
    held: dict[str, list[Held]] = {}
    for action in work.needs:
        last = [action._replace(kind=k) for k in "IWB" if action._replace(kind=k) in work.needs]
        if action.kind == "F" and last:
            held.setdefault(work.slices[action.stage], []).append(
                Held(rng.randint(1, 8), action, tuple(last))
            )
    costs = Costs(some_durations(work, seed), [Limit("bytes", most, values) for values in held.values()])
    try:
        orders = orders_by(read_request("search(iterations=40)"), work, costs, ignore)
    except PolicyError:
        # What one microbatch holds is more.
        assert most < max(h.size for values in held.values() for h in values) * len(work.slices)
        return
    for row in orders:
        position = {action: n for n, action in enumerate(row)}
        spans = [
            (position[h.first], max(position[a] for a in h.last), h.size)
            for values in held.values()
            for h in values
            if h.first in position
        ]
        for n in range(len(row)):
            assert sum(size for first, last, size in spans if first <= n <= last) <= most


def test_search_is_determined_by_seed_and_iterations():
    work = work_of_line((0, 1, 2, 3), 8, True)
    durations = some_durations(work, 5)
    request = read_request("search(max-live=3, iterations=200, seed=7)")
    first, again = (orders_by(request, work, Costs(durations), ignore) for _ in range(2))
    assert first == again


def test_search_ends_in_time():
    """The clock goes on by a second at each look; without it, there would be thousands of steps."""
    work = work_of_line((0, 1, 2, 3), 8, True)
    problem = SearchProblem({k: k for k in range(4)}, work.needs, some_durations(work, 5))
    clock = itertools.count()
    found = search(problem, {}, Budget(iterations=10**6, seconds=5.0), lambda: float(next(clock)))
    assert found.steps <= 5


def test_search_beats_all_policies():
    """The second of three slices has little to do forward and much for its weights."""
    work = work_of_line((0, 1, 2), 6, True)
    takes = {(0, "F"): 2.0, (1, "W"): 3.0, (2, "I"): 2.0}
    durations = {action: takes.get(action[:2], 1.0) for action in work.needs}
    remarks: list[str] = []
    orders = orders_by(read_request("search(max-live=3)"), work, Costs(durations), remarks.append)
    (remark,) = remarks
    assert "faster than" in remark
    assert "above the lower bound" in remark
    named = [
        step_time([*map(list, by)], work, durations)
        for policy in ("1f1b", "zb-h1")
        for by in [orders_by(ScheduleRequest(policy, max_live=3), work, Costs(durations), ignore)]
    ]
    assert step_time([*map(list, orders)], work, durations) <= min(named)


def test_orders_by_times_differ_from_orders_by_units():
    """A first stage that takes long leaves time for weights that units of time do not show."""
    work = work_of_line((0, 1), 8, True)
    durations = {a: 4.0 if a[:2] == (0, "F") else 1.0 for a in work.needs}
    by_units = orders_by(read_request("zb-h1"), work, Costs(), ignore)
    by_times = orders_by(read_request("zb-h1"), work, Costs(durations), ignore)
    assert by_units != by_times
    assert step_time([*map(list, by_times)], work, durations) < step_time(
        [*map(list, by_units)], work, durations
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("gpipe(max-live=2)", "keeps 4 microbatches of stage 0 alive at once, more than 2: use search"),
        ("zb-v(max-live=2)", "needs two stages on each slice in a V"),
    ],
)
def test_orders_by_policies_that_break_a_limit_are_refused(text: str, message: str):
    with pytest.raises(PolicyError, match=message):
        orders_by(read_request(text), work_of_line((0, 1), 4, True), Costs(), ignore)


def test_orders_by_every_policy_accept_limits():
    work = work_of_line((0, 1), 4, True)
    for policy in NAMES:
        if policy not in (PROGRAM, "zb-v"):
            orders_by(ScheduleRequest(policy, max_live=4, max_pending=4), work, Costs(), ignore)


def test_search_names_a_missing_solver(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "ortools.sat.python", None)
    work = work_of_line((0, 1, 2), 4, True)
    request = read_request("search(iterations=1, solver=cp-sat, max-live=1)")
    with pytest.raises(NoSolverError, match=r"pip install 'pathways-mlir\[search\]'"):
        orders_by(request, work, Costs(some_durations(work, 3)), ignore)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("seed", range(4))
def test_search_with_a_solver_is_no_worse_and_keeps_to_limits(seed: int):
    work = work_of_line((0, 1, 2), 4, True)
    durations = some_durations(work, seed)
    times = []
    for text in (
        "search(iterations=5, max-live=2)",
        "search(iterations=5, max-live=2, solver=cp-sat, seconds=3)",
    ):
        orders = [list(row) for row in orders_by(read_request(text), work, Costs(durations), ignore)]
        times.append(step_time(orders, work, durations))
        assert all(most_live(row, stage, work) <= 2 for stage, row in enumerate(orders))
    assert times[1] <= times[0] * (1 + 1e-9)
