"""`pw-cse`: merges launches, transfers and splits that give the same value."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from jaxlib.mlir import ir

from pathways.dialect import LaunchOp, SplitOp, TransferOp, symbol_table
from pathways.passes.base import Pass, main_function
from pathways.passes.util.ir_utils import body_block, has_side_effect


@dataclasses.dataclass(frozen=True)
class Cse(Pass):
    """Merges equal launches, transfers and splits of `@main`; stock `cse` leaves unregistered ops alone.

    Two launches are equal when they run one computation on one slice on the same operands. A launch
    that `jax.checkpoint` repeats (`recompute`) is not merged with the forward launch that it repeats,
    and a computation with side effects is never merged.

    Requires: no glue in `@main`.
    Guarantees: a value moves to a slice once.
    """

    name: ClassVar[str] = "pw-cse"

    def run(self, module: ir.Module) -> None:
        symbols = symbol_table(module)
        effects: dict[str, bool] = {}
        seen: dict[object, ir.OpView] = {}
        for op in list(body_block(main_function(module)).operations):
            match op:
                case LaunchOp():
                    if has_side_effect(symbols[op.callee], symbols, effects):
                        continue
                    key: object = (op.callee, op.slice, op.phase == "recompute", tuple(op.operands))
                case TransferOp() if op.routes is None:
                    key = (op.operands[0], op.slice, op.attributes.get("sharding"))
                case SplitOp():
                    key = (op.operands[0], op.slice, op.loop)
                case _:
                    continue
            first = seen.setdefault(key, op)
            if first is not op:
                for old, new in zip(op.results, first.results, strict=True):
                    old.replace_all_uses_with(new)
                op.operation.erase()
