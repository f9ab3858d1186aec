"""A traced program as `pw-import` reads it: its symbols, and the metadata of its calls."""

from __future__ import annotations

from collections.abc import Iterator

from jaxlib.mlir import ir

from pathways.dialect import LoopOp, nested_ops, symbol_table
from pathways.dialect.attributes.names import FRONTEND_ATTRIBUTES
from pathways.dialect.operations.metadata import CallMetadata, MetadataError
from pathways.dialect.operations.operation import attribute_of
from pathways.passes.analysis.functions import referenced_functions
from pathways.passes.manager.base import fail

_ORDINARY = CallMetadata()

NESTED_LOOPS = "'Loops inside loops' of docs/pipelining.md"
"""Section of the manual on alternatives to loops that cannot be nested."""


class TracedProgram:
    """A program that is being imported.

    Attributes:
      symbols: its symbols; code that adds or renames symbols keeps it up to date.
    """

    def __init__(self, module: ir.Module, main: ir.OpView) -> None:
        self.module = module
        self.main = main
        self.symbols = symbol_table(module)
        self._metadata: dict[ir.Attribute, CallMetadata] = {}

    def metadata_of(self, op: ir.OpView) -> CallMetadata:
        """Returns the metadata that JAX attached to a call; each distinct attribute is read once.

        Raises:
          PassFailure: it is none that the front end writes.
        """
        if FRONTEND_ATTRIBUTES not in op.attributes:
            return _ORDINARY
        written = attribute_of(op, FRONTEND_ATTRIBUTES)
        if written is not None and written in self._metadata:
            return self._metadata[written]
        try:
            metadata = CallMetadata.read(op)
        except MetadataError as error:
            fail(op, str(error))
        if written is not None:
            self._metadata[written] = metadata
        return metadata

    def loop_symbol(self, op: ir.OpView, metadata: CallMetadata) -> LoopOp:
        target = self.symbols.get(metadata.loop or "")
        if not isinstance(target, LoopOp):
            fail(op, f"belongs to loop '{metadata.loop}', but the module has no pw.loop of that name")
        return target

    def slice_symbol(self, op: ir.OpView, name: str) -> str:
        target = self.symbols.get(name)
        if target is None or target.operation.name != "pw.slice":
            fail(op, f"is placed on @{name}, but the module has no pw.slice of that name")
        return name

    def loops_over_microbatches(self) -> set[str]:
        """Returns the names of the loops over microbatches."""
        return {name for name, op in self.symbols.items() if isinstance(op, LoopOp) and not op.sequential}

    def operations_inside(self, op: ir.OpView, seen: set[str]) -> Iterator[ir.OpView]:
        """Yields an operation, and all inside of it and the functions that it names."""
        for inner in (op, *nested_ops(op)):
            yield inner
            for function in referenced_functions(inner, self.symbols):
                callee = function.attributes["sym_name"].value
                if callee not in seen:
                    seen.add(callee)
                    yield from self.operations_inside(function, seen)

    def calls_inside(self, op: ir.OpView, seen: set[str]) -> Iterator[ir.OpView]:
        """Returns all calls inside an operation and the functions that it names."""
        return (inner for inner in self.operations_inside(op, seen) if inner.operation.name == "func.call")

    def placements_inside(self, op: ir.OpView, seen: set[str]) -> dict[str, ir.OpView]:
        """Returns the slices of placed calls in an operation and in functions it calls, each with a call."""
        placed: dict[str, ir.OpView] = {}
        for inner in self.calls_inside(op, seen):
            name = self.metadata_of(inner).slice
            if name is not None:
                placed.setdefault(name, inner)
        return placed

    def spans_slices(self, op: ir.OpView) -> bool:
        """Returns whether a loop cannot be one computation."""
        return len(self.placements_inside(op, set())) > 1 or self._call_over_slices(op) is not None

    def _call_over_slices(self, op: ir.OpView) -> ir.OpView | None:
        """Returns a call inside an operation that is of no single slice: of a loop, or an exchange."""
        for inner in self.calls_inside(op, set()):
            metadata = self.metadata_of(inner)
            if metadata.loop is not None or metadata.exchange is not None:
                return inner
        return None

    def reason_inside(self, op: ir.OpView) -> ir.OpView:
        """Returns a call that keeps a loop from being one computation."""
        placed = list(self.placements_inside(op, set()).values())
        inner = placed[1] if len(placed) > 1 else self._call_over_slices(op)
        assert inner is not None
        return inner
