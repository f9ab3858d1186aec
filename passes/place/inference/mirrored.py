"""Work that several slices do: mirrored on the slices of readers, or repeated to save transfers."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from jaxlib.mlir import ir

from pathways.dialect import CarryOp
from pathways.passes.analysis.operations import EXPENSIVE, byte_size
from pathways.passes.place.inference.placement_problem import Homes, Operation, PlacementProblem, Places

_MAX_REPEATED = 64
"""Limit on small operations that are repeated to save a value its way back."""

_OpPlaces = Sequence[Collection[int]]
"""The slices of each operation so far; none for mirrored operations."""


def mirrorable(problem: PlacementProblem) -> frozenset[ir.Value]:
    """Returns the values that any slice can compute from small arguments, constants and loop indices.

    Greatest fixed point: a small carried value is included unless its initial or next value is not.
    """
    carried = {
        n
        for n, op in enumerate(problem.operations)
        if isinstance(op.view, CarryOp) and problem.is_small(op.results)
    }
    while True:
        free = {a for a in problem.arguments if a not in problem.fixed and problem.is_small([a])}
        mirrored = free | problem.indices
        wrong: set[int] = set()
        for n, op in enumerate(problem.operations):
            can_read = mirrored.issuperset(op.reads)
            if op.handed_on is not None:
                carry = min(n, op.handed_on)
                if carry in carried and can_read:
                    mirrored.update(op.results)
                elif carry in carried:
                    wrong.add(carry)
            elif op.repeatable and can_read and (_is_cheap(op) or problem.is_small(op.results)):
                mirrored.update(op.results)
        if not wrong:
            return frozenset(mirrored)
        carried -= wrong


def _is_cheap(op: Operation) -> bool:
    return op.view.operation.name not in EXPENSIVE and not op.view.regions


def own_places(problem: PlacementProblem, homes: Homes) -> list[Places]:
    """Returns the one slice of each operation, by its own or its results' home; none of mirrored ones."""

    def place(op: Operation) -> int | None:
        if op.slice is not None:
            return op.slice
        if op.results:
            return homes.get(op.results[0])
        return next((homes[v] for v in op.reads if v in homes), 0)

    return [frozenset() if (n := place(op)) is None else frozenset([n]) for op in problem.operations]


def repeat_round_trips(problem: PlacementProblem, homes: Homes, op_places: Sequence[Places]) -> list[Places]:
    """Computes small values that would go back to the slice of their operands on both sides.

    For example, two slices exchange their partial sums, and both add them: the sum is not sent back.
    """

    def inside(op_places: _OpPlaces, n: int, place: int) -> Collection[int]:
        repeated = _between(problem, homes, op_places, n, place)
        sent = {
            value
            for m in repeated
            for value in problem.operations[m].reads
            if homes.get(value, place) != place and problem.producer.get(value) not in repeated
        }
        return repeated if _bytes(sent) <= _bytes(problem.operations[n].results) else ()

    return _repeated(problem, homes, op_places, range(len(op_places)), inside)


def _between(
    problem: PlacementProblem, homes: Homes, op_places: _OpPlaces, n: int, place: int
) -> Collection[int]:
    """Returns the small operations between values that live on `place` and the operation at position `n`."""
    leads_back: dict[int, bool] = {}

    def visit(n: int) -> bool:
        # The limit bounds the depth of the recursion as well.
        if n not in leads_back and len(leads_back) < _MAX_REPEATED:
            leads_back[n] = False
            op = problem.operations[n]
            if not _is_small(problem, op) or place in op_places[n]:
                return False
            for value in op.reads:
                if homes.get(value) == place:
                    leads_back[n] = True
                elif value in homes and value in problem.producer:
                    leads_back[n] |= visit(problem.producer[value])
        return leads_back.get(n, False)

    visit(n)
    return {m for m, inside in leads_back.items() if inside} if leads_back[n] else ()


