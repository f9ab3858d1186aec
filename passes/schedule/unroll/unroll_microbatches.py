"""`pw-unroll-microbatches`: the code of one iteration of a loop becomes that of all its iterations."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Mapping, Sequence
from typing import ClassVar

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import sdy, stablehlo

import pathways.dialect as dialect
from pathways.dialect.attributes.meshes import Sharding
from pathways.dialect.attributes.names import CONSTANT, MAX_OPERATIONS, SLICE
from pathways.dialect.operations.traits import Trait
from pathways.dialect.verification.forms import SHARDED, UNROLLED
from pathways.passes.analysis.functions import add_arguments, body_block, unique_name
from pathways.passes.analysis.operations import integer
from pathways.passes.manager.base import Pass, fail, main_function
from pathways.passes.schedule.unroll.loop_computations import Boundary, LoopComputations


@dataclasses.dataclass(frozen=True)
class UnrollMicrobatches(Pass):
    """Unrolls loops, one copy of the body per microbatch; outer loops first.

    1. Launches and transfers of the loop are copied, each marked with its microbatch. An inner loop
       becomes one loop per iteration of the loop around it.
    2. A split becomes a launch in front of each launch that reads it. Its computation takes the whole value
       and the number of the microbatch, so that one computation serves all of them, and fusion makes it part
       of the reader. A value whose leading dimension is split over devices is first laid out so that every
       microbatch is.
    3. A sum whose terms are results of launches on its slice gets an operand for each microbatch; the
       accumulation is left to `pw-accumulate`, when the order of the launches is known. Other sums are added
       up by launches. A concatenation is one launch.
    4. A carried value is the value that the previous iteration passed on: a copy of it on the slice of the
       carry, where it is on more slices and is transferred or mirrored. The iteration number is a hidden
       argument.

    ```mlir
    // before
    %1 = pw.split %arg1 in @batch on @s0
    %2 = pw.launch @front(%0, %1) on @s0 [fwd 0] in @batch
    %7 = pw.reduce sum %6 in @batch on @s0
    // after
    %1 = pw.launch @block(%arg1, %arg2) on @s0 in @batch #0
    %2 = pw.launch @front(%0, %1) on @s0 [fwd 0 #0] in @batch #0
    %8 = pw.launch @block(%arg1, %arg3) on @s0 in @batch #1
    %9 = pw.launch @front(%0, %8) on @s0 [fwd 0 #1] in @batch #1
    %22 = pw.reduce sum %7, %14, %21 in @batch on @s0
    ```

    Requires: shardings decided, transfers cut into pieces.
    Guarantees: no split, carry or index; launches of a loop have a `microbatch`; the same values, sums in the
    order of the microbatches.
    """

    name: ClassVar[str] = "pw-unroll-microbatches"
    input_forms = (SHARDED,)
    output_form = UNROLLED

    def run(self, module: ir.Module) -> None:
        main = main_function(module)
        loops = [op for op in dialect.ops_named(module, ["pw.loop"]) if isinstance(op, dialect.LoopOp)]
        for loop in loops:
            if loop.chunk is not None:
                fail(loop, "has a data-dependent end; run pw-split-chunks first")
        _check_size(main, loops)
        with main.operation.location:
            numbers = _numbers(module, main, loops)
            computations = LoopComputations(module)
            pending = [loop for loop in loops if loop.parent is None]
            while pending:
                inside = _inside(module, pending[0])
                pending[:1] = _Unroller(main, pending[0], inside, computations, numbers).run()


def _inside(module: ir.Module, loop: dialect.LoopOp) -> list[dialect.LoopOp]:
    """Returns the loops inside of a loop, outer ones first."""
    loops = [op for op in dialect.ops_named(module, ["pw.loop"]) if isinstance(op, dialect.LoopOp)]
    nested = [loop]
    for around in nested:
        nested += [op for op in loops if op.parent == around.sym_name]
    return nested[1:]


def _check_size(main: ir.OpView, loops: Sequence[dialect.LoopOp]) -> None:
    """Refuses loops that unroll to more operations than a program may have."""
    inside = collections.Counter(dialect.loop_of_op(op) for op in body_block(main).operations)
    by_name = {loop.sym_name: loop for loop in loops}
    size = 0
    for loop in loops:
        trips, around = 1, loop.sym_name
        while around is not None:
            trips *= by_name[around].count
            around = by_name[around].parent
        size += inside[loop.sym_name] * trips
        if size > MAX_OPERATIONS:
            added = f"{trips} x {inside[loop.sym_name]} operations"
            fail(loop, f"is unrolled to {added}; a program has at most {MAX_OPERATIONS} of its loops")


def _numbers(module: ir.Module, main: ir.OpView, loops: Sequence[dialect.LoopOp]) -> list[ir.Value]:
    """Returns the numbers of the microbatches as hidden arguments, on every slice that reads them."""
    counts = {loop.sym_name: loop.count for loop in loops}
    places: dict[str, None] = {}
    most = 0
    for op in body_block(main).operations:
        if not isinstance(op, dialect.SplitOp | dialect.IndexOp):
            continue
        readers = [op] if isinstance(op, dialect.SplitOp) else [use.owner for use in op.results[0].uses]
        places.update(
            (place, None) for reader in readers for place in dialect.slices_of_op(reader.opview) or ()
        )
        most = max(most, counts[op.loop])
    used_names = set(dialect.symbol_table(module))
    scalar = ir.RankedTensorType.get([], ir.IntegerType.get_signless(32))
    attrs = []
    for k in range(most):
        name = unique_name(f"microbatch_{k}", used_names)
        used_names.add(name)
        value = ir.DenseElementsAttr.get_splat(scalar, ir.IntegerAttr.get(scalar.element_type, k))
        dialect.ConstantOp.build(
            sym_name=name, value=value, loc=main.operation.location, ip=ir.InsertionPoint(main)
        )
        attrs.append({CONSTANT: ir.FlatSymbolRefAttr.get(name), SLICE: dialect.make_slices(list(places))})
    return add_arguments(main, [scalar] * len(attrs), attrs)


@dataclasses.dataclass
class _LoopMembers:
    """Members of a loop.

    Attributes:
      opening: the operations that begin an iteration.
      body: the repeated operations, including inner loops.
      closing: the operations whose results leave the loop.
    """

    opening: list[dialect.SplitOp | dialect.CarryOp | dialect.IndexOp] = dataclasses.field(
        default_factory=list
    )
    body: list[ir.OpView] = dataclasses.field(default_factory=list)
    closing: list[dialect.ReduceOp | dialect.NextOp] = dataclasses.field(default_factory=list)


class _Unroller:
    """Unroller of one loop that is inside of no other."""

    def __init__(
        self,
        main: ir.OpView,
        loop: dialect.LoopOp,
        inside: Sequence[dialect.LoopOp],
        computations: LoopComputations,
        numbers: Sequence[ir.Value],
    ) -> None:
        self.loop = loop
        self.inside = inside
        self.computations = computations
        self.numbers = numbers
        self.block = body_block(main)
        self.arranged: dict[ir.Value, ir.Value] = {}
        """Value from which each split takes its blocks, by its result."""
        self.copied_loops: list[dialect.LoopOp] = []

    def run(self) -> list[dialect.LoopOp]:
        """Unrolls the loop; returns its inner loops, which replace it."""
        members = self.partition()
        # In front of the first reduction, after which `partition` has moved all that waits for one.
        ip = ir.InsertionPoint([*members.closing, list(self.block.operations)[-1]][0])
        for split in members.opening:
            if not isinstance(split, dialect.SplitOp):
                continue
            self.arranged[split.results[0]] = self.arrange(split, ip)
        handed_on = [op for op in members.closing if isinstance(op, dialect.NextOp)]
        starts = {op.operands[0]: op.carry.operands[0] for op in handed_on}
        indices = [op.results[0] for op in members.opening if isinstance(op, dialect.IndexOp)]
        iterations: list[dict[ir.Value, ir.Value]] = []
        for k in range(self.loop.count):
            values = {carry: self.only(v, carry.owner.opview, ip, k) for carry, v in starts.items()}
            if indices:
                values |= dict.fromkeys(indices, self.numbers[k])
            self.copy(members.body, k, values, ip)
            iterations.append(values)
            starts = {op.operands[0]: self.value(op.operands[1], k, values, ip) for op in handed_on}
        for op in handed_on:
            op.results[0].replace_all_uses_with(self.only(starts[op.operands[0]], op, ip))
        for reduction in members.closing:
            if not isinstance(reduction, dialect.ReduceOp):
                continue
            value, ip = reduction.operands[0], ir.InsertionPoint(reduction)
            terms = [self.value(value, k, values, ip) for k, values in enumerate(iterations)]
            reduction.results[0].replace_all_uses_with(self.reduce(reduction, value, terms))
        for op in (*members.closing, *reversed(members.body), *members.opening):
            op.operation.erase()
        for loop in self.inside:
            loop.operation.erase()
        return [loop for loop in self.copied_loops if loop.parent is None]

    def partition(self) -> _LoopMembers:
        """Returns the operations of the loop; everything that waits for its reductions moves after them."""
        members = _LoopMembers()
        family = {self.loop.sym_name, *(loop.sym_name for loop in self.inside)}
        after: list[ir.OpView] = []
        waiting: set[ir.Value] = set()
        *operations, terminator = self.block.operations
        for op in operations:
            if dialect.op_has(op, Trait.CLOSES_LOOP) and op.loop == self.loop.sym_name:
                members.closing.append(op)
            elif dialect.loop_of_op(op) in family:
                opens = dialect.op_has(op, Trait.OPENS_LOOP) and op.loop == self.loop.sym_name
                (members.opening if opens else members.body).append(op)
                continue
            elif not any(v in waiting for v in op.operands):
                continue
            after.append(op)
            waiting.update(op.results)
        for op in after:
            op.operation.move_before(terminator)
        return members

    def value(
        self, value: ir.Value, k: int, values: Mapping[ir.Value, ir.Value], ip: ir.InsertionPoint
    ) -> ir.Value:
        """Returns the copy of a value in one iteration; a value from outside of the loop has one for all."""
        if value in self.arranged:
            return self.blocks(value, k, ip)
        return values.get(value, value)

    def copy(
        self, body: Sequence[ir.OpView], k: int, values: dict[ir.Value, ir.Value], ip: ir.InsertionPoint
    ) -> None:
        """Copies the loop for one microbatch; adds the copy of each of its values to `values`."""
        names = self.copy_loops(k)
        for op in body:
            # One block for each reader, so that it can become part of it.
            operands = {v: self.value(v, k, values, ip) for v in dict.fromkeys(op.operands)}
            copy = op.operation.clone(ip).opview
            for number, value in enumerate(op.operands):
                if operands[value] != value:
                    copy.operands[number] = operands[value]
            if copy.loop in names:
                copy.loop = names[copy.loop]
                if dialect.op_has(copy, Trait.CLOSES_LOOP):
                    copy.outer = names.get(copy.outer)
            else:
                copy.microbatch = k
                if isinstance(copy, dialect.LaunchOp):
                    copy.origins = tuple(dataclasses.replace(origin, microbatch=k) for origin in copy.origins)
            values.update(zip(op.results, copy.results, strict=True))

    def copy_loops(self, k: int) -> dict[str, str]:
        """Declares the loops inside for one iteration; returns their new names by the old ones."""
        names: dict[str, str] = {}
        for loop in self.inside:
            name = unique_name(f"{loop.sym_name}_{k}", self.computations.layouts.symbols)
            names[loop.sym_name] = name
            copy = loop.rebuilt(
                sym_name=name,
                parent=names.get(loop.parent or ""),
                replica_of=names.get(loop.replica_of or ""),
            )
            self.computations.layouts.symbols[name] = copy
            self.copied_loops.append(copy)
        return names

    def arrange(self, split: dialect.SplitOp, ip: ir.InsertionPoint) -> ir.Value:
        """Returns the value to cut blocks from: the whole, or its blocks side by side, each split alike."""
        value, block = split.operands[0], split.results[0]
        layouts = self.computations.layouts
        source_layout, block_layout = layouts.of(value, split.slice), layouts.of(block, split.slice)
        mesh = layouts.mesh(split.slice)
        if self.loop.count == 1 or source_layout.splits(mesh)[0] == block_layout.splits(mesh)[0] == 1:
            return value
        # Cut from the whole, the rows of a microbatch would be on a few devices. With a dimension for
        # microbatches in front of them, each device has its rows of every microbatch.
        shape = [self.loop.count, *ir.RankedTensorType(block.type).shape]
        arranged = ir.RankedTensorType.get(shape, ir.RankedTensorType(block.type).element_type)
        layout = Sharding(((), *block_layout.dims))
        attribute = self.computations.attribute(split.slice, layout)

        def body(arguments: list[ir.Value]) -> ir.Value:
            reshaped = stablehlo.reshape(arranged, arguments[0])
            return reshaped if attribute is None else sdy.ShardingConstraintOp(reshaped, attribute).result

        return self.computations.launch("blocks", [value], body, split, ip, layout)

    def blocks(self, value: ir.Value, k: int, ip: ir.InsertionPoint) -> ir.Value:
        """Returns the block of a split value for one microbatch."""
        source, split = self.arranged[value], value.owner.opview
        layout = self.computations.layouts.of(value, split.slice)
        if source.type == value.type:
            return self.only(source, split, ip, k)
        target = ir.RankedTensorType(value.type)

        def body(arguments: list[ir.Value]) -> ir.Value:
            array, number = arguments
            shape = list(target.shape)
            is_arranged = ir.RankedTensorType(array.type).rank > target.rank
            sizes = [1, *shape] if is_arranged else shape
            step = integer(1 if is_arranged else shape[0])
            starts = [stablehlo.multiply(number, step), *[integer(0)] * (len(sizes) - 1)]
            block = stablehlo.dynamic_slice(array, starts, sizes)
            return stablehlo.reshape(target, block) if is_arranged else block

        return self.computations.launch("block", [source, self.numbers[k]], body, split, ip, layout, k)

    def reduce(self, reduction: dialect.ReduceOp, value: ir.Value, values: Sequence[ir.Value]) -> ir.Value:
        """Returns the result of a reduction of the values of all microbatches."""
        layout = self.computations.layouts.of(reduction.results[0], reduction.slice)
        ip = ir.InsertionPoint(reduction)
        if len(values) == 1:
            return self.only(values[0], reduction, ip)
        if reduction.kind == "concat":
            return self.computations.launch(
                "concat", values, lambda blocks: stablehlo.concatenate(blocks, 0), reduction, ip, layout
            )
        # `pw-accumulate` lets these launches add up themselves.
        if isinstance(value.owner.opview, dialect.LaunchOp):
            return reduction.rebuilt(values).results[0]
        total = values[0]
        for k, term in enumerate(values[1:], 1):
            total = self.computations.launch(
                "add", [total, term], lambda terms: stablehlo.add(*terms), reduction, ip, layout, k
            )
        return total

    def only(
        self, value: ir.Value, like: Boundary, ip: ir.InsertionPoint, microbatch: int | None = None
    ) -> ir.Value:
        """Returns the result of `like` for one value: the value, or a copy placed as the result."""
        layout = self.computations.layouts.of(like.results[0], like.slice)
        if self.computations.layouts.of(value, like.slice) == layout and not _is_too_much(value, like):
            return value
        return self.computations.launch(
            "reshard", [value], lambda arguments: arguments[0], like, ip, layout, microbatch
        )


def _is_too_much(value: ir.Value, like: Boundary) -> bool:
    """Returns whether `value` is on more slices than the result of `like`, and a reader of that would mind.

    A transfer could take it from another slice, or move it to where it is, and a mirror have it twice on one.
    """
    if dialect.slices_of(value) == (like.slice,):
        return False
    readers = (use.owner.opview for use in like.results[0].uses)
    return any(dialect.op_has(op, Trait.TRANSFERS) or dialect.op_has(op, Trait.ALIASES) for op in readers)
