"""Launches on blocks: a computation becomes one, or several with exchanges between them."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from pathways.dialect import AllGatherOp, LaunchOp, argument_attrs, nested_ops, result_attrs
from pathways.dialect.attributes.meshes import replicated
from pathways.dialect.attributes.names import SHARDING
from pathways.dialect.attributes.shardings import decided_inside, make_sharding
from pathways.dialect.relations.layouts import Layouts
from pathways.passes.analysis.computations import Computations
from pathways.passes.analysis.operations import captured, replace_operands
from pathways.passes.shard.updates.axes import BRANCHES, Tie, block_attributes, is_free, partial_dims, ties_of
from pathways.passes.shard.updates.splitting import OuterLaunch, Splitting


class Extent(enum.IntEnum):
    """What a replica has of a value."""

    PARTIAL = 0
    """What a reduction makes of its block."""
    STACK = 1
    """What it makes of the blocks of all replicas, one after the other."""
    WHOLE = 2
    BLOCK = 3


class Item(NamedTuple):
    """A value inside of a computation, and how much of it; the number of the replica has no value there."""

    value: ir.Value | None
    extent: Extent


NUMBER = Item(None, Extent.WHOLE)
"""The number of the replica."""


@dataclasses.dataclass
class _Segment:
    """A computation between exchanges: what it reads, computes in that order, and returns."""

    inputs: list[Item] = dataclasses.field(default_factory=list)
    body: list[Item] = dataclasses.field(default_factory=list)
    outputs: list[Item] = dataclasses.field(default_factory=list)


class _Branches(NamedTuple):
    """What branches read from outside, and of each of them what it computes and returns."""

    reads: list[Item]
    bodies: list[tuple[list[Item], list[Item]]]


class SplitLaunch:
    """How a launch is done on blocks.

    Args:
      launch: the launch.
      splitting: what is split.
      layouts: how values lie.
      computations: makes computations; equal launches share them.
    """

    def __init__(
        self, launch: OuterLaunch, splitting: Splitting, layouts: Layouts, computations: Computations
    ) -> None:
        self.launch = launch
        self.splitting = splitting
        self.layouts = layouts
        self.computations = computations
        self.home = layouts.meshes[launch.op.slice]
        self._branches: dict[ir.OpView, _Branches] = {}
        self.positions = {value: n for n, op in enumerate(launch.operations) for value in op.results}
        callee = layouts.symbols[launch.op.callee]
        self.arguments = [attrs.get(SHARDING) for attrs in argument_attrs(callee)]
        results = [attrs.get(SHARDING) for attrs in result_attrs(callee)]
        self.results = dict(zip(launch.returned, results, strict=True))
        self.wanted = [Item(value, self.extent(value)) for value in launch.returned]

    def build(self, operand: Callable[[ir.Value | None, bool], ir.Value]) -> list[ir.Value]:
        """Makes the launches at the insertion point.

        Args:
          operand: gives an operand of the launch as a whole or, if true, as a block; without one the number
            of the replica.

        Returns:
          What stands for each result of the launch, blocks of those that are split.
        """
        values: dict[Item, ir.Value] = {}
        pieces = self.pieces()
        for n, piece in enumerate(pieces):
            for item in piece.inputs:
                if item not in values:
                    outer = None if item.value is None else self.launch.key(item.value).value
                    values[item] = operand(outer, item.extent == Extent.BLOCK)
            name = self.computation(piece)
            made = LaunchOp.build(
                [values[item] for item in piece.inputs],
                self.layouts.symbols[name].type.results,
                callee=name,
                slice=self.launch.op.slice,
                origins=self.launch.op.origins if n == len(pieces) - 1 else (),
            )
            values |= dict(zip(piece.outputs, made.results, strict=True))
            for item in piece.outputs:
                exchanged = self.exchanged(item)
                if exchanged is not None:
                    values[exchanged] = self.gather(item, values[item])
        return [
            operand(self.launch.key(item.value).value, item.extent == Extent.BLOCK)
            if self.is_argument(item.value)
            else values[item]
            for item in self.wanted
        ]

    def gather(self, item: Item, value: ir.Value) -> ir.Value:
        """Exchanges what replicas have."""
        whole = Item(item.value, Extent.STACK if item.extent == Extent.PARTIAL else Extent.WHOLE)
        dim = 0 if item.extent == Extent.PARTIAL else self.splitting.dims[self.launch.key(item.value)]
        return AllGatherOp.build([value], [self.type(whole)], dim=dim, slice=self.launch.op.slice).results[0]

    def dim(self, value: ir.Value) -> int | None:
        """Returns the dimension of which a replica has a block; None where it has all."""
        return self.splitting.dim(self.launch.key(value))

    def is_argument(self, value: ir.Value) -> bool:
        return isinstance(value, ir.BlockArgument) and value.owner == self.launch.block

    def is_input(self, item: Item) -> bool:
        """Returns whether an item comes from outside of the launch."""
        if item.value is None:
            return True
        return self.is_argument(item.value) and (
            item.extent == Extent.WHOLE or self.dim(item.value) is not None
        )

    def is_partial(self, op: ir.OpView) -> bool:
        """Returns whether an operation reduces blocks."""
        dims = partial_dims(op)
        return bool(dims) and self.dim(op.operands[0]) in dims

    def source(self, item: Item) -> Item | None:
        """What is exchanged to get an item; None for what is computed."""
        if item.extent == Extent.STACK:
            return Item(item.value, Extent.PARTIAL)
        if item.value is None or item.extent != Extent.WHOLE or self.is_argument(item.value):
            return None
        return None if self.dim(item.value) is None else Item(item.value, Extent.BLOCK)

    def exchanged(self, item: Item) -> Item | None:
        """What becomes of an item by an exchange that the launch needs."""
        whole = Item(item.value, Extent.STACK if item.extent == Extent.PARTIAL else Extent.WHOLE)
        return whole if whole in self.needed and self.source(whole) == item else None

    def ties(self, value: ir.Value) -> dict[int, Tie] | None:
        """By operand how the block of a result is made of blocks; None where it is cut of the whole."""
        dim = self.splitting.dims[self.launch.key(value)]
        op, number = value.owner.opview, ir.OpResult(value).result_number
        ties = {tie.operand: tie for tie in ties_of(op) if (tie.result, tie.result_dim) == (number, dim)}
        return ties if ties or is_free(op, dim) else None

    def reads(self, item: Item) -> list[Item]:
        """What an item is computed of."""
        value, extent = item
        if self.is_input(item):
            return []
        source = self.source(item)
        if source is not None:
            return [source]
        assert value is not None
        if self.is_argument(value):
            return [Item(value, Extent.WHOLE), NUMBER]
        op = value.owner.opview
        if _is_barrier(op):
            return [Item(op.operands[ir.OpResult(value).result_number], extent)]
        if self.is_branch(item):
            return self.branches(op).reads
        if extent == Extent.PARTIAL:
            return [Item(op.operands[0], Extent.BLOCK), Item(op.operands[1], Extent.WHOLE)]
        if extent == Extent.BLOCK:
            ties = self.ties(value)
            if ties is None:
                return [Item(value, Extent.WHOLE), NUMBER]
            return [Item(v, Extent.BLOCK if n in ties else Extent.WHOLE) for n, v in enumerate(op.operands)]
        if self.is_partial(op):
            return [Item(value, Extent.STACK), Item(op.operands[1], Extent.WHOLE)]
        return [Item(v, Extent.WHOLE) for v in captured(op)]

    def pieces(self) -> list[_Segment]:
        """Returns the computations, one after the other."""
        order = _in_order(self.wanted, self.reads)
        self.needed = set(order)
        levels: dict[Item, int] = {}
        constant: dict[Item, bool] = {}
        for item in order:
            reads = self.reads(item)
            level = max((levels[read] for read in reads), default=0)
            levels[item] = level + (self.source(item) is not None)
            constant[item] = not self.is_input(item) and all(constant[read] for read in reads)
        sources = [source for item in order if (source := self.source(item)) is not None]
        targets = dict.fromkeys(item for item in [*sources, *self.wanted] if not self.is_input(item))
        pieces = [_Segment() for _ in range(max(levels.values(), default=0) + 1)]
        computed: dict[Item, int] = {}
        for n, piece in enumerate(pieces):

            def reads_here(item: Item, n: int = n) -> list[Item]:
                earlier = computed.get(item, n) < n and not constant[item]
                return [] if earlier or self.source(item) is not None else self.reads(item)

            piece.outputs += [item for item in targets if levels[item] == n and self.source(item) is None]
            for item in _in_order(piece.outputs, reads_here):
                made = computed.get(item, n)
                if made < n and not constant[item]:
                    if item not in pieces[made].outputs:
                        pieces[made].outputs.append(item)
                    piece.inputs.append(item)
                elif self.is_input(item) or self.source(item) is not None:
                    piece.inputs.append(item)
                else:
                    computed[item] = n
                    piece.body.append(item)
            # As they stood: XLA chooses by their order what it fuses, and so how it rounds.
            piece.body.sort(key=self.position)
            piece.inputs.sort(key=self.position)
        return [piece for piece in pieces if piece.outputs]

    def position(self, item: Item) -> tuple[int, int, int]:
        """Returns the position of an item: arguments first, the number of the replica last."""
        if item.value is None:
            return len(self.positions), 0, 0
        argument = ir.BlockArgument(item.value).arg_number if self.is_argument(item.value) else 0
        return self.positions.get(item.value, -1), argument, item.extent

    def computation(self, piece: _Segment) -> str:
        """Returns the computation of a piece."""

        def body(arguments: list[ir.Value]) -> list[ir.Value]:
            values = dict(zip(piece.inputs, arguments, strict=True))
            for item in piece.body:
                if item not in values:
                    self.compute(item, values)
            return [values[item] for item in piece.outputs]

        items = [*piece.inputs, *piece.body]
        dims = [None if v is None else self.splitting.dims.get(self.launch.key(v)) for v, _ in items]
        return self.computations.make(
            f"{self.launch.op.callee}_blocks",
            [self.type(item) for item in piece.inputs],
            body,
            self.launch.op.operation.location,
            arguments=[self.layout(item) for item in piece.inputs],
            results=[self.layout(item) for item in piece.outputs],
            key=(self.launch.op.callee, tuple(piece.inputs), tuple(items), tuple(dims), tuple(piece.outputs)),
        )

    def compute(self, item: Item, values: dict[Item, ir.Value]) -> None:
        """Computes an item at the insertion point."""
        value, extent = item
        assert value is not None
        reads = [values[read] for read in self.reads(item)]
        if not self.is_argument(value) and _is_barrier(value.owner.opview):
            values[item] = reads[0]
        elif self.is_branch(item):
            self.compute_branches(value.owner.opview, values)
        elif extent == Extent.BLOCK and (self.is_argument(value) or self.ties(value) is None):
            values[item] = self.cut(item, *reads)
        elif extent == Extent.BLOCK:
            values[item] = self.compute_block(item, reads)
        elif extent == Extent.PARTIAL or self.is_partial(value.owner.opview):
            copy = value.owner.clone(ir.InsertionPoint.current).opview
            for number, read in enumerate(reads):
                copy.operands[number] = read
            if extent == Extent.WHOLE:
                copy.attributes["dimensions"] = ir.DenseI64ArrayAttr.get([0])
            made = copy.results[0]
            values[item] = stablehlo.reshape(self.type(item), made) if extent == Extent.PARTIAL else made
        else:
            op = value.owner.opview
            copy = op.operation.clone(ir.InsertionPoint.current).opview
            replace_operands(copy, dict(zip(captured(op), reads, strict=True)))
            for old, new in zip(op.results, copy.results, strict=True):
                values[Item(old, extent)] = new

    def is_branch(self, item: Item) -> bool:
        """Returns whether an item is computed by one of several branches, of which a result is split."""
        if item.value is None or self.is_argument(item.value):
            return False
        op = item.value.owner.opview
        if op.operation.name not in BRANCHES or self.extent(item.value) != item.extent:
            return False
        return any(self.dim(result) is not None for result in op.results)

    def extent(self, value: ir.Value) -> Extent:
        """What a replica makes of a value."""
        return Extent.WHOLE if self.dim(value) is None else Extent.BLOCK

    def branches(self, op: ir.OpView) -> _Branches:
        """What the branches of an operation compute."""
        if op not in self._branches:
            inside = {value for inner in nested_ops(op) for value in inner.results}
            bodies, outside = [], [Item(value, Extent.WHOLE) for value in op.operands]

            def reads_inside(item: Item) -> list[Item]:
                return self.reads(item) if item.value in inside else []

            for region in op.regions:
                *_, terminator = region.blocks[0].operations
                pairs = zip(terminator.operands, op.results, strict=True)
                returned = [Item(value, self.extent(result)) for value, result in pairs]
                order = _in_order(returned, reads_inside)
                outside += [item for item in order if item.value not in inside]
                bodies.append(([item for item in order if item.value in inside], returned))
            self._branches[op] = _Branches(list(dict.fromkeys(outside)), bodies)
        return self._branches[op]

    def compute_branches(self, op: ir.OpView, values: dict[Item, ir.Value]) -> None:
        """Computes all results of an operation with branches."""
        branches = self.branches(op)
        items = [Item(result, self.extent(result)) for result in op.results]
        made = ir.Operation.create(
            op.operation.name,
            results=[self.type(item) for item in items],
            operands=[values[Item(value, Extent.WHOLE)] for value in op.operands],
            attributes={name: op.attributes[name] for name in op.attributes},
            regions=len(op.regions),
            loc=op.operation.location,
        )
        for region, (body, returned) in zip(made.regions, branches.bodies, strict=True):
            here = dict(values)
            with op.operation.location, ir.InsertionPoint(region.blocks.append()):
                for item in body:
                    if item not in here:
                        self.compute(item, here)
                ir.Operation.create("stablehlo.return", operands=[here[item] for item in returned])
        values |= dict(zip(items, made.results, strict=True))

    def compute_block(self, item: Item, reads: list[ir.Value]) -> ir.Value:
        """Computes a block of what is made of blocks."""
        assert item.value is not None
        copy = item.value.owner.clone(ir.InsertionPoint.current).opview
        for number, read in enumerate(reads):
            copy.operands[number] = read
        type_ = self.type(item)
        if copy.operation.name == "stablehlo.constant":
            splat = copy.value.get_splat_value()
            copy.attributes["value"] = ir.DenseElementsAttr.get_splat(type_, splat)
        for number, tie in (self.ties(item.value) or {}).items():
            size = ir.RankedTensorType(reads[number].type).shape[tie.dim]
            block_attributes(copy, tie.dim, size)
        copy.results[ir.OpResult(item.value).result_number].set_type(type_)
        return copy.results[ir.OpResult(item.value).result_number]

    def cut(self, item: Item, whole: ir.Value, number: ir.Value) -> ir.Value:
        """Returns the block of the replica of what it has as a whole."""
        dim, shape = self.splitting.dims[self.launch.key(item.value)], self.type(item).shape
        starts = [_scalar(0)] * len(shape)
        starts[dim] = stablehlo.multiply(number, _scalar(shape[dim]))
        return stablehlo.dynamic_slice(whole, starts, list(shape))

    def type(self, item: Item) -> ir.RankedTensorType:
        """Returns the type of an item."""
        if item.value is None:
            return ir.RankedTensorType.get([], ir.IntegerType.get_signless(32))
        tensor = ir.RankedTensorType(item.value.type)
        match item.extent:
            case Extent.WHOLE:
                return tensor
            case Extent.BLOCK:
                dim = self.splitting.dims[self.launch.key(item.value)]
                return self.splitting.block_type(tensor, dim)
        rows = 1 if item.extent == Extent.PARTIAL else self.splitting.count
        return ir.RankedTensorType.get([rows, *tensor.shape], tensor.element_type)

    def layout(self, item: Item) -> ir.Attribute | None:
        """How an item lies over the slice."""
        if self.home.mesh.size == 1:
            return None
        value, extent = item
        if value is None or extent in (Extent.PARTIAL, Extent.STACK):
            return make_sharding(self.home.symbol, replicated(self.type(item).rank))
        if self.is_argument(value):
            return self.arguments[value.arg_number]
        if value in self.results:
            return self.results[value]
        return make_sharding(self.home.symbol, decided_inside(value, self.home))


def _is_barrier(op: ir.OpView) -> bool:
    return op.operation.name == "stablehlo.optimization_barrier"


def _in_order(items: Iterable[Item], reads: Callable[[Item], list[Item]]) -> list[Item]:
    """Items and what they are computed of, each after what it reads."""
    order: dict[Item, None] = {}
    waiting = [(item, False) for item in reversed(list(items))]
    while waiting:
        item, ready = waiting.pop()
        if ready:
            order[item] = None
        elif item not in order:
            waiting.append((item, True))
            waiting += [(read, False) for read in reversed(reads(item)) if read not in order]
    return list(order)


def _scalar(value: int) -> ir.Value:
    i32 = ir.IntegerType.get_signless(32)
    return stablehlo.constant(ir.DenseElementsAttr.get(np.array(value, np.int32), type=i32))
