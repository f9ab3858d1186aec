"""Arguments that results replace in the next call, such as parameters and optimizer state."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from jaxlib.mlir import ir

from pathways.passes.place.inference.placement_problem import PlacementProblem

_MAX_VALUES = 256
"""Limit of the values that lead to a result among which its argument is searched."""


def updated_arguments(problem: PlacementProblem) -> dict[ir.Value, int]:
    """Returns the number of the result that each argument is updated to.

    An argument belongs to the result of its type that the fewest operations compute from it, on values of
    its shape: glue, such as the update of an optimizer, or a launch that reads it if it is donated.
    """
    pairs = [
        (steps, argument.arg_number, number)
        for number, result in enumerate(problem.returned)
        for argument, steps in _sources(problem, result)
    ]
    updated: dict[ir.Value, int] = {}
    for _, argument, number in sorted(pairs):
        value = problem.arguments[argument]
        if value not in updated and number not in updated.values():
            updated[value] = number
    return updated


def replaced_arguments(problem: PlacementProblem) -> dict[ir.Value, int]:
    """Returns the number of the result that a caller passes for each argument in the next call.

    These are the arguments that are updated, and donated ones with another result of their type: the first
    that is left.
    """
    replaced = updated_arguments(problem)
    # By type and in order, as in JAX.
    left = [number for number in range(len(problem.returned)) if number not in replaced.values()]
    for argument in problem.arguments:
        if argument in problem.donated and argument not in replaced:
            number = next((n for n in left if problem.returned[n].type == argument.type), None)
            if number is not None:
                replaced[argument] = number
                left.remove(number)
    return {argument: replaced[argument] for argument in problem.arguments if argument in replaced}


def _sources(problem: PlacementProblem, result: ir.Value) -> Iterator[tuple[ir.BlockArgument, int]]:
    """Yields the nearest arguments of its type that a result is computed from, with their distances."""
    shape = ir.RankedTensorType(result.type).shape
    steps = {result: 0}
    pending = deque(steps)
    nearest: int | None = None
    while pending and len(steps) < _MAX_VALUES:
        value = pending.popleft()
        if nearest is not None and steps[value] > nearest:
            return
        if isinstance(value, ir.BlockArgument):
            if value.type == result.type:
                nearest = steps[value]
                yield value, nearest
            continue
        if value not in problem.producer:
            continue
        op = problem.operations[problem.producer[value]]
        for read in op.reads:
            # What a launch computes of others are activations and gradients, not versions of an argument.
            is_near = op.slice is None or read in problem.donated
            if is_near and read not in steps and ir.RankedTensorType(read.type).shape == shape:
                steps[read] = steps[value] + 1
                pending.append(read)
