"""Computations: private functions with a body, and shardings on their arguments and results."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import func

from pathways.dialect import set_argument_attrs, set_result_attrs
from pathways.dialect.attributes.names import SHARDING
from pathways.passes.analysis.functions import unique_name

Body = Callable[[list[ir.Value]], Sequence[ir.Value]]
"""Builder of a computation at the insertion point: from its arguments to its results."""

type Layout = ir.Attribute | None
"""The sharding of an argument or result; None where there is none."""


class Computations:
    """Computations that a pass creates.

    Args:
      module: the module to append them to.
      symbols: its symbols; the symbols of new computations are added.
    """

    def __init__(self, module: ir.Module, symbols: dict[str, ir.OpView]) -> None:
        self.module = module
        self.symbols = symbols
        self._names_by_key: dict[object, str] = {}
        self._counts: dict[str, int] = {}

    def make(
        self,
        base: str,
        types: Sequence[ir.Type],
        body: Body,
        location: ir.Location,
        *,
        arguments: Sequence[Layout] | Layout = None,
        results: Sequence[Layout] | Layout = None,
        key: object = None,
    ) -> str:
        """Creates a computation and returns its name.

        Args:
          base: its name; a number follows if the name is in use.
          body: builds it.
          location: its location.
          arguments: the sharding of each argument, or one for all of them; None writes nothing.
          results: likewise of the results.
          key: equal keys of one base share the computation of the first; None is never equal.
        """
        existing = None if key is None else self.find(base, key)
        if existing is not None:
            return existing
        name = self._name(base)
        with ir.InsertionPoint(self.module.body), location:
            function = func.FuncOp(name, ir.FunctionType.get(list(types), []), visibility="private")
            block = function.add_entry_block()
        with ir.InsertionPoint(block), location:
            returned = list(body(list(block.arguments)))
            func.ReturnOp(returned)
        signature = ir.FunctionType.get(list(types), [value.type for value in returned])
        function.attributes["function_type"] = ir.TypeAttr.get(signature)
        for set_attrs, layouts, count in (
            (set_argument_attrs, arguments, len(types)),
            (set_result_attrs, results, len(returned)),
        ):
            each = layouts if isinstance(layouts, Sequence) else [layouts] * count
            if any(layout is not None for layout in each):
                set_attrs(function, [{} if layout is None else {SHARDING: layout} for layout in each])
        self.symbols[name] = function
        if key is not None:
            self._names_by_key[base, key] = name
        return name

    def find(self, base: str, key: object) -> str | None:
        """Returns the computation that was created with an equal key; None where there is none."""
        return self._names_by_key.get((base, key))

    def variant(self, original: str, base: str) -> ir.OpView:
        """Copies a computation under another name, in front of it."""
        function = self.symbols[original]
        name = self._name(base)
        copy = function.operation.clone(ir.InsertionPoint(function)).opview
        copy.attributes["sym_name"] = ir.StringAttr.get(name)
        self.symbols[name] = copy
        return copy

    def _name(self, base: str) -> str:
        count = self._counts.get(base, 0)
        self._counts[base] = count + 1
        return unique_name(base, self.symbols, count)
