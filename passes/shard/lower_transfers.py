"""`pw-lower-transfers`: cuts and joins values that move between slices whose shards do not correspond."""

from __future__ import annotations

import bisect
import dataclasses
import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import ClassVar

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import sdy, stablehlo

from pathways.dialect import LaunchOp, TransferOp, argument_slices, slices_of
from pathways.dialect.attributes.fields import Route
from pathways.dialect.attributes.meshes import Block, Mesh, Sharding
from pathways.dialect.attributes.shardings import make_sharding
from pathways.dialect.operations.operation import counted
from pathways.dialect.relations.layouts import Layouts
from pathways.dialect.verification.forms import PLACED, SHARDED
from pathways.passes.analysis.computations import Body, Computations, Layout
from pathways.passes.analysis.functions import body_block
from pathways.passes.analysis.operations import byte_size, replace
from pathways.passes.manager.base import Pass, fail, main_function, option, remark

ISLANDS = ("named", "all")

_MAX_PIECES = 1 << 20
"""Pieces that one transfer may move: each is a pair of numbers in the IR."""


@dataclasses.dataclass(frozen=True)
class LowerTransfers(Pass):
    """Turns transfers between slices whose shards do not correspond into copies of pieces.

    A transfer is left alone if device i of the source holds exactly the shard that device i of the target
    needs.
    Otherwise:

    1. The shards of both sides are divided by a common grid, in each dimension into the least common
       multiple of both numbers of shards.
    2. A launch on the source cuts every shard into the cells of the grid, without communication. Mesh axes
       over which the source is replicated first share the work, where the target is divided further.
    3. One transfer with `routes` brings every device of the target its cells. Several devices that hold a
       cell take turns.
    4. A launch on the target joins the cells of every shard, without communication.

    A value of more than `gather-bytes` that the target replicates crosses from one island to another once:
    it is sent in as many blocks as there are replicas, along a dimension that they divide, and gathered on
    the target. Within an island every replica gets a copy of its own.

    A transfer of more than `max-pieces` pieces (63 shards and 64 have 4032 in common) is preceded by a launch
    on the source that gathers the value, along as few axes as it takes, or splits it along other dimensions.

    A remark states the bytes that each such transfer moves.

    ```mlir
    // before
    %1 = pw.transfer %arg1 to @s1 {sharding = #sdy.sharding<@mesh_4, [{"x"}, {}]>}
    // after
    %1:2 = pw.launch @cut(%arg1) on @s0
    %2:2 = pw.transfer %1#0, %1#1 to @s1 {routes = array<i64: 0, 0, 1, 0, 0, 2, 1, 2, 0, 1, 1, 1, ...
    %3 = pw.launch @join(%2#0, %2#1) on @s1
    ```

    Requires: placed form; shardings from `pw-propagate-shardings`; the dimensions that they split divide
      evenly.
    Guarantees: a transfer without `routes` copies shards as they are.
    """

    name: ClassVar[str] = "pw-lower-transfers"
    input_forms = (PLACED,)
    output_form = SHARDED
    gather_bytes: int = option(65536, "replicated values above this size cross from island to island once")
    max_pieces: int = option(1024, "a value is gathered on the source first if more copies would be needed")
    islands: str = option(
        "named", "slices on different islands: only if their `island` differs (named), or all"
    )

    def __post_init__(self) -> None:
        if self.islands not in ISLANDS:
            raise ValueError(f"option 'islands' must be one of {', '.join(ISLANDS)}, got '{self.islands}'")
        if self.max_pieces < 1:
            raise ValueError(f"option 'max-pieces' must be at least 1, got {self.max_pieces}")

    def run(self, module: ir.Module) -> None:
        main = main_function(module)
        lowering = TransferLowering(module, self)
        if all(side.mesh.size == 1 for side in lowering.layouts.meshes.values()):
            return
        arguments = argument_slices(main)
        for op in list(body_block(main).operations):
            if isinstance(op, TransferOp) and op.routes is None:
                lowering.lower(op, arguments)


