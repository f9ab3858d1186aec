"""`pw-insert-transfers`: makes every move of a value between slices explicit."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import ClassVar

from jaxlib.mlir import ir

from pathways.dialect import Slices, Trait, TransferOp, loop_of, op_has, result_slices, symbol_table
from pathways.dialect.relations.program_view import read_function
from pathways.dialect.verification.forms import OUTLINED, PLACED
from pathways.passes.manager.base import Pass, main_function


@dataclasses.dataclass(frozen=True)
class InsertTransfers(Pass):
    """Inserts a `pw.transfer` wherever a value is used on a slice where it does not live.

    A value is moved to a slice once, however many launches use it there, and is sent as soon as it is
    available: the transfer comes right after its producer.

    ```mlir
    // before
    %0 = pw.launch @f(%arg0, %arg1) on @s0
    %1 = pw.launch @f(%0, %arg1) on @s1
    // after
    %1 = pw.launch @f(%arg0, %arg1) on @s0
    %2 = pw.transfer %1 to @s1
    %3 = pw.launch @f(%2, %arg1) on @s1
    ```

    Requires: no glue in `@main`; placed arguments.
    Guarantees: operands of launches, splits and reductions live on their slices, and each block of an
    exchange on the slice that sends it.
    """

    name: ClassVar[str] = "pw-insert-transfers"
    input_forms = (OUTLINED,)
    output_form = PLACED

    def run(self, module: ir.Module) -> None:
        main = main_function(module)
        program = read_function(module, symbol_table(module), main)
        moved: dict[tuple[ir.Value, str], ir.Value] = {}
        operations = [*program.ops, program.terminator]
        after = {value: operations[n + 1] for n, results in enumerate(program.produces) for value in results}

        def on(value: ir.Value, place: str) -> ir.Value:
            slices = program.slices.get(value)
            if slices is None or place in slices:
                return value
            if (value, place) not in moved:
                following = after.get(value, operations[0])
                location = operations[0].operation.location if value not in after else value.owner.location
                moved[value, place] = TransferOp.build(
                    [value],
                    [value.type],
                    slice=place,
                    loop=loop_of(value),
                    loc=location,
                    ip=ir.InsertionPoint(following),
                ).results[0]
            return moved[value, place]

        for op, read in program.readers:
            if op_has(op, Trait.LOCAL):
                targets: Sequence[Slices] = [(op.slice,)] * len(read)
            elif op_has(op, Trait.EXCHANGES):
                targets = [(place,) for place in op.slices]
            elif op is program.terminator:
                targets = [slices or () for slices in result_slices(main)]
            else:
                continue
            for number, (value, slices) in enumerate(zip(read, targets, strict=True)):
                # A result on several slices is computed on each of them, which `instance_graph` has checked.
                if len(slices) == 1 and (here := on(value, slices[0])) is not value:
                    op.operands[number] = here
