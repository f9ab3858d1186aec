"""Meshes and shardings in the IR: `sdy.mesh` operations and `#sdy.sharding` attributes."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import sdy

from pathways.dialect.attributes.meshes import Mesh, Sharding, replicated
from pathways.dialect.attributes.names import SHARDING


def read_mesh(mesh: ir.OpView) -> Mesh:
    """Returns the axes of an `sdy.mesh`."""
    axes = [sdy.MeshAxisAttr(a) for a in sdy.MeshAttr(mesh.attributes["mesh"]).axes]
    return Mesh(tuple((a.name, a.size) for a in axes))


def make_mesh(name: str, axes: Iterable[tuple[str, int]], ip: ir.InsertionPoint | None = None) -> None:
    """Declares an `sdy.mesh` of some axes, major to minor, at the insertion point."""
    mesh = sdy.MeshAttr.get([sdy.MeshAxisAttr.get(axis, size) for axis, size in axes])
    attributes = {"sym_name": ir.StringAttr.get(name), "mesh": mesh}
    ir.Operation.create("sdy.mesh", attributes=attributes, ip=ip)


def is_sharding(attribute: ir.Attribute) -> bool:
    """Returns whether an attribute is a `#sdy.sharding`."""
    return sdy.TensorShardingAttr.isinstance(attribute)


def read_sharding(attribute: ir.Attribute) -> Sharding:
    """Reads a `#sdy.sharding` attribute; whether a dimension is open makes no difference."""
    dims = sdy.TensorShardingAttr(attribute).dimension_shardings
    axes = [[sdy.AxisRefAttr(a) for a in sdy.DimensionShardingAttr(dim).axes] for dim in dims]
    return Sharding(tuple(tuple(a.name for a in dim) for dim in axes))


def whole_axes(attribute: ir.Attribute, shape: Sequence[int], mesh: Mesh) -> Sharding:
    """Returns the prefix of each dimension's axes that divides the array evenly by whole axes.

    Shardy splits axes of the mesh to make a dimension divide, and keeps uneven shardings that the user sets
    inside of a computation, where XLA pads. Neither is possible between computations.
    """
    sizes = dict(mesh.axes)
    dims = []
    for size, dim in zip(shape, sdy.TensorShardingAttr(attribute).dimension_shardings, strict=True):
        prefix: list[str] = []
        divisor = 1
        for axis in map(sdy.AxisRefAttr, sdy.DimensionShardingAttr(dim).axes):
            divisor *= sizes[axis.name]
            if axis.sub_axis_info is not None or size % divisor:
                break
            prefix.append(axis.name)
        dims.append(tuple(prefix))
    return Sharding(tuple(dims))


def closed_sharding(attribute: ir.Attribute | None, value_type: ir.Type, home: SliceMesh) -> Sharding:
    """Returns the sharding of a value over its slice from Shardy's attribute, or replication without one."""
    shape = ir.RankedTensorType(value_type).shape
    return replicated(len(shape)) if attribute is None else whole_axes(attribute, shape, home.mesh)


def unsupported(attribute: ir.Attribute) -> str | None:
    """Returns why this compiler cannot represent a `#sdy.sharding`; None if it can."""
    sharding = sdy.TensorShardingAttr(attribute)
    if not isinstance(sharding.mesh_or_ref, ir.FlatSymbolRefAttr):
        return "names no mesh of the module"
    if len(list(sharding.unreduced_axes)):
        return "has unreduced axes"
    for dim in sharding.dimension_shardings:
        if any(sdy.AxisRefAttr(a).sub_axis_info is not None for a in sdy.DimensionShardingAttr(dim).axes):
            return "uses a sub-axis of the mesh"
    return None


def mesh_of(attribute: ir.Attribute) -> str:
    """Returns the name of the mesh that a `#sdy.sharding` attribute refers to."""
    return ir.FlatSymbolRefAttr(sdy.TensorShardingAttr(attribute).mesh_or_ref).value


def make_sharding(mesh: str, sharding: Sharding, *, closed: bool = True) -> ir.Attribute:
    """Creates a `#sdy.sharding` attribute; an open one may be refined by propagation."""
    dims = [
        sdy.DimensionShardingAttr.get([sdy.AxisRefAttr.get(a) for a in axes], is_closed=closed)
        for axes in sharding.dims
    ]
    return sdy.TensorShardingAttr.get(mesh, dims)


def open_but_last(mesh: str, rank: int) -> ir.Attribute:
    """Returns a `#sdy.sharding` that propagation may refine in all dimensions but the last."""
    dims = [sdy.DimensionShardingAttr.get([], is_closed=n == rank - 1) for n in range(rank)]
    return sdy.TensorShardingAttr.get(mesh, dims)


def sharding_of(
    value: ir.Value, symbols: Mapping[str, ir.OpView], arguments: Sequence[Mapping[str, ir.Attribute]]
) -> ir.Attribute | None:
    """Returns the `#sdy.sharding` of a value of `@main`; None if it has none.

    `arguments` is the result of `argument_attrs` for `@main`.
    """
    if isinstance(value, ir.BlockArgument):
        return arguments[value.arg_number].get(SHARDING)
    op = value.owner
    match op.operation.name:
        case "pw.launch":
            callee = symbols[op.attributes["callee"].value]
            if "res_attrs" not in callee.attributes:
                return None
            for entry in callee.attributes["res_attrs"][ir.OpResult(value).result_number]:
                if entry.name == SHARDING:
                    return entry.attr
        case "pw.transfer" | "pw.recv" | "pw.split" | "pw.reduce" | "pw.carry":
            return op.attributes.get("sharding")
        case "pw.all_reduce" | "pw.reduce_scatter" | "pw.all_gather" | "pw.all_to_all":
            return sharding_of(op.operands[ir.OpResult(value).result_number], symbols, arguments)
        case "pw.mirror" | "pw.next":
            return sharding_of(op.operands[0], symbols, arguments)
    return None


def decided_inside(value: ir.Value, home: SliceMesh) -> Sharding:
    """Returns the sharding that propagation decided for a result in a computation, over its slice."""
    op, number = value.owner, ir.OpResult(value).result_number
    sharding = None
    if op.operation.name == "sdy.sharding_constraint":
        sharding = op.attributes["sharding"]
    elif SHARDING in op.attributes:
        sharding = sdy.TensorShardingPerValueAttr(op.attributes[SHARDING]).shardings[number]
    return closed_sharding(sharding, value.type, home)


@dataclasses.dataclass(frozen=True)
class SliceMesh:
    """Mesh of a slice.

    Attributes:
      symbol: its name in the module.
      mesh: its axes.
    """

    symbol: str
    mesh: Mesh


def slice_meshes(symbols: Mapping[str, ir.OpView]) -> dict[str, SliceMesh]:
    """Returns the mesh of each `pw.slice`."""
    return {
        name: SliceMesh(op.attributes["mesh"].value, read_mesh(symbols[op.attributes["mesh"].value]))
        for name, op in symbols.items()
        if op.operation.name == "pw.slice"
    }
