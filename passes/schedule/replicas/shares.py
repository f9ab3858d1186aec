"""Analysis of shares: the arguments and results of a program that are split over replicas."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence

from jaxlib.mlir import ir

from pathways.dialect import LoopOp, ReduceOp, ReplicaOp, SplitOp, argument_attrs, ops_named
from pathways.dialect.attributes.names import CONSTANT
from pathways.dialect.relations.layouts import Layouts
from pathways.passes.analysis.functions import body_block
from pathways.passes.manager.base import fail


@dataclasses.dataclass(frozen=True)
class Shares:
    """Values and loops that are split over replicas; each replica repeats all others.

    Attributes:
      count: the number of replicas.
      microbatched: the loops over microbatches; each replica runs its share of them.
      arguments: the arguments with split rows.
      results: the concatenations of microbatches with split rows.
      numbered: the slices that read the number of the replica.
    """

    count: int
    microbatched: Collection[str]
    arguments: Collection[ir.Value]
    results: Collection[ir.Value]
    numbered: Sequence[str]


def decide_shares(module: ir.Module, main: ir.OpView, layouts: Layouts, count: int) -> Shares:
    """Returns the shares of replicas; does not change the module.

    Raises:
      PassFailure: the microbatches of a loop do not divide by the number of replicas.
    """
    loops = [op for op in ops_named(module, ["pw.loop"]) if isinstance(op, LoopOp) and not op.sequential]
    for op in loops:
        if op.count % count:
            fail(op, f"has {op.count} microbatches, which is not divisible by {count} replicas")
    microbatched = {op.sym_name for op in loops}
    *operations, terminator = body_block(main).operations
    attrs = argument_attrs(main)

    def is_split_argument(argument: ir.Value) -> bool:
        """Returns whether an argument is only cut into microbatches."""
        readers = [use.owner.opview for use in argument.uses]
        return (
            bool(readers)
            and CONSTANT not in attrs[argument.arg_number]
            and all(isinstance(op, SplitOp) and op.loop in microbatched for op in readers)
            and all(rows_divide(argument, op.slice, layouts, count) for op in readers)
        )

    def is_split_result(op: ReduceOp) -> bool:
        """Returns whether the concatenation is only returned, never read."""
        readers = [use.owner for use in op.results[0].uses]
        return (
            op.kind == "concat"
            and op.loop in microbatched
            and bool(readers)
            and all(reader == terminator.operation for reader in readers)
            and rows_divide(op.results[0], op.slice, layouts, count)
        )

    arguments = {value for value in body_block(main).arguments if is_split_argument(value)}
    results = {op.results[0] for op in operations if isinstance(op, ReduceOp) and is_split_result(op)}
    numbered = {
        op.slice: None
        for op in operations
        if isinstance(op, ReplicaOp)
        or (isinstance(op, SplitOp) and op.loop in microbatched and op.operands[0] not in arguments)
    }
    return Shares(count, microbatched, arguments, results, list(numbered))


def rows_divide(value: ir.Value, slice: str, layouts: Layouts, count: int) -> bool:
    """Returns whether the rows of a value divide among replicas, and then over the devices of a slice."""
    rows = ir.RankedTensorType(value.type).shape[0]
    shards = layouts.of(value, slice).splits(layouts.mesh(slice))[0]
    return rows % (count * shards) == 0
