"""Transfers of values in partitioned programs: to other slices, and into other shardings."""

from __future__ import annotations

import dataclasses

from jaxlib.mlir import ir

from pathways.dialect import LaunchOp, TransferOp
from pathways.passes.analysis.computations import Computations
from pathways.passes.import_.mpmd.fragments import constrain
from pathways.passes.import_.mpmd.slices import Home

type Layout = ir.Attribute | None
"""The sharding of a value over its slice; None where there is none."""


@dataclasses.dataclass(frozen=True)
class Placed:
    """A value, with the known facts about its place."""

    value: ir.Value
    home: Home
    layout: Layout


class Moves:
    """Builds transfers and launches that reshard, each once for a value and a slice.

    Args:
      symbols: its symbols; computations are added.
      is_open: whether computations hold their shardings inside of them, for propagation to start from.
    """

    def __init__(self, module: ir.Module, symbols: dict[str, ir.OpView], *, is_open: bool = False) -> None:
        self._module = module
        self._symbols = symbols
        self._is_open = is_open
        self._reshards = Computations(module, symbols)
        self._moved: dict[tuple[ir.Value, str], Placed] = {}

    def move(self, op: ir.OpView, source: Placed, home: Home, layout: Layout) -> ir.Value:
        """Returns a value on a slice in a sharding; builds the transfer or launch at the insertion point."""
        if source.home.slice != home.slice:
            key = source.value, home.slice
            if key not in self._moved:
                # In the sharding of its first reader there: others reshard on the slice, and the bytes cross
                # once.
                moved = TransferOp.build(
                    [source.value], [source.value.type], slice=home.slice, sharding=layout, loc=op.location
                )
                self._moved[key] = Placed(moved.results[0], home, layout)
            source = self._moved[key]
        return self._reshard(op, source, layout)

    def _reshard(self, op: ir.OpView, source: Placed, target: Layout) -> ir.Value:
        value, current = source.value, source.layout
        # Attributes cannot be compared with None.
        if target is None or (current is not None and current == target):
            return value
        key = value.type, current, target
        callee = self._reshards.find("reshard", key)
        if callee is None:
            # Beside bodies, shardings are inside of computations, for propagation to start from.
            sharded = ((), ()) if self._is_open else ((current,), (target,))
            with ir.InsertionPoint(self._module.body):
                callee = self._reshards.make(
                    "reshard",
                    [value.type],
                    list,
                    op.location,
                    arguments=sharded[0],
                    results=sharded[1],
                    key=key,
                )
            if self._is_open:
                constrain(self._symbols[callee], (current,), (target,))
        launch = LaunchOp.build(
            [value], [value.type], callee=callee, slice=source.home.slice, loc=op.location
        )
        return launch.results[0]
