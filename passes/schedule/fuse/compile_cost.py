"""Cost of XLA's compilation of computations, as far as passes have to know it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from jaxlib.mlir import ir

from pathways.dialect import LaunchOp, nested_ops
from pathways.dialect.operations.operation import symbol_name
from pathways.passes.analysis.functions import referenced_functions

LARGE = 50
"""Operations from which on a second version of a computation costs more than launches that it saves.

XLA takes about 5 ms for each, and a launch 3 us: a version of so many costs as much as a launch in each of
80,000 steps.
"""

LARGE_LOOP = 100
"""Operations of a loop from which on one computation for several holders is worth the launches of a cut."""


class CompileCost:
    """Classifier of the computations of a module that are large to compile.

    Args:
      symbols: the symbols of the module; computations are looked up when they are needed.
      large: the number of operations from which on a computation is large.
    """

    def __init__(self, symbols: Mapping[str, ir.OpView], large: int) -> None:
        self._symbols = symbols
        self._large = large
        self._sizes: dict[str, int] = {}
        self._looping: dict[str, bool] = {}

    def is_large(self, computation: str) -> bool:
        """Returns whether a computation should be compiled once, and not in versions."""
        return self._size(computation) >= self._large

    def large_among(self, launches: Iterable[LaunchOp]) -> set[str]:
        """Returns the computations of some launches that should be compiled once.

        The placed calls of a stage count together: the forward and the backward of the last one become one
        computation.
        """
        stages: dict[tuple[str, str | None, int | None], set[str]] = {}
        large: set[str] = set()
        for op in launches:
            if self.is_large(op.callee):
                large.add(op.callee)
            if op.loop is not None and (origin := op.origin) is not None:
                stages.setdefault((op.slice, op.loop, origin.stage), set()).add(op.callee)
        for callees in stages.values():
            if sum(map(self._size, callees)) >= self._large:
                large |= callees
        return large

    def is_large_loop(self, op: ir.OpView) -> bool:
        """Returns whether an operation is a loop whose body is large."""
        return op.operation.name == "stablehlo.while" and self._size_of([op, *nested_ops(op)]) >= self._large

    def holds_large_loop(self, computation: str) -> bool:
        """Returns whether a large loop is in a computation, or in a function that it calls."""
        if computation not in self._looping:
            blocks = self._symbols[computation].regions[0].blocks
            self._looping[computation] = any(
                self.is_large_loop(op)
                or (op.operation.name == "func.call" and self.holds_large_loop(op.attributes["callee"].value))
                for block in blocks
                for op in block.operations
            )
        return self._looping[computation]

    def _size(self, name: str) -> int:
        """Returns the number of operations of a function; loops, branches and callees count once each."""
        if name not in self._sizes:
            self._sizes[name] = 0
            self._sizes[name] = self._size_of(nested_ops(self._symbols[name]))
        return self._sizes[name]

    def _size_of(self, operations: Iterable[ir.OpView]) -> int:
        inside = list(operations)
        called = {symbol_name(f) or "" for op in inside for f in referenced_functions(op, self._symbols)}
        return len(inside) + sum(self._size(other) for other in called)
