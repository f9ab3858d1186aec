"""Analysis of linear carries: carried values whose next value has them times a constant as a term."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Hashable, Iterable, Mapping, Sequence

from jaxlib.mlir import ir

from pathways.dialect import CarryOp, LaunchOp, NextOp, TransferOp
from pathways.dialect.operations.operation import attribute_of
from pathways.passes.analysis.functions import body_block
from pathways.passes.analysis.operations import captured

_SUMS = {"stablehlo.add": (1.0, 1.0), "stablehlo.subtract": (1.0, -1.0), "stablehlo.negate": (-1.0,)}
"""Operations that add up their operands, each with a factor."""

_SAME = frozenset({"pw.transfer", "sdy.sharding_constraint", "stablehlo.optimization_barrier"})
"""Operations whose results equal their operands."""

_REARRANGING = frozenset({"stablehlo.broadcast_in_dim", "stablehlo.reshape", "stablehlo.transpose"})
"""Operations that only rearrange the elements of their operand."""

Slopes = Mapping[Hashable, float]
"""Factor of each source in a value; the other terms depend on no source."""


def linear_carries(main: ir.OpView, symbols: Mapping[str, ir.OpView]) -> dict[NextOp, float]:
    """Returns the slopes of the linear carries, which no other value depends on, by their next value.

    Args:
      main: `@main`, whose operations are launches.
    """
    follower = _Follower(symbols, {})
    ends: dict[NextOp, float] = {}
    for op in body_block(main).operations:
        if isinstance(op, CarryOp):
            follower.slopes[op.results[0]] = {op.results[0]: 1.0}
        elif isinstance(op, NextOp):
            slopes = follower.slopes.get(op.operands[1], {})
            # Another carried value reads it, in the next iteration.
            follower.refused.update(slopes.keys() - {op.operands[0]})
            ends[op] = slopes.get(op.operands[0], 0.0)
        else:
            follower.read(op)
    return {op: slope for op, slope in ends.items() if op.operands[0] not in follower.refused}


@dataclasses.dataclass(frozen=True)
class _CallSlopes:
    """Slopes of the results of a computation in some of its arguments.

    Attributes:
      slopes: the slopes of each result, by the numbers of the arguments.
      refused: the numbers of the arguments with readers that are not linear.
    """

    slopes: Sequence[Slopes]
    refused: frozenset[Hashable]


class _Follower:
    """Forward analysis of sources, such as carried values, over the operations of a block.

    Args:
      call_slopes: the slopes of computations from earlier calls.
    """

    def __init__(self, symbols: Mapping[str, ir.OpView], call_slopes: dict[object, _CallSlopes]) -> None:
        self.symbols = symbols
        self.call_slopes = call_slopes
        self.slopes: dict[ir.Value, Slopes] = {}
        """The slopes of the values that depend on a source."""
        self.constants: dict[ir.Value, float] = {}
        """The constant that all elements of a value equal, where known."""
        self.refused: set[Hashable] = set()
        """The sources with readers that are not linear."""

    def refuse(self, values: Iterable[ir.Value]) -> None:
        for value in values:
            self.refused.update(self.slopes.get(value, ()))

    def read(self, op: ir.OpView) -> None:
        name, operands = op.operation.name, captured(op)
        if not any(value in self.slopes for value in operands):
            constant = self.constant(op)
            if constant is not None:
                self.constants[op.results[0]] = constant
        elif isinstance(op, LaunchOp) or name == "func.call":
            self.read_call(op)
        elif name in _SAME and not (isinstance(op, TransferOp) and op.routes is not None):
            for value, result in zip(operands, op.results, strict=True):
                self.add_up({value: 1.0}, result)
        elif (factors := self.factors(op)) is not None:
            self.add_up(factors, op.results[0])
        else:
            self.refuse(operands)

    def add_up(self, factors: Mapping[ir.Value, float], result: ir.Value) -> None:
        """Records a result as the sum of values times factors."""
        slopes: dict[Hashable, float] = {}
        for value, factor in factors.items():
            for source, slope in self.slopes.get(value, {}).items():
                slopes[source] = slopes.get(source, 0.0) + factor * slope
        if slopes:
            self.slopes[result] = slopes

    def factors(self, op: ir.OpView) -> dict[ir.Value, float] | None:
        """Returns the factors of the operands that an operation adds up; None if it is not linear."""
        name, operands = op.operation.name, list(op.operands)
        if name in _SUMS:
            factors: dict[ir.Value, float] = {}
            for value, factor in zip(operands, _SUMS[name], strict=True):
                factors[value] = factors.get(value, 0.0) + factor
            return factors
        if name == "stablehlo.convert" and all(map(is_float, (operands[0], op.results[0]))):
            return {operands[0]: 1.0}
        if name == "stablehlo.multiply":
            # A value that depends on a source has no constant, so a product of two such values is refused.
            for value, other in (operands, reversed(operands)):
                if other in self.constants:
                    return {value: self.constants[other]}
        if name == "stablehlo.divide" and self.constants.get(operands[1]):
            return {operands[0]: 1 / self.constants[operands[1]]}
        return None

    def constant(self, op: ir.OpView) -> float | None:
        """Returns the constant that all elements of a result equal; None if unknown."""
        name = op.operation.name
        if len(op.results) != 1 or not is_float(op.results[0]):
            return None
        if name == "stablehlo.constant":
            value = attribute_of(op, "value")
            is_known = isinstance(value, ir.DenseElementsAttr) and value.is_splat
            return float(op.value.get_splat_value().value) if is_known else None
        constants = [self.constants[value] for value in op.operands if value in self.constants]
        if not constants or len(constants) < len(op.operands):
            return None
        if name in _REARRANGING or name in _SAME or (name == "stablehlo.convert" and not _is_rounded(op)):
            return constants[0]
        if name in _SUMS:
            return math.fsum(factor * value for factor, value in zip(_SUMS[name], constants, strict=True))
        return None

    def read_call(self, op: ir.OpView) -> None:
        """Analyzes a call through its computation."""
        slopes_of_call = self.of_arguments(op)
        for number in slopes_of_call.refused:
            self.refuse([op.operands[number]])
        for slopes, result in zip(slopes_of_call.slopes, op.results, strict=True):
            factors: dict[ir.Value, float] = {}
            for number, slope in slopes.items():
                value = op.operands[number]
                factors[value] = factors.get(value, 0.0) + slope
            self.add_up(factors, result)

    def of_arguments(self, op: ir.OpView) -> _CallSlopes:
        """Returns the slopes of a computation in the operands that depend on sources."""
        callee = op.attributes["callee"].value
        followed = tuple(n for n, value in enumerate(op.operands) if value in self.slopes)
        constants = tuple((n, self.constants[v]) for n, v in enumerate(op.operands) if v in self.constants)
        # A factor may be a constant of the caller.
        key = callee, followed, constants
        if key not in self.call_slopes:
            block = body_block(self.symbols[callee])
            inner = _Follower(self.symbols, self.call_slopes)
            inner.slopes.update({block.arguments[n]: {n: 1.0} for n in followed})
            inner.constants.update({block.arguments[n]: value for n, value in constants})
            *operations, terminator = block.operations
            for each in operations:
                inner.read(each)
            slopes = [inner.slopes.get(value, {}) for value in terminator.operands]
            self.call_slopes[key] = _CallSlopes(slopes, frozenset(inner.refused))
        return self.call_slopes[key]


def is_float(value: ir.Value) -> bool:
    """Returns whether a value is an array of ordinary floats."""
    type_ = value.type
    return isinstance(type_, ir.RankedTensorType) and isinstance(
        type_.element_type, ir.F64Type | ir.F32Type | ir.F16Type | ir.BF16Type
    )


def _is_rounded(op: ir.OpView) -> bool:
    """Returns whether a conversion between floats rounds."""
    before, after = (
        ir.RankedTensorType(value.type).element_type for value in (op.operands[0], op.results[0])
    )
    return before.width > after.width