@dataclasses.dataclass(frozen=True)
class Side:
    """One side of a transfer: a slice, its mesh, and the sharding of the value over it."""

    slice: str
    mesh_name: str
    mesh: Mesh
    sharding: Sharding

    def with_sharding(self, sharding: Sharding) -> Side:
        return dataclasses.replace(self, sharding=sharding)

    @property
    def splits(self) -> tuple[int, ...]:
        return self.sharding.splits(self.mesh)

    @property
    def unused(self) -> list[tuple[str, int]]:
        """The axes over which the value is replicated."""
        used = {axis for axes in self.sharding.dims for axis in axes}
        return [(name, size) for name, size in self.mesh.axes if name not in used and size > 1]

    def attribute(self) -> ir.Attribute | None:
        """Returns the sharding as it is written; nothing for a slice of one device."""
        return make_sharding(self.mesh_name, self.sharding) if self.mesh.size > 1 else None


@dataclasses.dataclass(frozen=True)
class _Cut:
    """Division of the shards of both sides.

    Attributes:
      source: the source, its sharding refined by axes that only replicated the value.
      cuts: into how many pieces each dimension of a source shard is cut.
      joins: of how many pieces each dimension of a target shard is made.
      cell: the sizes of a piece.
    """

    source: Side
    target: Side
    cuts: tuple[int, ...]
    joins: tuple[int, ...]
    cell: tuple[int, ...]

    @property
    def pieces(self) -> int:
        """Number of arrays on both sides."""
        return math.prod(self.cuts) + math.prod(self.joins)

    @property
    def copies(self) -> int:
        """Number of pieces that the devices of the target get, all together."""
        return self.target.mesh.size * math.prod(self.joins)


