"""Captures, effects, costs and copies of operations."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from pathways.dialect import nested_ops, only_computes, referenced_symbols

EXPENSIVE = frozenset(
    {
        "stablehlo.dot_general",
        "stablehlo.convolution",
        "stablehlo.fft",
        "stablehlo.cholesky",
        "stablehlo.triangular_solve",
        "stablehlo.rng_bit_generator",
        "stablehlo.sort",
        "stablehlo.custom_call",
        "stablehlo.composite",
    }
)
"""Operations whose work is more than a few steps for each element, or is not known."""

_COMMUNICATION = frozenset({"stablehlo.infeed", "stablehlo.outfeed", "stablehlo.send", "stablehlo.recv"})


def captured(op: ir.OpView) -> list[ir.Value]:
    """Returns the values from outside that an operation reads: its operands, then captures of its regions."""
    values = list(op.operands)
    if only_computes(type(op)):
        return values
    return list(dict.fromkeys([*values, *captured_by_regions(op)])) if op.regions else values


def captured_by_regions(op: ir.OpView) -> list[ir.Value]:
    """Returns the values from outside that the code inside of an operation reads."""
    inside: set[ir.Value] = set()
    for outer in (op, *nested_ops(op)):
        for region in outer.regions:
            for block in region.blocks:
                inside.update(block.arguments)
                inside.update(result for inner in block.operations for result in inner.results)
    read = (value for inner in nested_ops(op) for value in inner.operands if value not in inside)
    return list(dict.fromkeys(read))


def is_scalar(value: ir.Value) -> bool:
    """Returns whether a value is an array without dimensions."""
    return isinstance(value.type, ir.RankedTensorType) and value.type.rank == 0


def is_barrier(op: ir.OpView) -> bool:
    """Returns whether an operation is an `optimization_barrier`."""
    return op.operation.name == "stablehlo.optimization_barrier"


def replace(old: ir.OpView, values: Iterable[ir.Value]) -> None:
    """Replaces the results of an operation by other values, and erases it."""
    for result, value in zip(old.results, values, strict=True):
        result.replace_all_uses_with(value)
    old.operation.erase()


def replace_operands(op: ir.OpView, mapping: Mapping[ir.Value, ir.Value]) -> None:
    """Replaces operands of an operation and of the operations inside of it."""
    for inner in (op,) if only_computes(type(op)) else (op, *nested_ops(op)):
        operands = inner.operands
        for number, value in enumerate(list(operands)):
            if value in mapping:
                operands[number] = mapping[value]


def copy_into(
    operations: Iterable[ir.OpView], mapping: dict[ir.Value, ir.Value], without: Collection[str] = ()
) -> None:
    """Copies operations to the insertion point.

    Args:
      operations: the operations, each after the operations that it reads.
      mapping: the values that copies read instead; the results of copies are added.
      without: the attributes that copies do not have.
    """
    for op in operations:
        copy = op.operation.clone().opview
        for name in without:
            if name in copy.attributes:
                del copy.attributes[name]
        replace_operands(copy, mapping)
        mapping.update(zip(op.results, copy.results, strict=True))


def has_side_effect(op: ir.OpView, symbols: Mapping[str, ir.OpView], memo: dict[str, bool]) -> bool:
    """Returns whether an operation does more than compute its results; `memo` remembers functions."""
    if only_computes(type(op)):
        return False
    for inner in (op, *nested_ops(op)):
        if any(computation_has_effect(symbol, symbols, memo) for symbol in referenced_symbols(inner)):
            return True
        name = inner.operation.name
        if name == "stablehlo.custom_call":
            effect = inner.attributes.get("has_side_effect")
            if effect is not None and effect.value:
                return True
        elif name in _COMMUNICATION:
            return True
    return False


def computation_has_effect(name: str, symbols: Mapping[str, ir.OpView], memo: dict[str, bool]) -> bool:
    """Returns whether a symbol is a function that does more than compute its results; `memo` remembers it."""
    if name not in memo:
        # Before its body is read: this ends the recursion where functions call each other.
        memo[name] = False
        op = symbols.get(name)
        if op is not None and op.operation.name == "func.func":
            memo[name] = has_side_effect(op, symbols, memo)
    return memo[name]


def byte_size(tensor_type: ir.Type) -> int:
    """Returns the bytes of a tensor; sub-byte elements are counted as stored by XLA, one byte each."""
    tensor = ir.RankedTensorType(tensor_type)
    element = tensor.element_type
    reals = 1
    if isinstance(element, ir.ComplexType):
        element, reals = element.element_type, 2
    return math.prod(tensor.shape) * reals * max(1, element.width // 8)


def integer(value: int, type_: ir.Type | None = None) -> ir.Value:
    """Builds an integer at the insertion point: a scalar i32, or each element of an array type."""
    if type_ is None:
        type_ = ir.RankedTensorType.get([], ir.IntegerType.get_signless(32))
    element = ir.IntegerAttr.get(ir.RankedTensorType(type_).element_type, value)
    return stablehlo.constant(ir.DenseElementsAttr.get_splat(type_, element))


def zeros_of(type_: ir.Type) -> ir.Value:
    """Builds zeros of an array type at the insertion point."""
    tensor = ir.RankedTensorType(type_)
    element = tensor.element_type
    is_complex = isinstance(element, ir.ComplexType)
    real = element.element_type if is_complex else element
    zero = ir.IntegerAttr.get(real, 0) if isinstance(real, ir.IntegerType) else ir.FloatAttr.get(real, 0.0)
    reals = ir.RankedTensorType.get(tensor.shape, real)
    value = stablehlo.constant(ir.DenseElementsAttr.get_splat(reals, zero))
    # The bindings cannot make complex elements.
    return stablehlo.complex(value, value) if is_complex else value


def is_zeros(value: ir.Value) -> bool:
    """Returns whether a value is known to have zeros only, none of them negative."""
    maker = value.owner
    while not isinstance(maker, ir.Block) and maker.name == "stablehlo.broadcast_in_dim":
        maker = maker.operands[0].owner
    if isinstance(maker, ir.Block) or maker.name != "stablehlo.constant":
        return False
    element = ir.RankedTensorType(maker.results[0].type).element_type
    if isinstance(element, ir.ComplexType):
        # The bindings cannot read complex elements.
        return False
    # Attributes are compared by their bits, so that -0.0 is no zero.
    elements = maker.attributes["value"]
    if not isinstance(elements, ir.DenseElementsAttr) or not elements.is_splat:
        return False
    with ir.Location.unknown(element.context):
        is_whole = isinstance(element, ir.IntegerType)
        zero = ir.IntegerAttr.get(element, 0) if is_whole else ir.FloatAttr.get(element, 0.0)
        return bool(elements == ir.DenseElementsAttr.get_splat(elements.type, zero))
