"""DualPipeV as torch writes it: it is read, and what may overlap is done one after the other."""

from __future__ import annotations

import pytest
from dual_pipe import dual_pipe_v
from hypothesis import given, settings
from hypothesis import strategies as st

from pathways.passes.schedule.policies.actions import Action
from pathways.passes.schedule.policies.pipeline import Pipeline
from pathways.passes.schedule.schedule_file import Work, read_schedules


def work_of(ranks: int, microbatches: int) -> Work:
    places = (*range(ranks), *reversed(range(ranks)))
    pipeline = Pipeline(places, microbatches)
    every = [Action(s, kind, m) for s in range(2 * ranks) for kind in "FIW" for m in range(microbatches)]
    rows = [f"s{n}" for n in range(ranks)]
    return Work(
        rows,
        {s: rows[p] for s, p in enumerate(places)},
        microbatches,
        {a: set(pipeline.needs(a)) for a in every},
    )


@settings(deadline=None)
@given(st.integers(1, 6), st.integers(0, 8))
def test_dual_pipe_v_files_can_be_met(ranks: int, more: int):
    work = work_of(ranks, 2 * ranks + more)
    orders = read_schedules(dual_pipe_v(ranks, 2 * ranks + more), {"batch": work})["batch"]
    assert sorted(action for row in orders for action in row) == sorted(work.needs)


@pytest.mark.parametrize("ranks", [2, 3])
def test_dual_pipe_v_rows_read_like_those_of_torch(ranks: int):
    first = dual_pipe_v(ranks, 2 * ranks).splitlines()[0].split(",")
    assert first[: 2 * (ranks - 1)] == [f"0F{m}" for m in range(2 * (ranks - 1))]
    assert any("OVERLAP_F_B" in cell for cell in first)
