"""Minimum cuts: both ways to find a flow leave the same nodes on the side of the source."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from pathways.passes.analysis.flow import INFINITE, by_augmenting, by_scipy, source_side

NODES = 8
CAPACITIES = st.one_of(st.integers(0, 9), st.just(INFINITE))
ARCS = st.lists(st.tuples(st.integers(0, NODES - 1), st.integers(0, NODES - 1), CAPACITIES), max_size=30)


@settings(deadline=None)
@given(ARCS)
def test_flow_by_augmenting_and_by_scipy_agree(arcs: list[tuple[int, int, int]]):
    rows = np.array([arc for arc in arcs if arc[0] != arc[1]], dtype=np.int64).reshape(-1, 3)
    assert sorted(by_augmenting(NODES, rows, 0, 1)) == sorted(by_scipy(NODES, rows, 0, 1))


def test_source_side_cuts_the_cheapest_arcs():
    # 0 --4--> 1 --1--> 2 --4--> 3, and 1 --1--> 3
    arcs = [(0, 1, 4), (1, 2, 1), (2, 3, 4), (1, 3, 1)]
    assert sorted(source_side(4, arcs, [0], [3])) == [0, 1]


def test_source_side_has_the_fewest_nodes_of_equal_cuts():
    assert source_side(3, [(0, 1, 2), (1, 2, 2)], [0], [2]) == [0]
