"""Minimum cuts of flow networks, by a maximum flow. Needs no IR."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

# Within 32 bits, in which scipy computes.
INFINITE = 1 << 30
"""The capacity of an arc that is never cut."""

# Half of infinite, as callers round each capacity up: no finite cut may reach an infinite arc.
_MAX_TOTAL = 1 << 29

_FEW = 1000
"""Arcs up to which Python finds a flow sooner than scipy is imported."""


def scale_of(costs: Iterable[int]) -> int:
    """Returns the divisor of capacities that keeps their sum below infinite."""
    return max(1, -(-sum(costs) // _MAX_TOTAL))


def source_side(
    size: int, arcs: Sequence[tuple[int, int, int]] | np.ndarray, sources: Sequence[int], sinks: Sequence[int]
) -> list[int]:
    """Returns the smallest set of nodes that a minimum cut leaves on the side of the sources.

    Args:
      arcs: head, tail and capacity of each arc.
      sources: nodes on the one side.
      sinks: nodes on the other side.
    """
    source, sink = size, size + 1
    ends = [(source, n, INFINITE) for n in sources] + [(n, sink, INFINITE) for n in sinks]
    every = np.concatenate([np.array(rows, dtype=np.int64).reshape(-1, 3) for rows in (arcs, ends)])
    reached = by_augmenting if len(every) <= _FEW else by_scipy
    return [n for n in reached(size + 2, every, source, sink) if n < size]


def by_augmenting(size: int, arcs: np.ndarray, source: int, sink: int) -> list[int]:
    """Returns the nodes that a maximum flow leaves within reach of the source, by shortest augmenting paths.

    J. Edmonds and R. Karp, "Theoretical Improvements in Algorithmic Efficiency for Network Flow Problems",
    J. ACM 19(2), 1972.

    Args:
      arcs: a row of head, tail and capacity for each arc.
      source: the node from which the flow comes.
      sink: the node to which it goes.
    """
    room: list[dict[int, int]] = [{} for _ in range(size)]
    for head, tail, capacity in arcs.tolist():
        room[head][tail] = min(INFINITE, room[head].get(tail, 0) + capacity)
        room[tail].setdefault(head, 0)
    while True:
        before = {source: source}
        pending = [source]
        # The list grows during the iteration.
        for node in pending:
            for other, left in room[node].items():
                if left and other not in before:
                    before[other] = node
                    pending.append(other)
        if sink not in before:
            return pending
        path = []
        end = sink
        while end != source:
            path.append((before[end], end))
            end = before[end]
        flow = min(room[head][tail] for head, tail in path)
        for head, tail in path:
            room[head][tail] -= flow
            room[tail][head] += flow


def by_scipy(size: int, arcs: np.ndarray, source: int, sink: int) -> list[int]:
    """Returns the same nodes as `by_augmenting`, for large networks."""
    # Not at the top: networks are mostly small, and scipy takes longer to import than all passes take.
    from scipy.sparse import coo_matrix
    from scipy.sparse.csgraph import breadth_first_order, maximum_flow

    heads, tails, capacities = arcs.T
    capacity = coo_matrix((capacities, (heads, tails)), shape=(size, size)).tocsr()
    # The conversion has added up parallel arcs.
    capacity.data = np.minimum(capacity.data, INFINITE)
    flow = maximum_flow(capacity.astype(np.int32), source, sink).flow
    # The flow is antisymmetric, so that this has the arcs backwards along it, too.
    residual = (capacity - flow).tocsr()
    residual.data = np.maximum(residual.data, 0)
    residual.eliminate_zeros()
    return [int(n) for n in breadth_first_order(residual, source, return_predecessors=False)]
