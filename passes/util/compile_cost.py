"""What XLA's compilation of a computation costs, as far as passes have to know."""

from __future__ import annotations

from collections.abc import Mapping

from jaxlib.mlir import ir

from pathways.dialect import nested_ops
from pathways.passes.util.functions import referenced_functions

LARGE = 100
"""Operations from which on a second version of a computation costs more than launches that it saves.

XLA takes about 5 ms for each; a computation of a few operations runs for microseconds, and is compiled in the
time of a few thousand launches.
"""


class CompileCost:
    """Tells the computations of a module that are large.

    Args:
      symbols: the symbols of the module; computations are looked up when they are asked for.
      large: from how many operations on a computation is large.
    """

    def __init__(self, symbols: Mapping[str, ir.OpView], large: int) -> None:
        self._symbols = symbols
        self._large = large
        self._sizes: dict[str, int] = {}

    def is_large(self, computation: str) -> bool:
        """Whether a computation should be compiled once, and not in versions."""
        return self._size(computation) >= self._large

    def _size(self, name: str) -> int:
        """The operations of a function; those of loops, branches and what it calls count once each."""
        if name not in self._sizes:
            self._sizes[name] = 0
            operations = list(nested_ops(self._symbols[name]))
            functions = (f for op in operations for f in referenced_functions(op, self._symbols))
            called = {f.attributes["sym_name"].value for f in functions}
            self._sizes[name] = len(operations) + sum(map(self._size, called))
        return self._sizes[name]
