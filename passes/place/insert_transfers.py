"""`pw-insert-transfers`: makes every move of a value between slices explicit."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from jaxlib.mlir import ir

from pathways.dialect import (
    Slices,
    TransferOp,
    argument_slices,
    loop_of,
    op_has,
    result_slices,
    slices_of,
)
from pathways.dialect.forms import OUTLINED, PLACED
from pathways.dialect.traits import Trait
from pathways.passes.base import Pass, main_function
from pathways.passes.util.functions import body_block


@dataclasses.dataclass(frozen=True)
class InsertTransfers(Pass):
    """Inserts a `pw.transfer` wherever a value is read on a slice where it does not live.

    A value is moved to a slice once, however many launches read it there, and leaves as soon as it is
    there: the transfer stands right behind its producer.

    Requires: no glue in `@main`; placed arguments.
    Guarantees: what a launch, a split or a reduction reads lives on its slice.
    """

    name: ClassVar[str] = "pw-insert-transfers"
    takes = (OUTLINED,)
    leaves = PLACED

    def run(self, module: ir.Module) -> None:
        main = main_function(module)
        arguments = argument_slices(main)
        moved: dict[tuple[ir.Value, str], ir.Value] = {}
        operations = list(body_block(main).operations)
        after = {r: operations[n + 1] for n, op in enumerate(operations) for r in op.results}

        def on(value: ir.Value, wanted: str) -> ir.Value:
            slices = slices_of(value, arguments)
            if slices is None or wanted in slices:
                return value
            if (value, wanted) not in moved:
                behind = after.get(value, operations[0])
                location = operations[0].operation.location if value not in after else value.owner.location
                moved[value, wanted] = TransferOp.build(
                    [value],
                    [value.type],
                    slice=wanted,
                    loop=loop_of(value),
                    loc=location,
                    ip=ir.InsertionPoint(behind),
                ).results[0]
            return moved[value, wanted]

        for op in operations:
            if op_has(op, Trait.STAYS):
                wanted: list[Slices] = [(op.slice,)] * len(op.operands)
            elif op is operations[-1]:
                wanted = [slices or () for slices in result_slices(main)]
            else:
                continue
            for number, (value, slices) in enumerate(zip(list(op.operands), wanted, strict=True)):
                if len(slices) == 1:
                    op.operands[number] = on(value, slices[0])
