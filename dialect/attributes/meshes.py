"""Meshes of devices, and shardings of arrays over them, as plain values."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Sequence

Interval = tuple[int, int]
"""First and last-plus-one element of a dimension."""

Block = tuple[Interval, ...]
"""The block of an array that a device holds: an interval of each dimension."""


@dataclasses.dataclass(frozen=True)
class Mesh:
    """Named axes and their sizes, major to minor; devices are numbered in that order."""

    axes: tuple[tuple[str, int], ...]

    @functools.cached_property
    def size(self) -> int:
        """The number of devices."""
        return math.prod(size for _, size in self.axes)


@dataclasses.dataclass(frozen=True)
class Sharding:
    """Mesh axes that split each dimension of an array, major to minor; the other axes replicate it."""

    dims: tuple[tuple[str, ...], ...]

    def __str__(self) -> str:
        """Returns the sharding as Shardy writes it: `[{"x", "y"}, {}]`."""
        return f"[{', '.join('{' + ', '.join(f'"{a}"' for a in axes) + '}' for axes in self.dims)}]"

    def splits(self, mesh: Mesh) -> tuple[int, ...]:
        """Returns the number of blocks along each dimension."""
        sizes = dict(mesh.axes)
        return tuple(math.prod(sizes[a] for a in axes) for axes in self.dims)

    def is_replicated(self, mesh: Mesh) -> bool:
        """Returns whether every device holds the whole array."""
        return all(n == 1 for n in self.splits(mesh))

    def problem(self, shape: Sequence[int], mesh: Mesh) -> str | None:
        """Returns why an array of a shape cannot have this sharding over a mesh; None if it can."""
        sizes = dict(mesh.axes)
        used: set[str] = set()
        if len(self.dims) > len(shape):
            return f"the spec has {len(self.dims)} dimensions, the array {len(shape)}"
        for dim, axes in enumerate(self.dims):
            for axis in axes:
                if axis not in sizes:
                    return f"axis '{axis}' is not in the mesh, which has {', '.join(sizes)}"
                if axis in used:
                    return f"axis '{axis}' is used twice"
                used.add(axis)
            blocks = math.prod(sizes[axis] for axis in axes)
            if shape[dim] % blocks:
                named = ", ".join(axes)
                return f"dimension {dim} of size {shape[dim]} is not divisible by {blocks} (axes {named})"
        return None

    def blocks(self, shape: Sequence[int], mesh: Mesh) -> list[Block]:
        """Returns the block that each device holds, by device number; every dimension must divide."""
        splits = self.splits(mesh)
        blocks: list[Block] = []
        names = [name for name, _ in mesh.axes]
        sizes = dict(mesh.axes)
        for place in itertools.product(*(range(size) for _, size in mesh.axes)):
            at = dict(zip(names, place, strict=True))
            block = []
            for size, count, axes in zip(shape, splits, self.dims, strict=True):
                # Mixed radix: the first axis of a dimension is its major one.
                number = 0
                for axis in axes:
                    number = number * sizes[axis] + at[axis]
                block.append((number * size // count, (number + 1) * size // count))
            blocks.append(tuple(block))
        return blocks


def replicated(rank: int) -> Sharding:
    """Returns the sharding of an array that every device holds whole."""
    return Sharding(((),) * rank)
