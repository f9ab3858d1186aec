"""`optimization_barrier`s of a traced program: JAX's mark of work that is computed again."""

from __future__ import annotations

from collections.abc import Sequence

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from pathways.dialect import AllToAllOp, LaunchOp
from pathways.passes.analysis.functions import body_block
from pathways.passes.analysis.operations import is_barrier
from pathways.passes.import_.branches.tags import branch_of, set_branch
from pathways.passes.import_.stage_numbers import PlacedCall


def split_barriers(main: ir.OpView) -> None:
    """Splits each barrier over many values into one per value."""
    for op in list(body_block(main).operations):
        if not is_barrier(op):
            continue
        for source, result in zip(list(op.operands), list(op.results), strict=True):
            with ir.InsertionPoint(op), op.operation.location:
                single = stablehlo.OptimizationBarrierOp([source])
            set_branch(single, branch_of(op))
            result.replace_all_uses_with(single.results[0])
        op.operation.erase()


def drop_barriers(main: ir.OpView, placed: Sequence[PlacedCall]) -> None:
    """Takes barriers from the operands of launches and exchanges; launches that read after one repeat the
    work before."""
    operations = list(body_block(main).operations)
    barriers = {op.results[0]: op for op in operations if is_barrier(op)}
    through_barrier: set[ir.Value] = set()
    # Launches are in the order of the calls that they were made of.
    calls = iter(placed)
    first: dict[tuple[str, str], PlacedCall] = {}
    for op in operations if barriers else ():
        tainted = any(v in through_barrier for v in op.operands)
        if is_barrier(op):
            through_barrier.update(op.results)
            continue
        if isinstance(op, LaunchOp | AllToAllOp):
            # Modules are a barrier already: operands of a launch need none.
            for number, value in enumerate(list(op.operands)):
                if value in barriers:
                    op.operands[number] = barriers[value].operands[0]
        if isinstance(op, LaunchOp):
            call = next(calls)
            # A gradient may read repeated values without being repeated itself.
            before = first.setdefault(call.identity, call)
            kind = call.kind
            repeats = kind == "fwd" or (kind == "grad" and before is not call)
            if not repeats:
                continue
            if tainted:
                call.set_origin(kind="recompute")
                if kind == "grad" and before.kind == "bwd":
                    # Nothing differentiated it where it was done first.
                    before.make_gradient()
        if tainted:
            through_barrier.update(op.results)
    for op in barriers.values():
        if not any(True for _ in op.results[0].uses):
            op.operation.erase()
