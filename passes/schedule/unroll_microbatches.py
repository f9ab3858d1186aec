"""`pw-unroll-microbatches`: the code of one microbatch becomes that of all of them."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable, Sequence
from typing import ClassVar

import numpy as np
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import sdy, stablehlo

from pathways.dialect import (
    ConstantOp,
    LaunchOp,
    LoopOp,
    ReduceOp,
    SplitOp,
    loop_of_op,
    make_slices,
    op_has,
    ops_named,
)
from pathways.dialect.forms import SHARDED, UNROLLED
from pathways.dialect.layouts import Layouts
from pathways.dialect.meshes import Sharding
from pathways.dialect.names import CONSTANT, MOST_OPERATIONS, SLICE
from pathways.dialect.shardings import make_sharding
from pathways.dialect.traits import Trait
from pathways.passes.base import Pass, fail, main_function
from pathways.passes.util.computations import Computations
from pathways.passes.util.functions import add_arguments, body_block, unique_name


@dataclasses.dataclass(frozen=True)
class UnrollMicrobatches(Pass):
    """Repeats what stands between the splits and reductions of a loop, once for each microbatch.

    1. Launches and transfers of the loop are copied, and say for which microbatch they are.
    2. A split becomes a launch in front of each launch that reads it. Its computation takes the whole value
       and the number of the microbatch, so that one computation serves all of them, and fusion makes it part
       of the reader. A value whose leading dimension is split over devices is first laid out so that every
       microbatch is.
    3. A sum whose terms are results of launches on its slice gets an operand for each microbatch; the
       accumulation is left to `pw-accumulate`, when the order of the launches is known. Other sums are added
       up by launches. A concatenation is one launch.

    Requires: shardings decided, transfers cut into pieces.
    Guarantees: no split; what is of a loop has a `microbatch`; the same values, sums in the order of the
    microbatches.
    """

    name: ClassVar[str] = "pw-unroll-microbatches"
    takes = (SHARDED,)
    leaves = UNROLLED

    def run(self, module: ir.Module) -> None:
        main = main_function(module)
        splits = [op for op in body_block(main).operations if isinstance(op, SplitOp)]
        loops = [op for op in ops_named(module, ["pw.loop"]) if isinstance(op, LoopOp)]
        inside = next((loop for loop in loops if loop.parent is not None), None)
        if inside is not None:
            fail(inside, f"is inside of @{inside.parent}: loops inside of each other cannot be unrolled yet")
        _check_size(main, loops)
        with main.operation.location:
            numbers = _numbers(module, main, loops, splits)
            functions = _Functions(module)
            for loop in loops:
                _Unroller(main, loop, functions, numbers).run()


def _check_size(main: ir.OpView, loops: Sequence[LoopOp]) -> None:
    """Refuses loops that ask for more operations than can be worked on."""
    inside = collections.Counter(loop_of_op(op) for op in body_block(main).operations)
    size = 0
    for loop in loops:
        size += inside[loop.sym_name] * loop.count
        if size > MOST_OPERATIONS:
            added = f"{loop.count} x {inside[loop.sym_name]} operations"
            fail(loop, f"is unrolled to {added}; a program has at most {MOST_OPERATIONS} of its loops")


def _numbers(
    module: ir.Module, main: ir.OpView, loops: Sequence[LoopOp], splits: Sequence[SplitOp]
) -> list[ir.Value]:
    """The numbers of the microbatches as hidden arguments, on every slice that splits a value."""
    places = list(dict.fromkeys(op.slice for op in splits))
    taken = set(Layouts(module).symbols)
    i32 = ir.IntegerType.get_signless(32)
    attrs = []
    for k in range(max((op.count for op in loops), default=0) if places else 0):
        name = unique_name(f"microbatch_{k}", taken)
        taken.add(name)
        value = ir.DenseElementsAttr.get(np.array(k, np.int32), type=i32)
        ConstantOp.build(sym_name=name, value=value, loc=main.operation.location, ip=ir.InsertionPoint(main))
        attrs.append({CONSTANT: ir.FlatSymbolRefAttr.get(name), SLICE: make_slices(places)})
    return add_arguments(main, [ir.RankedTensorType.get([], i32)] * len(attrs), attrs)


Body = Callable[[list[ir.Value]], ir.Value]
"""Builds a computation: from its arguments to its result."""


class _Functions:
    """Computations of this pass; equal ones are shared."""

    def __init__(self, module: ir.Module) -> None:
        self.layouts = Layouts(module)
        self.computations = Computations(module, self.layouts.symbols)

    def attribute(self, slice: str, sharding: Sharding) -> ir.Attribute | None:
        home = self.layouts.meshes[slice]
        return make_sharding(home.symbol, sharding) if home.mesh.size > 1 else None

    def launch(
        self,
        base: str,
        operands: Sequence[ir.Value],
        body: Body,
        like: SplitOp | ReduceOp,
        ip: ir.InsertionPoint,
        results: Sharding,
        microbatch: int | None = None,
    ) -> ir.Value:
        """Launches a computation on the slice, and for the loop, of a split or reduction."""
        layouts = [self.layouts.of(v, like.slice) for v in operands]
        types = [v.type for v in operands]
        mesh = self.layouts.meshes[like.slice]
        name = self.computations.make(
            base,
            types,
            lambda arguments: [body(arguments)],
            like.operation.location,
            arguments=[self.attribute(like.slice, layout) for layout in layouts],
            results=self.attribute(like.slice, results),
            key=(tuple(types), tuple(layouts), results, mesh, like.results[0].type),
        )
        launch = LaunchOp.build(
            operands,
            self.layouts.symbols[name].type.results,
            callee=name,
            slice=like.slice,
            loop=None if microbatch is None else like.loop,
            microbatch=microbatch,
            loc=like.operation.location,
            ip=ip,
        )
        return launch.results[0]


class _Unroller:
    """One loop: its operations, and what stands for their results in each microbatch."""

    def __init__(
        self, main: ir.OpView, loop: LoopOp, functions: _Functions, numbers: Sequence[ir.Value]
    ) -> None:
        self.loop = loop
        self.functions = functions
        self.numbers = numbers
        self.block = body_block(main)
        self.arranged: dict[ir.Value, ir.Value] = {}
        """What each split takes its blocks from, by its result."""

    def run(self) -> None:
        body, splits, reductions = self.partition()
        first_after = reductions[0] if reductions else list(self.block.operations)[-1]
        ip = ir.InsertionPoint(first_after)
        for split in splits:
            self.arranged[split.results[0]] = self.arrange(split, ip)
        copies = [self.copy(body, k, ip) for k in range(self.loop.count)]
        for reduction in reductions:
            value, ip = reduction.operands[0], ir.InsertionPoint(reduction)
            values = [
                copy[value] if value in copy else self.blocks(value, k, ip) for k, copy in enumerate(copies)
            ]
            reduction.results[0].replace_all_uses_with(self.reduce(reduction, value, values))
            reduction.operation.erase()
        for op in reversed([*splits, *body]):
            op.operation.erase()

    def partition(self) -> tuple[list[ir.OpView], list[SplitOp], list[ReduceOp]]:
        """The operations of the loop; everything that waits for its reductions moves behind them."""
        body: list[ir.OpView] = []
        splits: list[SplitOp] = []
        reductions: list[ReduceOp] = []
        after: list[ir.OpView] = []
        waiting: set[ir.Value] = set()
        *operations, terminator = self.block.operations
        for op in operations:
            if op_has(op, Trait.CLOSES_LOOP) and op.loop == self.loop.sym_name:
                reductions.append(op)
            elif loop_of_op(op) == self.loop.sym_name:
                (splits if op_has(op, Trait.OPENS_LOOP) else body).append(op)
                continue
            elif not any(v in waiting for v in op.operands):
                continue
            after.append(op)
            waiting.update(op.results)
        for op in after:
            op.operation.move_before(terminator)
        return body, splits, reductions

    def copy(self, body: Sequence[ir.OpView], k: int, ip: ir.InsertionPoint) -> dict[ir.Value, ir.Value]:
        """Copies the loop for one microbatch; returns what stands for each of its values."""
        values: dict[ir.Value, ir.Value] = {}
        for op in body:
            taken: dict[ir.Value, ir.Value] = {}
            for value in op.operands:
                if value in self.arranged and value not in taken:
                    # One for each reader, so that it can become part of it.
                    taken[value] = self.blocks(value, k, ip)
            copy = op.operation.clone(ip).opview
            for number, value in enumerate(op.operands):
                if value in values or value in taken:
                    copy.operands[number] = taken[value] if value in taken else values[value]
            copy.microbatch = k
            if isinstance(copy, LaunchOp):
                copy.origins = tuple(dataclasses.replace(origin, microbatch=k) for origin in copy.origins)
            values.update(zip(op.results, copy.results, strict=True))
        return values

    def arrange(self, split: SplitOp, ip: ir.InsertionPoint) -> ir.Value:
        """The value that blocks are taken from: the whole, or its blocks side by side, each split alike."""
        whole, block = split.operands[0], split.results[0]
        layouts = self.functions.layouts
        have, wanted = layouts.of(whole, split.slice), layouts.of(block, split.slice)
        mesh = layouts.mesh(split.slice)
        if self.loop.count == 1 or have.splits(mesh)[0] == wanted.splits(mesh)[0] == 1:
            return whole
        shape = [self.loop.count, *ir.RankedTensorType(block.type).shape]
        arranged = ir.RankedTensorType.get(shape, ir.RankedTensorType(block.type).element_type)
        layout = Sharding(((), *wanted.dims))
        attribute = self.functions.attribute(split.slice, layout)

        def body(arguments: list[ir.Value]) -> ir.Value:
            reshaped = stablehlo.reshape(arranged, arguments[0])
            return reshaped if attribute is None else sdy.ShardingConstraintOp(reshaped, attribute).result

        return self.functions.launch("blocks", [whole], body, split, ip, layout)

    def blocks(self, value: ir.Value, k: int, ip: ir.InsertionPoint) -> ir.Value:
        """The block of a split value for one microbatch."""
        source, split = self.arranged[value], value.owner.opview
        if source.type == value.type:
            return source
        target = ir.RankedTensorType(value.type)

        def body(arguments: list[ir.Value]) -> ir.Value:
            whole, number = arguments
            shape = list(target.shape)
            is_arranged = ir.RankedTensorType(whole.type).rank > target.rank
            sizes = [1, *shape] if is_arranged else shape
            step = _scalar(1 if is_arranged else shape[0])
            starts = [stablehlo.multiply(number, step), *[_scalar(0)] * (len(sizes) - 1)]
            block = stablehlo.dynamic_slice(whole, starts, sizes)
            return stablehlo.reshape(target, block) if is_arranged else block

        layout = self.functions.layouts.of(value, split.slice)
        return self.functions.launch("block", [source, self.numbers[k]], body, split, ip, layout, k)

    def reduce(self, reduction: ReduceOp, value: ir.Value, values: Sequence[ir.Value]) -> ir.Value:
        """What a reduction gives, made of the values of all microbatches."""
        layout = self.functions.layouts.of(reduction.results[0], reduction.slice)
        ip = ir.InsertionPoint(reduction)
        if len(values) == 1:
            return values[0]
        if reduction.kind == "concat":
            return self.functions.launch(
                "concat", values, lambda blocks: stablehlo.concatenate(blocks, 0), reduction, ip, layout
            )
        if isinstance(value.owner.opview, LaunchOp):
            return reduction.rebuilt(values).results[0]
        total = values[0]
        for k, term in enumerate(values[1:], 1):
            total = self.functions.launch(
                "add", [total, term], lambda terms: stablehlo.add(*terms), reduction, ip, layout, k
            )
        return total


def _scalar(value: int) -> ir.Value:
    i32 = ir.IntegerType.get_signless(32)
    return stablehlo.constant(ir.DenseElementsAttr.get(np.array(value, np.int32), type=i32))
