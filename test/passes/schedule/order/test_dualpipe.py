"""DualPipeV as torch writes it: it is read, and what may overlap is done one after the other."""

from __future__ import annotations

import pytest
from dual_pipe import dual_pipe_v
from hypothesis import given, settings
from hypothesis import strategies as st
from works import work_of

from pathways.passes.schedule.policies.pipeline import Pipeline
from pathways.passes.schedule.policies.schedule_file import read_schedules


@settings(deadline=None)
@given(st.integers(1, 6), st.integers(0, 8))
def test_dual_pipe_v_files_can_be_met(ranks: int, more: int):
    pipeline = Pipeline((*range(ranks), *reversed(range(ranks))), 2 * ranks + more)
    work = work_of(pipeline, halves=True)
    orders = read_schedules(dual_pipe_v(ranks, 2 * ranks + more), {"batch": work})["batch"]
    assert sorted(action for row in orders for action in row) == sorted(work.needs)


@pytest.mark.parametrize("ranks", [2, 3])
def test_dual_pipe_v_rows_read_like_those_of_torch(ranks: int):
    first = dual_pipe_v(ranks, 2 * ranks).splitlines()[0].split(",")
    assert first[: 2 * (ranks - 1)] == [f"0F{m}" for m in range(2 * (ranks - 1))]
    assert any("OVERLAP_F_B" in cell for cell in first)
