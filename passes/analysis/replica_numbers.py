"""The number of the replica that a slice belongs to, as a value of the program."""

from __future__ import annotations

from jaxlib.mlir import ir

from pathways.dialect import ReplicaOp
from pathways.passes.analysis.functions import body_block


class ReplicaNumbers:
    """One `pw.replica` for each slice that needs it, at the start of `@main`."""

    def __init__(self, main: ir.OpView) -> None:
        self._main = main
        self._numbers: dict[str, ir.Value] = {}

    def on(self, slice: str) -> ir.Value:
        """The number of the replica on a slice, a scalar i32."""
        if slice not in self._numbers:
            scalar = ir.RankedTensorType.get([], ir.IntegerType.get_signless(32))
            ip = ir.InsertionPoint.at_block_begin(body_block(self._main))
            self._numbers[slice] = ReplicaOp.build([], [scalar], slice=slice, ip=ip).results[0]
        return self._numbers[slice]
