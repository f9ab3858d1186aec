"""Shardings of values over their slices, and the memory that they are in: `Layouts` alone reads them."""

from __future__ import annotations

from jaxlib.mlir import ir

from pathways.dialect.attributes.meshes import Mesh, Sharding, replicated
from pathways.dialect.attributes.names import MEMORY_KIND, SHARDING
from pathways.dialect.attributes.shardings import mesh_of, read_mesh, read_sharding, sharding_of, slice_meshes
from pathways.dialect.operations.operation import op_has, ops_named, symbol_table
from pathways.dialect.operations.placement import argument_attrs, result_attrs, slices_of
from pathways.dialect.operations.traits import Trait


class Layouts:
    """Shardings of the values of a program, read from the IR.

    The sharding of an argument of `@main` is its attribute, that of a result of a launch the attribute of
    the callee's result, that of a result of a transfer its `sharding`. A value without a sharding is
    replicated over its slice.

    Attributes:
      symbols: the symbols of the module; functions added to it are known from then on.
    """

    def __init__(self, module: ir.Module) -> None:
        self.symbols = symbol_table(module)
        self.meshes = slice_meshes(self.symbols)
        self._axes = {
            op.attributes["sym_name"].value: read_mesh(op) for op in ops_named(module, ["sdy.mesh"])
        }
        self._arguments: dict[str, list[dict[str, ir.Attribute]]] = {}
        self._results: dict[str, list[dict[str, ir.Attribute]]] = {}

    def mesh(self, slice: str) -> Mesh:
        """Returns the axes of a slice."""
        return self.meshes[slice].mesh

    def of(self, value: ir.Value, slice: str) -> Sharding:
        """Returns the sharding of a value over one of its slices."""
        mesh = self.mesh(slice)
        attribute = None if mesh.size == 1 else self._attribute(value, slice)
        # A value that is mirrored on slices of different shapes carries the sharding on the first of them.
        if attribute is None or self._axes[mesh_of(attribute)] != mesh:
            return replicated(value.type.rank)
        return read_sharding(attribute)

    def memory_kind(self, value: ir.Value) -> str | None:
        """Returns the memory kind of a value, as JAX names it; None for the default memory of devices.

        That of an argument of `@main` is its attribute, that of a result of a launch the attribute of the
        callee's result, that of a result of a transfer its `memory_kind`.
        """
        if isinstance(value, ir.BlockArgument):
            kind = self._argument(value).get(MEMORY_KIND)
            return None if kind is None else kind.value
        op = value.owner.opview
        number = ir.OpResult(value).result_number
        if op_has(op, Trait.EXECUTES):
            if op.callee not in self._results:
                self._results[op.callee] = result_attrs(self.symbols[op.callee])
            kind = self._results[op.callee][number].get(MEMORY_KIND)
            return None if kind is None else kind.value
        if op_has(op, Trait.ALIASES):
            return self.memory_kind(op.operands[0])
        if op_has(op, Trait.TRANSFERS) or op_has(op, Trait.RECEIVES):
            return op.memory_kind
        return None

    def _argument(self, value: ir.BlockArgument) -> dict[str, ir.Attribute]:
        function = value.owner.owner.operation.opview
        name = function.attributes["sym_name"].value
        if name not in self._arguments:
            self._arguments[name] = argument_attrs(function)
        return self._arguments[name][value.arg_number]

    def _attribute(self, value: ir.Value, slice: str) -> ir.Attribute | None:
        if isinstance(value, ir.BlockArgument):
            return self._argument(value).get(SHARDING)
        op = value.owner.opview
        if op_has(op, Trait.ALIASES):
            copy = next(v for v in op.operands if slice in (slices_of(v) or ()))
            return self._attribute(copy, slice)
        if op_has(op, Trait.SPREADS) or op_has(op, Trait.EXCHANGES):
            return self._attribute(op.operands[ir.OpResult(value).result_number], slice)
        return sharding_of(value, self.symbols, [])
