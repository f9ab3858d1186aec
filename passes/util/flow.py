"""Minimum cuts of flow networks, by a maximum flow. Needs no IR."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

INFINITE = 1 << 30
"""The capacity of an arc that is never cut."""

_MAX_TOTAL = 1 << 29


def scale_of(costs: Iterable[int]) -> int:
    """By what to divide capacities so that all of them together are less than infinite."""
    return max(1, -(-sum(costs) // _MAX_TOTAL))


def source_side(
    size: int, arcs: Sequence[tuple[int, int, int]] | np.ndarray, sources: Sequence[int], sinks: Sequence[int]
) -> list[int]:
    """The smallest set of nodes that a minimum cut leaves on the side of the sources.

    Args:
      size: how many nodes there are.
      arcs: head, tail and capacity of each arc.
      sources: nodes on the one side.
      sinks: nodes on the other side.
    """
    # Not at the top: most programs need no cut, and scipy takes longer to import than all of the passes.
    from scipy.sparse import coo_matrix
    from scipy.sparse.csgraph import breadth_first_order, maximum_flow

    source, sink = size, size + 1
    ends = [(source, n, INFINITE) for n in sources] + [(n, sink, INFINITE) for n in sinks]
    every = np.concatenate([np.array(part, dtype=np.int64).reshape(-1, 3) for part in (arcs, ends)])
    heads, tails, costs = every.T
    capacity = coo_matrix((costs, (heads, tails)), shape=(size + 2, size + 2)).tocsr()
    capacity.data = np.minimum(capacity.data, INFINITE)
    flow = maximum_flow(capacity.astype(np.int32), source, sink).flow
    residual = (capacity - flow).tocsr()
    residual.data = np.maximum(residual.data, 0)
    residual.eliminate_zeros()
    reached = breadth_first_order(residual, source, return_predecessors=False)
    return [int(n) for n in reached if n < size]
