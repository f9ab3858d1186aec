"""Where values that are not mirrored live, so that the fewest bytes cross."""

from __future__ import annotations

from collections.abc import Collection

from jaxlib.mlir import ir

from pathways.dialect import op_has
from pathways.dialect.traits import Trait
from pathways.passes.place.cut import Edge, multiway_cut
from pathways.passes.place.problem import Homes, Operation, PlacementProblem


def copy_for_readers(problem: PlacementProblem, mirrored: Collection[ir.Value]) -> PlacementProblem:
    """Gives each reader of a broadcast small value, or of a block of the batch, one of its own.

    It can then have one on its slice: the small value crosses, and not the broadcast. `@main` is changed;
    returns the problem that it is now.
    """
    for op in problem.operations:
        if _is_mirrored(op, mirrored) or not _is_copied(problem, op):
            continue
        for use in list(op.results[0].uses)[1:]:
            copy = op.view.operation.clone(ir.InsertionPoint(op.view))
            use.owner.operation.operands[use.operand_number] = copy.results[0]
    return problem.read_again()


def _is_copied(problem: PlacementProblem, op: Operation) -> bool:
    if op_has(op.view, Trait.OPENS_LOOP):
        return problem.is_brought(op.reads[0])
    return op.view.operation.name == "stablehlo.broadcast_in_dim" and problem.is_small(op.reads)


def _is_mirrored(op: Operation, mirrored: Collection[ir.Value]) -> bool:
    return len(op.results) > 0 and op.results[0] in mirrored


def homes_by_cut(problem: PlacementProblem, mirrored: Collection[ir.Value]) -> Homes:
    """The slice of every value that is not mirrored, by a minimum cut between the placed operations."""
    made = [(argument,) for argument in problem.arguments if argument not in mirrored]
    first = len(made)
    operations = [op for op in problem.operations if not _is_mirrored(op, mirrored)]
    made += [tuple(op.results) for op in operations]
    node = {value: n for n, values in enumerate(made) for value in values}
    readers: dict[ir.Value, dict[int, None]] = {}
    for n, op in enumerate(operations, first):
        for value in op.reads:
            is_free = op_has(op.view, Trait.OPENS_LOOP) and problem.is_brought(value)
            if value in node and not is_free:
                readers.setdefault(value, {})[n] = None
    edges = [Edge(node[value], tuple(read_by), problem.cost(value)) for value, read_by in readers.items()]
    fixed = {n: op.slice for n, op in enumerate(operations, first) if op.slice is not None}
    slices = multiway_cut(len(made), edges, fixed)
    return {value: place for values, place in zip(made, slices, strict=True) for value in values}
