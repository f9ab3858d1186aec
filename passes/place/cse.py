"""`pw-cse`: merges launches, transfers and splits that give the same value."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from jaxlib.mlir import ir

from pathways.dialect import PwOp, Trait, op_has, symbol_table
from pathways.dialect.operations.operation import attributes_of
from pathways.dialect.verification.forms import OUTLINED, PLACED, SHARDED, UNROLLED
from pathways.passes.analysis.functions import body_block
from pathways.passes.analysis.operations import computation_has_effect, replace
from pathways.passes.manager.base import Pass, main_function


@dataclasses.dataclass(frozen=True)
class Cse(Pass):
    """Merges equal operations of `@main`; stock `cse` leaves unregistered ops alone.

    Two operations are equal if they are of one kind, have the same attributes except for the placed calls
    that they stem from, and read the same values; launches run one computation. A launch that
    `jax.checkpoint` repeats is not merged with the forward launch that it repeats, and a computation with
    side effects is never merged.

    ```mlir
    // before
    %0 = pw.launch @f(%arg0) on @s0
    %1 = pw.launch @f(%arg0) on @s0
    %2 = pw.transfer %0 to @s1
    %3 = pw.transfer %1 to @s1
    // after
    %0 = pw.launch @f(%arg0) on @s0
    %1 = pw.transfer %0 to @s1
    ```

    Requires: no glue in `@main`.
    Guarantees: a value moves to a slice once.
    """

    name: ClassVar[str] = "pw-cse"
    input_forms = (OUTLINED, PLACED, SHARDED, UNROLLED)

    def run(self, module: ir.Module) -> None:
        symbols = symbol_table(module)
        effects: dict[str, bool] = {}
        seen: dict[object, ir.OpView] = {}
        # In block order: the operands of an operation are merged before its key is computed, so chains merge.
        for op in list(body_block(main_function(module)).operations):
            if op_has(op, Trait.EXECUTES):
                mergeable = not computation_has_effect(op.callee, symbols, effects)
            else:
                mergeable = op_has(op, Trait.PURE)
            if not mergeable:
                continue
            first = seen.setdefault(_key(op), op)
            if first is not op:
                replace(op, first.results)


def _key(op: PwOp) -> object:
    """Returns the key that equal operations share."""
    attributes = attributes_of(op)
    origins = op.origins if attributes.pop("origins", None) is not None and op_has(op, Trait.EXECUTES) else ()
    # One launch for both would keep the value from forward to backward, which `jax.checkpoint` avoids.
    repeated = any(origin.kind == "recompute" for origin in origins)
    return op.OPERATION_NAME, tuple(op.operands), frozenset(attributes.items()), repeated
