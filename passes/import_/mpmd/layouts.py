"""Shardings of the values of a partitioned program, over the slices that its meshes become."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import sdy

from pathways.dialect import nested_ops
from pathways.dialect.attributes.meshes import replicated
from pathways.dialect.attributes.shardings import make_sharding, read_mesh, whole_axes
from pathways.passes.import_.mpmd.slices import Home
from pathways.passes.manager.base import fail, remark


class MpmdLayouts:
    """Translator of Shardy's shardings to shardings on slices; caches its results."""

    def __init__(self, symbols: Mapping[str, ir.OpView]) -> None:
        self._symbols = symbols
        self._layouts: dict[tuple[ir.Attribute, ir.Type, str], ir.Attribute | None] = {}

    def closed(
        self, op: ir.OpView, subject: str, sharding: ir.Attribute | None, type_: ir.Type, home: Home
    ) -> ir.Attribute | None:
        """Returns the sharding of a value from its type alone: replicated where the type has none."""
        if home.mesh.mesh.size == 1:
            return None
        if sharding is None:
            return make_sharding(home.mesh.symbol, replicated(type_.rank))
        return self.of(op, subject, sharding, type_, home)

    def of(
        self, op: ir.OpView, subject: str, sharding: ir.Attribute | None, type_: ir.Type, home: Home
    ) -> ir.Attribute | None:
        """Returns a sharding over the mesh of a slice; None where there is none, or one device.

        Args:
          op: the operation that errors are reported at.
          subject: the name of the value in errors.
          sharding: the sharding in Shardy's program.

        Raises:
          PassFailure: the sharding has a meaning that no value between computations can have.
        """
        if sharding is None or home.mesh.mesh.size == 1:
            return None
        key = sharding, type_, home.mesh.symbol
        if key not in self._layouts:
            self._layouts[key] = self._read(op, subject, sharding, type_, home)
        return self._layouts[key]

    def _read(
        self, op: ir.OpView, subject: str, attribute: ir.Attribute, type_: ir.Type, home: Home
    ) -> ir.Attribute:
        sharding = sdy.TensorShardingAttr(attribute)
        if len(list(sharding.unreduced_axes)):
            fail(op, f"{subject} has unreduced axes, partial sums that only Shardy adds up: {attribute}")
        dims = [sdy.DimensionShardingAttr(dim) for dim in sharding.dimension_shardings]
        axes = [sdy.AxisRefAttr(axis) for dim in dims for axis in dim.axes]
        strange = {axis.name for axis in axes} - dict(home.mesh.mesh.axes).keys()
        if strange:
            fail(
                op,
                f"{subject} is split along '{min(strange)}', which is not an axis of @{home.slice}: "
                f"{attribute}",
            )
        if len(dims) != type_.rank:
            fail(op, f"{subject} is a {type_}, but its sharding has {len(dims)} dimensions")
        divisible = whole_axes(attribute, list(type_.shape), home.mesh.mesh)
        if sum(map(len, divisible.dims)) < len(axes):
            remark(
                op,
                f"{subject} lies as {attribute}, of which @{home.slice} keeps the whole axes that divide it: "
                f"{divisible}",
            )
        closed = [
            sdy.DimensionShardingAttr.get(
                [sdy.AxisRefAttr.get(axis) for axis in names], is_closed=dim.is_closed
            )
            for dim, names in zip(dims, divisible.dims, strict=True)
        ]
        return sdy.TensorShardingAttr.get(home.mesh.symbol, closed)


def retarget(function: ir.OpView, home: Home, symbols: Mapping[str, ir.OpView]) -> None:
    """Moves the shardings inside of a computation to the mesh of its slice.

    Shardy writes them all over one mesh, although the axes of a slice may have other sizes.
    """

    def renamed(op: ir.OpView, attribute: ir.Attribute) -> ir.Attribute:
        if sdy.TensorShardingPerValueAttr.isinstance(attribute):
            each = sdy.TensorShardingPerValueAttr(attribute).shardings
            return sdy.TensorShardingPerValueAttr.get([renamed(op, sharding) for sharding in each])
        if not sdy.TensorShardingAttr.isinstance(attribute):
            return attribute
        sharding = sdy.TensorShardingAttr(attribute)
        if not isinstance(sharding.mesh_or_ref, ir.FlatSymbolRefAttr):
            return attribute
        mesh = read_mesh(symbols[sharding.mesh_or_ref.value])
        if mesh == home.mesh.mesh or not mesh.axes:
            return attribute
        if strange := dict(mesh.axes).keys() - dict(home.mesh.mesh.axes).keys():
            fail(op, f"is sharded along '{min(strange)}', which is not an axis of @{home.slice}")
        return sdy.TensorShardingAttr.get(
            home.mesh.symbol, sharding.dimension_shardings, sharding.replicated_axes, sharding.unreduced_axes
        )

    _rewrite(function, renamed)


def _rewrite(function: ir.OpView, renamed: Callable[[ir.OpView, ir.Attribute], ir.Attribute]) -> None:
    for op in nested_ops(function):
        for name in list(op.attributes):
            if "sharding" not in name:
                continue
            op.attributes[name] = renamed(op, op.attributes[name])
