"""Small tools over the bindings that several passes need."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import func

from pathways.dialect import (
    argument_attrs,
    inlined_func_call,
    set_argument_attrs,
    symbol_table,
)
from pathways.passes.base import fail

PURE_EXCEPTIONS = frozenset(
    {"stablehlo.custom_call", "stablehlo.infeed", "stablehlo.outfeed", "stablehlo.send"}
)


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
    }
)
"""Operations whose work is more than a few steps for each element, or is not known."""


def unique_name(base: str, taken: Collection[str], start: int = 0) -> str:
    """Returns `base`, or `base_1`, `base_2`, ... when it is taken; `start` skips numbers known to be."""
    if start == 0 and base not in taken:
        return base
    number = max(start, 1)
    while f"{base}_{number}" in taken:
        number += 1
    return f"{base}_{number}"


def body_block(function: ir.OpView) -> ir.Block:
    """The only block of a function.

    Raises:
      PassFailure: when the function is only declared.
    """
    blocks = function.regions[0].blocks
    if not blocks:
        fail(function, "is only declared, but its body is needed here")
    return blocks[0]


def function_of_block(
    module: ir.Module,
    name: str,
    argument_types: Sequence[ir.Type],
    location: ir.Location | None = None,
) -> tuple[func.FuncOp, ir.Block]:
    """Appends a private function without results yet; `finish_function` gives it its return."""
    with ir.InsertionPoint(module.body), location or ir.Location.unknown():
        function = func.FuncOp(name, ir.FunctionType.get(argument_types, []), visibility="private")
        return function, function.add_entry_block()


def finish_function(function: ir.OpView, results: Sequence[ir.Value]) -> None:
    """Ends a function with a return of `results` and gives it the type that follows."""
    block = body_block(function)
    with ir.InsertionPoint(block), function.operation.location:
        func.ReturnOp(list(results))
    set_signature(function, [a.type for a in block.arguments], [r.type for r in results])


def set_signature(function: ir.OpView, inputs: Sequence[ir.Type], results: Sequence[ir.Type]) -> None:
    """Sets the type of a function whose block arguments or return were changed."""
    function.attributes["function_type"] = ir.TypeAttr.get(ir.FunctionType.get(list(inputs), list(results)))


def add_argument(function: ir.OpView, argument_type: ir.Type, attrs: dict[str, ir.Attribute]) -> ir.Value:
    """Appends an argument to a function; callers are the caller's business."""
    all_attrs = [*argument_attrs(function), attrs]
    value = body_block(function).add_argument(argument_type, function.operation.location)
    set_signature(function, [*function.type.inputs, argument_type], function.type.results)
    set_argument_attrs(function, all_attrs)
    return value


def nested_ops(op: ir.OpView) -> Iterator[ir.OpView]:
    """All operations inside the regions of an operation, outermost first."""
    for region in op.regions:
        for block in region.blocks:
            for inner in block.operations:
                yield inner
                if inner.regions:
                    yield from nested_ops(inner)


def callees(op: ir.OpView) -> Iterator[str]:
    """Names of the functions that an operation or anything inside it calls."""
    for inner in (op, *nested_ops(op)):
        if inner.operation.name == "func.call":
            yield inner.attributes["callee"].value


def captured(op: ir.OpView) -> list[ir.Value]:
    """The values from outside that an operation reads: its operands, then those its regions capture."""
    values = list(op.operands)
    if not op.regions:
        return values
    seen = set(values)
    inside: set[ir.Value] = set()
    for region in op.regions:
        for block in region.blocks:
            inside.update(block.arguments)
    for inner in nested_ops(op):
        for region in inner.regions:
            for block in region.blocks:
                inside.update(block.arguments)
        for value in inner.operands:
            if value not in inside and value not in seen:
                seen.add(value)
                values.append(value)
        inside.update(inner.results)
    return values


def has_side_effect(op: ir.OpView, symbols: dict[str, ir.OpView], memo: dict[str, bool]) -> bool:
    """Whether an operation does more than compute its results; `memo` remembers functions."""
    for inner in (op, *nested_ops(op)):
        name = inner.operation.name
        if name == "func.call":
            callee = inner.attributes["callee"].value
            if callee not in memo:
                memo[callee] = False
                memo[callee] = has_side_effect(symbols[callee], symbols, memo)
            if memo[callee]:
                return True
        elif name == "stablehlo.custom_call":
            effect = inner.attributes.get("has_side_effect")
            if effect is not None and effect.value:
                return True
        elif name in PURE_EXCEPTIONS:
            return True
    return False


def inlined(function: ir.OpView, operands: Sequence[ir.Value]) -> list[ir.Value]:
    """Copies the body of a function to the insertion point; returns its results for these operands.

    Raises:
      PassFailure: when the function is only declared.
    """
    body_block(function)
    return list(inlined_func_call(function.operation, operands))


def byte_size(tensor_type: ir.Type) -> int:
    """Bytes of a tensor; sub-byte elements are counted as stored by XLA, one byte each."""
    tensor = ir.RankedTensorType(tensor_type)
    count = 1
    for size in tensor.shape:
        count *= size
    element = tensor.element_type
    if isinstance(element, ir.ComplexType):
        return count * 2 * max(1, element.element_type.width // 8)
    return count * max(1, element.width // 8) if hasattr(element, "width") else count


def erase_unused_functions(module: ir.Module) -> None:
    """Erases private functions that nothing refers to, directly or through others."""
    symbols = symbol_table(module)
    functions = {n: op for n, op in symbols.items() if op.operation.name == "func.func"}
    live: set[str] = set()
    pending = [n for n, op in functions.items() if _is_public(op)]
    while pending:
        name = pending.pop()
        if name in live:
            continue
        live.add(name)
        for inner in nested_ops(functions[name]):
            for attribute in ("callee", "body"):
                target = inner.attributes.get(attribute)
                if isinstance(target, ir.FlatSymbolRefAttr) and target.value in functions:
                    pending.append(target.value)
    for name, function in functions.items():
        if name not in live:
            function.operation.erase()


def _is_public(function: ir.OpView) -> bool:
    visibility = function.attributes.get("sym_visibility")
    return visibility is None or visibility.value == "public"


def merge_equal_functions(module: ir.Module) -> None:
    """Merges private functions that are equal but for their names, and redirects what refers to them."""
    first: dict[str, str] = {}
    replaced: dict[str, str] = {}
    for op in module.body.operations:
        if op.operation.name != "func.func" or _is_public(op):
            continue
        name = op.attributes["sym_name"].value
        text = op.operation.get_asm(use_local_scope=True)
        head, _, rest = text.partition(f"@{name}(")
        kept = first.setdefault(head + "@(" + rest, name)
        if kept != name:
            replaced[name] = kept
    if not replaced:
        return
    for op in list(module.body.operations):
        if op.operation.name != "func.func":
            continue
        if op.attributes["sym_name"].value in replaced:
            op.operation.erase()
            continue
        for inner in nested_ops(op):
            callee = inner.attributes.get("callee")
            if isinstance(callee, ir.FlatSymbolRefAttr) and callee.value in replaced:
                inner.attributes["callee"] = ir.FlatSymbolRefAttr.get(replaced[callee.value])
