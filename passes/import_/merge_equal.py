"""Merging of equal operations that every slice can compute itself, so that later passes see fewer."""

from __future__ import annotations

from jaxlib.mlir import ir

from pathways.dialect import PwOp, only_computes
from pathways.passes.analysis.operations import EXPENSIVE, is_scalar, replace

_LEFT_ALONE = EXPENSIVE | {"stablehlo.optimization_barrier", "stablehlo.rng"}
"""Operations that are not merged: they are expensive, separate other operations, or differ at each call."""

_TAKING = ("func.call", "func.return")


def merge_equal(block: ir.Block) -> None:
    """Merges equal operations that read nothing but constants and scalar arguments.

    An optimizer that is written once for each leaf repeats its constants, their broadcasts and its bias
    corrections for all of them. Operations that read a large value stay, since their slice decides which
    values cross. So does an array that a launch or the caller reads: each may consume it.

    Args:
      block: the body of `@main`, before anything of it is placed.
    """
    cheap = {a for a in block.arguments if is_scalar(a)}
    first: dict[object, ir.Value] = {}
    for op in list(block.operations):
        if not only_computes(type(op)) or op.operation.name in _LEFT_ALONE:
            continue
        operands = list(op.operands)
        if not cheap.issuperset(operands) or len(op.results) != 1:
            continue
        result = op.results[0]
        try:
            attributes = tuple(op.attributes.items())
        except TypeError:
            # The bindings cannot hand out complex numbers.
            cheap.add(result)
            continue
        same = first.setdefault((type(op), result.type, *operands, *attributes), result)
        if same is not result and (is_scalar(result) or not _is_taken(result)):
            replace(op, [same])
        else:
            cheap.add(result)


def _is_taken(value: ir.Value) -> bool:
    """Returns whether a launch, another operation of `pw` or the return reads a value."""
    readers = (use.owner for use in value.uses)
    return any(isinstance(reader, PwOp) or reader.operation.name in _TAKING for reader in readers)
