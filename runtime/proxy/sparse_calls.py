"""Bounds of the indices of sparse matrices, which the kernel of `jax.experimental.sparse` does not check."""

from __future__ import annotations

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from pathways.dialect.operations.operation import nested_ops


def bound_sparse_indices(module: ir.Module) -> None:
    """Clamps the row starts and columns of sparse matrices in a module, so that valid ones keep their values.

    The operands of the calls have the types that `problem_of_call` checks.
    """
    calls = [
        op.operation
        for op in nested_ops(module.operation.opview)
        if op.operation.name == "stablehlo.custom_call"
        and op.attributes["call_target_name"].value == "cpu_csr_sparse_dense_ffi"
    ]
    for call in calls:
        elements, _, _, dense = call.operands
        (count,), columns = elements.type.shape, dense.type.shape[0]
        with call.context, call.location, ir.InsertionPoint(call):
            # Without columns, no element may be read.
            for number, high in ((1, count if columns else 0), (2, max(columns - 1, 0))):
                index = call.operands[number]
                low, most = (_constant(bound, index.type.element_type) for bound in (0, high))
                call.operands[number] = stablehlo.ClampOp(low, index, most).result


def _constant(value: int, type_: ir.IntegerType) -> ir.Value:
    attribute = ir.DenseElementsAttr.get_splat(
        ir.RankedTensorType.get([], type_), ir.IntegerAttr.get(type_, value)
    )
    return stablehlo.ConstantOp(attribute).result
