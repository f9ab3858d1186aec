"""Axes: dimensions of operands and results that go together, so that blocks are computed from blocks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from jaxlib.mlir import ir

from pathways.dialect.operations.operation import attribute_of
from pathways.passes.analysis.sharding_rules import RuleReader

_BARRIER = "stablehlo.optimization_barrier"

_ON_BLOCKS = frozenset(
    f"stablehlo.{name}"
    for name in (
        *(
            "broadcast_in_dim",
            "concatenate",
            "dynamic_slice",
            "reduce",
            "reduce_window",
            "reshape",
            "reverse",
        ),
        *("slice", "transpose"),
    )
)
"""Operations that are not elementwise, and do the same on blocks along dimensions that their rule allows."""

_MONOIDS = frozenset(
    f"stablehlo.{name}" for name in ("add", "and", "maximum", "minimum", "multiply", "or", "xor")
)
"""Operations of reductions that may be done block by block, and then over blocks."""


BRANCHES = frozenset({"stablehlo.case", "stablehlo.if"})
"""Operations that run one of their regions and return its results."""


class Tie(NamedTuple):
    """A dimension of an operand, and that of a result which is cut where it is cut."""

    operand: int
    dim: int
    result: int
    result_dim: int


def ties_of(op: ir.OpView, rules: RuleReader) -> Iterator[Tie]:
    """Yields the dimensions that go together; an operation that is not known has none."""
    rule, name = rules.of(op), op.operation.name
    if rule is None or not (name == _BARRIER or name in _ON_BLOCKS or rule.is_elementwise):
        return
    if len(op.results) != 1 and name != _BARRIER:
        return
    for result, targets in enumerate(rule.results):
        places = {factor: dim for dim, factor in enumerate(targets) if factor is not None}
        for operand, sources in enumerate(rule.operands):
            for dim, factor in enumerate(sources):
                if factor is not None and factor in places:
                    yield Tie(operand, dim, result, places[factor])


def is_free(op: ir.OpView, dim: int) -> bool:
    """Returns whether an operation can compute a block of its result from whole operands."""
    match op.operation.name:
        case "stablehlo.constant":
            value = _elements(op)
            return value is not None and value.is_splat
        case "stablehlo.iota":
            # Along its own dimension the block of each replica would begin with another number.
            return int(op.iota_dimension) != dim
        case "stablehlo.broadcast_in_dim":
            read = list(op.broadcast_dimensions)
            # A dimension that one element of the operand fills.
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
        # Complex numbers can be read from the text alone.
        return f"dense<({neutral}.000000e+00,0.000000e+00)>" in str(owner)
    return bool(value.get_splat_value().value == neutral)


def _elements(constant: ir.OpView) -> ir.DenseElementsAttr | None:
    """Returns the elements of a constant; None where the bindings cannot read them, such as complex ones."""
    value = attribute_of(constant, "value")
    return value if isinstance(value, ir.DenseElementsAttr) else None
