"""Topological orders of small graphs, and the cycle where there is none."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any


class CycleError(Exception):
    """Nodes wait for each other.

    Attributes:
      cycle: the nodes, each waiting for the next and the last for the first.
    """

    def __init__(self, cycle: Sequence[Any]) -> None:
        super().__init__("nodes wait for each other in a cycle")
        self.cycle = list(cycle)


def topological_order[N: Any](waits_for: Mapping[N, Collection[N]]) -> list[N]:
    """Returns the nodes in an order in which each follows all that it waits for, by node order otherwise.

    Args:
      waits_for: the nodes that must precede each node; a node that is not a key waits for nothing and
          is not listed.

    Raises:
      CycleError: there is no such order.
    """
    # Kahn's algorithm with a heap for a queue: of all that is ready the first in node order goes next.
    missing = {node: sum(n in waits_for for n in needed) for node, needed in waits_for.items()}
    frees: dict[N, list[N]] = {}
    for node, needed in waits_for.items():
        for other in needed:
            frees.setdefault(other, []).append(node)
    ready = [node for node, count in missing.items() if count == 0]
    heapq.heapify(ready)
    order: list[N] = []
    while ready:
        node = heapq.heappop(ready)
        order.append(node)
        for freed in frees.get(node, ()):
            missing[freed] -= 1
            if missing[freed] == 0:
                heapq.heappush(ready, freed)
    if len(order) < len(waits_for):
        raise CycleError(_cycle(waits_for, {node for node, count in missing.items() if count > 0}))
    return order


def depth_first[N: Any](roots: Iterable[N], needs: Callable[[N], Iterable[N]]) -> Iterator[N]:
    """Yields the roots in order, each right after the nodes that it needs and that were not yielded yet.

    Unlike `topological_order`, this yields no node before a root needs it. There must be no cycle.
    """
    done: set[N] = set()
    for root in roots:
        pending = [root]
        while pending:
            node = pending[-1]
            # A node stays on the stack below its needs; it may be there several times, and is yielded
            # once.
            missing = [] if node in done else [other for other in needs(node) if other not in done]
            if missing:
                pending += missing
                continue
            pending.pop()
            if node not in done:
                done.add(node)
                yield node


def _cycle[N: Any](waits_for: Mapping[N, Collection[N]], stuck: set[N]) -> list[N]:
    """Returns a cycle among nodes that all wait, found by walking back until one repeats."""
    # Each stuck node waits for a stuck one, so the walk must meet its own path; earlier nodes of the path
    # are not in the cycle.
    path = [min(stuck)]
    position = {path[0]: 0}
    while (before := min(n for n in waits_for[path[-1]] if n in stuck)) not in position:
        position[before] = len(path)
        path.append(before)
    return path[position[before] :]
