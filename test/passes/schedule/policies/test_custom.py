"""Custom policies have names, and their orders are checked as schedule files are."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pathways.extending import Action, Order, Pipeline, PolicyError, order_by
from pathways.passes.schedule.policies.custom import register, registered
from pathways.passes.schedule.policies.pipeline import Policy
from pathways.passes.schedule.policies.registry import POLICIES, wants_halves
from pathways.passes.schedule.policies.request import RequestError, ScheduleRequest, read_request

TWO = Pipeline((0, 1), 2)


def in_turn(pipeline: Pipeline, kinds: str = "FB") -> Order:
    """Does all work of a microbatch before the next one."""
    return [
        [Action(stage, kind, n) for n in range(pipeline.microbatches) for kind in kinds]
        for stage in range(len(pipeline.slices))
    ]


@dataclasses.dataclass(frozen=True)
class Halved:
    """Policy with settings, whose orders have halves of backwards."""

    kinds: str = "FIW"
    halves = True

    def __call__(self, pipeline: Pipeline) -> Order:
        return in_turn(pipeline, self.kinds)


def test_registered_policy_has_one_name_for_its_object():
    name = register(in_turn)
    assert name == register(in_turn) == f"{__name__}:in_turn"
    assert registered(name) is in_turn
    assert not wants_halves(name)
    first, second = register(Halved()), register(Halved("FB"))
    assert (first, second) == (f"{__name__}:Halved", f"{__name__}:Halved#2")
    assert wants_halves(first)


def test_registered_policy_is_requested_with_options():
    name = register(lambda pipeline: in_turn(pipeline))
    request = read_request(f"{name}(max-live=2)")
    assert request == ScheduleRequest(name, max_live=2)
    assert read_request(str(request)) == request


def test_request_imports_no_code():
    with pytest.raises(RequestError, match="unknown policy 'os:getcwd'"):
        read_request("os:getcwd")
    with pytest.raises(RequestError, match="policy 'custom', which is code of the program"):
        read_request("custom")


@pytest.mark.parametrize("policy", [in_turn, Halved, Halved(), Halved("FB")])
def test_order_by_returns_orders_of_functions_objects_and_classes(policy: Policy):
    assert [len(row) for row in order_by(policy, TWO)] in ([4, 4], [6, 6])


def test_order_by_accepts_actions_in_the_notation_of_files():
    assert order_by(lambda _: [["0F0", "0B0"], ["1F0", "1B0"]], Pipeline((0, 1), 1)) == in_turn(
        Pipeline((0, 1), 1)
    )


def failing(pipeline: Pipeline) -> Order:
    return [[]][pipeline.width]


def demanding(pipeline: Pipeline) -> Order:
    raise PolicyError("needs four slices")


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        (failing, r"raises IndexError: list index out of range \(.*test_custom.py:\d+\)"),
        (demanding, "needs four slices"),
        (lambda: None, "raises TypeError: .* takes 0 positional arguments but 1 was given"),
        (lambda _: None, "returns NoneType, not a list of actions for each slice"),
        (lambda _: ["0F0", "1F0"], "returns list, not a list of actions for each slice"),
        (lambda _: [[], []], "returns a wrong order: expected actions for each of 2 slices"),
        (lambda _: in_turn(TWO) * 2, "returns a wrong order: expected actions for each of 2 slices"),
        (
            lambda _: in_turn(TWO, "FIW"),
            "orders 0I0, half of a backward: declare `halves = True`",
        ),
        (lambda _: [[(0, "F", 0)], [1]], r"row 1, column 1, \(0, 'F', 0\): is not an action"),
        (lambda _: in_turn(TWO)[::-1], "row 1, column 1, 1F0: stage 1 is on @1, row 2"),
        (lambda _: in_turn(Pipeline((0, 1), 1)), "row 1: 0B1 and 3 more are missing"),
        (lambda _: in_turn(Pipeline((0, 1), 3)), "0F2: there is no microbatch 2; the last one is 1"),
        (lambda _: in_turn(TWO, "FBB"), "row 1, column 3, 0B0: is in row 1, column 2 already"),
        (lambda _: in_turn(TWO, "BF"), r"0B0 \(row 1, column 1\) comes before 0F0"),
    ],
)
def test_order_by_names_mistakes(policy: Any, message: str):
    with pytest.raises(PolicyError, match=message):
        order_by(policy, TWO)


def test_order_by_shows_deadlocks():
    order = [in_turn(TWO)[0], [Action(1, "F", 0), Action(1, "F", 1), Action(1, "B", 0), Action(1, "B", 1)]]
    with pytest.raises(PolicyError, match=r"deadlock: the order has a cycle\n  .* waits for "):
        order_by(lambda _: order, TWO)


@settings(deadline=None)
@given(st.sampled_from([*POLICIES]), st.integers(1, 4), st.integers(1, 3), st.booleans())
def test_order_by_accepts_what_our_policies_order(policy: str, width: int, rounds: int, backward: bool):
    pipeline = Pipeline(tuple(range(width)), width * rounds, backward)

    def custom(pipeline: Pipeline) -> Order:
        return POLICIES[policy](pipeline)

    custom.halves = wants_halves(policy)  # type: ignore[attr-defined]
    try:
        expected = POLICIES[policy](pipeline)
    except PolicyError:
        return
    assert order_by(custom, pipeline) == expected
