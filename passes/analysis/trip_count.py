"""Trip counts of `stablehlo.while`, and values in it that only count its iterations."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Self

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from pathways.dialect.operations.operation import attribute_of


@dataclasses.dataclass(frozen=True)
class Linear:
    """An integer of the form `offset + factor * variable`.

    Attributes:
      variable: a value; None for a constant.
      factor: 0 for a constant.
      offset: the rest.
    """

    variable: ir.Value | None
    factor: int
    offset: int

    @classmethod
    def constant(cls, value: int) -> Self:
        """Returns a constant."""
        return cls(None, 0, value)

    def is_constant(self, value: int) -> bool:
        """Returns whether the integer is this constant; the bindings do not compare a variable with None."""
        return self.factor == 0 and self.offset == value

    def of(self, variable: ir.Value | None, factor: int, offset: int) -> Linear:
        """Returns the integer for a variable that is itself `offset + factor * variable`."""
        return Linear(variable, self.factor * factor, self.offset + self.factor * offset)


def linear(value: ir.Value) -> Linear:
    """Expresses an integer scalar by the value that its arithmetic starts from, if nothing overflows."""
    return _linear(value, {})


def _linear(value: ir.Value, expressions: dict[ir.Value, Linear]) -> Linear:
    # A chain of values that are read twice has exponentially many paths.
    if value not in expressions:
        expressions[value] = _expressed(value, expressions)
    return expressions[value]


def _expressed(value: ir.Value, expressions: dict[ir.Value, Linear]) -> Linear:
    if isinstance(value, ir.BlockArgument):
        return Linear(value, 1, 0)
    op = value.owner
    itself = Linear(value, 1, 0)
    match op.name:
        case "stablehlo.constant":
            number = _integer(op)
            return itself if number is None else Linear.constant(number)
        case "stablehlo.convert":
            (operand,) = op.operands
            if not (_is_integer(value.type) and _is_integer(operand.type)):
                return itself
            source = _linear(operand, expressions)
            # A number that the type does not hold becomes another one.
            held = _range(operand.type) if source.factor else (source.offset, source.offset + 1)
            return source if _holds(_range(value.type), held) else itself
        case "stablehlo.add" | "stablehlo.subtract" | "stablehlo.multiply" if _is_integer(value.type):
            return _combined(op.name, *(_linear(operand, expressions) for operand in op.operands)) or itself
    return itself


def _combined(name: str, left: Linear, right: Linear) -> Linear | None:
    """Returns a sum, difference or product; None when it is not linear in one variable."""
    if name == "stablehlo.multiply":
        if left.variable is not None:
            left, right = right, left
        if left.variable is not None:
            return None
        return Linear(right.variable, left.offset * right.factor, left.offset * right.offset)
    sign = -1 if name == "stablehlo.subtract" else 1
    if left.variable is not None and right.variable is not None and left.variable != right.variable:
        return None
    factor = left.factor + sign * right.factor
    variable = left.variable if left.variable is not None else right.variable
    return Linear(variable if factor else None, factor, left.offset + sign * right.offset)


def _is_integer(type_: ir.Type) -> bool:
    """Returns whether a type is that of integer scalars."""
    tensor = ir.RankedTensorType(type_) if isinstance(type_, ir.RankedTensorType) else None
    return tensor is not None and tensor.rank == 0 and isinstance(tensor.element_type, ir.IntegerType)


def _integer(op: ir.Operation) -> int | None:
    """Returns the value of an integer scalar constant."""
    attribute = attribute_of(op, "value")
    if not _is_integer(op.results[0].type) or not isinstance(attribute, ir.DenseIntElementsAttr):
        return None
    return int(attribute[0])


@dataclasses.dataclass(frozen=True)
class TripCount:
    """Trip count of a `stablehlo.while`.

    Attributes:
      count: the number of iterations.
      counters: by position, the values that are `offset + factor * iteration`, with iterations from 0.
    """

    count: int
    counters: dict[int, Linear]


def trip_count_of(loop: ir.OpView) -> TripCount | None:
    """Counts the iterations of a `stablehlo.while`; returns None when their number depends on values."""
    cond, body = (region.blocks[0] for region in loop.regions)
    counters = _counters(list(loop.operands), body)
    test = list(cond.operations)[-1].operands[0]
    if isinstance(test, ir.BlockArgument) or test.owner.name != "stablehlo.compare":
        return None
    expressions: dict[ir.Value, Linear] = {}
    left, right = (_by_iteration(_linear(side, expressions), cond, counters) for side in test.owner.operands)
    if left is None or right is None:
        return None
    # The difference of both sides is compared with 0.
    direction = stablehlo.ComparisonDirectionAttr(test.owner.attributes["comparison_direction"]).value
    count = _count(left.factor - right.factor, left.offset - right.offset, direction)
    if count is None or not all(_fits(loop.operands[n].type, c, count) for n, c in counters.items()):
        return None
    # The test is computed in types of its own.
    for value, expression in expressions.items():
        of_iteration = _by_iteration(expression, cond, counters)
        if of_iteration is None or not _fits(value.type, of_iteration, count):
            return None
    return TripCount(count, counters)


def _by_iteration(expression: Linear, cond: ir.Block, counters: dict[int, Linear]) -> Linear | None:
    """Returns an integer of a condition as a function of the iteration; None if other values are read."""
    if expression.factor == 0:
        return expression
    if not isinstance(expression.variable, ir.BlockArgument) or expression.variable.owner != cond:
        return None
    counter = counters.get(expression.variable.arg_number)
    return None if counter is None else expression.of(None, counter.factor, counter.offset)


def _counters(inits: Sequence[ir.Value], body: ir.Block) -> dict[int, Linear]:
    """Returns the values that start from a constant and grow by one in every iteration."""
    counters: dict[int, Linear] = {}
    returned = list(body.operations)[-1].operands
    for n, (init, argument, following) in enumerate(zip(inits, body.arguments, returned, strict=True)):
        if not _is_integer(init.type):
            continue
        start, step = linear(init), linear(following)
        if start.variable is not None or step.variable is None:
            continue
        if step.variable == argument and step.factor == 1:
            counters[n] = Linear(None, step.offset, start.offset)
    return counters


def _count(factor: int, offset: int, direction: str) -> int | None:
    """Counts the first iterations in which `offset + factor * iteration` compares with 0; None for no end."""
    if direction in ("GT", "GE"):
        factor, offset = -factor, -offset
        direction = {"GT": "LT", "GE": "LE"}[direction]
    match direction:
        case "LT" | "LE":
            # offset + factor * iteration < bound
            bound = 0 if direction == "LT" else 1
            if offset >= bound:
                return 0
            # (bound - offset) / factor rounded up: the number of the first iteration that reaches the bound.
            return -((offset - bound) // factor) if factor > 0 else None
        case "NE":
            if offset == 0:
                return 0
            # A counter that steps over 0 would have to wrap around to end the loop.
            iterations = -offset // factor if factor and -offset % factor == 0 else -1
            return iterations if iterations > 0 else None
        case "EQ":
            if offset:
                return 0
            return 1 if factor else None
    return None


def _fits(type_: ir.Type, counter: Linear, count: int) -> bool:
    """Returns whether a counter stays in the range of its type."""
    # It is monotonic, so that the first and the last value suffice; one that wraps around has another count.
    ends = sorted((counter.offset, counter.offset + counter.factor * count))
    return _holds(_range(type_), (ends[0], ends[1] + 1))


_Range = tuple[int, int]
"""The smallest of some numbers, and the one after the largest."""


def _range(type_: ir.Type) -> _Range:
    """Returns the numbers that a type of integer scalars holds."""
    element = ir.RankedTensorType(type_).element_type
    if element.is_unsigned or element.width == 1:
        return 0, 2**element.width
    return -(2 ** (element.width - 1)), 2 ** (element.width - 1)


def _holds(outer: _Range, inner: _Range) -> bool:
    return outer[0] <= inner[0] and inner[1] <= outer[1]
