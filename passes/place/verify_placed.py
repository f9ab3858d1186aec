"""`pw-verify-placed`: closes the placed form."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from jaxlib.mlir import ir

from pathways.dialect import (
    LaunchOp,
    MirrorOp,
    PwOp,
    ReduceOp,
    ReleaseOp,
    SplitOp,
    TransferOp,
    argument_attrs,
    argument_slices,
    ops_named,
    result_slices,
    set_form,
    verify,
)
from pathways.dialect.layouts import Layouts
from pathways.dialect.shardings import SHARDING, read_sharding
from pathways.passes.base import Pass, PassFailure, fail, main_function
from pathways.passes.util.ir_utils import body_block, nested_ops


@dataclasses.dataclass(frozen=True)
class VerifyPlaced(Pass):
    """Checks the placed form and claims it.

    In it `@main` holds only launches, transfers, mirrors, the splits and reductions of loops, and its
    return; every argument and result is placed; every launch reads values of its own slice; a value moves
    to a slice at most once; computations hold no `pw` operation.
    """

    name: ClassVar[str] = "pw-verify-placed"

    def run(self, module: ir.Module) -> None:
        main = main_function(module)
        set_form(module, "placed")
        if not verify(module):
            raise PassFailure("the module is not in placed form")
        _check_program(main)
        _check_shardings(module, main)
        for function in ops_named(module, ["func.func"]):
            if function.attributes["sym_name"].value != "main":
                for op in nested_ops(function):
                    if isinstance(op, PwOp):
                        fail(op, "stands inside a computation; computations hold no pw operation")


def _check_shardings(module: ir.Module, main: ir.OpView) -> None:
    """Checks that each computation gets its operands in the sharding that it takes."""
    layouts = Layouts(module)
    for op in body_block(main).operations:
        if not isinstance(op, LaunchOp):
            continue
        attrs = argument_attrs(layouts.symbols[op.callee])
        for number, (value, entry) in enumerate(zip(op.operands, attrs, strict=True)):
            have = layouts.of(value, op.slice)
            if SHARDING in entry and read_sharding(entry[SHARDING]) != have:
                fail(
                    op,
                    f"operand #{number} lies over @{op.slice} by {have}, but @{op.callee} takes "
                    f"{read_sharding(entry[SHARDING])}",
                )


def _check_program(program: ir.OpView) -> None:
    for what, slices in (("argument", argument_slices(program)), ("result", result_slices(program))):
        for number, entry in enumerate(slices):
            if entry is None:
                fail(program, f"{what} #{number} is not placed")
    moved: set[tuple[ir.Value, str]] = set()
    for op in body_block(program).operations:
        match op:
            case LaunchOp() | MirrorOp() | ReleaseOp():
                pass
            case SplitOp() | ReduceOp():
                if op.slice is None:
                    fail(op, "is not placed")
            case TransferOp():
                if (op.operands[0], op.slice) in moved:
                    fail(op, f"moves a value to @{op.slice} that was moved there before")
                moved.add((op.operands[0], op.slice))
            case _ if op.operation.name != "func.return":
                fail(op, "stands between launches; the placed form holds it in a computation")
