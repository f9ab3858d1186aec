"""How many replicas of a program there are."""

from __future__ import annotations

from jaxlib.mlir import ir

from pathways.dialect import SliceOp, ops_named
from pathways.passes.manager.base import fail


def replicas_of(module: ir.Module) -> int:
    """How many replicas each slice of a program asks for; 1 where none does.

    Raises:
      PassFailure: slices ask for different numbers.
    """
    slices = [op for op in ops_named(module, ["pw.slice"]) if isinstance(op, SliceOp)]
    counts = {op.replicas or 1: op for op in slices}
    if len(counts) > 1:
        (few, first), (many, second) = sorted(counts.items(), key=lambda item: item[0])[:2]
        fail(
            second,
            f"asks for {many} replicas, but @{first.sym_name} for {few}; slices of one program come from "
            "device sets with one number of replicas",
        )
    return next(iter(counts), 1)
