"""Multiway minimum cuts over hypergraphs whose edges are values: one producer, several consumers.

A value costs its bytes once for every slice, other than its producer's, that reads it. For two slices
the cut found is minimal (max-flow min-cut); for more, isolating cuts are combined, which is within
2 - 2/k of the minimum (Dahlhaus et al., "The Complexity of Multiterminal Cuts", SIAM J. Comput. 1994).
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from pathways.passes.analysis.flow import INFINITE, scale_of, source_side


class DisjointSets:
    """Union-find over the numbers below `count`; each set is known by one of its members."""

    def __init__(self, count: int) -> None:
        self._parent = list(range(count))

    def find(self, n: int) -> int:
        """Returns the member that represents the set of a number."""
        parent = self._parent
        while parent[n] != n:
            parent[n] = parent[parent[n]]
            n = parent[n]
        return n

    def join(self, first: int, second: int) -> None:
        """Joins the sets of two numbers; the second's representative represents both."""
        self._parent[self.find(first)] = self.find(second)


class Edge(NamedTuple):
    """A value: `producer` and `consumers` are node numbers, `cost` its bytes."""

    producer: int
    consumers: tuple[int, ...]
    cost: int


def multiway_cut(num_nodes: int, edges: Sequence[Edge], fixed: Mapping[int, int]) -> list[int]:
    """Labels every node so that few bytes cross between nodes of different labels.

    Args:
      num_nodes: how many nodes there are.
      edges: the values.
      fixed: the label of each node that has one already.

    Returns:
      The label of each node. Among equal cuts a free node goes to the smallest label; one that is not
      connected with any that has one, to 0.
    """
    labels = [fixed.get(node, 0) for node in range(num_nodes)]
    # The microbatches of a program are alike, and so are many stages.
    cut = functools.cache(_cut_connected)
    for nodes, inside in _components(num_nodes, edges, fixed):
        # Numbered from 0, so that components that are alike are equal keys of the cache.
        local = {n: i for i, n in enumerate(nodes)}
        local_edges = [Edge(local[e.producer], tuple(local[c] for c in e.consumers), e.cost) for e in inside]
        labelled = tuple((local[n], fixed[n]) for n in nodes if n in fixed)
        if labelled:
            for n, label in zip(nodes, cut(len(nodes), tuple(local_edges), labelled), strict=True):
                labels[n] = label
    return labels


def _components(
    num_nodes: int, edges: Sequence[Edge], fixed: Mapping[int, int]
) -> list[tuple[list[int], list[Edge]]]:
    """Returns the connected components of free nodes; a fixed node does not connect its neighbours."""
    sets = DisjointSets(num_nodes)
    free_ends = [[n for n in (edge.producer, *edge.consumers) if n not in fixed] for edge in edges]
    for first, *rest in filter(None, free_ends):
        for other in rest:
            sets.join(other, first)
    nodes: dict[int, dict[int, None]] = {}
    inside: dict[int, list[Edge]] = {}
    for n in range(num_nodes):
        if n not in fixed:
            nodes.setdefault(sets.find(n), {})[n] = None
    for edge, free in zip(edges, free_ends, strict=True):
        if free:
            nodes[sets.find(free[0])].update(dict.fromkeys((edge.producer, *edge.consumers)))
            inside.setdefault(sets.find(free[0]), []).append(edge)
    return [(list(members), inside.get(root, [])) for root, members in nodes.items()]


def _cut_connected(
    num_nodes: int, edges: tuple[Edge, ...], labelled: tuple[tuple[int, int], ...]
) -> list[int]:
    """Labels the nodes of one component; `labelled` has the label of at least one node."""
    fixed = dict(labelled)
    labels = [fixed.get(node, -1) for node in range(num_nodes)]
    kinds = sorted(set(fixed.values()))
    if len(kinds) == 1:
        return [kinds[0]] * num_nodes
    network = _Network(num_nodes, edges)
    for kind in kinds:
        sources = [n for n, label in fixed.items() if label == kind]
        sinks = [n for n, label in fixed.items() if label != kind]
        # The smallest source sides of isolating cuts are disjoint, as the cut function is symmetric and
        # submodular: no label overwrites another.
        for node in network.near(sources, sinks):
            labels[node] = kind
    _settle_ties(labels, edges, kinds)
    return labels


class _Network:
    """The flow network of a hypergraph. Two auxiliary nodes per value make it cost its bytes once."""

    def __init__(self, num_nodes: int, edges: Sequence[Edge]) -> None:
        scale = scale_of(e.cost for e in edges)
        arcs: list[tuple[int, int, int]] = []
        total = num_nodes
        for edge in edges:
            # Rounded up: no value may become free.
            cost = -(-edge.cost // scale)
            if len(edge.consumers) == 1:
                arcs += [(edge.producer, edge.consumers[0], cost), (edge.consumers[0], edge.producer, cost)]
                continue
            # The hyperedge model of E. Lawler, "Cutsets and partitions of hypergraphs", Networks 3, 1973:
            # infinite arcs keep `out` and `back` beside consumers, so that at most one arc of `cost` is cut.
            out, back, total = total, total + 1, total + 2
            arcs += [(edge.producer, out, cost), (back, edge.producer, cost)]
            for consumer in edge.consumers:
                arcs += [(out, consumer, INFINITE), (consumer, back, INFINITE)]
        self.num_nodes = num_nodes
        self.total = total
        self.arcs = np.array(arcs, dtype=np.int64).reshape(-1, 3)

    def near(self, sources: list[int], sinks: list[int]) -> list[int]:
        """Returns the smallest set of nodes that a minimum cut leaves on the side of `sources`."""
        reached = source_side(self.total, self.arcs, sources, sinks)
        return [n for n in reached if n < self.num_nodes]


def _settle_ties(labels: list[int], edges: Sequence[Edge], kinds: list[int]) -> None:
    """Gives each connected group of nodes that no isolating cut claimed the label that costs least."""
    touching: dict[int, list[Edge]] = {}
    for edge in edges:
        for node in (edge.producer, *edge.consumers):
            if labels[node] < 0:
                touching.setdefault(node, []).append(edge)
    for start in range(len(labels)):
        if labels[start] >= 0:
            continue
        group, pending = {start}, [start]
        around: dict[int, Edge] = {}
        while pending:
            for edge in touching.get(pending.pop(), ()):
                # By identity, since two values may be equal edges, and cost their bytes each.
                around[id(edge)] = edge
                for node in (edge.producer, *edge.consumers):
                    if labels[node] < 0 and node not in group:
                        group.add(node)
                        pending.append(node)
        candidates = sorted(
            {labels[n] for e in around.values() for n in (e.producer, *e.consumers) if labels[n] >= 0}
        )

        def cost(kind: int, around: dict[int, Edge] = around) -> int:
            total = 0
            for edge in around.values():
                read = {labels[c] if labels[c] >= 0 else kind for c in edge.consumers}
                home = labels[edge.producer] if labels[edge.producer] >= 0 else kind
                total += edge.cost * len(read - {home})
            return total

        best = min(candidates or kinds, key=cost)
        for node in group:
            labels[node] = best
