"""Rows of blocks, against indexing by NumPy."""

from __future__ import annotations

import hypothesis
import hypothesis.strategies as st
import numpy as np

from pathways.runtime.plan.block_rows import (
    Rows,
    blocks_in,
    common_bounds,
    index_of,
    rows_of,
    rows_within,
    shape_of,
)

Shards = tuple[tuple[int, ...], list[Rows]]


@st.composite
def shards(draw: st.DrawFn) -> Shards:
    """Returns the shape of an array, and the rows of shards of any layouts."""
    shape = tuple(draw(st.lists(st.integers(1, 6), max_size=3)))
    sides = [
        st.tuples(st.integers(0, size - 1), st.integers(1, size)).filter(lambda s: s[0] < s[1])
        for size in shape
    ]
    rows = st.tuples(*(side.map(lambda ends: tuple(sorted(ends))) for side in sides))
    return shape, draw(st.lists(rows, min_size=1, max_size=5))


@hypothesis.given(shards())
def test_blocks_restore_each_shard(given: Shards) -> None:
    shape, rows = given
    array = np.arange(np.prod(shape, dtype=int)).reshape(shape)
    bounds = common_bounds(len(shape), rows)
    for shard in rows:
        assert rows_of(index_of(shard), shape) == shard
        restored = np.full(shape_of(shard), -1)
        for block in blocks_in(shard, bounds):
            inner = index_of(rows_within(block, shard))
            assert (restored[inner] == -1).all()
            restored[inner] = array[index_of(block)]
        np.testing.assert_array_equal(restored, array[index_of(shard)])


def test_rows_of_whole_dimensions() -> None:
    assert rows_of((slice(None), slice(2, 4)), (3, 8)) == ((0, 3), (2, 4))
