"""Schedule files: what is written can be read back, and every mistake names its place."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from works import work_of

from pathways.passes.schedule.policies.actions import Action
from pathways.passes.schedule.policies.pipeline import Pipeline
from pathways.passes.schedule.policies.registry import POLICIES
from pathways.passes.schedule.policies.schedule_file import (
    ScheduleFileError,
    Work,
    loops_with_halves,
    read_schedules,
    write_schedules,
)


def read(text: str, work: Work) -> list[list[Action]]:
    """The orders of an only loop."""
    return read_schedules(text, {"batch": work})["batch"]


def error_of(text: str, work: Work) -> str:
    with pytest.raises(ScheduleFileError) as caught:
        read(text, work)
    return str(caught.value)


TWO = work_of(Pipeline((0, 1), 2))
"""Two slices of one stage each, two microbatches."""


@settings(deadline=None)
@given(
    st.sampled_from(["gpipe", "1f1b", "eager"]),
    st.lists(st.integers(0, 3), max_size=3).map(lambda extra: (0, 1, 2, 3, *extra)),
    st.integers(1, 6),
    st.booleans(),
)
def test_schedule_file_is_read_back_as_written(
    policy: str, slices: tuple[int, ...], microbatches: int, backward: bool
):
    pipeline = Pipeline(slices, microbatches, backward)
    orders, work = POLICIES[policy](pipeline), work_of(pipeline)
    assert read(write_schedules({"batch": (orders, work.needs)}), work) == orders


@settings(deadline=None)
@given(st.sampled_from(["zb-h1", "zb-h2"]), st.integers(1, 4), st.integers(7, 9))
def test_schedule_file_reads_halves_back(policy: str, stages: int, microbatches: int):
    pipeline = Pipeline(tuple(range(stages)), microbatches)
    orders, work = POLICIES[policy](pipeline), work_of(pipeline, halves=True)
    assert read(write_schedules({"batch": (orders, work.needs)}), work) == orders


def test_schedule_file_runs_overlapped_actions_one_after_the_other():
    rows = read("0F0,0F1,0B0,0B1\n1F0,(1F1;1B0)OVERLAP_F_B,1B1", TWO)
    assert list(map(str, rows[1])) == ["1F0", "1F1", "1B0", "1B1"]


def test_schedule_file_may_name_a_missing_half_of_a_first_stage():
    whole = work_of(Pipeline((0, 1), 1), halves=True)
    work = dataclasses.replace(whole, needs={a: n for a, n in whole.needs.items() if str(a) != "0I0"})
    work.needs[Action(0, "W", 0)] = [Action(1, "I", 0)]
    rows = read("0F0,0I0,0W0\n1F0,1I0,1W0", work)
    assert list(map(str, rows[0])) == ["0F0", "0W0"]


def test_schedule_file_columns_are_time():
    orders = POLICIES["1f1b"](Pipeline((0, 1), 2))
    assert write_schedules({"batch": (orders, TWO.needs)}) == "0F0,0F1,,0B0,,0B1\n,1F0,1B0,1F1,1B1,\n"


@pytest.mark.parametrize(
    "text",
    [
        "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1",
        "0F0,0F1,,,0B0,0B1,,\r\n, 1F0 ,1B0,1F1,1B1\r\n\r\n",
        '"0F0","0F1",0B0,0B1\n1F0,1B0,1F1,1B1\n,,\n',
        ",\n@batch,,\n0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n\n",
    ],
)
def test_schedule_file_ignores_layout(text: str):
    assert read(text, TWO) == POLICIES["1f1b"](Pipeline((0, 1), 2))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "expected 2 rows, for @s0, @s1, got 0"),
        ("0F0", "expected 2 rows, for @s0, @s1, got 1"),
        ("0F0\n@batch\n1F0", "row 2: @batch is above its rows"),
        ("@other\n0F0\n1F0", "row 1: there is no loop @other; there is @batch"),
        ("\n@batch\n0F0\n1F0,0F0", "row 4, column 2, 0F0: stage 0 is on @s0, row 3"),
        ("0F0,0F1,0B0,0B1\n\n", "expected 2 rows, for @s0, @s1, got 1"),
        ("\n1F0,1F1,1B0,1B1", "row 1: 0B0 and 3 more are missing"),
        ("0F0\n1F0\n2F0", "expected 2 rows, for @s0, @s1, got 3"),
        ('0F0,"0F1\n', "row 1: unexpected end of data"),
        ("0F0,(0F1;1B0)OVERLAP_F_B\n1F0", "row 1, column 2, 1B0: stage 1 is on @s1, row 2"),
        ("0F0,(0F1)OVERLAP_F_B\n1F0", "row 1, column 2, (0F1)OVERLAP_F_B: is not an action; expected"),
        (
            "0F0,F1\n1F0",
            "row 1, column 2, F1: is not an action; expected a stage, F, B, I or W, and a microbatch",
        ),
        ("0F0,0f1\n1F0", "row 1, column 2, 0f1: is not an action"),
        ('0F0,"0F1\0\n"\n1F0', r"row 1, column 2, 0F1\x00: is not an action"),
        ('0F0,"0F\n1"\n1F0', r"row 1, column 2, 0F\n1: is not an action"),
        ("0F0\n1F\u0661", "row 2, column 1, 1F\u0661: is not an action"),
        ("0F0,0SEND_F0\n1F0", "row 1, column 2, 0SEND_F0: is communication, which follows from the order"),
        ("0F0,2F0\n1F0", "row 1, column 2, 2F0: there is no stage 2; the stages are 0, 1"),
        ("0F0,1F0\n1F0", "row 1, column 2, 1F0: stage 1 is on @s1, row 2"),
        ("0F0\n1F0,,1F2", "row 2, column 3, 1F2: there is no microbatch 2; the last one is 1"),
        ("0F0\n1F0,1I0", "row 2, column 2, 1I0: the backward of stage 1 is not split; write B"),
        ("0F0,0F1,0F0\n1F0", "row 1, column 3, 0F0: is in row 1, column 1 already"),
        ("0F0,0F1,0B0\n1F0,1B0,1F1,1B1", "row 1: 0B1 is missing"),
        ("0F0,0F1,0B0,0B1\n1F0", "row 2: 1B0 and 2 more are missing"),
        (
            "0F0,0F1,0B0,0B1\n1B0,1F0,1F1,1B1",
            "1B0 (row 2, column 1) comes before 1F0 (row 2, column 2), which it needs",
        ),
        (
            "0F0,0B0,0F1,0B1\n1F0,1F1,1B0,1B1",
            "deadlock: the order has a cycle\n"
            "  0B0 (row 1, column 2) waits for 1B0 (row 2, column 3): it reads its result\n"
            "  1B0 (row 2, column 3) waits for 1F1 (row 2, column 2): @s1 runs in this order\n"
            "  1F1 (row 2, column 2) waits for 0F1 (row 1, column 3): it reads its result\n"
            "  0F1 (row 1, column 3) waits for 0B0 (row 1, column 2): @s0 runs in this order",
        ),
    ],
)
def test_schedule_file_names_the_place_of_mistakes(text: str, message: str):
    assert error_of(text, TWO).startswith(message)


def test_schedule_file_names_the_first_need_that_comes_too_late():
    needs = {Action(0, "B", 0): {Action(0, "F", m): None for m in reversed(range(4))}}
    needs |= {Action(0, "F", m): {} for m in range(4)}
    assert error_of("0B0,0F0,0F1,0F2,0F3", Work(["s0"], {0: "s0"}, 4, needs)) == (
        "0B0 (row 1, column 1) comes before 0F0 (row 1, column 2), which it needs"
    )


def test_schedule_file_refuses_a_backward_without_one_in_the_program():
    assert error_of("0F0,0B0\n1F0", work_of(Pipeline((0, 1), 1, backward=False))) == (
        "row 1, column 2, 0B0: the program has no backward"
    )


def test_schedule_file_refuses_the_backward_of_a_stage_without_one():
    needs = {a: [n for n in need if n.stage] for a, need in TWO.needs.items() if a.stage or a.kind == "F"}
    frozen = Work(TWO.rows, TWO.slices, 2, needs)
    assert error_of("0F0,0F1,0B0\n1F0", frozen) == "row 1, column 3, 0B0: stage 0 has no backward"


@pytest.mark.parametrize("written", ["0B0", "0I0,0W0"])
def test_schedule_file_has_a_split_backward_whole_or_in_halves(written: str):
    forward, inputs, weights = (Action(0, kind, 0) for kind in "FIW")
    work = Work(["s0"], {0: "s0"}, 1, {forward: [], inputs: [forward], weights: [inputs]})
    assert read(f"0F0,{written}", work) == [[forward, inputs, weights]]
    assert error_of("0F0,0W0,0I0", work).startswith(
        "0W0 (row 1, column 2) comes before 0I0 (row 1, column 3)"
    )


@settings(deadline=None)
@given(st.text(st.sampled_from('01FBIWX,\n\r" \0\u0661'), max_size=40))
def test_schedule_file_of_any_text_is_a_schedule_or_a_mistake(text: str):
    try:
        orders = read(text, TWO)
    except ScheduleFileError:
        return
    assert sorted(action for order in orders for action in order) == sorted(TWO.needs)


ONE = work_of(Pipeline((0, 1), 1, backward=False))
"""Two slices of one stage each, one microbatch, only forwards."""

LOOPS = {"first": ONE, "second": TWO}


def test_schedule_file_names_loops_above_their_rows():
    text = "@second\n0F0,0F1,,0B0,,0B1\n,1F0,1B0,1F1,1B1,\n@first\n0F0,\n,1F0\n"
    orders = read_schedules(text, LOOPS)
    assert orders["second"] == POLICIES["1f1b"](Pipeline((0, 1), 2))
    assert write_schedules({n: (orders[n], LOOPS[n].needs) for n in ("second", "first")}) == text


@settings(deadline=None)
@given(st.lists(st.sampled_from(["gpipe", "1f1b", "eager"]), min_size=1, max_size=4), st.integers(1, 4))
def test_schedule_file_reads_several_loops_back(policies: list[str], microbatches: int):
    """Names are those of symbols, in which everything may stand."""
    pipelines = [Pipeline((*range(n + 1), 0), microbatches + n) for n in range(len(policies))]
    names = [f'l"{n}, @' for n in range(len(policies))]
    works = dict(zip(names, map(work_of, pipelines), strict=True))
    orders = {n: POLICIES[p](each) for n, p, each in zip(names, policies, pipelines, strict=True)}
    text = write_schedules({name: (orders[name], works[name].needs) for name in names})
    assert read_schedules(text, works) == orders


@pytest.mark.parametrize(
    ("text", "loop", "message"),
    [
        ("", "first", "@first is missing"),
        ("@first\n0F0\n1F0\n", "second", "@second is missing"),
        ("\n0F0\n1F0\n@first", None, "row 2: expected the name of a loop above it: @first, @second"),
        ("@first\n0F0\n1F0\n@third", None, "row 4: there is no loop @third; there is @first, @second"),
        ("@first\n0F0\n1F0\n@a\0", None, r"row 4: there is no loop @a\x00; there is @first, @second"),
        ("@first,0F0\n1F0", None, "row 1: expected nothing after @first"),
        ("@first\n0F0\n1F0\n@first\n0F0", "first", "row 4: @first is in row 1 already"),
        ("@first\n0F0\n@second", "first", "@first, expected 2 rows, for @s0, @s1, got 1"),
        (
            "@second\n0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n\n@first\n0F0\n1F0,1F9",
            "first",
            "@first, row 7, column 2, 1F9: there is no microbatch 9; the last one is 0",
        ),
        (
            "@first\n0F0\n1F0\n@second\n0F0,0F1,0B0,0B1\n1F0,1B0,1F1",
            "second",
            "@second, row 6: 1B1 is missing",
        ),
        (
            "@first\n0F0\n1F0\n@second\n0F0,0B0,0F1,0B1\n1F0,1F1,1B0,1B1",
            "second",
            "@second, deadlock: the order has a cycle\n  0B0 (row 5, column 2) waits for 1B0 (row 6,",
        ),
    ],
)
def test_schedule_file_names_the_loop_of_mistakes(text: str, loop: str | None, message: str):
    with pytest.raises(ScheduleFileError) as caught:
        read_schedules(text, LOOPS)
    assert str(caught.value).startswith(message)
    assert caught.value.loop == loop


def test_loops_with_halves_are_those_that_write_halves(tmp_path: Path):
    file = tmp_path / "order.csv"
    file.write_text("@first\n0F0,0B0\n@second\n0F0,(0F1;0I0)OVERLAP_F_B,0W0")
    assert loops_with_halves(str(file), ["first", "second"]) == {"second"}
    assert loops_with_halves(str(file), ["first"]) == set()
    assert loops_with_halves(str(tmp_path / "none.csv"), ["first"]) == set()


@settings(deadline=None)
@given(st.text(st.sampled_from('@firstecond01FB,\n\r" \0'), max_size=40))
def test_schedule_file_of_any_text_is_not_one_of_several_loops(text: str):
    with pytest.raises(ScheduleFileError):
        read_schedules(text, LOOPS)
