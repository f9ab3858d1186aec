"""Loops over microbatches that operations and values belong to, as stored on each operation of a loop."""

from __future__ import annotations

from jaxlib.mlir import ir

from pathways.dialect.attributes.names import LOOP
from pathways.dialect.operations.operation import PwOp, op_has
from pathways.dialect.operations.traits import Trait


def loop_of_op(op: ir.OpView) -> str | None:
    """Returns the innermost loop that the results of an operation, and so the operation itself, belong to.

    It is the `loop` of an operation of this dialect, or its `outer` if it leads out of its loop, and the
    `pw.loop` of an operation of another dialect.
    """
    if not isinstance(op, PwOp):
        name = LOOP
    elif Trait.CLOSES_LOOP in op.traits:
        name = "outer"
    elif Trait.OF_LOOP in op.traits or Trait.OPENS_LOOP in op.traits:
        name = "loop"
    else:
        return None
    loop = op.attributes.get(name)
    return None if loop is None else loop.value


def loop_of(value: ir.Value) -> str | None:
    """Returns the loop of a value that represents one of each microbatch; None for every other value.

    Once its loop is unrolled a value belongs to one microbatch, which its producer names, and represents
    itself alone.
    """
    if isinstance(value, ir.BlockArgument):
        return None
    op = value.owner.opview if isinstance(value.owner, ir.Operation) else value.owner
    return None if is_unrolled(op) else loop_of_op(op)


def is_unrolled(op: ir.OpView) -> bool:
    """Returns whether an operation of a loop belongs to one microbatch already."""
    return op_has(op, Trait.OF_LOOP) and "microbatch" in op.attributes


def set_loop(op: ir.OpView, loop: str | None) -> None:
    """Moves an operation of another dialect into a loop, or out of all of them."""
    if loop is not None:
        op.attributes[LOOP] = ir.FlatSymbolRefAttr.get(loop)
    elif LOOP in op.attributes:
        del op.attributes[LOOP]
