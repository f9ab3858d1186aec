"""`pw-split-updates`: each replica updates a block of the parameters, and keeps that block of their state."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import ClassVar

from jaxlib.mlir import ir

import pathways.dialect as dialect
from pathways.dialect.attributes.fields import NATURAL
from pathways.dialect.attributes.names import BLOCK
from pathways.dialect.relations.layouts import Layouts
from pathways.dialect.verification.forms import SHARDED
from pathways.passes.analysis.computations import Computations
from pathways.passes.analysis.functions import body_block, erase_unused_functions, inline_call, set_signature
from pathways.passes.analysis.operations import has_side_effect, is_scalar
from pathways.passes.analysis.replicas import ReplicaNumbers, replica_count
from pathways.passes.analysis.sharding_rules import RuleReader, attach_rules, drop_rules
from pathways.passes.manager.base import Pass, main_function, remark
from pathways.passes.shard.updates.axes import BRANCHES, partial_dims
from pathways.passes.shard.updates.branches import move_in_front
from pathways.passes.shard.updates.split_launch import SplitLaunch
from pathways.passes.shard.updates.splitting import OuterLaunch, Splitting, decide, main_key


@dataclasses.dataclass(frozen=True)
class SplitUpdates(Pass):
    """Lets each replica update its shard of the parameters, and keep only that shard of their state (ZeRO-1).

    1. An argument that only updates read and that a result replaces, such as an optimizer moment,
       is split: each replica has a block of a dimension of it, which `pw.block` names, and of that result.
       The result is the one of its type that is fewest operations away.
    2. The sums over replicas that such updates read become a `pw.reduce_scatter`: each replica gets a block.
    3. Elementwise work on blocks is done block by block; of a value that a replica has as a whole,
       such as a parameter that the microbatches read, it takes its block, by its `pw.replica`.
    4. Other values that are needed as a whole, such as the new parameters, are assembled by a
       `pw.all_gather`. Results of reductions over blocks, such as the square of a norm, are gathered and
       reduced again; in a branch they are computed in front of the conditional.

    Values that are not divisible by the number of replicas stay replicated, with a remark.

    ```mlir
    // before
    %3 = pw.all_reduce %2 on @s0
    %4:2 = pw.launch @update(%arg0, %arg1, %3) on @s0
    // after
    %0 = pw.replica on @s0
    %4 = pw.reduce_scatter %3 along 0 on @s0
    %5:2 = pw.launch @update_blocks(%arg0, %arg1, %4, %0) on @s0
    %6 = pw.all_gather %5#0 along 0 on @s0
    ```

    Requires: shardings decided.
    Guarantees: an argument with `pw.block` is read by launches on blocks of it.
    """

    name: ClassVar[str] = "pw-split-updates"
    input_forms = (SHARDED,)

    def run(self, module: ir.Module) -> None:
        count = replica_count(module)
        if count == 1:
            return
        main = main_function(module)
        if any(BLOCK in attrs for attrs in dialect.argument_attrs(main)):
            remark(main, "has arguments that are already split")
            return
        layouts = Layouts(module)
        computations = Computations(module, layouts.symbols)
        launches = _launches(main, layouts.symbols, computations)
        splitting = decide(main, launches, layouts, count)
        if splitting is None:
            remark(main, "has no state that can be sharded over replicas: nothing is split")
        else:
            for launch in launches.values():
                _move_reductions(launch, splitting)
            with main.operation.location:
                _UpdateSplitter(main, launches, splitting, layouts, computations).run()
        erase_unused_functions(module)
        drop_rules(module)


def _launches(
    main: ir.OpView, symbols: dict[str, ir.OpView], computations: Computations
) -> dict[dialect.LaunchOp, OuterLaunch]:
    """Returns the launches outside of loops that may be done on blocks."""
    effects: dict[str, bool] = {}
    flat: dict[str, ir.OpView] = {}
    rules = RuleReader()
    launches: dict[dialect.LaunchOp, OuterLaunch] = {}
    for op in body_block(main).operations:
        if not isinstance(op, dialect.LaunchOp) or op.loop is not None:
            continue
        if has_side_effect(symbols[op.callee], symbols, effects):
            continue
        if op.callee not in flat:
            flat[op.callee] = _flattened(op.callee, symbols, computations)
            _unshare_constants(body_block(flat[op.callee]))
            attach_rules([flat[op.callee]])
        launches[op] = OuterLaunch(len(launches), op, body_block(flat[op.callee]), rules)
    return launches


def _flattened(name: str, symbols: dict[str, ir.OpView], computations: Computations) -> ir.OpView:
    """Returns a computation without calls."""
    if not any(op.operation.name == "func.call" for op in dialect.nested_ops(symbols[name])):
        return symbols[name]
    function = computations.variant(name, f"{name}_flat")
    while calls := [op for op in dialect.nested_ops(function) if op.operation.name == "func.call"]:
        for op in calls:
            inline_call(op, symbols[op.callee.value])
    return function


def _unshare_constants(block: ir.Block) -> None:
    """Gives each reader of an array that is made of scalars alone one of its own.

    Updates that share one would have to be split alike.
    """
    of_scalars: set[ir.Value] = set()
    shared: list[ir.OpView] = []
    for op in _with_branches(block):
        if dialect.only_computes(type(op)) and all(v in of_scalars or is_scalar(v) for v in op.operands):
            of_scalars.update(op.results)
            if len(op.results) == 1 and not is_scalar(op.results[0]):
                shared.append(op)
    # Last first: a copy is one more reader of its operands.
    for op in reversed(shared):
        for use in list(op.results[0].uses)[1:]:
            copy = op.operation.clone(ir.InsertionPoint(op))
            use.owner.operation.operands[use.operand_number] = copy.results[0]


def _with_branches(block: ir.Block) -> Iterator[ir.OpView]:
    """Yields the operations of a block and of the branches of its conditionals, in their order."""
    for op in block.operations:
        yield op
        if op.operation.name in BRANCHES:
            for region in op.regions:
                yield from _with_branches(region.blocks[0])


def _move_reductions(launch: OuterLaunch, splitting: Splitting) -> None:
    """Moves reductions over blocks out of conditionals: inside, replicas cannot exchange their results."""

    def in_branches() -> list[ir.OpView]:
        return [
            op
            for op in _with_branches(launch.block)
            if op.operation.parent.opview.operation.name in BRANCHES
            and (dims := partial_dims(op))
            and splitting.dim(launch.key(op.operands[0])) in dims
        ]

    # A conditional that is moved may have reductions in its own branches.
    while reductions := in_branches():
        for op in reductions:
            move_in_front(op)


class _UpdateSplitter:
    def __init__(
        self,
        main: ir.OpView,
        launches: dict[dialect.LaunchOp, OuterLaunch],
        splitting: Splitting,
        layouts: Layouts,
        computations: Computations,
    ) -> None:
        self.main = main
        self.launches = launches
        self.splitting = splitting
        self.layouts = layouts
        self.computations = computations
        self.blocks: dict[ir.Value, ir.Value] = {}
        """The block of each value that is split."""
        self.full_values: dict[ir.Value, ir.Value] = {}
        """Values that were gathered from blocks, or computed in full again."""
        self.numbers = ReplicaNumbers(main)

    def run(self) -> None:
        *operations, terminator = body_block(self.main).operations
        # Of full values: the arguments get the types of blocks, but may have to be gathered.
        self.types = {value: value.type for value in self.splitting.states}
        for value in self.splitting.states:
            value.set_type(self.block_type(value))
            self.blocks[value] = value
        replaced = [op for op in operations if self.replace(op)]
        self.finish(terminator)
        for op in reversed(replaced):
            op.operation.erase()

    def dim(self, value: ir.Value) -> int | None:
        return self.splitting.dim(main_key(value))

    def block_type(self, value: ir.Value) -> ir.RankedTensorType:
        """Returns the type of a block of a value."""
        full_type = self.types.get(value, value.type)
        return self.splitting.block_type(full_type, self.splitting.dims[main_key(value)])

    def replace(self, op: ir.OpView) -> bool:
        """Replaces an operation that has a split result; returns whether it did."""
        with op.operation.location, ir.InsertionPoint(op):
            if op in self.launches and any(self.dim(v) is not None for v in [*op.operands, *op.results]):
                self.replace_launch(op)
            elif isinstance(op, dialect.AllReduceOp) and self.dim(op.results[0]) is not None:
                (result,) = op.results
                self.blocks[result] = dialect.ReduceScatterOp.build(
                    list(op.operands), [self.block_type(result)], dim=self.dim(result), slice=op.slice
                ).results[0]
            elif isinstance(op, dialect.TransferOp) and self.dim(op.results[0]) is not None:
                (result,) = op.results
                moved = op.rebuilt([self.operand(op.operands[0], True)], [self.block_type(result)])
                self.blocks[result] = moved.results[0]
            else:
                self.read_wholes(op)
                return False
        return True

    def replace_launch(self, op: dialect.LaunchOp) -> None:
        """Replaces a launch by launches on blocks."""
        split = SplitLaunch(self.launches[op], self.splitting, self.layouts, self.computations)

        def operand(value: ir.Value | None, is_block: bool) -> ir.Value:
            return self.numbers.on(op.slice) if value is None else self.operand(value, is_block)

        for old, new in zip(op.results, split.build(operand), strict=True):
            (self.full_values if self.dim(old) is None else self.blocks)[old] = new

    def read_wholes(self, op: ir.OpView | ir.Operation) -> None:
        """Lets an operation read values that were put together."""
        for number, value in enumerate(op.operands):
            if value in self.blocks or value in self.full_values:
                op.operands[number] = self.operand(value, False)

    def operand(self, value: ir.Value, is_block: bool) -> ir.Value:
        """Returns a value as a whole, or a block of it, at the insertion point."""
        if is_block:
            return self.blocks[value]
        if value in self.blocks and value not in self.full_values:
            (place,) = dialect.slices_of(self.blocks[value]) or ()
            # In front of the first reader, and so of all others: operations are replaced in block order.
            self.full_values[value] = dialect.AllGatherOp.build(
                [self.blocks[value]], [self.types.get(value, value.type)], dim=self.dim(value), slice=place
            ).results[0]
        return self.full_values.get(value, value)

    def finish(self, terminator: ir.OpView) -> None:
        """Returns blocks in the places of arguments that are blocks, all else as a whole."""
        arguments, results = dialect.argument_attrs(self.main), dialect.result_attrs(self.main)
        for argument, number in self.splitting.states.items():
            dim = NATURAL.make(self.splitting.dims[main_key(argument)])
            arguments[argument.arg_number][BLOCK] = dim
            results[number][BLOCK] = dim
        with ir.InsertionPoint(terminator), terminator.operation.location:
            for number, value in enumerate(list(terminator.operands)):
                terminator.operands[number] = self.operand(value, BLOCK in results[number])
        values = list(body_block(self.main).arguments)
        set_signature(self.main, [v.type for v in values], [v.type for v in terminator.operands])
        dialect.set_argument_attrs(self.main, arguments)
        dialect.set_result_attrs(self.main, results)
