"""Loops and events of replicas, which run at the same time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pathways.dialect.graphs import topological_order
from pathways.dialect.order import Event
from pathways.passes.schedule.loops import Loop


def ranks(loops: Sequence[Loop]) -> list[int]:
    """For each loop its number among those that follow each other: loops of replicas are one of them."""
    numbers: dict[str, int] = {}
    return [numbers.setdefault(first_replica(loop), len(numbers)) for loop in loops]


def first_replica(loop: Loop) -> str:
    """The name of the loop of replica 0 that a loop stands for; its own where there are no replicas."""
    return loop.op.replica_of or loop.op.sym_name


def interleaved(events: Sequence[Event], replicas: Mapping[str, int]) -> list[int]:
    """The order in which replicas take turns: the first event of each, then the second, and so on.

    Args:
      events: in block order, each waiting for those whose results it reads.
      replicas: the number of the replica that each slice is of.
    """
    counts = dict.fromkeys(replicas.values(), 0)
    turns = []
    for n, event in enumerate(events):
        replica = replicas[event.slice]
        turns.append((counts[replica], replica, n))
        counts[replica] += 1
    order = [n for _, _, n in sorted(turns)]
    position = {n: k for k, n in enumerate(order)}
    needs = {k: [position[other] for other in events[n].waits_for] for k, n in enumerate(order)}
    return [order[k] for k in topological_order(needs)]
