"""Which values of a program are of a microbatch."""

from __future__ import annotations

from jaxlib.mlir import ir

from pathways.dialect import LaunchOp, ReduceOp, SplitOp
from pathways.passes.util.ir_utils import body_block, captured


def values_in_loops(main: ir.OpView) -> dict[ir.Value, str]:
    """The loop of each value of `@main` that stands for one of each microbatch, before loops are unrolled."""
    loops: dict[ir.Value, str] = {}
    for op in body_block(main).operations:
        loop: str | None
        match op:
            case SplitOp():
                loop = op.loop
            case ReduceOp():
                continue
            case LaunchOp() if op.loop is not None and op.microbatch is None:
                loop = op.loop
            case LaunchOp():
                continue
            case _:
                loop = next((loops[v] for v in captured(op) if v in loops), None)
        if loop is not None:
            loops.update(dict.fromkeys(op.results, loop))
    return loops