def repeat_where_free(problem: PlacementProblem, homes: Homes, op_places: Sequence[Places]) -> list[Places]:
    """Computes a small operation also where it is read, if everything it reads is sent there anyway."""

    def itself(op_places: _OpPlaces, n: int, place: int) -> Collection[int]:
        is_free = all(
            homes.get(value, place) == place
            or any(place in op_places[reader] for reader in problem.readers[value] if reader != n)
            for value in problem.operations[n].reads
        )
        return [n] if is_free else ()

    # From the last on: a repeated operation is a reader of the operations in front of it.
    return _repeated(problem, homes, op_places, reversed(range(len(op_places))), itself)


def _repeated(
    problem: PlacementProblem,
    homes: Homes,
    op_places: Sequence[Places],
    order: Iterable[int],
    also: Callable[[_OpPlaces, int, int], Collection[int]],
) -> list[Places]:
    """Repeats small operations on slices that read their results.

    Args:
      op_places: the slices of its operations.
      order: the order in which to visit operations.
      also: returns the operations to repeat, by the slices so far, the position of the operation whose result
        is read, and the slice that reads it.
    """
    now = [set(places) for places in op_places]
    for n in order:
        op = problem.operations[n]
        if not now[n] or not _is_small(problem, op):
            continue
        read_on = {p for r in op.results for reader in problem.readers.get(r, ()) for p in now[reader]}
        for place in sorted(read_on - now[n]):
            for m in also(now, n, place):
                now[m].add(place)
    return [frozenset(places) for places in now]


def _is_small(problem: PlacementProblem, op: Operation) -> bool:
    """Returns whether an operation is small enough to be repeated."""
    return op.repeatable and len(op.results) > 0 and not op.view.regions and problem.is_small(op.results)


def _bytes(values: Iterable[ir.Value]) -> int:
    return sum(byte_size(value.type) for value in values)


def mirrored_places(
    problem: PlacementProblem, homes: Homes, op_places: Sequence[Places]
) -> Mapping[ir.Value, Places]:
    """Returns the slices of each mirrored value: its readers', or, if only returned, its inputs'."""
    read_on = {
        value: frozenset[int]().union(*(op_places[n] for n in readers))
        for value, readers in problem.readers.items()
        if value not in homes
    }
    demand = _handed_up(problem, homes, read_on)
    # Values that are only returned are computed where their inputs are read, or else on the first slice.
    roots = {a: demand.get(a, frozenset()) for a in problem.arguments}
    for op in _mirrored(problem, homes):
        read = (roots[v] for v in op.reads if v in roots)
        roots.update(dict.fromkeys(op.results, frozenset[int]().union(*read)))
    first = frozenset([0])
    returned = {v: demand.get(v, frozenset()) | roots[v] or first for v in problem.returned if v not in homes}
    demand = _handed_up(problem, homes, {**demand, **returned})
    return {value: demand.get(value) or first for value in roots if value not in homes}


def _handed_up(
    problem: PlacementProblem, homes: Homes, read_on: Mapping[ir.Value, Places]
) -> Mapping[ir.Value, Places]:
    """Returns the slices that read mirrored values, also by mirrored work that is itself read there."""
    demand = dict(read_on)
    mirrored = _mirrored(problem, homes)
    none: Places = frozenset()
    while True:
        outdated = False
        for op in reversed(mirrored):
            places = none.union(*(demand.get(r, none) for r in op.results))
            for value in (*op.results, *op.reads):
                demand[value] = demand.get(value, none) | places
            if isinstance(op.view, CarryOp):
                # Where an iteration reads it, the one before passes it on.
                assert op.handed_on is not None
                (last,) = problem.operations[op.handed_on].results
                outdated |= not places <= demand.get(last, none)
                demand[last] = demand.get(last, none) | places
        if not outdated:
            return demand


def _mirrored(problem: PlacementProblem, homes: Homes) -> list[Operation]:
    return [op for op in problem.operations if op.results and op.results[0] not in homes]
