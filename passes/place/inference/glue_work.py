"""Remarks on work between placed calls, such as a layer that nobody placed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from pathways.dialect import AllToAllOp, loop_of, nested_ops
from pathways.passes.analysis.operations import EXPENSIVE
from pathways.passes.analysis.work import WorkEstimate
from pathways.passes.manager.base import remark
from pathways.passes.place.inference.placement_problem import Operation, PlacementProblem, Places

_MAX_SHARE = 0.1
"""Fraction of a program's work up to which glue gets no remark."""


def remark_glue(problem: PlacementProblem, op_places: Sequence[Places]) -> None:
    """Remarks on the largest operation of glue on each slice if more than a tenth of the work is glue.

    Elementwise work after the last placed call, such as an optimizer, does not count: it is not a layer.
    """
    estimate = WorkEstimate(problem.symbols)
    placed = 0
    glue: dict[int, list[tuple[int, int]]] = defaultdict(list)
    counts = _layer_glue(problem)
    for n, (op, places) in enumerate(zip(problem.operations, op_places, strict=True)):
        loop = loop_of(op.results[0]) if op.results else None
        iterations = 1 if loop is None else problem.symbols[loop].iterations
        if isinstance(op.view, AllToAllOp):
            continue
        if op.slice is not None:
            placed += iterations * estimate.of_operation(op.view)
        elif n in counts and places:
            glue[min(places)].append((iterations * estimate.of_operation(op.view), n))
    work = {place: sum(cost for cost, _ in costs) for place, costs in glue.items()}
    total = placed + sum(work.values())
    if not placed or sum(work.values()) <= _MAX_SHARE * total:
        return
    for place, costs in sorted(glue.items()):
        share = round(100 * work[place] / total)
        if share:
            _, most = max(costs, key=lambda cost: (cost[0], -cost[1]))
            remark(
                problem.operations[most].view,
                f"is in code that is not placed, {share} % of the program's work, on "
                f"@{problem.names[place]}, where the fewest bytes cross: place its function with pw.jit to "
                "choose the slice",
            )


def _layer_glue(problem: PlacementProblem) -> set[int]:
    """Returns the positions of glue that leads to a placed call, or computes more than element by element."""
    leads: set[int] = set()
    for n in reversed(range(len(problem.operations))):
        op = problem.operations[n]
        readers = (m for result in op.results for m in problem.readers.get(result, ()))
        if any(m in leads or problem.operations[m].slice is not None for m in readers):
            leads.add(n)
    glue = (n for n, op in enumerate(problem.operations) if op.repeatable)
    return {n for n in glue if n in leads or _is_expensive(problem.operations[n])}


def _is_expensive(op: Operation) -> bool:
    return any(inner.operation.name in EXPENSIVE for inner in (op.view, *nested_ops(op.view)))