class TransferLowering:
    """Lowering of the transfers of a program.

    Args:
      options: the limits to keep to.
    """

    def __init__(self, module: ir.Module, options: LowerTransfers) -> None:
        self.module = module
        self.options = options
        self.layouts = Layouts(module)
        self.computations = Computations(module, self.layouts.symbols)
        self.cut_values: dict[object, list[ir.Value]] = {}
        self.gathered_values: dict[object, ir.Value] = {}
        self.loop: str | None = None
        """The loop of the current transfer."""
        self.microbatch: int | None = None
        """Its microbatch, once the loop is unrolled."""

    def lower(self, op: TransferOp, arguments: list[tuple[str, ...] | None]) -> None:
        """Lowers a transfer, unless shards are copied as they are."""
        value = op.operands[0]
        self.loop, self.microbatch = op.loop, op.microbatch
        places = slices_of(value, arguments)
        if not places:
            fail(op, "moves a value that is not placed; run pw-infer-placement first")
        source = self.side(places[0], self.layouts.of(value, places[0]))
        target = self.side(op.slice, self.layouts.of(op.results[0], op.slice))
        shape = tuple(ir.RankedTensorType(value.type).shape)
        held, needed = _indices(op, source, shape), _indices(op, target, shape)
        spread: Iterable[Sharding] = ()
        if self.crosses_islands(source, target) and byte_size(value.type) > self.options.gather_bytes:
            spread = _spread(target, shape)
        arrivals = [target.with_sharding(sharding) for sharding in spread]
        # Equal shards are copied as they are, unless the value is to cross islands once: then each replica
        # would get a copy of its own.
        if held == needed and not arrivals:
            return
        cut = min((_cut(source, side, shape) for side in arrivals or [target]), key=lambda cut: cut.pieces)
        with op.operation.location, ir.InsertionPoint(op):
            if cut.copies > self.options.max_pieces:
                few = self.few_pieces(source, arrivals or [target], shape)
                if few.copies < cut.copies:
                    remark(op, f"gathers on @{source.slice} first what would move in {cut.copies} pieces")
                    value, source, cut = self.gather_first(value, source, few.source), few.source, few
            if cut.copies > _MAX_PIECES:
                fail(op, f"moves in {cut.copies} pieces, even when gathered first; at most {_MAX_PIECES} do")
            pieces = self.cut(value, source, cut)
            arrived = self.move(op, pieces, cut, shape)
            joined = self.join(op, arrived, cut)
            result = self.gather(joined, cut.target, target)
        replace(op, [result])

    def few_pieces(self, source: Side, arrivals: Sequence[Side], shape: Sequence[int]) -> _Cut:
        """Returns a division into few pieces, for which the value has to lie otherwise over the source.

        With few enough pieces, the one that splits it most; else the one with the fewest pieces.
        """
        cuts = [_cut(side, arrival, shape) for side in _gathered(source) for arrival in arrivals]
        enough = [cut for cut in cuts if cut.copies <= self.options.max_pieces]
        if enough:
            return max(enough, key=lambda cut: (math.prod(cut.source.splits), -cut.pieces))
        return min(cuts, key=lambda cut: (cut.copies, cut.pieces))

    def gather_first(self, value: ir.Value, source: Side, target: Side) -> ir.Value:
        """Returns a value gathered on the source, once for all its transfers."""
        key = (value, source.slice, target)
        if key not in self.gathered_values:
            self.gathered_values[key] = self.gather(value, source, target)
        return self.gathered_values[key]

    def side(self, slice: str, sharding: Sharding) -> Side:
        """Returns a slice as a side of transfers."""
        home = self.layouts.meshes[slice]
        return Side(slice, home.symbol, home.mesh, sharding)

    def crosses_islands(self, source: Side, target: Side) -> bool:
        if self.options.islands == "all":
            return True
        islands = [self.layouts.symbols[side.slice].island for side in (source, target)]
        return None not in islands and islands[0] != islands[1]

    def cut(self, value: ir.Value, source: Side, cut: _Cut) -> list[ir.Value]:
        """Returns the pieces of a value on the source: all shards' pieces at one position as one array."""
        if cut.source == source and math.prod(cut.cuts) == 1:
            return [value]
        key = (value, source.slice, cut.source, cut.cuts)
        if key not in self.cut_values:
            self.cut_values[key] = self.launch(
                "cut",
                (source.mesh_name, value.type, source.sharding, cut.source.sharding, cut.cuts),
                [value],
                source,
                cut.source,
                lambda arguments: _cut_locally(arguments[0], cut),
            )
        return self.cut_values[key]

    def move(
        self, op: TransferOp, pieces: list[ir.Value], cut: _Cut, shape: tuple[int, ...]
    ) -> list[ir.Value]:
        """Sends pieces along routes."""
        routes = _routes(cut, shape)
        is_one_piece = len(pieces) == math.prod(cut.joins) == 1
        as_it_is = [Route(0, device) for device in range(cut.source.mesh.size)]
        arrived = _array_type(pieces[0].type, cut.target, cut.cell)
        moved = TransferOp.build(
            pieces,
            [arrived] * math.prod(cut.joins),
            slice=op.slice,
            sharding=cut.target.attribute(),
            # Refined or gathered, both sides may correspond after all: then there is nothing to route.
            routes=None if is_one_piece and routes == as_it_is else routes,
            loop=op.loop,
            microbatch=op.microbatch,
        )
        copies = len(routes)
        size = copies * byte_size(_sized(arrived, cut.cell))
        source, target = cut.source, cut.target
        # The microbatches of a loop are alike.
        if not op.microbatch:
            remark(
                op,
                f"moves {counted(size, 'byte')} from @{source.slice} "
                f"({counted(source.mesh.size, 'device')}) to @{target.slice} "
                f"({counted(target.mesh.size, 'device')}) in {counted(copies, 'piece')}",
            )
        return list(moved.results)

    def join(self, op: TransferOp, pieces: list[ir.Value], cut: _Cut) -> ir.Value:
        """Returns the value on the target."""
        if len(pieces) == 1:
            return pieces[0]
        (joined,) = self.launch(
            "join",
            (cut.target.mesh_name, op.results[0].type, cut.target.sharding, cut.joins),
            pieces,
            cut.target,
            cut.target,
            lambda arguments: _join_locally(arguments, op.results[0].type, cut),
        )
        return joined

    def gather(self, value: ir.Value, source: Side, target: Side) -> ir.Value:
        """Changes the sharding of a value on a slice."""
        if source == target:
            return value
        key = (source.mesh_name, value.type, source.sharding, target.sharding)
        (gathered,) = self.launch("gather", key, [value], source, target, list)
        return gathered

    def launch(
        self,
        base: str,
        key: tuple[object, ...],
        operands: list[ir.Value],
        operand_side: Side,
        result_side: Side,
        body: Body,
    ) -> list[ir.Value]:
        """Launches a computation; equal keys share it."""
        shardings = operand_side.attribute(), result_side.attribute()
        return self.launch_on(operand_side.slice, base, key, operands, *shardings, body)

    def launch_on(
        self,
        slice: str,
        base: str,
        key: tuple[object, ...],
        operands: list[ir.Value],
        arguments: Sequence[Layout] | Layout,
        results: Sequence[Layout] | Layout,
        body: Body,
    ) -> list[ir.Value]:
        """Launches a computation on a slice, with these shardings of its arguments and results."""
        name = self.computations.make(
            base,
            [v.type for v in operands],
            body,
            ir.Location.current,
            arguments=arguments,
            results=results,
            key=key,
        )
        launch = LaunchOp.build(
            operands,
            self.layouts.symbols[name].type.results,
            callee=name,
            slice=slice,
            loop=self.loop,
            microbatch=self.microbatch,
        )
        return list(launch.results)


