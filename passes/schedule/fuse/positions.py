"""The positions of launches and transfers on their slices, when there are more or fewer than before."""

from __future__ import annotations

from collections.abc import Iterable

from jaxlib.mlir import ir

from pathways.dialect import op_has, ops_named
from pathways.dialect.operations.traits import Trait
from pathways.dialect.relations.order import device_queues


def renumber(module: ir.Module, operations: Iterable[ir.OpView]) -> None:
    """Numbers all that is in the order of a slice, or of slices that share one, from 0 and without gaps.

    Args:
      module: the module.
      operations: those of `@main`; of two with one `order`, the first comes first.
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
