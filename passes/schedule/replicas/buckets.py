"""Buckets of arrays that travel together between replicas: computations that pack, add and unpack them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import sdy, stablehlo

from pathways.dialect import AllGatherOp, AllReduceOp, LaunchOp, NextOp, ReduceOp, ReduceScatterOp, slices_of
from pathways.dialect.attributes.meshes import Mesh, Sharding
from pathways.dialect.attributes.shardings import SliceMesh, make_sharding
from pathways.passes.analysis.operations import zeros_of

Exchange = AllReduceOp | ReduceScatterOp | AllGatherOp
"""Operations that exchange values between replicas."""


def buckets_of(operations: Sequence[ir.OpView], exchanges: Sequence[Exchange]) -> list[list[Exchange]]:
    """Returns the exchanges that travel together: of one dtype, between the same slices, at one time."""
    levels: dict[ir.Value, int] = {}
    # A bucket waits for the last of its sums, so each stage has a bucket.
    sources: dict[ir.Value, frozenset[tuple[str, int | None]]] = {}
    for op in operations:
        level = max((levels.get(value, 0) for value in op.operands), default=0)
        source = frozenset().union(*(sources.get(value, frozenset()) for value in op.operands))
        if isinstance(op, Exchange):
            level += 1
        elif isinstance(op, ReduceOp) or (isinstance(op, NextOp) and op.carry.per_replica):
            source = frozenset({(op.loop, _stage(op.operands[-1]))})
        levels.update(dict.fromkeys(op.results, level))
        sources.update(dict.fromkeys(op.results, source))
    groups: dict[object, dict[frozenset[tuple[str, int | None]], list[Exchange]]] = {}
    for op in exchanges:
        value = op.operands[0]
        places = tuple(slices_of(v) for v in op.operands)
        dtype = ir.RankedTensorType(value.type).element_type
        loop = op.loop if isinstance(op, AllReduceOp) else None
        # Exchanges of one level do not read each other.
        group = groups.setdefault((type(op), places, loop, dtype, levels[op.results[0]]), {})
        group.setdefault(sources.get(value, frozenset()), []).append(op)
    return [bucket for group in groups.values() for bucket in _without_strays(group)]


def _without_strays(
    group: Mapping[frozenset[tuple[str, int | None]], list[Exchange]],
) -> list[list[Exchange]]:
    """Returns the buckets of a group; sums without a stage, such as a loss, travel with the last bucket."""
    buckets = {source: list(sums) for source, sums in group.items()}
    for source in group:
        staged = [other for other in buckets if all(stage is not None for _, stage in other)]
        if staged and any(stage is None for _, stage in source):
            # The backward of the first stage ends last.
            last = min(staged, key=lambda other: sorted((loop, stage or 0) for loop, stage in other))
            buckets[last] += buckets.pop(source)
    return list(buckets.values())


def _stage(value: ir.Value) -> int | None:
    """Returns the stage whose launches compute a value of a loop."""
    op = None if isinstance(value, ir.BlockArgument) else value.owner.opview
    return op.origin.stage if isinstance(op, LaunchOp) and op.origin is not None else None


@dataclasses.dataclass(frozen=True)
class Member:
    """Array in a bucket.

    Attributes:
      layout: its sharding over its slice.
      spread: its sharding over all devices, as far as its dimensions are divisible.
      shard: the shape of its shard in this sharding.
    """

    type: ir.Type
    layout: Sharding
    spread: Sharding
    shard: tuple[int, ...]

    @property
    def element(self) -> ir.Type:
        """The type of its elements."""
        return ir.RankedTensorType(self.type).element_type

    @property
    def size(self) -> int:
        """Number of elements of a shard."""
        return math.prod(self.shard)


@dataclasses.dataclass(frozen=True)
class Bucket:
    """Arrays that travel together between equal slices.

    Attributes:
      home: the mesh of the slices.
      members: the arrays.
      pieces: the number of pieces of the packed arrays.
      wire: the type of the elements in transfers.
    """

    home: SliceMesh
    members: tuple[Member, ...]
    pieces: int
    wire: ir.Type

    @property
    def length(self) -> int:
        """Number of elements of a piece on a device."""
        return -(-sum(member.size for member in self.members) // self.pieces)

    @property
    def element(self) -> ir.Type:
        """The type of its elements."""
        return self.members[0].element

    @property
    def piece(self) -> ir.RankedTensorType:
        """The type of a piece: a row for each device."""
        return ir.RankedTensorType.get([self.home.mesh.size, self.length], self.wire)

    @property
    def piece_sharding(self) -> Sharding:
        """Sharding of a piece over a slice."""
        return Sharding((tuple(name for name, _ in self.home.mesh.axes), ()))

    def attribute(self, sharding: Sharding) -> ir.Attribute | None:
        """Returns the attribute of a sharding; None for slices of one device."""
        return make_sharding(self.home.symbol, sharding) if self.home.mesh.size > 1 else None

    def local(self, shape: Sequence[int]) -> ir.RankedTensorType:
        """Returns the type of an array on a device."""
        return ir.RankedTensorType.get(list(shape), self.element)


def spread_out(layout: Sharding, shape: Sequence[int], mesh: Mesh) -> Sharding:
    """Returns a sharding in which axes that replicated the array divide it, which is a local operation."""
    dims = list(layout.dims)
    used = {axis for axes in dims for axis in axes}
    for name, size in mesh.axes:
        if name in used or size == 1:
            continue
        splits = Sharding(tuple(dims)).splits(mesh)
        fits = (
            d
            for d, (n, shards) in enumerate(zip(shape, splits, strict=True))
            if n and n % (shards * size) == 0
        )
        dim = next(fits, None)
        if dim is not None:
            dims[dim] = (*dims[dim], name)
    return Sharding(tuple(dims))


type Body = Callable[[Bucket, list[ir.Value]], list[ir.Value]]
"""Builds a computation of a bucket: from arrays to pieces, or back."""

type _Local = Callable[[list[ir.Value]], list[ir.Value]]
"""Computation of a device on its shards."""


def cut(bucket: Bucket, members: list[ir.Value]) -> list[ir.Value]:
    """Packs the arrays of a bucket into its pieces."""

    def body(shards: list[ir.Value]) -> list[ir.Value]:
        flat = [
            stablehlo.reshape(bucket.local([member.size]), shard) for member, shard in _pairs(bucket, shards)
        ]
        line = _converted(flat[0] if len(flat) == 1 else stablehlo.concatenate(flat, 0), bucket.wire)
        missing = bucket.pieces * bucket.length - sum(member.size for member in bucket.members)
        if missing:
            line = stablehlo.concatenate([line, zeros_of(_sized(line, [missing]))], 0)
        pieces = [line]
        if bucket.pieces > 1:
            starts = range(0, bucket.pieces * bucket.length, bucket.length)
            pieces = [stablehlo.slice(line, [n], [n + bucket.length], [1]) for n in starts]
        return [stablehlo.reshape(_sized(line, [1, bucket.length]), piece) for piece in pieces]

    spread = [laid_out(bucket, value, member.spread) for member, value in _pairs(bucket, members)]
    return _on_devices(
        bucket,
        spread,
        [(member.spread, member.shard) for member in bucket.members],
        [(bucket.piece_sharding, bucket.piece)] * bucket.pieces,
        body,
    )


def add(bucket: Bucket, terms: list[ir.Value]) -> list[ir.Value]:
    """Returns the sum of equal pieces, in the type for transfers."""
    return [_converted(total_of(bucket, terms), bucket.wire)]


def total_of(bucket: Bucket, terms: list[ir.Value]) -> ir.Value:
    """Returns the sum of equal pieces, in the order of the replicas."""
    total, *rest = (_converted(term, bucket.element) for term in terms)
    for term in rest:
        total = stablehlo.add(total, term)
    return total


def _converted(value: ir.Value, element: ir.Type) -> ir.Value:
    tensor = ir.RankedTensorType(value.type)
    if tensor.element_type == element:
        return value
    return stablehlo.convert(ir.RankedTensorType.get(tensor.shape, element), value)


def _sized(like: ir.Value, shape: Sequence[int]) -> ir.RankedTensorType:
    """Returns a type of the elements of a value, with another shape."""
    return ir.RankedTensorType.get(list(shape), ir.RankedTensorType(like.type).element_type)


def join(bucket: Bucket, pieces: list[ir.Value]) -> list[ir.Value]:
    """Unpacks the pieces of a bucket into its arrays: the reverse of `cut`."""

    def body(rows: list[ir.Value]) -> list[ir.Value]:
        lines = [
            _converted(stablehlo.reshape(_sized(row, [bucket.length]), row), bucket.element) for row in rows
        ]
        line = lines[0] if len(lines) == 1 else stablehlo.concatenate(lines, 0)
        shards, start = [], 0
        for member in bucket.members:
            flat = stablehlo.slice(line, [start], [start + member.size], [1])
            shards.append(stablehlo.reshape(bucket.local(member.shard), flat))
            start += member.size
        return shards

    spread = _on_devices(
        bucket,
        pieces,
        [(bucket.piece_sharding, (1, bucket.length))] * len(pieces),
        [(member.spread, member.type) for member in bucket.members],
        body,
    )
    return [laid_out(bucket, value, member.layout) for member, value in _pairs(bucket, spread)]


def add_and_join(bucket: Bucket, terms: list[ir.Value]) -> list[ir.Value]:
    return join(bucket, [total_of(bucket, terms)])


def settled(values: list[ir.Value]) -> list[ir.Value]:
    """Returns values after a barrier, which keeps XLA from fusing them with their readers.

    In one computation XLA would fuse a sum with its readers and contract other multiplications and additions,
    so that results would depend on which launches are fused.
    """
    return list(stablehlo.OptimizationBarrierOp(values).results)


def _pairs(bucket: Bucket, values: Sequence[ir.Value]) -> Iterator[tuple[Member, ir.Value]]:
    return zip(bucket.members, values, strict=True)


def laid_out(bucket: Bucket, value: ir.Value, sharding: Sharding) -> ir.Value:
    attribute = bucket.attribute(sharding)
    return value if attribute is None else sdy.ShardingConstraintOp(value, attribute).result


def _on_devices(
    bucket: Bucket,
    values: list[ir.Value],
    held: Sequence[tuple[Sharding, Sequence[int]]],
    results: Sequence[tuple[Sharding, ir.Type]],
    body: _Local,
) -> list[ir.Value]:
    """Builds a manual computation that applies `body` to the shards of each device."""
    if bucket.home.mesh.size == 1:
        return body(values)
    computation = sdy.ManualComputationOp(
        [type_ for _, type_ in results],
        values,
        sdy.TensorShardingPerValueAttr.get([bucket.attribute(sharding) for sharding, _ in held]),
        sdy.TensorShardingPerValueAttr.get([bucket.attribute(sharding) for sharding, _ in results]),
        sdy.ManualAxesAttr.get([ir.StringAttr.get(name) for name, _ in bucket.home.mesh.axes]),
    )
    shards = [_sized(value, shape) for value, (_, shape) in zip(values, held, strict=True)]
    block = computation.body.blocks.append(*shards)
    with ir.InsertionPoint(block):
        sdy.ReturnOp(body(list(block.arguments)))
    return list(computation.results)
