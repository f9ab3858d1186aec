"""Launches on blocks: a computation becomes one, or several with exchanges between them."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable, Iterable
from typing import NamedTuple

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from pathways.dialect import AllGatherOp, LaunchOp, argument_attrs, nested_ops, result_attrs
from pathways.dialect.attributes.meshes import replicated
from pathways.dialect.attributes.names import SHARDING
from pathways.dialect.attributes.shardings import decided_inside, make_sharding
from pathways.dialect.relations.layouts import Layouts
from pathways.passes.analysis.computations import Computations
from pathways.passes.analysis.operations import captured, integer, is_barrier, replace_operands
from pathways.passes.shard.updates.axes import BRANCHES, Tie, block_attributes, is_free, partial_dims, ties_of
from pathways.passes.shard.updates.splitting import OuterLaunch, Splitting


class Coverage(enum.IntEnum):
    """Coverage of a value on a replica."""

    PARTIAL = 0
    """Result of a reduction over the block of the replica."""
    STACK = 1
    """Results of a reduction over the blocks of all replicas, one after the other."""
    FULL = 2
    BLOCK = 3


class Item(NamedTuple):
    """Value inside of a computation, with its coverage; the number of the replica has no value there."""

    value: ir.Value | None
    coverage: Coverage


NUMBER = Item(None, Coverage.FULL)
"""The number of the replica."""


@dataclasses.dataclass
class _Segment:
    """Computation between exchanges: the items that it reads, computes in order, and returns."""

    inputs: list[Item] = dataclasses.field(default_factory=list)
    body: list[Item] = dataclasses.field(default_factory=list)
    outputs: list[Item] = dataclasses.field(default_factory=list)


class _Branches(NamedTuple):
    """Items that branches read from outside, and for each branch the items that it computes and returns."""

    reads: list[Item]
    bodies: list[tuple[list[Item], list[Item]]]


class SplitLaunch:
    """Launch that is done on blocks.

    Args:
      splitting: the values that are split.
      layouts: the shardings of values.
      computations: the computations of the module, which equal launches share.
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
        self.returned = [Item(value, self.coverage(value)) for value in launch.returned]

    def build(self, operand: Callable[[ir.Value | None, bool], ir.Value]) -> list[ir.Value]:
        """Builds the launches at the insertion point.

        Args:
          operand: returns an operand of the launch as a whole or, if true, as a block; for None the number
            of the replica.

        Returns:
          The value for each result of the launch; a block for split results.
        """
        values: dict[Item, ir.Value] = {}
        pieces = self.pieces()
        for n, piece in enumerate(pieces):
            for item in piece.inputs:
                if item not in values:
                    outer = None if item.value is None else self.launch.key(item.value).value
                    values[item] = operand(outer, item.coverage == Coverage.BLOCK)
            name = self.computation(piece)
            launch = LaunchOp.build(
                [values[item] for item in piece.inputs],
                self.layouts.symbols[name].type.results,
                callee=name,
                slice=self.launch.op.slice,
                # On the last one alone: the placed call is one, in however many pieces.
                origins=self.launch.op.origins if n == len(pieces) - 1 else (),
            )
            values |= dict(zip(piece.outputs, launch.results, strict=True))
            for item in piece.outputs:
                exchanged = self.exchanged(item)
                if exchanged is not None:
                    values[exchanged] = self.gather(item, values[item])
        return [
            operand(self.launch.key(item.value).value, item.coverage == Coverage.BLOCK)
            if self.is_argument(item.value)
            else values[item]
            for item in self.returned
        ]

    def gather(self, item: Item, value: ir.Value) -> ir.Value:
        """Exchanges the values of replicas."""
        target = Item(item.value, Coverage.STACK if item.coverage == Coverage.PARTIAL else Coverage.FULL)
        dim = 0 if item.coverage == Coverage.PARTIAL else self.splitting.dims[self.launch.key(item.value)]
        return AllGatherOp.build([value], [self.type(target)], dim=dim, slice=self.launch.op.slice).results[0]

    def dim(self, value: ir.Value) -> int | None:
        """Returns the dimension that is in blocks; None for a value that each replica has as a whole."""
        return self.splitting.dim(self.launch.key(value))

    def is_argument(self, value: ir.Value) -> bool:
        return isinstance(value, ir.BlockArgument) and value.owner == self.launch.block

    def is_input(self, item: Item) -> bool:
        """Returns whether an item comes from outside of the launch."""
        if item.value is None:
            return True
        return self.is_argument(item.value) and (
            item.coverage == Coverage.FULL or self.dim(item.value) is not None
        )

    def is_partial(self, op: ir.OpView) -> bool:
        """Returns whether an operation reduces blocks."""
        dims = partial_dims(op)
        return bool(dims) and self.dim(op.operands[0]) in dims

    def source(self, item: Item) -> Item | None:
        """Returns the item that is exchanged for another; None for one that is computed."""
        if item.coverage == Coverage.STACK:
            return Item(item.value, Coverage.PARTIAL)
        if item.value is None or item.coverage != Coverage.FULL or self.is_argument(item.value):
            return None
        return None if self.dim(item.value) is None else Item(item.value, Coverage.BLOCK)

    def exchanged(self, item: Item) -> Item | None:
        """Returns the item that an exchange makes of one, if the launch needs it."""
        gathered = Item(item.value, Coverage.STACK if item.coverage == Coverage.PARTIAL else Coverage.FULL)
        return gathered if gathered in self.needed and self.source(gathered) == item else None

    def ties(self, value: ir.Value) -> dict[int, Tie] | None:
        """Returns by operand how blocks give the block of a result; None where it is cut from the whole."""
        dim = self.splitting.dims[self.launch.key(value)]
        op, number = value.owner.opview, ir.OpResult(value).result_number
        ties = {
            tie.operand: tie
            for tie in ties_of(op, self.launch.rules)
            if (tie.result, tie.result_dim) == (number, dim)
        }
        return ties if ties or is_free(op, dim) else None

    def reads(self, item: Item) -> list[Item]:
        """Returns the items from which an item is computed."""
        value, coverage = item
        if self.is_input(item):
            return []
        source = self.source(item)
        if source is not None:
            return [source]
        assert value is not None
        if self.is_argument(value):
            return [Item(value, Coverage.FULL), NUMBER]
        op = value.owner.opview
        if is_barrier(op):
            return [Item(op.operands[ir.OpResult(value).result_number], coverage)]
        if self.is_branch(item):
            return self.branches(op).reads
        if coverage == Coverage.PARTIAL:
            return [Item(op.operands[0], Coverage.BLOCK), Item(op.operands[1], Coverage.FULL)]
        if coverage == Coverage.BLOCK:
            ties = self.ties(value)
            if ties is None:
                return [Item(value, Coverage.FULL), NUMBER]
            return [
                Item(v, Coverage.BLOCK if n in ties else Coverage.FULL) for n, v in enumerate(op.operands)
            ]
        if self.is_partial(op):
            return [Item(value, Coverage.STACK), Item(op.operands[1], Coverage.FULL)]
        return [Item(v, Coverage.FULL) for v in captured(op)]

    def pieces(self) -> list[_Segment]:
        """Returns the computations, one after the other."""
        order = _in_order(self.returned, self.reads)
        self.needed = set(order)
        levels: dict[Item, int] = {}
        constant: dict[Item, bool] = {}
        for item in order:
            reads = self.reads(item)
            # The level counts the exchanges that an item waits for: each level is a computation of its own.
            level = max((levels[read] for read in reads), default=0)
            levels[item] = level + (self.source(item) is not None)
            constant[item] = not self.is_input(item) and all(constant[read] for read in reads)
        sources = [source for item in order if (source := self.source(item)) is not None]
        targets = dict.fromkeys(item for item in [*sources, *self.returned] if not self.is_input(item))
        pieces = [_Segment() for _ in range(max(levels.values(), default=0) + 1)]
        computed: dict[Item, int] = {}
        for n, piece in enumerate(pieces):

            def reads_here(item: Item, n: int = n) -> list[Item]:
                # What depends on no input is computed again by each piece rather than passed on.
                earlier = computed.get(item, n) < n and not constant[item]
                return [] if earlier or self.source(item) is not None else self.reads(item)

            piece.outputs += [item for item in targets if levels[item] == n and self.source(item) is None]
            for item in _in_order(piece.outputs, reads_here):
                level = computed.get(item, n)
                if level < n and not constant[item]:
                    # A piece before computes it without returning it yet.
                    if item not in pieces[level].outputs:
                        pieces[level].outputs.append(item)
                    piece.inputs.append(item)
                elif self.is_input(item) or self.source(item) is not None:
                    piece.inputs.append(item)
                else:
                    computed[item] = n
                    piece.body.append(item)
            # In their old order: XLA fuses by it, and so rounds by it.
            piece.body.sort(key=self.position)
            piece.inputs.sort(key=self.position)
        return [piece for piece in pieces if piece.outputs]

    def position(self, item: Item) -> tuple[int, int, int]:
        """Returns the position of an item: arguments first, the number of the replica last."""
        if item.value is None:
            return len(self.positions), 0, 0
        argument = ir.BlockArgument(item.value).arg_number if self.is_argument(item.value) else 0
        return self.positions.get(item.value, -1), argument, item.coverage

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
            # Launches of one callee have the same block, so that items compare equal between them.
            key=(self.launch.op.callee, tuple(piece.inputs), tuple(items), tuple(dims), tuple(piece.outputs)),
        )

    def compute(self, item: Item, values: dict[Item, ir.Value]) -> None:
        """Computes an item at the insertion point."""
        value, coverage = item
        assert value is not None
        reads = [values[read] for read in self.reads(item)]
        if not self.is_argument(value) and is_barrier(value.owner.opview):
            values[item] = reads[0]
        elif self.is_branch(item):
            self.compute_branches(value.owner.opview, values)
        elif coverage == Coverage.BLOCK and (self.is_argument(value) or self.ties(value) is None):
            values[item] = self.cut(item, *reads)
        elif coverage == Coverage.BLOCK:
            values[item] = self.compute_block(item, reads)
        elif coverage == Coverage.PARTIAL or self.is_partial(value.owner.opview):
            copy = value.owner.clone(ir.InsertionPoint.current).opview
            for number, read in enumerate(reads):
                copy.operands[number] = read
            if coverage == Coverage.FULL:
                copy.attributes["dimensions"] = ir.DenseI64ArrayAttr.get([0])
            copied = copy.results[0]
            values[item] = (
                stablehlo.reshape(self.type(item), copied) if coverage == Coverage.PARTIAL else copied
            )
        else:
            op = value.owner.opview
            copy = op.operation.clone(ir.InsertionPoint.current).opview
            replace_operands(copy, dict(zip(captured(op), reads, strict=True)))
            for old, new in zip(op.results, copy.results, strict=True):
                values[Item(old, coverage)] = new

    def is_branch(self, item: Item) -> bool:
        """Returns whether an item is computed by branches that have a split result."""
        if item.value is None or self.is_argument(item.value):
            return False
        op = item.value.owner.opview
        if op.operation.name not in BRANCHES or self.coverage(item.value) != item.coverage:
            return False
        return any(self.dim(result) is not None for result in op.results)

    def coverage(self, value: ir.Value) -> Coverage:
        """Returns the coverage of a value on each replica."""
        return Coverage.FULL if self.dim(value) is None else Coverage.BLOCK

    def branches(self, op: ir.OpView) -> _Branches:
        """Returns the items that the branches of an operation read and compute."""
        if op not in self._branches:
            inside = {value for inner in nested_ops(op) for value in inner.results}
            bodies, outside = [], [Item(value, Coverage.FULL) for value in op.operands]

            def reads_inside(item: Item) -> list[Item]:
                return self.reads(item) if item.value in inside else []

            for region in op.regions:
                *_, terminator = region.blocks[0].operations
                pairs = zip(terminator.operands, op.results, strict=True)
                returned = [Item(value, self.coverage(result)) for value, result in pairs]
                order = _in_order(returned, reads_inside)
                outside += [item for item in order if item.value not in inside]
                bodies.append(([item for item in order if item.value in inside], returned))
            self._branches[op] = _Branches(list(dict.fromkeys(outside)), bodies)
        return self._branches[op]

    def compute_branches(self, op: ir.OpView, values: dict[Item, ir.Value]) -> None:
        """Computes all results of an operation with branches."""
        branches = self.branches(op)
        items = [Item(result, self.coverage(result)) for result in op.results]
        branch = ir.Operation.create(
            op.operation.name,
            results=[self.type(item) for item in items],
            operands=[values[Item(value, Coverage.FULL)] for value in op.operands],
            attributes={name: op.attributes[name] for name in op.attributes},
            regions=len(op.regions),
            loc=op.operation.location,
        )
        for region, (body, returned) in zip(branch.regions, branches.bodies, strict=True):
            here = dict(values)
            with op.operation.location, ir.InsertionPoint(region.blocks.append()):
                for item in body:
                    if item not in here:
                        self.compute(item, here)
                ir.Operation.create("stablehlo.return", operands=[here[item] for item in returned])
        values |= dict(zip(items, branch.results, strict=True))

    def compute_block(self, item: Item, reads: list[ir.Value]) -> ir.Value:
        """Computes a block from blocks."""
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

    def cut(self, item: Item, value: ir.Value, number: ir.Value) -> ir.Value:
        """Cuts the block of the replica from a value that it has as a whole."""
        dim, shape = self.splitting.dims[self.launch.key(item.value)], self.type(item).shape
        starts = [integer(0)] * len(shape)
        starts[dim] = stablehlo.multiply(number, integer(shape[dim]))
        return stablehlo.dynamic_slice(value, starts, list(shape))

    def type(self, item: Item) -> ir.RankedTensorType:
        """Returns the type of an item."""
        if item.value is None:
            return ir.RankedTensorType.get([], ir.IntegerType.get_signless(32))
        tensor = ir.RankedTensorType(item.value.type)
        match item.coverage:
            case Coverage.FULL:
                return tensor
            case Coverage.BLOCK:
                dim = self.splitting.dims[self.launch.key(item.value)]
                return self.splitting.block_type(tensor, dim)
        rows = 1 if item.coverage == Coverage.PARTIAL else self.splitting.count
        return ir.RankedTensorType.get([rows, *tensor.shape], tensor.element_type)

    def layout(self, item: Item) -> ir.Attribute | None:
        """Returns the sharding of an item over the slice."""
        if self.home.mesh.size == 1:
            return None
        value, coverage = item
        if value is None or coverage in (Coverage.PARTIAL, Coverage.STACK):
            return make_sharding(self.home.symbol, replicated(self.type(item).rank))
        if self.is_argument(value):
            return self.arguments[value.arg_number]
        if value in self.results:
            return self.results[value]
        return make_sharding(self.home.symbol, decided_inside(value, self.home))


def _in_order(items: Iterable[Item], reads: Callable[[Item], list[Item]]) -> list[Item]:
    """Returns items with their dependences, each after the items that it reads."""
    order: dict[Item, None] = {}
    # Depth first, but without recursion: chains of operations may be longer than Python's stack.
    waiting = [(item, False) for item in reversed(list(items))]
    while waiting:
        item, ready = waiting.pop()
        if ready:
            order[item] = None
        elif item not in order:
            waiting.append((item, True))
            waiting += [(read, False) for read in reversed(reads(item)) if read not in order]
    return list(order)
