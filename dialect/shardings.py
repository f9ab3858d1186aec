"""Shardings as values: how an array lies over the devices of a slice, read from `sdy.sharding` attributes."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Mapping, Sequence

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import sdy

SHARDING = "sdy.sharding"
"""The attribute that shards an argument or a result of a function, or the result of an operation."""

Index = tuple[tuple[int, int], ...]
"""The part of an array that a device holds: first and last-plus-one element of each dimension."""


@dataclasses.dataclass(frozen=True)
class Mesh:
    """Named axes and their sizes, major to minor; devices are numbered in that order."""

    axes: tuple[tuple[str, int], ...]

    @property
    def size(self) -> int:
        """The number of devices."""
        return math.prod(size for _, size in self.axes)


@dataclasses.dataclass(frozen=True)
class Sharding:
    """For each dimension of an array the mesh axes that split it, major to minor; the rest replicate it."""

    dims: tuple[tuple[str, ...], ...]

    def splits(self, mesh: Mesh) -> tuple[int, ...]:
        """Into how many parts each dimension is split."""
        sizes = dict(mesh.axes)
        return tuple(math.prod(sizes[a] for a in axes) for axes in self.dims)

    def is_replicated(self, mesh: Mesh) -> bool:
        """Whether every device holds the whole array."""
        return all(n == 1 for n in self.splits(mesh))

    def indices(self, shape: Sequence[int], mesh: Mesh) -> list[Index]:
        """The part that each device holds, by device number.

        Raises:
          ValueError: when a dimension does not divide; says which, and by what.
        """
        splits = self.splits(mesh)
        for dim, (size, parts) in enumerate(zip(shape, splits, strict=True)):
            if size % parts:
                raise ValueError(f"dimension {dim} of size {size} does not divide into {parts} parts")
        found: list[Index] = []
        names = [name for name, _ in mesh.axes]
        sizes = dict(mesh.axes)
        for place in itertools.product(*(range(size) for _, size in mesh.axes)):
            at = dict(zip(names, place, strict=True))
            index = []
            for size, parts, axes in zip(shape, splits, self.dims, strict=True):
                number = 0
                for axis in axes:
                    number = number * sizes[axis] + at[axis]
                index.append((number * size // parts, (number + 1) * size // parts))
            found.append(tuple(index))
        return found


def replicated(rank: int) -> Sharding:
    """The sharding of an array of which every device holds the whole."""
    return Sharding(((),) * rank)


def read_mesh(mesh: ir.OpView) -> Mesh:
    """The axes of an `sdy.mesh`."""
    axes = [sdy.MeshAxisAttr(a) for a in sdy.MeshAttr(mesh.attributes["mesh"]).axes]
    return Mesh(tuple((a.name, a.size) for a in axes))


def read_sharding(attribute: ir.Attribute) -> Sharding:
    """Reads a `#sdy.sharding` attribute; open dimensions count as they stand.

    Raises:
      ValueError: when it splits an axis, which no part of this compiler makes.
    """
    dims = []
    for dim in sdy.TensorShardingAttr(attribute).dimension_shardings:
        axes = [sdy.AxisRefAttr(a) for a in sdy.DimensionShardingAttr(dim).axes]
        if any(a.sub_axis_info is not None for a in axes):
            raise ValueError(f"{attribute} splits an axis of the mesh")
        dims.append(tuple(a.name for a in axes))
    return Sharding(tuple(dims))


def mesh_of(attribute: ir.Attribute) -> str:
    """The name of the mesh that a `#sdy.sharding` attribute refers to."""
    return ir.FlatSymbolRefAttr(sdy.TensorShardingAttr(attribute).mesh_or_ref).value


def make_sharding(mesh: str, sharding: Sharding, *, closed: bool = True) -> ir.Attribute:
    """Makes a `#sdy.sharding` attribute; an open one may be refined by propagation."""
    dims = [
        sdy.DimensionShardingAttr.get([sdy.AxisRefAttr.get(a) for a in axes], is_closed=closed)
        for axes in sharding.dims
    ]
    return sdy.TensorShardingAttr.get(mesh, dims)


def sharding_of(
    value: ir.Value,
    symbols: Mapping[str, ir.OpView],
    arguments: Sequence[Mapping[str, ir.Attribute]],
) -> ir.Attribute | None:
    """The `#sdy.sharding` of a value of `@main`; None where nothing is said.

    `arguments` is what `argument_attrs` says of `@main`.
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
        case "pw.transfer" | "pw.split" | "pw.reduce":
            return op.attributes.get("sharding")
        case "pw.mirror":
            return sharding_of(op.operands[0], symbols, arguments)
    return None


def slice_meshes(symbols: Mapping[str, ir.OpView]) -> dict[str, tuple[str, Mesh]]:
    """The name and the axes of the mesh of each `pw.slice`."""
    return {
        name: (op.attributes["mesh"].value, read_mesh(symbols[op.attributes["mesh"].value]))
        for name, op in symbols.items()
        if op.operation.name == "pw.slice"
    }
