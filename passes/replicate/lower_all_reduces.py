"""`pw-lower-all-reduces`: sums over replicas become launches on each replica, and transfers between them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import ClassVar

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import sdy, stablehlo

from pathways.dialect import AllReduceOp, LaunchOp, ReduceOp, TransferOp, slices_of
from pathways.dialect.forms import SHARDED
from pathways.dialect.graphs import topological_order
from pathways.dialect.layouts import Layouts
from pathways.dialect.meshes import Mesh, Sharding
from pathways.dialect.shardings import SliceMesh, make_sharding
from pathways.passes.base import Pass, main_function, option
from pathways.passes.util.computations import Computations
from pathways.passes.util.functions import body_block
from pathways.passes.util.operations import byte_size, zeros_of


@dataclasses.dataclass(frozen=True)
class LowerAllReduces(Pass):
    """Turns every `pw.all_reduce` over replicas into launches and transfers.

    Sums of one dtype that the launches of one stage give travel together, as one bucket; each device of a
    slice exchanges with those of its number in the other replicas. What is replicated over a slice is divided
    among its devices first, where a dimension divides, and gathered there at last.

    1. A launch on each replica puts its values into a bucket, cut into as many equal pieces as there are
       replicas (padded with zeros).
    2. Each replica gets its piece from all others, and adds them up in the order of the replicas.
    3. Each sends its sum to all others. A launch takes the sums apart.

    So each replica sends and receives 2 (R - 1) / R times the bytes of a bucket. With two replicas, where it
    is as many bytes, and for buckets of up to `whole-bytes`, buckets are not cut: each replica gets those of
    all others and adds them up itself, in the same order. Of two replicas, arrays above that size travel as
    they are, outside of the bucket.

    With `dtype` wider floats are rounded to it before they are sent, terms and sums; they are added in their
    own dtype.

    All replicas run the same computations, and have the same sums bit by bit. What leads to a transfer is to
    run `soon`: while other stages of the slice still work.

    Requires: `pw-replicate`.
    Guarantees: no `pw.all_reduce` is left.
    """

    name: ClassVar[str] = "pw-lower-all-reduces"
    takes = (SHARDED,)
    whole_bytes: int = option(16384, "buckets up to this size are sent as a whole to each replica")
    dtype: str = option("", "the dtype in which wider floats are sent: bfloat16, float16 or float32")

    def __post_init__(self) -> None:
        if self.dtype not in ("", *WIRES):
            raise ValueError(f"option 'dtype' must be one of {', '.join(WIRES)}, got '{self.dtype}'")

    def run(self, module: ir.Module) -> None:
        block = body_block(main_function(module))
        operations = list(block.operations)
        sums = [op for op in operations if isinstance(op, AllReduceOp) and len(op.operands) > 1]
        for op in [op for op in operations if isinstance(op, AllReduceOp) and len(op.operands) == 1]:
            op.results[0].replace_all_uses_with(op.operands[0])
            op.operation.erase()
        if not sums:
            return
        exchange = _Exchange(module, self.whole_bytes, self.dtype)
        for bucket in _buckets(operations, sums):
            exchange.lower(bucket)
        _sort(block)


WIRES = {"bfloat16": "bf16", "float16": "f16", "float32": "f32"}
"""What MLIR calls the dtypes that values may be sent in."""


def _buckets(operations: Sequence[ir.OpView], sums: Sequence[AllReduceOp]) -> list[list[AllReduceOp]]:
    """The sums that travel together: of one dtype, between the same slices, and made at one time."""
    levels: dict[ir.Value, int] = {}
    sources: dict[ir.Value, frozenset[tuple[str, int | None]]] = {}
    for op in operations:
        level = max((levels.get(value, 0) for value in op.operands), default=0)
        made = frozenset().union(*(sources.get(value, frozenset()) for value in op.operands))
        if isinstance(op, AllReduceOp):
            level += 1
        elif isinstance(op, ReduceOp):
            made = frozenset({(op.loop, _stage(op.operands[0]))})
        levels.update(dict.fromkeys(op.results, level))
        sources.update(dict.fromkeys(op.results, made))
    groups: dict[object, dict[frozenset[tuple[str, int | None]], list[AllReduceOp]]] = {}
    for op in sums:
        value = op.operands[0]
        places = tuple(slices_of(v) for v in op.operands)
        dtype = ir.RankedTensorType(value.type).element_type
        # Sums of one level do not read each other.
        group = groups.setdefault((places, op.loop, dtype, levels[op.results[0]]), {})
        group.setdefault(sources.get(value, frozenset()), []).append(op)
    return [bucket for group in groups.values() for bucket in _without_strays(group)]


def _without_strays(
    group: Mapping[frozenset[tuple[str, int | None]], list[AllReduceOp]],
) -> list[list[AllReduceOp]]:
    """The buckets of a group; what no stage makes, such as a loss, travels with what is made last."""
    buckets = {source: list(sums) for source, sums in group.items()}
    for source in group:
        others = [other for other in buckets if all(stage is not None for _, stage in other)]
        if others and any(stage is None for _, stage in source):
            last = min(others, key=lambda other: sorted((loop, stage or 0) for loop, stage in other))
            buckets[last] += buckets.pop(source)
    return list(buckets.values())


def _stage(value: ir.Value) -> int | None:
    """The stage whose launches make a value of a loop."""
    op = None if isinstance(value, ir.BlockArgument) else value.owner.opview
    return op.origin.stage if isinstance(op, LaunchOp) and op.origin is not None else None


def _sort(block: ir.Block) -> None:
    """Moves operations behind what they read, and otherwise members them in their order."""
    *operations, terminator = block.operations
    number = {result: n for n, op in enumerate(operations) for result in op.results}
    reads = {n: {number[v]: None for v in op.operands if v in number} for n, op in enumerate(operations)}
    order = topological_order(reads)
    if order != list(range(len(operations))):
        for n in order:
            operations[n].operation.move_before(terminator)


@dataclasses.dataclass(frozen=True)
class _Member:
    """An array in a bucket.

    Attributes:
      type: its type.
      layout: how it lies over its slice.
      spread: how it lies divided among all devices, as far as its dimensions go.
      shard: the shape of what a device has of it then.
    """

    type: ir.Type
    layout: Sharding
    spread: Sharding
    shard: tuple[int, ...]

    @property
    def size(self) -> int:
        """The elements of a shard."""
        return math.prod(self.shard)


@dataclasses.dataclass(frozen=True)
class _Bucket:
    """The arrays that travel together between equal slices.

    Attributes:
      home: the mesh of the slices.
      members: the arrays.
      pieces: into how many pieces it is cut.
      wire: the type of the elements that are sent.
    """

    home: SliceMesh
    members: tuple[_Member, ...]
    pieces: int
    wire: ir.Type

    @property
    def length(self) -> int:
        """The elements of a piece on a device."""
        return -(-sum(member.size for member in self.members) // self.pieces)

    @property
    def element(self) -> ir.Type:
        """The type of its elements."""
        return ir.RankedTensorType(self.members[0].type).element_type

    @property
    def piece(self) -> ir.RankedTensorType:
        """The type of a piece: a row for each device."""
        return ir.RankedTensorType.get([self.home.mesh.size, self.length], self.wire)

    @property
    def lies(self) -> Sharding:
        """How a piece lies over a slice."""
        return Sharding((tuple(name for name, _ in self.home.mesh.axes), ()))

    def attribute(self, sharding: Sharding) -> ir.Attribute | None:
        """A sharding as it is written; nothing for slices of one device."""
        return make_sharding(self.home.symbol, sharding) if self.home.mesh.size > 1 else None

    def local(self, shape: Sequence[int]) -> ir.RankedTensorType:
        """The type of what a device has."""
        return ir.RankedTensorType.get(list(shape), self.element)


def _spread(layout: Sharding, shape: Sequence[int], mesh: Mesh) -> Sharding:
    """Lets axes that replicate an array divide it, as far as its dimensions go: a local operation."""
    dims = list(layout.dims)
    used = {axis for axes in dims for axis in axes}
    for name, size in mesh.axes:
        if name in used or size == 1:
            continue
        splits = Sharding(tuple(dims)).splits(mesh)
        fits = (
            d for d, (n, parts) in enumerate(zip(shape, splits, strict=True)) if n and n % (parts * size) == 0
        )
        dim = next(fits, None)
        if dim is not None:
            dims[dim] = (*dims[dim], name)
    return Sharding(tuple(dims))


type _Body = Callable[[_Bucket, list[ir.Value]], list[ir.Value]]
"""Builds a computation of a bucket: from arrays to pieces, or back."""

type _Local = Callable[[list[ir.Value]], list[ir.Value]]
"""What a device does with its shards."""


class _Exchange:
    def __init__(self, module: ir.Module, whole_bytes: int, dtype: str) -> None:
        self.whole_bytes = whole_bytes
        self.dtype = dtype
        self.layouts = Layouts(module)
        self.computations = Computations(module, self.layouts.symbols)
        self.loop: str | None = None
        """The loop of the sums at hand."""

    def lower(self, sums: Sequence[AllReduceOp]) -> None:
        """Replaces the sums of a bucket."""
        places = [(slices_of(value) or ("",))[0] for value in sums[0].operands]
        home = self.layouts.meshes[places[0]]
        self.loop = sums[0].loop
        members = [(op, self.member(op.operands[0], places[0], home)) for op in sums]
        alone = [(op, member) for op, member in members if self.goes_alone(op, member)]
        packed = [(op, member) for op, member in members if not self.goes_alone(op, member)]
        with sums[-1].operation.location, ir.InsertionPoint(sums[-1]):
            for some, exchange in ((alone, self.exchange_alone), (packed, self.exchange)):
                if some:
                    exchange([op for op, _ in some], places, self.bucket(some, home, len(places)))
        for op in sums:
            op.operation.erase()

    def member(self, value: ir.Value, place: str, home: SliceMesh) -> _Member:
        """An array of a bucket."""
        type_ = ir.RankedTensorType(value.type)
        layout = self.layouts.of(value, place)
        spread = _spread(layout, type_.shape, home.mesh)
        splits = spread.splits(home.mesh)
        shard = tuple(n // parts for n, parts in zip(type_.shape, splits, strict=True))
        return _Member(type_, layout, spread, shard)

    def goes_alone(self, op: AllReduceOp, member: _Member) -> bool:
        """Whether an array is sent as it is: to pack what is large would cost more than it saves."""
        is_large = byte_size(member.type) > self.whole_bytes
        is_rounded = self.wire(member) != ir.RankedTensorType(member.type).element_type
        return len(op.operands) == 2 and is_large and member.spread == member.layout and not is_rounded

    def wire(self, member: _Member) -> ir.Type:
        """The type of the elements in which an array is sent."""
        element = ir.RankedTensorType(member.type).element_type
        if not self.dtype or not isinstance(element, ir.F64Type | ir.F32Type | ir.F16Type | ir.BF16Type):
            return element
        wire = ir.Type.parse(WIRES[self.dtype])
        return wire if wire.width < element.width else element

    def bucket(self, members: Sequence[tuple[AllReduceOp, _Member]], home: SliceMesh, count: int) -> _Bucket:
        """The bucket of some arrays."""
        size = sum(byte_size(member.type) for _, member in members)
        is_whole = count == 2 or size <= self.whole_bytes
        pieces = 1 if is_whole else count
        return _Bucket(home, tuple(member for _, member in members), pieces, self.wire(members[0][1]))

    def exchange_alone(self, sums: Sequence[AllReduceOp], places: Sequence[str], bucket: _Bucket) -> None:
        """Sends arrays as they are; each replica adds them up."""
        layouts = [bucket.attribute(member.layout) for member in bucket.members]
        for r, place in enumerate(places):
            terms = [
                self.moved(value, source, place, layout)
                for op, layout in zip(sums, layouts, strict=True)
                for value, source in zip(op.operands, places, strict=True)
            ]
            name = self.computations.make(
                "total",
                [value.type for value in terms],
                lambda arguments: [
                    total
                    for n in range(0, len(arguments), len(places))
                    for total in [_total(bucket, arguments[n : n + len(places)])]
                ],
                ir.Location.current,
                arguments=[layout for layout in layouts for _ in places],
                results=layouts,
                key=bucket,
            )
            types = self.layouts.symbols[name].type.results
            launch = LaunchOp.build(terms, types, callee=name, slice=place, loop=self.loop)
            for op, value in zip(sums, launch.results, strict=True):
                op.results[r].replace_all_uses_with(value)

    def exchange(self, sums: Sequence[AllReduceOp], places: Sequence[str], bucket: _Bucket) -> None:
        """Sends arrays in a bucket."""
        if bucket.length == 0:
            for op in sums:
                for old, new in zip(op.results, op.operands, strict=True):
                    old.replace_all_uses_with(new)
            return
        body: _Body
        piece = bucket.attribute(bucket.lies)
        pieces = []
        for r, place in enumerate(places):
            values = [op.operands[r] for op in sums]
            pieces.append(self.launch("bucket", bucket, values, place, _cut))
        if bucket.pieces == 1:
            totals = self.sent([mine[0] for mine in pieces], places, piece)
            base, body = "bucket_total", _add_and_join
        else:
            parts = []
            for owner, place in enumerate(places):
                terms = [self.moved(mine[owner], places[r], place, piece) for r, mine in enumerate(pieces)]
                parts += self.launch("bucket_sum", bucket, terms, place, _add)
            totals = self.sent(parts, places, piece)
            base, body = "bucket_join", _join
        for r, place in enumerate(places):
            values = self.launch(base, bucket, totals[r], place, body)
            for op, value in zip(sums, values, strict=True):
                op.results[r].replace_all_uses_with(value)

    def sent(
        self,
        values: Sequence[ir.Value],
        places: Sequence[str],
        sharding: ir.Attribute | None,
    ) -> list[list[ir.Value]]:
        """For each replica the values of all of them, there."""
        return [
            [self.moved(value, places[r], place, sharding) for r, value in enumerate(values)]
            for place in places
        ]

    def moved(self, value: ir.Value, source: str, target: str, sharding: ir.Attribute | None) -> ir.Value:
        """A value on another slice."""
        if source == target:
            return value
        return TransferOp.build(
            [value], [value.type], slice=target, sharding=sharding, loop=self.loop
        ).results[0]

    def launch(
        self,
        base: str,
        bucket: _Bucket,
        operands: Sequence[ir.Value],
        place: str,
        body: _Body,
    ) -> list[ir.Value]:
        """Launches a computation, which equal buckets share."""
        members = [bucket.attribute(member.layout) for member in bucket.members]
        piece = bucket.attribute(bucket.lies)
        name = self.computations.make(
            base,
            [value.type for value in operands],
            lambda arguments: body(bucket, arguments),
            ir.Location.current,
            arguments=members if body is _cut else piece,
            results=members if body in (_join, _add_and_join) else piece,
            key=(bucket, len(operands)),
        )
        types = self.layouts.symbols[name].type.results
        launch = LaunchOp.build(
            operands,
            types,
            callee=name,
            slice=place,
            loop=self.loop,
            # Not what waits for all replicas and is read at last.
            soon=True if body in (_cut, _add) and self.loop is None else None,
        )
        return list(launch.results)


def _cut(bucket: _Bucket, members: list[ir.Value]) -> list[ir.Value]:
    """From the arrays of a bucket to its pieces."""

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

    spread = [_laid_out(bucket, value, member.spread) for member, value in _pairs(bucket, members)]
    return _on_devices(
        bucket,
        spread,
        [(member.spread, member.shard) for member in bucket.members],
        [(bucket.lies, bucket.piece)] * bucket.pieces,
        body,
    )


def _add(bucket: _Bucket, terms: list[ir.Value]) -> list[ir.Value]:
    """The sum of equal pieces, to be sent."""
    return [_converted(_total(bucket, terms), bucket.wire)]


def _total(bucket: _Bucket, terms: list[ir.Value]) -> ir.Value:
    """The sum of equal pieces, in the order of the replicas."""
    total, *others = (_converted(term, bucket.element) for term in terms)
    for term in others:
        total = stablehlo.add(total, term)
    return total


def _converted(value: ir.Value, element: ir.Type) -> ir.Value:
    tensor = ir.RankedTensorType(value.type)
    if tensor.element_type == element:
        return value
    return stablehlo.convert(ir.RankedTensorType.get(tensor.shape, element), value)


def _sized(like: ir.Value, shape: Sequence[int]) -> ir.RankedTensorType:
    """A type of the elements of a value, with another shape."""
    return ir.RankedTensorType.get(list(shape), ir.RankedTensorType(like.type).element_type)


def _join(bucket: _Bucket, pieces: list[ir.Value]) -> list[ir.Value]:
    """From the pieces of a bucket to its arrays: the reverse of `_cut`."""

    def body(parts: list[ir.Value]) -> list[ir.Value]:
        lines = [
            _converted(stablehlo.reshape(_sized(part, [bucket.length]), part), bucket.element)
            for part in parts
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
        [(bucket.lies, (1, bucket.length))] * len(pieces),
        [(member.spread, member.type) for member in bucket.members],
        body,
    )
    return [_laid_out(bucket, value, member.layout) for member, value in _pairs(bucket, spread)]


def _add_and_join(bucket: _Bucket, terms: list[ir.Value]) -> list[ir.Value]:
    return _join(bucket, [_total(bucket, terms)])


def _pairs(bucket: _Bucket, values: Sequence[ir.Value]) -> Iterator[tuple[_Member, ir.Value]]:
    return zip(bucket.members, values, strict=True)


def _laid_out(bucket: _Bucket, value: ir.Value, sharding: Sharding) -> ir.Value:
    attribute = bucket.attribute(sharding)
    return value if attribute is None else sdy.ShardingConstraintOp(value, attribute).result


def _on_devices(
    bucket: _Bucket,
    values: list[ir.Value],
    held: Sequence[tuple[Sharding, Sequence[int]]],
    made: Sequence[tuple[Sharding, ir.Type]],
    body: _Local,
) -> list[ir.Value]:
    """Lets every device apply `body` to what it holds of the values."""
    if bucket.home.mesh.size == 1:
        return body(values)
    computation = sdy.ManualComputationOp(
        [type_ for _, type_ in made],
        values,
        sdy.TensorShardingPerValueAttr.get([bucket.attribute(sharding) for sharding, _ in held]),
        sdy.TensorShardingPerValueAttr.get([bucket.attribute(sharding) for sharding, _ in made]),
        sdy.ManualAxesAttr.get([ir.StringAttr.get(name) for name, _ in bucket.home.mesh.axes]),
    )
    shards = [_sized(value, shape) for value, (_, shape) in zip(values, held, strict=True)]
    block = computation.body.blocks.append(*shards)
    with ir.InsertionPoint(block):
        sdy.ReturnOp(body(list(block.arguments)))
    return list(computation.results)
