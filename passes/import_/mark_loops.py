"""Marks of microbatches: they become operations, and operations between them members of their loop."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NoReturn

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from pathways.dialect import CarryOp, LoopOp, NextOp, PwOp, ReduceOp, SplitOp, loop_of_op, op_has, set_loop
from pathways.dialect.attributes.blocks import whole_shape
from pathways.dialect.operations.metadata import Mark
from pathways.dialect.operations.traits import Trait
from pathways.passes.analysis.functions import body_block
from pathways.passes.analysis.operations import captured, replace
from pathways.passes.import_.branches.tags import branch_of, conditions
from pathways.passes.import_.traced import NESTED_LOOPS, TracedProgram
from pathways.passes.manager.base import fail


class LoopMarker:
    """Marker of the operations of loops over microbatches, or over slices.

    Args:
      traced: the program, whose loops are declared.
    """

    def __init__(self, traced: TracedProgram) -> None:
        self.traced = traced

    def mark_loops(self) -> None:
        """Turns calls that mark microbatches into splits and reductions, and sets the loop of operations."""
        reduced: dict[ir.Value, set[str]] = {}
        loops: dict[ir.Value, str] = {}
        """The loop of each value that is of one, as far as operations have been looked at."""
        flags = {name: op.results[0] for name, op in conditions(self.traced.main).items()}
        for op in list(body_block(self.traced.main).operations):
            metadata, reads = self.traced.metadata_of(op), captured(op)
            branch = branch_of(op)
            if branch is not None:
                # An operation on a condition of an iteration belongs to that iteration.
                reads.append(flags[branch.condition])
            # The loops that must have ended before this: none of them can be one that it belongs to.
            before: set[str] = set().union(*(reduced[v] for v in reads if v in reduced))
            if metadata.mark is not None:
                op = self.make_mark(op, metadata.mark, self.traced.loop_symbol(op, metadata))
            loop = self.loop_read(op, [loops[value] for value in reads if value in loops])
            if op_has(op, Trait.OPENS_LOOP):
                self.check_begun(op, loop)
                loop = op.loop
            if loop is not None and op.operation.name == "func.return":
                self.fail_outside(op, loop)
            if loop in before:
                fail(
                    op,
                    f"reads a result of pw.accumulate of '{loop}' and a value of one of its microbatches: "
                    "let the function return what is used outside of it",
                )
            if op_has(op, Trait.CLOSES_LOOP):
                self.check_inside(op, op.loop, loop)
                before |= {op.loop}
                # It reduces a value that all microbatches share: there is one value and not one for each.
                if isinstance(op, ReduceOp) and loop != op.loop:
                    constant = self.reduce_constant(op, loop)
                    reduced[constant] = before
                    if loop is not None:
                        loops[constant] = loop
                    continue
            elif loop is not None and not isinstance(op, PwOp):
                set_loop(op, loop)
            if loop is not None:
                result_loop = loop_of_op(op)
                loops.update((result, result_loop) for result in op.results if result_loop is not None)
            if before:
                reduced.update(dict.fromkeys(op.results, before))

    def around(self, loop: str | None) -> list[str]:
        """Returns a loop and the loops around it, innermost first."""
        loops = []
        while loop is not None:
            loops.append(loop)
            loop = self.traced.symbols[loop].parent
        return loops

    def loop_read(self, op: ir.OpView, read: Iterable[str]) -> str | None:
        """Returns the innermost loop of an operation, by its mark and the loops of its operands."""
        loops = dict.fromkeys(read)
        if not isinstance(op, PwOp) and (marked := loop_of_op(op)) is not None:
            loops[marked] = None
        innermost = max(loops, key=lambda loop: len(self.around(loop)), default=None)
        for loop in loops:
            self.check_inside(op, innermost, loop)
        return innermost

    def check_begun(self, op: ir.OpView, loop: str | None) -> None:
        """Checks that a split or carry starts from a value of a loop around, or of none."""
        around = self.around(op.loop)[1:]
        if loop is not None and loop not in around:
            self.refuse_nested(op.loop, loop)
            self.fail_outside(op, loop)

    def check_inside(self, op: ir.OpView, inner: str | None, loop: str | None) -> None:
        """Checks that an operation in `inner` may read a value of a loop."""
        around = self.around(inner)
        if loop is None or loop in around:
            return
        if inner is not None:
            self.refuse_nested(inner, loop)
        # The value of the loop that began first has leaked into the other one.
        begun = (o.loop for o in body_block(self.traced.main).operations if op_has(o, Trait.OPENS_LOOP))
        self.fail_outside(op, next((name for name in begun if name == loop or name in around), loop))

    def refuse_nested(self, inner: str, loop: str) -> None:
        """Refuses loops over slices in loops over microbatches."""
        if not self.traced.symbols[inner].sequential or self.traced.symbols[loop].sequential:
            return
        place = f"inside the function '{loop}' that was given to pw.accumulate"
        if self.traced.symbols[inner].chunk is not None:
            fail(
                self.traced.symbols[inner],
                "is over several slices and has a trip count that is not known while tracing, "
                f"{place}: place the function with the whole loop on one slice, or write the loop in Python "
                f"over the most iterations that it may take, with a mask (jnp.where); see {NESTED_LOOPS}",
            )
        fail(
            self.traced.symbols[inner],
            f"is a jax.lax.scan or fori_loop over several slices {place}: write that loop in Python, place "
            "the function with the whole loop on one slice, or put pw.accumulate inside of the loop; see "
            f"{NESTED_LOOPS}",
        )

    def fail_outside(self, op: ir.OpView, loop: str) -> NoReturn:
        fail(
            op,
            f"uses a value of a microbatch outside of the function '{loop}' that was given to pw.accumulate: "
            "let the function return it",
        )

    def make_mark(self, call: ir.OpView, mark: Mark, loop: LoopOp) -> PwOp:
        """Replaces a call that begins or ends a microbatch by the operation that does."""
        if len(call.operands) != (2 if mark == "next" else 1) or len(call.results) != 1:
            number = "two operands" if mark == "next" else "one operand"
            fail(call, f"marks where a microbatch begins or ends, but does not have {number} and one result")
        value, result = call.operands[0], call.results[0]
        op_type: type[PwOp]
        attributes: dict[str, str | None] = {} if mark in ("split", "carry") else {"outer": loop.parent}
        match mark:
            case "split":
                op_type = SplitOp
                self.check_blocks(call, value, result, loop)
            case "carry":
                op_type = CarryOp
                self.check_types_equal(call, "carries")
            case "next":
                op_type = NextOp
                self.check_types_equal(call, "passes on")
                source = None if isinstance(value, ir.BlockArgument) else value.owner.opview
                if not isinstance(source, CarryOp) or source.loop != loop.sym_name:
                    fail(call, f"passes on a value that is not carried by @{loop.sym_name}")
            case "sum" | "concat":
                op_type, attributes["kind"] = ReduceOp, mark
                if mark == "concat":
                    self.check_blocks(call, result, value, loop)
                else:
                    self.check_types_equal(call, "sums")
        operation = op_type.build(
            list(call.operands),
            [result.type],
            loop=loop.sym_name,
            **attributes,
            loc=call.operation.location,
            ip=ir.InsertionPoint(call),
        )
        replace(call, operation.results)
        return operation

    def check_types_equal(self, call: ir.OpView, verb: str) -> None:
        for value in call.operands:
            if value.type != call.results[0].type:
                fail(call, f"{verb} {value.type}, but the result is {call.results[0].type}")

    def check_blocks(self, call: ir.OpView, value: ir.Value, block: ir.Value, loop: LoopOp) -> None:
        """Checks that microbatches are blocks of the leading dimension; jax.vmap puts another in front."""
        shapes = [
            list(v.type.shape) if isinstance(v.type, ir.RankedTensorType) else [] for v in (value, block)
        ]
        if not shapes[1] or list(whole_shape(shapes[1], 0, loop.count)) != shapes[0]:
            fail(call, f"is under jax.vmap: apply jax.vmap inside the function '{loop.sym_name}'")

    def reduce_constant(self, op: ReduceOp, loop: str | None) -> ir.Value:
        """Sums or concatenates a value that all microbatches share, and that is itself of `loop` or none."""
        value, count = op.operands[0], self.traced.symbols[op.loop].count
        operations: list[ir.Value] = []
        with ir.InsertionPoint(op), op.operation.location:
            if op.kind == "concat":
                shape = list(ir.RankedTensorType(value.type).shape)
                rows = ir.RankedTensorType.get([count, *shape], value.type.element_type)
                operations.append(stablehlo.broadcast_in_dim(rows, value, range(1, len(shape) + 1)))
                operations.append(stablehlo.reshape(op.results[0].type, operations[0]))
            else:
                total = value
                for _ in range(count - 1):
                    total = stablehlo.add(total, value)
                    operations.append(total)
        for result in operations:
            set_loop(result.owner.opview, loop)
        total = operations[-1] if operations else value
        replace(op, [total])
        return total
