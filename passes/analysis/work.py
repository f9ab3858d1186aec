"""Work of computations, estimated from their operations where nothing is measured."""

from __future__ import annotations

import math
from collections.abc import Mapping

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from pathways.dialect.operations.operation import symbol_name
from pathways.passes.analysis.functions import referenced_functions
from pathways.passes.analysis.trip_count import trip_count_of

_FREE = frozenset(
    {
        "stablehlo.broadcast_in_dim",
        "stablehlo.constant",
        "stablehlo.iota",
        "stablehlo.optimization_barrier",
        "stablehlo.reshape",
        "stablehlo.return",
        "func.return",
    }
)
"""Operations that XLA does nothing for, or does within others."""


class WorkEstimate:
    """Estimates of floating point operations: the exact number for products, one per element otherwise.

    The body of a loop counts once for each iteration, and once if their number is not known; of branches the
    longest counts. Work that devices share is not divided.
    """

    def __init__(self, symbols: Mapping[str, ir.OpView]) -> None:
        self._symbols = symbols
        self._work: dict[str, int] = {}

    def of(self, computation: str) -> int:
        """Returns the operations of a computation; 0 for one that is only declared."""
        if computation not in self._work:
            self._work[computation] = 0
            blocks = self._symbols[computation].regions[0].blocks
            self._work[computation] = self._block(blocks[0]) if blocks else 0
        return self._work[computation]

    def _block(self, block: ir.Block) -> int:
        return sum(self.of_operation(op) for op in block.operations)

    def of_operation(self, op: ir.OpView) -> int:
        """Returns the floating point operations of an operation of a computation."""
        name = op.operation.name
        if name in _FREE:
            return 0
        elements = sum(_elements(r.type) for r in op.results)
        match name:
            case "stablehlo.dot_general":
                numbers = stablehlo.DotDimensionNumbers(op.attributes["dot_dimension_numbers"])
                shape = ir.RankedTensorType(op.operands[0].type).shape
                return 2 * elements * math.prod(shape[n] for n in numbers.lhs_contracting_dimensions)
            case "stablehlo.convolution":
                numbers = stablehlo.ConvDimensionNumbers(op.attributes["dimension_numbers"])
                kernel = ir.RankedTensorType(op.operands[1].type).shape
                # An element of the result takes a product for each element of the kernel of its own output
                # feature.
                outputs = kernel[numbers.kernel_output_feature_dimension]
                return 2 * elements * math.prod(kernel) // max(1, outputs)
            case "stablehlo.while":
                trips = trip_count_of(op)
                return (1 if trips is None else trips.count) * self._block(op.regions[1].blocks[0])
            case "stablehlo.case" | "stablehlo.if":
                return max(self._block(region.blocks[0]) for region in op.regions)
            case "stablehlo.reduce" | "stablehlo.reduce_window" | "stablehlo.scatter" | "stablehlo.sort":
                return max(elements, sum(_elements(v.type) for v in op.operands))
        called = referenced_functions(op, self._symbols)
        return elements + sum(self.of(symbol_name(function) or "") for function in called)


def _elements(type_: ir.Type) -> int:
    return math.prod(ir.RankedTensorType(type_).shape) if isinstance(type_, ir.RankedTensorType) else 0
