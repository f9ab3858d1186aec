"""Replicas of a program: their count, and their numbers as values of the program."""

from __future__ import annotations

from jaxlib.mlir import ir

from pathways.dialect import ReplicaOp, SliceOp, ops_named
from pathways.passes.analysis.functions import body_block
from pathways.passes.manager.base import fail


def replica_count(module: ir.Module) -> int:
    """Returns the number of replicas that each slice of a program requests; 1 where none does.

    Raises:
      PassFailure: slices request different numbers.
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


class ReplicaNumbers:
    """Numbers of replicas, as values: one `pw.replica` for each slice that needs it, first in `@main`."""

    def __init__(self, main: ir.OpView) -> None:
        self._main = main
        self._numbers: dict[str, ir.Value] = {}

    def on(self, slice: str) -> ir.Value:
        """Returns the number of the replica on a slice, a scalar i32."""
        if slice not in self._numbers:
            scalar = ir.RankedTensorType.get([], ir.IntegerType.get_signless(32))
            ip = ir.InsertionPoint.at_block_begin(body_block(self._main))
            self._numbers[slice] = ReplicaOp.build([], [scalar], slice=slice, ip=ip).results[0]
        return self._numbers[slice]
