"""Positions in an order: their numbers on each slice, first reads of values, and capacities of channels."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from jaxlib.mlir import ir

from pathways.dialect import Trait, op_has, ops_named
from pathways.dialect.relations.order import device_queues

Span = tuple[int, int]
"""Positions, in one order of all operations, at which a value is sent and first read."""


def renumber(module: ir.Module, operations: Iterable[ir.OpView]) -> None:
    """Numbers all that is in the order of a slice, or of slices that share one, from 0 and without gaps.

    Args:
      operations: the operations of `@main`; of two with one `order`, the first comes first.
    """
    queues = device_queues(module)
    source = {c.sym_name: c.src for c in ops_named(module, ["pw.channel"])}
    members: dict[str, list[ir.OpView]] = {}
    for op in operations:
        if op_has(op, Trait.ORDERED):
            slice = source[op.channel] if op_has(op, Trait.TRANSFERS) else op.slice
            members.setdefault(queues[slice], []).append(op)
    for ops in members.values():
        for n, op in enumerate(sorted(ops, key=lambda op: op.order)):
            op.order = n


def first_reads(operations: Sequence[ir.OpView]) -> dict[ir.Value, int]:
    """Returns the position of the first operation in an order that reads each value, alone or joined."""
    positions: dict[ir.Value, int] = {}
    for n, op in enumerate(operations):
        if not _has_position(op):
            continue
        pending = list(op.operands)
        while pending:
            value = pending.pop()
            if value in positions:
                continue
            positions[value] = n
            if not isinstance(value, ir.BlockArgument) and not _has_position(value.owner.opview):
                pending += value.owner.operands
    return positions


def _has_position(op: ir.OpView) -> bool:
    return op_has(op, Trait.ORDERED) or op_has(op, Trait.EXCHANGES)


def capacity_for(spans: Sequence[Span]) -> int:
    """Returns the most values on a channel at once, so that no send has to wait in that order."""
    changes = sorted([(sent, 1) for sent, _ in spans] + [(read, -1) for _, read in spans])
    most = now = 0
    for _, change in changes:
        now += change
        most = max(most, now)
    return most
