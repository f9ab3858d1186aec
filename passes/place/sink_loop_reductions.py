"""`pw-sink-loop-reductions`: sums that join slices are taken on each slice before they are joined."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from jaxlib.mlir import ir

from pathways.dialect import ReduceOp, loop_of, read_slices, set_loop, slices_of
from pathways.dialect.attributes.names import SLICE
from pathways.dialect.verification.forms import LOCATED
from pathways.passes.analysis.functions import body_block
from pathways.passes.manager.base import Pass, main_function

_LINEAR = frozenset(
    {"stablehlo.add", "stablehlo.subtract", "stablehlo.negate", "stablehlo.transpose", "stablehlo.reshape"}
)
"""Operations that may be done once with sums instead of with each term."""


@dataclasses.dataclass(frozen=True)
class SinkLoopReductions(Pass):
    """Moves a sum over microbatches in front of the additions that join its slices.

    The gradient of a tied embedding is the sum of two stages' contributions. Added up in each microbatch,
    one contribution is sent each time; here every slice sums its own over all microbatches, and one sum is
    sent. The sum passes through additions, subtractions, transposes and reshapes on its way, and only where
    something crosses: elsewhere the order of additions, and with it the rounding, stays.

    ```mlir
    // before
    %1 = pw.launch @f(%0) on @s0 in @batch
    %2 = pw.launch @f(%0) on @s1 in @batch
    %3 = stablehlo.add %2, %1 {pw.loop = @batch, pw.slice = @s0}
    %4 = pw.reduce sum %3 in @batch on @s0
    // after
    %1 = pw.launch @f(%0) on @s0 in @batch
    %2 = pw.launch @f(%0) on @s1 in @batch
    %3 = pw.reduce sum %2 in @batch on @s1
    %4 = pw.reduce sum %1 in @batch on @s0
    %5 = stablehlo.add %3, %4 {pw.slice = @s0}
    ```

    Requires: placement from `pw-infer-placement`.
    Guarantees: the same value up to rounding; sums cross once for each loop.
    """

    name: ClassVar[str] = "pw-sink-loop-reductions"
    input_forms = (LOCATED,)

    def run(self, module: ir.Module) -> None:
        main = main_function(module)
        for op in list(body_block(main).operations):
            if isinstance(op, ReduceOp) and op.kind == "sum" and _crosses(op.operands[0]):
                op.results[0].replace_all_uses_with(_summed(op.operands[0], op))
                unused = op.operands[0]
                op.operation.erase()
                _erase_unused(unused)


def _is_linear(value: ir.Value) -> bool:
    """Returns whether a value is a linear function of others of its microbatch, and read only once."""
    if (
        isinstance(value, ir.BlockArgument)
        or value.owner.name not in _LINEAR
        or SLICE not in value.owner.attributes
    ):
        return False
    loop = loop_of(value)
    # A value that others read too would still be computed in each iteration, besides the sums of its terms.
    return all(loop_of(v) == loop for v in value.owner.operands) and sum(1 for _ in value.uses) == 1


def _crosses(value: ir.Value) -> bool:
    """Returns whether a term is put together from values of other slices."""
    if not _is_linear(value):
        return False
    op = value.owner
    here = set(read_slices(op.attributes[SLICE]))
    return any(not here <= set(slices_of(v) or here) or _crosses(v) for v in op.operands)


def _summed(value: ir.Value, reduction: ReduceOp) -> ir.Value:
    """Returns the sum of a value over all microbatches, in front of `reduction`, before anything crosses."""
    ip = ir.InsertionPoint(reduction)
    if not _crosses(value):
        places = slices_of(value) or (reduction.slice,)
        partial = ReduceOp.build(
            [value],
            [value.type],
            kind="sum",
            loop=reduction.loop,
            outer=reduction.outer,
            slice=reduction.slice if reduction.slice in places else places[0],
            loc=reduction.operation.location,
            ip=ip,
        )
        return partial.results[0]
    sums = [_summed(v, reduction) for v in value.owner.operands]
    once = value.owner.clone(ip)
    set_loop(once.opview, reduction.outer)
    for number, total in enumerate(sums):
        once.operands[number] = total
    return once.results[0]


def _erase_unused(value: ir.Value) -> None:
    """Erases operands that only the moved reduction read."""
    pending = [value]
    while pending:
        current = pending.pop()
        if isinstance(current, ir.BlockArgument) or current.owner.name not in _LINEAR:
            continue
        op = current.owner
        if op.attached and not any(True for _ in current.uses):
            pending += op.operands
            op.erase()
