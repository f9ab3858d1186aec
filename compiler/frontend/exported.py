"""Refinement of functions of `jax.export` with symbolic shapes to the shapes that a program calls them with.

JAX leaves that to XLA, which refines whole modules only, not computations that are cut out of one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from jax.extend.mlir import refine_polymorphic_shapes
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import func, stablehlo

from pathways.dialect import nested_ops, symbol_table
from pathways.dialect.syntax.bytecode import bytecode_of
from pathways.passes.analysis.functions import (
    erase_unused_functions,
    referenced_functions,
    rename_references,
    unique_name,
)


def refine_exported(module: ir.Module) -> None:
    """Replaces calls of exported functions with symbolic shapes by calls of functions with static shapes.

    Raises:
      ValueError: a function does not compute for the shapes of a call.
    """
    symbols = symbol_table(module)
    functions = [op for op in symbols.values() if op.operation.name == "func.func"]
    symbolic = {_name(op) for op in functions if not _is_static([*op.type.inputs, *op.type.results])}
    if not symbolic:
        return
    for function in functions:
        for call in list(nested_ops(function)):
            if call.operation.name == "func.call" and call.attributes["callee"].value in symbolic:
                _refine_call(module, call, symbols)
    erase_unused_functions(module)


def _refine_call(module: ir.Module, call: ir.OpView, symbols: dict[str, ir.OpView]) -> None:
    """Refines a call whose operands are conversions of static types, and whose results are converted to such.

    Other calls are in functions with symbolic shapes, and are refined with these functions.
    """
    operands = [_converted_from(value) for value in call.operands]
    results = [_converted_to(value) for value in call.results]
    types = [value.type for value in results]
    if not _is_static([*(value.type for value in operands), *types]):
        return
    callee = _add_refined(module, call, [value.type for value in operands], types, symbols)
    with ir.InsertionPoint(call), call.operation.location:
        refined = func.CallOp(types, ir.FlatSymbolRefAttr.get(callee), operands)
    for old, new in zip(results, refined.results, strict=True):
        old.replace_all_uses_with(new)
    passed = list(call.operands)
    dead = [new.owner for new, old in zip(results, call.results, strict=True) if new != old]
    dead += [call.operation, *(old.owner for new, old in zip(operands, passed, strict=True) if new != old)]
    # Users come first: an operation whose results are used cannot be erased.
    for op in dict.fromkeys(dead):
        op.erase()


def _add_refined(
    module: ir.Module,
    call: ir.OpView,
    inputs: Sequence[ir.Type],
    results: Sequence[ir.Type],
    symbols: dict[str, ir.OpView],
) -> str:
    """Adds the callee of a call, refined to static types, to the module; returns its name."""
    callee = call.attributes["callee"].value
    alone = ir.Module.create(call.operation.location)
    with ir.InsertionPoint(alone.body), call.operation.location:
        meshes = [op for op in symbols.values() if op.operation.name == "sdy.mesh"]
        for op in (*meshes, *_reachable(symbols[callee], symbols)):
            op.operation.clone()
        main = func.FuncOp("main", (list(inputs), list(results)))
        with ir.InsertionPoint(main.add_entry_block()):
            passed = _convert(main.arguments, [value.type for value in call.operands])
            returned = func.CallOp(
                [value.type for value in call.results], ir.FlatSymbolRefAttr.get(callee), passed
            )
            func.ReturnOp(_convert(returned.results, results))
    try:
        code = refine_polymorphic_shapes(
            mlir_module=bytecode_of(alone), enable_shape_assertions=True, validate_static_shapes=True
        )
    except Exception as error:
        types = ", ".join(map(str, inputs))
        raise ValueError(
            f"the exported function '{callee}' has symbolic shapes and does not compute for {types}: {error}"
        ) from None
    refined = ir.Module.parse(code, module.context)
    added = {name: op for name, op in symbol_table(refined).items() if op.operation.name == "func.func"}
    names = {name: unique_name(callee if name == "main" else name, symbols) for name in added}
    for name, op in added.items():
        symbols[names[name]] = copy = op.operation.clone(ir.InsertionPoint(module.body)).opview
        copy.attributes["sym_name"] = ir.StringAttr.get(names[name])
        copy.attributes["sym_visibility"] = ir.StringAttr.get("private")
        for inner in nested_ops(copy):
            rename_references(inner, names)
    return names["main"]


def _reachable(function: ir.OpView, symbols: dict[str, ir.OpView]) -> Iterable[ir.OpView]:
    """Returns a function, and the functions that it names directly or through others."""
    functions, pending = {_name(function): function}, [function]
    while pending:
        for inner in nested_ops(pending.pop()):
            new = {_name(op): op for op in referenced_functions(inner, symbols) if _name(op) not in functions}
            functions |= new
            pending += new.values()
    return functions.values()


def _converted_from(value: ir.Value) -> ir.Value:
    """Returns the operand of the conversion that produces a value of a symbolic shape; else the value."""
    if isinstance(value, ir.BlockArgument) or _is_static([value.type]):
        return value
    owner = value.owner.opview
    return owner.operands[0] if isinstance(owner, stablehlo.ConvertOp) else value


def _converted_to(value: ir.Value) -> ir.Value:
    """Returns the result of the only conversion of a value of a symbolic shape; any other value unchanged."""
    if _is_static([value.type]):
        return value
    converted = [use.owner.operation.opview for use in value.uses]
    is_one = len(converted) == 1 and isinstance(converted[0], stablehlo.ConvertOp)
    return converted[0].results[0] if is_one else value


def _convert(values: Iterable[ir.Value], types: Sequence[ir.Type]) -> list[ir.Value]:
    pairs = zip(values, types, strict=True)
    return [value if value.type == type_ else stablehlo.convert(type_, value) for value, type_ in pairs]


def _is_static(types: Iterable[ir.Type]) -> bool:
    shaped = (ir.ShapedType(type_) for type_ in types if isinstance(type_, ir.ShapedType))
    return all(type_.has_static_shape for type_ in shaped)


def _name(function: ir.OpView) -> str:
    return function.attributes["sym_name"].value
