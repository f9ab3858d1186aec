"""Dynamic program of `pw.auto` against a search of all partitions."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pathways.compiler.auto.partition import Machine, Partition, best_partitions
from pathways.compiler.auto.units import Units
from pathways.passes.analysis.links import Link

WORK = st.lists(st.integers(1, 50), min_size=5, max_size=12)


def line_of(work: list[int], alive: list[int]) -> Units:
    before = np.concatenate([[0.0], np.cumsum(work)])
    edges = np.array([0, *alive[: len(work) - 1], 0])
    return Units(before, edges, tuple(range(len(work))), (len(work) - 1,), ())


def least_bound(units: Units, machine: Machine, *, v: bool) -> float:
    stages = len(machine.speeds) * (2 if v else 1)
    slices = Partition(0.0, (0,) * (stages - 1), v).slices()
    cuts = itertools.combinations(range(1, units.count), stages - 1)
    return min(machine.bound(units, cut, slices) for cut in cuts)


@settings(deadline=None)
@given(
    WORK,
    st.lists(st.integers(0, 100), min_size=12, max_size=12),
    st.lists(st.sampled_from([1.0, 2.0]), min_size=2, max_size=4),
    st.sampled_from([1, 4, 16]),
    st.sampled_from([Link(), Link(1.0, 10.0), Link(0.0, 2.0)]),
)
def test_partition_into_a_row_of_stages_is_the_best(
    work: list[int], alive: list[int], speeds: list[float], microbatches: int, link: Link
) -> None:
    units = line_of(work, alive)
    machine = Machine(tuple(speeds), microbatches, link)
    found = best_partitions(units, range(1, units.count), machine, v=False, limit=3)
    assert found[0].bound == pytest.approx(least_bound(units, machine, v=False), rel=0.005)


@settings(deadline=None, max_examples=30)
@given(WORK, st.lists(st.sampled_from([1.0, 2.0]), min_size=2, max_size=2), st.sampled_from([4, 16]))
def test_partition_into_a_v_is_the_best(work: list[int], speeds: list[float], microbatches: int) -> None:
    units = line_of(work, [0] * 12)
    machine = Machine(tuple(speeds), microbatches)
    found = best_partitions(units, range(1, units.count), machine, v=True, limit=3)
    assert found[0].bound == pytest.approx(least_bound(units, machine, v=True), rel=0.005)
