"""`pw-dce`: removes launches, transfers, results, arguments and constants that nothing needs."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from jaxlib.mlir import ir

import pathways.dialect as dialect
from pathways.dialect.attributes.names import CONSTANT
from pathways.dialect.operations.traits import Trait
from pathways.dialect.verification.forms import OUTLINED, PLACED, SHARDED, UNROLLED
from pathways.passes.analysis.computations import Computations
from pathways.passes.analysis.functions import body_block, erase_unused_functions, set_signature
from pathways.passes.analysis.operations import computation_has_effect, has_side_effect
from pathways.passes.manager.base import Pass, main_function


@dataclasses.dataclass(frozen=True)
class Dce(Pass):
    """Removes dead code from `@main`; stock `symbol-dce` leaves unregistered ops alone.

    1. A pure operation (transfer, mirror, split, reduction) with unused results is erased, as is a
       launch without side effects, and a carried value that only the next iteration reads.
    2. Unused results, and arguments that are then unused, are removed from a computation; launches
       with different used results get variants of it.
    3. Unreferenced functions and closed-over constants are removed.

    The arguments that callers pass are kept, read or not.

    ```mlir
    // before
    %0 = pw.launch @f(%arg0) on @s0
    %1 = pw.launch @f(%arg1) on @s0
    %2 = pw.transfer %1 to @s1
    pw.launch @prints(%arg0) on @s0
    // after
    %0 = pw.launch @f(%arg0) on @s0
    pw.launch @prints(%arg0) on @s0
    ```

    Requires: no glue in `@main`.
    """

    name: ClassVar[str] = "pw-dce"
    input_forms = (OUTLINED, PLACED, SHARDED, UNROLLED)

    def run(self, module: ir.Module) -> None:
        main = main_function(module)
        pruner = _Pruner(module)
        for op in reversed(list(body_block(main).operations)):
            if dialect.op_has(op, Trait.EXECUTES):
                pruner.prune(op)
            elif not any(True for r in op.results for _ in r.uses):
                if dialect.op_has(op, Trait.PURE) or isinstance(op, dialect.CarryOp):
                    op.operation.erase()
                elif isinstance(op, dialect.NextOp) and sum(1 for _ in op.operands[0].uses) == 1:
                    # Nothing else reads the carried value; its carry, earlier in the block, is next.
                    op.operation.erase()
        _drop_unused_constants(module, main)
        erase_unused_functions(module)


class _Pruner:
    def __init__(self, module: ir.Module) -> None:
        self.symbols = dialect.symbol_table(module)
        self.computations = Computations(module, self.symbols)
        self.effects: dict[str, bool] = {}
        self.variants: dict[tuple[str, tuple[bool, ...]], tuple[str, list[int]]] = {}

    def prune(self, launch: dialect.LaunchOp) -> None:
        used = tuple(any(True for _ in r.uses) for r in launch.results)
        callee = launch.callee
        if not any(used) and not computation_has_effect(callee, self.symbols, self.effects):
            launch.operation.erase()
            return
        name, remaining = self.variant(callee, used)
        if name == callee and len(remaining) == len(launch.operands):
            return
        results = [r for r, keep in zip(launch.results, used, strict=True) if keep]
        smaller = launch.rebuilt(
            [launch.operands[n] for n in remaining], [r.type for r in results], callee=name
        )
        for old, new in zip(results, smaller.results, strict=True):
            old.replace_all_uses_with(new)
        launch.operation.erase()

    def variant(self, callee: str, used: tuple[bool, ...]) -> tuple[str, list[int]]:
        """Returns the name of the computation without unused results, and which arguments it still has."""
        if (callee, used) not in self.variants:
            function = self.symbols[callee]
            arguments = body_block(function).arguments
            if all(used) and all(any(True for _ in a.uses) for a in arguments):
                self.variants[callee, used] = (callee, list(range(len(arguments))))
            else:
                copy = self.computations.variant(callee, callee)
                name = copy.attributes["sym_name"].value
                self.variants[callee, used] = (name, self.shrink(copy, used))
        return self.variants[callee, used]

    def shrink(self, function: ir.OpView, used: tuple[bool, ...]) -> list[int]:
        """Removes results, then operations and arguments without use; returns the arguments kept."""
        block = body_block(function)
        *operations, terminator = block.operations
        all_argument_attrs, all_result_attrs = (
            dialect.argument_attrs(function),
            dialect.result_attrs(function),
        )
        returned = [v for v, keep in zip(terminator.operands, used, strict=True) if keep]
        with ir.InsertionPoint(terminator), terminator.operation.location:
            ir.Operation.create("func.return", operands=returned)
        terminator.operation.erase()
        # Readers first, so that their operands are unused by then.
        for op in reversed(operations):
            if not any(True for r in op.results for _ in r.uses) and not has_side_effect(
                op, self.symbols, self.effects
            ):
                op.operation.erase()
        remaining = [n for n, a in enumerate(block.arguments) if any(True for _ in a.uses)]
        for n in reversed(range(len(block.arguments))):
            if n not in remaining:
                block.erase_argument(n)
        set_signature(function, [a.type for a in block.arguments], [v.type for v in returned])
        dialect.set_argument_attrs(function, [all_argument_attrs[n] for n in remaining])
        dialect.set_result_attrs(
            function, [a for a, keep in zip(all_result_attrs, used, strict=True) if keep]
        )
        return remaining


def _drop_unused_constants(module: ir.Module, main: ir.OpView) -> None:
    """Erases hidden arguments without use, and the constants that no argument receives any more."""
    block = body_block(main)
    attrs = dialect.argument_attrs(main)
    for n in reversed(range(len(attrs))):
        if CONSTANT in attrs[n] and not any(True for _ in block.arguments[n].uses):
            block.erase_argument(n)
            del attrs[n]
    set_signature(main, [a.type for a in block.arguments], main.type.results)
    dialect.set_argument_attrs(main, attrs)
    live = {a[CONSTANT].value for a in attrs if CONSTANT in a}
    for op in dialect.ops_named(module, ["pw.constant"]):
        if op.sym_name not in live:
            op.operation.erase()
