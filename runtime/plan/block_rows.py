"""Rows of shards and blocks: the cut of arrays so that shards of several layouts consist of whole blocks."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Any

Rows = tuple[tuple[int, int], ...]
"""The rows of a block in each dimension, from the first to the one after the last."""

Bounds = tuple[tuple[int, ...], ...]
"""The positions along each dimension between which blocks are, ascending."""


def rows_of(index: Any, shape: Sequence[int]) -> Rows:
    """Returns the rows of a shard whose index in an array is a tuple of slices, as in JAX."""
    return tuple(side.indices(size)[:2] for side, size in zip(index, shape, strict=True))


def index_of(rows: Iterable[tuple[int, int]]) -> tuple[slice, ...]:
    """Returns the index of rows in an array."""
    return tuple(slice(*side) for side in rows)


def shape_of(rows: Rows) -> tuple[int, ...]:
    """Returns the shape of a block or a shard."""
    return tuple(stop - start for start, stop in rows)


def common_bounds(ndim: int, shards: Iterable[Rows]) -> Bounds:
    """Returns the bounds of the largest blocks that each of some shards of an array consists of.

    They are the common refinement of all layouts that the shards are of.
    """
    bounds: list[set[int]] = [set() for _ in range(ndim)]
    for shard in shards:
        for of_dim, side in zip(bounds, shard, strict=True):
            of_dim.update(side)
    return tuple(tuple(sorted(of_dim)) for of_dim in bounds)


def blocks_in(shard: Rows, bounds: Bounds) -> list[Rows]:
    """Returns the blocks that a shard consists of, in order.

    Args:
      shard: its rows; each side is among the bounds.
      bounds: the bounds of blocks, see `common_bounds`.
    """
    sides = []
    for (start, stop), of_dim in zip(shard, bounds, strict=True):
        points = [point for point in of_dim if start <= point <= stop]
        # A dimension without elements has a single bound, and one empty block.
        sides.append([*itertools.pairwise(points)] or [(start, stop)])
    return [*itertools.product(*sides)]


def rows_within(rows: Iterable[tuple[int, int]], shard: Rows) -> Rows:
    """Returns the rows of a block in a shard, from the rows of both in the array."""
    return tuple((start - first, stop - first) for (start, stop), (first, _) in zip(rows, shard, strict=True))


def block_name(array: str, rows: Rows, shape: Sequence[int]) -> str:
    """Returns the name of a block, such as `state['w'][0:4, :]`; without rows where it is the array."""
    parts = [
        ":" if bounds == (0, count) else f"{bounds[0]}:{bounds[1]}"
        for bounds, count in zip(rows, shape, strict=True)
    ]
    return f"{array}[{', '.join(parts)}]" if any(part != ":" for part in parts) else array
