"""Types of arrays in IFRT IR, which the bindings return as text alone."""

from __future__ import annotations

import dataclasses
import itertools
import math
import operator
import re
from collections.abc import Iterable

from jaxlib.mlir import ir

from pathways.dialect.attributes.meshes import Mesh, Sharding
from pathways.passes.import_.mpmd.mesh_tensors import NotMpmdError, split_at_commas

_PREFIX = "!ifrt.array<"
_SHARDING = re.compile(r"#ifrt\.sharding_param<([\dx]*) to \[([\d, ]*)\] on ([\dx]+)( unreduced .*)?>")
_UNSPECIFIED = "#ifrt.sharding_unspecified"

DeviceIds = tuple[int, ...]
"""Numbers of devices in a program, in the order of the shards of an array."""


@dataclasses.dataclass(frozen=True)
class Factor:
    """Devices that a dimension is divided over: each `stride`-th one, `size` times.

    Attributes:
      dim: the dimension; None for devices with equal shards.
      stride: how far apart two consecutive devices are.
      size: how many there are.
    """

    dim: int | None
    stride: int
    size: int


@dataclasses.dataclass(frozen=True)
class ShardingParam:
    """A `#ifrt.sharding_param`: `4x2 to [1, 0] on 4x2` for dimensions of 4 and 2 shards.

    Attributes:
      dims: into how many shards each dimension is cut.
      permutation: the axes of the devices, minor to major.
      axes: the sizes of these axes; consecutive devices are neighbors along the first.
      is_partial: whether shards are partial sums.
    """

    dims: tuple[int, ...]
    permutation: tuple[int, ...]
    axes: tuple[int, ...]
    is_partial: bool = False

    def factors(self) -> list[Factor]:
        """Returns which devices each dimension is divided over, major to minor in each dimension.

        Raises:
          NotMpmdError: the shards of a dimension do not fit the axes.
        """
        count = math.prod(self.axes)
        strides = [1, *itertools.accumulate(self.axes, operator.mul)]
        axes = [(strides[axis], self.axes[axis]) for axis in reversed(self.permutation)]
        shards: list[tuple[int | None, int]] = list(enumerate(self.dims))
        shards.append((None, count // math.prod(self.dims)))
        axes = [axis for axis in axes if axis[1] > 1]
        shards = [shard for shard in shards if shard[1] > 1]
        factors: list[Factor] = []
        # From the minor ends of both lists, where equal shards are: each round uses up an axis or the shards
        # of a dimension, and continues with the rest of the other.
        while axes and shards:
            (stride, size), (dim, shard_count) = axes.pop(), shards.pop()
            common = math.gcd(size, shard_count)
            if common != min(size, shard_count):
                raise NotMpmdError(f"has a sharding whose shards do not fit the axes of its devices: {self}")
            factors.append(Factor(dim, stride, common))
            if size > common:
                axes.append((stride * common, size // common))
            if shard_count > common:
                shards.append((dim, shard_count // common))
        return factors[::-1]

    def over(self, mesh: Mesh) -> Sharding | None:
        """Returns the same sharding by the axes of a mesh; None where it divides one of them."""
        strides = [1, *itertools.accumulate((size for _, size in reversed(mesh.axes)), lambda a, b: a * b)]
        # A factor uses whole axes if a run of axes, each beginning where the one before ends, spans it.
        ends = {
            stride: (name, stride * size)
            for (name, size), stride in zip(reversed(mesh.axes), strides, strict=False)
            if size > 1
        }
        dims: list[list[str]] = [[] for _ in self.dims]
        for factor in self.factors():
            names = []
            at, end = factor.stride, factor.stride * factor.size
            while at < end:
                if at not in ends:
                    return None
                name, at = ends[at]
                names.append(name)
            if at != end:
                return None
            if factor.dim is not None:
                dims[factor.dim] += reversed(names)
        return Sharding(tuple(map(tuple, dims)))

    def __str__(self) -> str:
        sizes = ["x".join(map(str, each)) for each in (self.dims, self.axes)]
        return f"{sizes[0]} to {list(self.permutation)} on {sizes[1]}"


def mesh_for(shardings: Iterable[ShardingParam], count: int) -> Mesh | None:
    """Returns a mesh of devices over which all shardings use whole axes; None where there is none."""
    bounds = {1, count}
    for sharding in shardings:
        for factor in sharding.factors():
            bounds |= {factor.stride, factor.stride * factor.size}
    # The coarsest mesh has an axis between any two neighbouring bounds, so that each must divide the next.
    ordered = sorted(bounds)
    if any(end % start for start, end in itertools.pairwise(ordered)):
        return None
    sizes = [end // start for start, end in itertools.pairwise(ordered)] or [1]
    return Mesh(tuple((f"d{number}", size) for number, size in enumerate(reversed(sizes))))


@dataclasses.dataclass(frozen=True)
class IfrtArray:
    """Contents of an `!ifrt.array`.

    Attributes:
      sharding: its sharding over its devices; None where there is none.
      devices: the devices, as the program numbers them.
      memory_kind: the memory that it is in; None where the type has none.
      layout: a layout of its own; None where the type has none.
    """

    type: ir.Type
    sharding: ShardingParam | None
    devices: DeviceIds
    memory_kind: str | None = None
    layout: str | None = None


def read_array(type_: ir.Type) -> IfrtArray | None:
    """Reads a type; returns None if it is not an `!ifrt.array`.

    Raises:
      NotMpmdError: it cannot be read.
    """
    text = str(type_)
    if not text.startswith(_PREFIX):
        return None
    tensor, sharding, devices, *rest = split_at_commas(text[len(_PREFIX) : -1])
    named = dict(field.split(" = ", 1) for field in rest)
    memory_kind, layout = (named.get(name) for name in ("memory_kind", "layout"))
    return IfrtArray(
        ir.Type.parse(tensor, type_.context),
        _read_sharding(sharding),
        _numbers(devices),
        None if memory_kind is None else memory_kind[1:-1],
        None if layout is None else layout[1:-1],
    )


def read_devices(attribute: ir.Attribute) -> DeviceIds:
    """Returns the devices of an `#ifrt<devices[...]>`."""
    return _numbers(str(attribute))


def _read_sharding(text: str) -> ShardingParam | None:
    if text == _UNSPECIFIED:
        return None
    match = _SHARDING.fullmatch(text)
    if match is None:
        raise NotMpmdError(f"has an unknown sharding: {text}")
    dims, permutation, axes = (_numbers(group) for group in match.groups()[:3])
    return ShardingParam(dims, permutation, axes, match[4] is not None)


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", text)))
