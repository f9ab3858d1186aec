"""Homes of values that are not mirrored, chosen so that the fewest bytes cross."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from jaxlib.mlir import ir

from pathways.dialect import SplitOp
from pathways.passes.place.inference.cut import DisjointSets, Edge, multiway_cut
from pathways.passes.place.inference.placement_problem import Homes, Operation, PlacementProblem
from pathways.passes.place.inference.replaced import updated_arguments


def copy_for_readers(problem: PlacementProblem, mirrored: Collection[ir.Value]) -> PlacementProblem:
    """Gives each reader of a broadcast small value, or of a block of the batch, one of its own.

    It can then have one on its slice: the small value crosses, and not the broadcast. `@main` is changed;
    returns the problem that it is now.
    """
    changed = False
    for op in problem.operations:
        if _is_mirrored(op, mirrored) or not _is_copied(problem, op):
            continue
        for use in list(op.results[0].uses)[1:]:
            copy = op.view.operation.clone(ir.InsertionPoint(op.view))
            use.owner.operation.operands[use.operand_number] = copy.results[0]
            changed = True
    return problem.read_again() if changed else problem


def _is_copied(problem: PlacementProblem, op: Operation) -> bool:
    if isinstance(op.view, SplitOp):
        return problem.is_brought(op.reads[0])
    return op.view.operation.name == "stablehlo.broadcast_in_dim" and problem.is_small(op.reads)


def _is_mirrored(op: Operation, mirrored: Collection[ir.Value]) -> bool:
    return len(op.results) > 0 and op.results[0] in mirrored


def homes_by_cut(problem: PlacementProblem, mirrored: Collection[ir.Value]) -> Homes:
    """Returns the slice of every value that is not mirrored, by a minimum cut between placed values."""
    values_of_node = [[argument] for argument in problem.arguments if argument not in mirrored]
    node_of: dict[int, int] = {}
    for position, op in enumerate(problem.operations):
        if _is_mirrored(op, mirrored):
            continue
        if op.handed_on is not None and op.handed_on in node_of:
            # One node for both: a carried value stays on its slice in all iterations.
            node_of[position] = node_of[op.handed_on]
            values_of_node[node_of[position]] += op.results
            continue
        node_of[position] = len(values_of_node)
        values_of_node.append(list(op.results))
    node = {value: n for n, values in enumerate(values_of_node) for value in values}
    fixed = {node[argument]: place for argument, place in problem.fixed.items()}
    fixed |= {n: place for p, n in node_of.items() if (place := problem.operations[p].slice) is not None}
    sets = DisjointSets(len(values_of_node))
    _join_updated(problem, sets, node, fixed)
    readers: dict[ir.Value, dict[int, None]] = {}
    for position, n in node_of.items():
        op = problem.operations[position]
        for value in op.reads:
            # A batch that the caller brings is there wherever it is split: nothing crosses.
            is_free = isinstance(op.view, SplitOp) and problem.is_brought(value)
            if value in node and not is_free and sets.find(node[value]) != sets.find(n):
                readers.setdefault(value, {})[sets.find(n)] = None
    edges = [
        Edge(sets.find(node[value]), tuple(read_by), problem.cost(value))
        for value, read_by in readers.items()
    ]
    slices = multiway_cut(len(values_of_node), edges, fixed)
    return {value: slices[sets.find(n)] for value, n in node.items()}


def _join_updated(
    problem: PlacementProblem, sets: DisjointSets, node: Mapping[ir.Value, int], fixed: dict[int, int]
) -> None:
    """Joins the nodes of donated arguments and of their updates, as for a value that a loop carries.

    The caller passes the update in the next call. On another slice it would be moved there first, and its
    buffer could not be the result's. Extends `fixed` to the nodes that represent the joined ones.
    """
    for argument, number in updated_arguments(problem).items():
        result = problem.returned[number]
        if argument not in problem.donated or argument not in node or result not in node:
            continue
        places = {fixed[n] for n in (sets.find(node[argument]), sets.find(node[result])) if n in fixed}
        # The caller has it on one slice, and a launch returns it on another.
        if len(places) > 1:
            continue
        sets.join(node[argument], node[result])
        fixed |= {sets.find(node[result]): place for place in places}
