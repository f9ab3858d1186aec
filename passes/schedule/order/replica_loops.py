"""Loops and events of replicas, which run at the same time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pathways.dialect.relations.graphs import topological_order
from pathways.dialect.relations.order import Event
from pathways.passes.schedule.order.unrolled_loops import Loop


def ranks(loops: Sequence[Loop]) -> list[int]:
    """Returns for each loop its number among consecutive loops.

    Loops of replicas run side by side and count as one, unless one starts from results of another.
    """
    chained = {first_replica(loop) for loop in loops if starts_from_replica(loop, loops)}
    group = {
        loop.op.sym_name: loop.op.sym_name if first_replica(loop) in chained else first_replica(loop)
        for loop in loops
    }
    names = {name: n for n, name in enumerate(dict.fromkeys(group.values()))}
    needs: dict[int, set[int]] = {n: set() for n in names.values()}
    for loop in loops:
        number = names[group[loop.op.sym_name]]
        needs[number] |= {names[group[other]] for other in loop.needs} - {number}
    position = {n: k for k, n in enumerate(topological_order(needs))}
    return [position[names[group[loop.op.sym_name]]] for loop in loops]


def starts_from_replica(loop: Loop, loops: Sequence[Loop]) -> bool:
    """Returns whether a loop starts from results of the same loop of another replica."""
    return any(
        other.op.sym_name in loop.needs and first_replica(other) == first_replica(loop) for other in loops
    )


def first_replica(loop: Loop) -> str:
    """Returns the name of the loop of replica 0 that a loop represents; its own without replicas."""
    return loop.op.replica_of or loop.op.sym_name


def interleaved(events: Sequence[Event], replicas: Mapping[str, int]) -> list[int]:
    """Returns the events of replicas by rounds: the first event of each, then the second, and so on.

    Args:
      events: the events in block order, each after the events that it reads.
      replicas: the number of the replica that each slice is of.
    """
    counts = dict.fromkeys(replicas.values(), 0)
    keys = []
    for n, event in enumerate(events):
        replica = replicas[event.slice]
        keys.append((counts[replica], replica, n))
        counts[replica] += 1
    order = [n for _, _, n in sorted(keys)]
    position = {n: k for k, n in enumerate(order)}
    needs = {k: [position[other] for other in events[n].waits_for] for k, n in enumerate(order)}
    return [order[k] for k in topological_order(needs)]


def side_by_side(events: Sequence[Event], order: Sequence[int], queues: Mapping[str, str]) -> list[int]:
    """Returns an order that is the same on every slice, in which events that can run at once are together.

    Args:
      events: the events, each after the events that it reads.
      order: of all events, by their numbers.
      queues: the queue of each slice.
    """
    ends: dict[int, int] = {}
    free: dict[str, int] = {}
    starts: dict[int, int] = {}
    for n in order:
        event = events[n]
        queue = queues[event.slice]
        starts[n] = max([free.get(queue, 0), *(ends[other] for other in event.waits_for)])
        ends[n] = free[queue] = starts[n] + (event.kind == "launch")
    # Sends take no time, so that a reader may start with its send: a stable sort leaves it after that.
    return sorted(order, key=starts.__getitem__)
