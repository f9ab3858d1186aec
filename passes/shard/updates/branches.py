"""Operations in branches of conditionals that can be moved in front of them."""

from __future__ import annotations

from jaxlib.mlir import ir

from pathways.dialect import nested_ops
from pathways.passes.analysis.operations import captured
from pathways.passes.shard.updates.axes import BRANCHES


def is_movable(op: ir.OpView) -> bool:
    """Returns whether an operation of a branch can be computed in front of the conditional, taken or not.

    After a loop it cannot: the loop may end only where the branch is taken.
    """
    return not any(
        inner.operation.name == "stablehlo.while"
        for source in _sources(op)
        for inner in (source, *nested_ops(source))
    )


def move_in_front(op: ir.OpView) -> None:
    """Moves an operation of a branch, with its producers, in front of its outermost conditional."""
    outermost = _outermost(op)
    if outermost is not None:
        for source in _sources(op):
            source.operation.move_before(outermost.operation)


def _sources(op: ir.OpView) -> list[ir.OpView]:
    """Returns an operation and all its producers in the same conditional, producers first."""
    outermost = _outermost(op)
    order: dict[ir.OpView, None] = {}
    pending = [(op, False)]
    # Depth first, but without recursion: chains of operations may be longer than Python's stack.
    while pending:
        current, is_read = pending.pop()
        if is_read:
            order[current] = None
        elif current not in order:
            owners = [v.owner.opview for v in captured(current) if not isinstance(v.owner, ir.Block)]
            pending.append((current, True))
            pending += [(owner, False) for owner in owners if (_outermost(owner) or owner) == outermost]
    return list(order)


def _outermost(op: ir.OpView) -> ir.OpView | None:
    """Returns the outermost conditional that an operation is in a branch of."""
    outermost = None
    while (parent := op.operation.parent.opview).operation.name in BRANCHES:
        op = outermost = parent
    return outermost