def _indices(op: TransferOp, side: Side, shape: Sequence[int]) -> list[Block]:
    problem = side.sharding.problem(shape, side.mesh)
    if problem is not None:
        fail(op, f"cannot be cut: on @{side.slice} {problem}")
    return side.sharding.blocks(shape, side.mesh)


def _cut(source: Side, target: Side, shape: Sequence[int]) -> _Cut:
    """Divides the shards of both sides by a common grid."""
    grid = [math.lcm(s, t) for s, t in zip(source.splits, target.splits, strict=True)]
    source = _refined(source, grid)
    return _Cut(
        source,
        target,
        tuple(g // s for g, s in zip(grid, source.splits, strict=True)),
        tuple(g // t for g, t in zip(grid, target.splits, strict=True)),
        tuple(n // g for n, g in zip(shape, grid, strict=True)),
    )


def _refined(side: Side, grid: Sequence[int]) -> Side:
    """Lets axes that replicate a value divide it further, as far as the grid goes: a local operation."""
    dims = list(side.sharding.dims)
    for name, size in side.unused:
        splits = Sharding(tuple(dims)).splits(side.mesh)
        fits = (d for d, (g, s) in enumerate(zip(grid, splits, strict=True)) if g // s % size == 0)
        dim = next(fits, None)
        if dim is not None:
            # As the most minor axis it divides the shard that each device already has: nothing moves.
            dims[dim] = (*dims[dim], name)
    return side.with_sharding(Sharding(tuple(dims)))


def _gathered(side: Side) -> Iterator[Side]:
    """Yields the sides on which a value is gathered along minor axes of its dimensions."""
    for counts in itertools.product(*(range(len(axes) + 1) for axes in side.sharding.dims)):
        dims = zip(side.sharding.dims, counts, strict=True)
        yield side.with_sharding(Sharding(tuple(axes[:count] for axes, count in dims)))


def _spread(target: Side, shape: Sequence[int]) -> Iterator[Sharding]:
    """Yields the shardings that divide a value among its replicas, along each dimension that they divide."""
    axes = tuple(name for name, _ in target.unused)
    if not axes:
        return
    for dim in range(len(shape)):
        dims = list(target.sharding.dims)
        dims[dim] = (*dims[dim], *axes)
        spread = Sharding(tuple(dims))
        if shape[dim] > 0 and shape[dim] % spread.splits(target.mesh)[dim] == 0:
            yield spread


def _routes(cut: _Cut, shape: Sequence[int]) -> list[Route]:
    """Returns, for each result and target device, the piece and the source device that sends it."""
    devices_of: dict[Block, list[int]] = {}
    for device, block in enumerate(cut.source.sharding.blocks(shape, cut.source.mesh)):
        devices_of.setdefault(block, []).append(device)
    # Shared by all pieces of a block: a value that is replicated has all of them on all devices.
    holders: dict[tuple[int, ...], tuple[int, list[int]]] = {}
    for block, devices in devices_of.items():
        for number, start in enumerate(_starts(block, cut.cuts, cut.cell)):
            holders[start] = (number, devices)
    needed = cut.target.sharding.blocks(shape, cut.target.mesh)
    starts_by_device = [list(_starts(block, cut.joins, cut.cell)) for block in needed]
    senders = _Senders(cut.source.mesh.size)
    routes = []
    for result in range(math.prod(cut.joins)):
        for device, starts in enumerate(starts_by_device):
            piece, holding = holders[starts[result]]
            routes.append(Route(piece, senders.take(holding, device)))
    return routes


class _Senders:
    """The devices of a source, which take turns.

    The least busy one sends; among equally busy ones the device of the same number, then the next ones.
    """

    def __init__(self, size: int) -> None:
        self.load = [0] * size
        self.least = 0
        self.at_least = size
        """How many devices have that load."""

    def take(self, holding: Sequence[int], device: int) -> int:
        """Returns the device that sends to a device of the target, one of the ascending holders."""
        size = len(self.load)
        start = bisect.bisect_left(holding, device % size)
        # They may be very many: the first one that is as idle as any will do.
        in_turn = (holding[(start + n) % len(holding)] for n in range(len(holding)))
        sender = next((sender for sender in in_turn if self.load[sender] == self.least), None)
        if sender is None:
            sender = min(holding, key=lambda other: (self.load[other], (other - device) % size))
        self.count(sender)
        return sender

    def count(self, sender: int) -> None:
        self.load[sender] += 1
        # It was not among the least busy ones, so their number stays.
        if self.load[sender] > self.least + 1:
            return
        self.at_least -= 1
        if self.at_least == 0:
            # Only after one more piece of every device: constant work for each piece, on average.
            self.least = min(self.load)
            self.at_least = self.load.count(self.least)


def _starts(block: Block, counts: Sequence[int], cell: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Yields the starts of the pieces of a shard, in row-major order."""
    for number in _places(counts):
        yield tuple(start + n * c for (start, _), n, c in zip(block, number, cell, strict=True))


def _places(counts: Iterable[int]) -> Iterator[tuple[int, ...]]:
    return itertools.product(*(range(count) for count in counts))


def _cut_locally(value: ir.Value, cut: _Cut) -> list[ir.Value]:
    """Cuts every shard of a value into cells."""
    if math.prod(cut.cuts) == 1:
        # Only the sharding is refined: each device takes a slice of its shard.
        return [sdy.ShardingConstraintOp(value, cut.source.attribute()).result]
    shard = [a * c for a, c in zip(cut.cuts, cut.cell, strict=True)]

    def body(arguments: list[ir.Value]) -> list[ir.Value]:
        pieces = []
        for place in _places(cut.cuts):
            starts = [n * c for n, c in zip(place, cut.cell, strict=True)]
            limits = [n + c for n, c in zip(starts, cut.cell, strict=True)]
            pieces.append(stablehlo.slice(arguments[0], starts, limits, [1] * len(starts)))
        return pieces

    piece = _array_type(value.type, cut.source, cut.cell)
    return _on_shards([value], shard, [piece] * math.prod(cut.cuts), cut.source, body)


def _join_locally(pieces: list[ir.Value], result: ir.Type, cut: _Cut) -> list[ir.Value]:
    """Joins the cells of every shard: the reverse of `_cut_locally`."""

    def body(cells: list[ir.Value]) -> list[ir.Value]:
        # In row-major order cells that follow each other are neighbours in the last dimension; once these
        # are joined, in the one before it.
        for dim, count in reversed(list(enumerate(cut.joins))):
            if count > 1:
                runs = [cells[n : n + count] for n in range(0, len(cells), count)]
                cells = [stablehlo.concatenate(run, dim) for run in runs]
        return cells

    return _on_shards(pieces, cut.cell, [result], cut.target, body)


def _on_shards(
    values: list[ir.Value], shard: Sequence[int], results: list[ir.Type], side: Side, body: Body
) -> list[ir.Value]:
    """Lets every device of a side apply `body` to its shards of the values, which have the same shape."""
    attribute = side.attribute()
    if attribute is None:
        return list(body(values))
    computation = sdy.ManualComputationOp(
        results,
        values,
        sdy.TensorShardingPerValueAttr.get([attribute] * len(values)),
        sdy.TensorShardingPerValueAttr.get([attribute] * len(results)),
        # All axes are manual, so that the partitioner adds no communication.
        sdy.ManualAxesAttr.get([ir.StringAttr.get(name) for name, _ in side.mesh.axes]),
    )
    types = [_sized(value.type, shard) for value in values]
    block = computation.body.blocks.append(*types)
    with ir.InsertionPoint(block):
        sdy.ReturnOp(body(list(block.arguments)))
    return list(computation.results)


def _array_type(like: ir.Type, side: Side, cell: Sequence[int]) -> ir.RankedTensorType:
    """Returns the type of an array whose shards over a side have the size of a cell."""
    return _sized(like, [shards * size for shards, size in zip(side.splits, cell, strict=True)])


def _sized(like: ir.Type, shape: Sequence[int]) -> ir.RankedTensorType:
    return ir.RankedTensorType.get(list(shape), ir.RankedTensorType(like).element_type)
