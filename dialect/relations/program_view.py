"""Contents of a module of the `pw` compiler, read once for the many checks and analyses that need them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence

from jaxlib.mlir import ir

from pathways.dialect.attributes.meshes import Mesh
from pathways.dialect.attributes.names import HOST, MAIN, SLICE
from pathways.dialect.attributes.shardings import read_mesh
from pathways.dialect.operations.operation import PwOp, op_has, symbol_table
from pathways.dialect.operations.placement import (
    Slices,
    argument_attrs,
    joined_slices,
    read_slices,
    result_attrs,
    slices_of_op,
)
from pathways.dialect.operations.traits import Trait

Attributes = Mapping[str, ir.Attribute]
Report = Callable[[ir.OpView, str], None]
"""Reporter of a problem of an operation."""


@dataclasses.dataclass(frozen=True)
class ProgramView:
    """Well-formed module with a program: the function `@main`, or the function of one host.

    Attributes:
      ops: the operations of the program except its return.
      reads: the operands of each of them.
      produces: the results of each of them.
      terminator: its return.
      slices: the slices of each placed value.
      host: the host whose function it is; None for `@main`.
    """

    module: ir.Module
    symbols: Mapping[str, ir.OpView]
    main: ir.OpView
    ops: Sequence[ir.OpView]
    reads: Sequence[Sequence[ir.Value]]
    produces: Sequence[Sequence[ir.Value]]
    terminator: ir.OpView
    arguments: Sequence[Attributes]
    results: Sequence[Attributes]
    slices: Mapping[ir.Value, Slices]
    meshes: Mapping[str, Mesh]
    host: int | None = None

    def ops_with(self, trait: Trait) -> Iterator[tuple[ir.OpView, Sequence[ir.Value]]]:
        """Yields the operations with a trait, each with its operands."""
        kinds = set(map(type, self.ops))
        return self.ops_of(*(kind for kind in kinds if issubclass(kind, PwOp) and trait in kind.traits))

    @property
    def readers(self) -> Iterator[tuple[ir.OpView, Sequence[ir.Value]]]:
        """All operations and the return, each with its operands."""
        yield from zip(self.ops, self.reads, strict=True)
        yield self.terminator, list(self.terminator.operands)

    def ops_of(self, *kinds: type[PwOp]) -> Iterator[tuple[ir.OpView, Sequence[ir.Value]]]:
        """Yields the operations of some classes, each with its operands."""
        return ((op, read) for op, read in zip(self.ops, self.reads, strict=True) if type(op) in kinds)


def read_program(module: ir.Module) -> ProgramView | None:
    """Reads a well-formed module; returns None if it has no program, or only declares it."""
    symbols = symbol_table(module)
    main = symbols.get(MAIN)
    return None if main is None or not _is_defined(main) else read_function(module, symbols, main)


def read_hosts(module: ir.Module) -> list[ProgramView]:
    """Reads the functions of hosts of a well-formed module, by the numbers of the hosts."""
    symbols = symbol_table(module)
    functions = [op for op in symbols.values() if _is_defined(op) and HOST in op.attributes]
    functions.sort(key=lambda function: function.attributes[HOST].value)
    return [read_function(module, symbols, function) for function in functions]


def _is_defined(op: ir.OpView) -> bool:
    return op.operation.name == "func.func" and len(op.regions[0].blocks) == 1


def read_function(module: ir.Module, symbols: Mapping[str, ir.OpView], main: ir.OpView) -> ProgramView:
    """Reads one function of a well-formed module: the program, or the function of one host."""
    block = main.regions[0].blocks[0]
    *ops, terminator = block.operations
    arguments = argument_attrs(main)
    slices: dict[ir.Value, Slices] = {
        value: read_slices(attrs[SLICE])
        for value, attrs in zip(block.arguments, arguments, strict=True)
        if SLICE in attrs
    }
    reads = [list(op.operands) for op in ops]
    produces = [list(op.results) for op in ops]
    # In block order the slices of operands are known: `slices_of` would walk back through chains of mirrors
    # for each value anew.
    for op, read, produced in zip(ops, reads, produces, strict=True):
        if op_has(op, Trait.SPREADS) and op.slice is None:
            slices.update((r, slices[v]) for v, r in zip(read, produced, strict=True) if v in slices)
            continue
        if op_has(op, Trait.EXCHANGES):
            slices.update((r, (place,)) for r, place in zip(produced, op.slices, strict=True))
            continue
        if op_has(op, Trait.ALIASES):
            places = joined_slices([slices.get(value) for value in read])
        else:
            places = slices_of_op(op)
        if places is not None:
            for result in produced:
                slices[result] = places
    meshes = {
        name: read_mesh(symbols[op.attributes["mesh"].value])
        for name, op in symbols.items()
        if op.operation.name == "pw.slice"
    }
    host = main.attributes[HOST].value if HOST in main.attributes else None
    results = result_attrs(main)
    return ProgramView(
        module, symbols, main, ops, reads, produces, terminator, arguments, results, slices, meshes, host
    )
