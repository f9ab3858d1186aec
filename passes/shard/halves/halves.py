"""Cut of straight-line code in two: an urgent half, and a half that nothing waits for.

The work that the first half must do is a backward slice. For all other work there is a choice, and the
cheapest one is a minimum cut of a flow network, whose capacities are the bytes that live between the halves.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Collection, Mapping, Sequence

from jaxlib.mlir import ir

from pathways.passes.analysis.flow import INFINITE, scale_of, source_side
from pathways.passes.analysis.operations import EXPENSIVE, byte_size, captured

_LAYOUT = frozenset(
    {
        "stablehlo.broadcast_in_dim",
        "stablehlo.constant",
        "stablehlo.convert",
        "stablehlo.dynamic_slice",
        "stablehlo.iota",
        "stablehlo.optimization_barrier",
        "stablehlo.reshape",
        "stablehlo.slice",
        "stablehlo.transpose",
    }
)
"""Operations that compute nothing: to repeat them costs less than to keep their results."""

_HEAVY = EXPENSIVE | {
    "stablehlo.case",
    "stablehlo.gather",
    "stablehlo.if",
    "stablehlo.scatter",
    "stablehlo.select_and_scatter",
    "stablehlo.while",
}
"""Operations that nothing should wait for without need."""


@dataclasses.dataclass(frozen=True)
class HalvesRequest:
    """Request to cut code in halves.

    Attributes:
      operations: the code, without its terminator.
      urgent: values that the first half must compute.
      late: values that nothing waits for.
      costs: of values from outside, the bytes that they take if only the second half needs them; values that
        are alive anyway are left out.
      only_second: values from outside that the first half does not have.
      ends_second: whether the second half must have the late values, wherever they are computed.
      has_effect: whether an operation does more than compute; such a one stays in the first half.
      repeats: whether cheap operations may be done in both halves, so that less is passed on.
    """

    operations: Sequence[ir.OpView]
    urgent: Collection[ir.Value]
    late: Collection[ir.Value]
    costs: Mapping[ir.Value, int]
    has_effect: Callable[[ir.OpView], bool]
    only_second: Collection[ir.Value] = ()
    ends_second: bool = False
    repeats: bool = False


@dataclasses.dataclass(frozen=True)
class Halves:
    """Halves of code that was cut.

    Attributes:
      first: the operations of the first half, in order.
      second: the operations of the second half; some operations that compute nothing are in both.
      late_in_second: the late values that the second half computes.
      passed: the values that the first half computes and the second one reads.
    """

    first: Sequence[ir.OpView]
    second: Sequence[ir.OpView]
    late_in_second: Collection[ir.Value]
    passed: Sequence[ir.Value]


def halve(request: HalvesRequest) -> Halves:
    """Cuts code so that the fewest bytes live between its halves.

    These are the bytes passed on, and the bytes of arguments that the second half alone keeps alive. Of equal
    cuts the one with the smallest first half is taken. Nothing is computed twice, but operations that
    compute nothing, such as a broadcast, may be in both halves.
    """
    return _Flow(request).halves()


class _Flow:
    """Flow network of a request.

    An operation has one node; one that may be in both halves has a second node, for the second half. A node
    on the side of the sources is in the first half, or computes a value that is passed on.
    """

    def __init__(self, request: HalvesRequest) -> None:
        self.request = request
        self.maker = {r: n for n, op in enumerate(request.operations) for r in op.results}
        self.reads = [captured(op) for op in request.operations]
        effects = [request.has_effect(op) for op in request.operations]
        self.roots = [n for n, effect in enumerate(effects) if effect]
        self.roots += [self.maker[v] for v in request.urgent if v in self.maker]
        count = len(request.operations)
        again = [
            not effect and self.is_repeated(op)
            for op, effect in zip(request.operations, effects, strict=True)
        ]
        second = itertools.count(count)
        self.again = [next(second) if repeat else n for n, repeat in enumerate(again)]
        """The node that represents each operation in the second half."""
        self.size = count + sum(again)

    def is_repeated(self, op: ir.OpView) -> bool:
        """Returns whether an operation may be done in both halves."""
        name = op.operation.name
        if name in _LAYOUT:
            return True
        if name in _HEAVY or not name.startswith(("stablehlo.", "chlo.")):
            return False
        # Scalars, such as indices, cost less than handing them over.
        return self.request.repeats or all(ir.RankedTensorType(r.type).rank == 0 for r in op.results)

    def halves(self) -> Halves:
        """Finds the cut and reads it off."""
        operations, maker = self.request.operations, self.maker
        nodes = set(self.solve())
        first = [op for n, op in enumerate(operations) if n in nodes]

        def is_second(value: ir.Value) -> bool:
            return value in maker and self.again[maker[value]] not in nodes

        late_in_second = [v for v in self.request.late if is_second(v)]
        second: set[int] = set()
        pending = list(late_in_second)
        read: set[ir.Value] = set() if not self.request.ends_second else set(self.request.late)
        while pending:
            number = maker[pending.pop()]
            if number not in second:
                second.add(number)
                read.update(self.reads[number])
                pending += [v for v in self.reads[number] if is_second(v)]
        # Where the second half's node is on the side of the sources, it reads the value of the first half.
        passed = [
            r for n, op in enumerate(operations) if self.again[n] in nodes for r in op.results if r in read
        ]
        return Halves(first, [operations[n] for n in sorted(second)], set(late_in_second), passed)

    def solve(self) -> list[int]:
        """Returns the nodes of the first half."""
        request, maker = self.request, self.maker
        only_second = set(request.only_second)
        arcs: list[tuple[int, int, int]] = []
        sources, sinks = list(self.roots), []
        must = self.slice()
        readers: dict[ir.Value, list[int]] = {}
        for n, op in enumerate(request.operations):
            if self.again[n] != n:
                # The first half computes the values that it passes on.
                arcs.append((self.again[n], n, INFINITE))
            if not only_second.isdisjoint(self.reads[n]) or (
                # Never in the first half without need, even where that would pass on fewer bytes.
                n not in must and op.operation.name in _HEAVY and n not in sources
            ):
                sinks.append(n)
            for value in dict.fromkeys(self.reads[n]):
                if value in maker:
                    # The first half produces its operands.
                    arcs.append((n, maker[value], INFINITE))
                readers.setdefault(value, []).append(self.again[n])
        size = self.size
        # This node reads the late values in the second half.
        if request.ends_second:
            sinks.append(size)
            for value in request.late:
                readers.setdefault(value, []).append(size)
            size += 1
        costs = {v: byte_size(v.type) if v in maker else request.costs.get(v, 0) for v in readers}
        scale = scale_of(costs.values())
        for value, nodes in readers.items():
            if not costs[value]:
                continue
            node = self.again[maker[value]] if value in maker else size
            if value not in maker:
                sources.append(size)
                size += 1
            # Each value has a node of its own, so that its bytes count once however many read it. Rounded up,
            # no value is free.
            arcs.append((node, size, -(-costs[value] // scale)))
            arcs += [(size, reader, INFINITE) for reader in nodes]
            size += 1
        return [n for n in source_side(size, arcs, sources, sinks) if n < self.size]

    def slice(self) -> set[int]:
        """Returns the operations that the first half needs in any case."""
        needed: set[int] = set()
        pending = list(self.roots)
        while pending:
            number = pending.pop()
            if number not in needed:
                needed.add(number)
                pending += [self.maker[v] for v in self.reads[number] if v in self.maker]
        return needed
