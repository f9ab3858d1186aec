"""Which dimensions of what operations read and make go together, so that a block of one is made of blocks."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from jaxlib.mlir import ir

from pathways.dialect.operations.operation import attribute_of

ELEMENTWISE = frozenset(
    f"stablehlo.{name}"
    for name in (
        *("abs", "add", "and", "atan2", "bitcast_convert", "cbrt", "ceil", "clamp", "compare", "complex"),
        *("convert", "cosine", "count_leading_zeros", "divide", "exponential", "exponential_minus_one"),
        *("floor", "imag", "is_finite", "log", "log_plus_one", "logistic", "maximum", "minimum", "multiply"),
        *("negate", "not", "optimization_barrier", "or", "popcnt", "power", "real", "reduce_precision"),
        *("remainder", "round_nearest_afz", "round_nearest_even", "rsqrt", "select", "shift_left"),
        *("shift_right_arithmetic", "shift_right_logical", "sign", "sine", "sqrt", "subtract", "tan", "tanh"),
        "xor",
    )
) | {"sdy.sharding_constraint"}
"""Operations of which an element of a result depends on those at its place, and on scalars."""

_MONOIDS = frozenset(
    f"stablehlo.{name}" for name in ("add", "and", "maximum", "minimum", "multiply", "or", "xor")
)
"""What a reduction may do that is reduced again, block by block."""


BRANCHES = frozenset({"stablehlo.case", "stablehlo.if"})
"""Operations that do what one of their regions does; each result is what that returns."""


class Tie(NamedTuple):
    """A dimension of an operand, and that of a result which is cut where it is cut."""

    operand: int
    dim: int
    result: int
    result_dim: int


def ties_of(op: ir.OpView) -> Iterator[Tie]:
    """Yields the dimensions that go together; an operation that is not known has none."""
    name = op.operation.name
    if name in ELEMENTWISE or name.startswith("chlo."):
        yield from _elementwise(op)
    elif name in _RULES:
        yield from _RULES[name](op)


def is_free(op: ir.OpView, dim: int) -> bool:
    """Returns whether an operation can make a block of its result of what it reads as a whole."""
    match op.operation.name:
        case "stablehlo.constant":
            value = _elements(op)
            return value is not None and value.is_splat
        case "stablehlo.iota":
            return int(op.iota_dimension) != dim
        case "stablehlo.broadcast_in_dim":
            read = list(op.broadcast_dimensions)
            # What one element of the operand fills.
            return dim not in read or _shape(op.operands[0])[read.index(dim)] == 1
    return False


def partial_dims(op: ir.OpView) -> frozenset[int]:
    """Returns the dimensions of the first operand that may be reduced block by block, then over blocks."""
    if op.operation.name != "stablehlo.reduce" or len(op.operands) != 2:
        return frozenset()
    body = list(op.regions[0].blocks[0].operations)
    # Numbers are added with the neutral element in front, once for each block.
    if len(body) != 2 or body[0].operation.name not in _MONOIDS or not _starts_neutral(op, body[0]):
        return frozenset()
    return frozenset(op.dimensions)


def block_attributes(op: ir.OpView, dim: int, size: int) -> None:
    """Lets an operation that takes a range of its operand take all of a block along a dimension.

    Args:
      op: the operation.
      dim: the dimension that is cut.
      size: that of a block.
    """
    if op.operation.name in ("stablehlo.slice", "stablehlo.dynamic_slice"):
        name = "limit_indices" if op.operation.name == "stablehlo.slice" else "slice_sizes"
        numbers = list(ir.DenseI64ArrayAttr(op.attributes[name]))
        numbers[dim] = size
        op.attributes[name] = ir.DenseI64ArrayAttr.get(numbers)


def _shape(value: ir.Value) -> Sequence[int]:
    return ir.RankedTensorType(value.type).shape


def _elementwise(op: ir.OpView) -> Iterator[Tie]:
    for result, made in enumerate(op.results):
        for number, value in enumerate(op.operands):
            # Each result of a barrier is its operand.
            if len(op.results) > 1 and number != result:
                continue
            if list(_shape(value)) == list(_shape(made)):
                yield from (Tie(number, dim, result, dim) for dim in range(len(_shape(value))))


def _broadcast(op: ir.OpView) -> Iterator[Tie]:
    sizes, made = _shape(op.operands[0]), _shape(op.results[0])
    for dim, target in enumerate(op.broadcast_dimensions):
        if sizes[dim] == made[target]:
            yield Tie(0, dim, 0, target)


def _reshape(op: ir.OpView) -> Iterator[Tie]:
    """Dimensions that stay as they are: as many elements in front of them, and as many after."""
    before, after = _shape(op.operands[0]), _shape(op.results[0])
    places = {(math.prod(after[:n]), size): n for n, size in enumerate(after) if size > 1}
    for dim, size in enumerate(before):
        if size > 1 and (math.prod(before[:dim]), size) in places:
            yield Tie(0, dim, 0, places[math.prod(before[:dim]), size])


def _transpose(op: ir.OpView) -> Iterator[Tie]:
    for target, dim in enumerate(op.permutation):
        yield Tie(0, dim, 0, target)


def _reduce(op: ir.OpView) -> Iterator[Tie]:
    reduced = set(op.dimensions)
    kept = [dim for dim in range(len(_shape(op.operands[0]))) if dim not in reduced]
    for number in range(len(op.results)):
        if len(op.results) == 1:
            yield from (Tie(number, dim, number, target) for target, dim in enumerate(kept))


def _same_size(op: ir.OpView) -> Iterator[Tie]:
    """Of dimensions that are taken as a whole."""
    before, after = _shape(op.operands[0]), _shape(op.results[0])
    yield from (Tie(0, dim, 0, dim) for dim, size in enumerate(before) if size == after[dim])


def _concatenate(op: ir.OpView) -> Iterator[Tie]:
    for number, value in enumerate(op.operands):
        yield from (Tie(number, dim, 0, dim) for dim in range(len(_shape(value))) if dim != int(op.dimension))


def _reverse(op: ir.OpView) -> Iterator[Tie]:
    turned = set(op.dimensions)
    yield from (Tie(0, dim, 0, dim) for dim in range(len(_shape(op.operands[0]))) if dim not in turned)


def _windows(op: ir.OpView) -> Iterator[Tie]:
    """Of dimensions along which a window holds one element."""
    ones = [list(op.window_dimensions)]
    ones += [list(numbers) for numbers in (op.window_strides, op.base_dilations) if numbers is not None]
    padded = _padded(op.padding) if op.padding is not None else set()
    before, after = _shape(op.operands[0]), _shape(op.results[0])
    if len(op.results) > 1:
        return
    for dim, size in enumerate(before):
        if size == after[dim] and dim not in padded and all(numbers[dim] == 1 for numbers in ones):
            yield Tie(0, dim, 0, dim)


def _padded(padding: ir.Attribute) -> set[int]:
    numbers = [int(n) for n in ir.DenseIntElementsAttr(padding)]
    return {n // 2 for n, count in enumerate(numbers) if count}


_RULES = {
    "stablehlo.broadcast_in_dim": _broadcast,
    "stablehlo.reshape": _reshape,
    "stablehlo.transpose": _transpose,
    "stablehlo.reduce": _reduce,
    "stablehlo.slice": _same_size,
    "stablehlo.dynamic_slice": _same_size,
    "stablehlo.concatenate": _concatenate,
    "stablehlo.reverse": _reverse,
    "stablehlo.reduce_window": _windows,
}


def _starts_neutral(op: ir.OpView, step: ir.OpView) -> bool:
    """Returns whether a reduction begins with a value that changes nothing, also a second time."""
    name = step.operation.name
    if name in ("stablehlo.and", "stablehlo.or", "stablehlo.maximum", "stablehlo.minimum"):
        return True
    owner = op.operands[1].owner
    if isinstance(owner, ir.Block) or owner.operation.name != "stablehlo.constant":
        return False
    neutral = 1 if name == "stablehlo.multiply" else 0
    value = _elements(owner.opview)
    if value is None:
        # Complex: the text is all that says it.
        return f"dense<({neutral}.000000e+00,0.000000e+00)>" in str(owner)
    return bool(value.get_splat_value().value == neutral)


def _elements(constant: ir.OpView) -> ir.DenseElementsAttr | None:
    """Returns the elements of a constant; None where the bindings cannot read them, such as complex ones."""
    value = attribute_of(constant, "value")
    return value if isinstance(value, ir.DenseElementsAttr) else None
