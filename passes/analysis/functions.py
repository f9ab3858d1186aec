"""Helpers of passes that change functions: bodies, signatures, arguments, and removal of dead functions."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import sdy

import pathways.dialect as dialect
from pathways.dialect.attributes.fields import entries_of
from pathways.dialect.attributes.names import ARGUMENT_INFO
from pathways.dialect.operations.operation import attribute_of, is_public
from pathways.passes.analysis.operations import replace
from pathways.passes.manager.base import fail

_MAX_NAMED = 4
"""Limit of the arguments that a message names."""


def unique_name(base: str, used_names: Collection[str], start: int = 0) -> str:
    """Returns `base`, or `base_1`, `base_2`, ... when it is taken; `start` skips numbers known to be."""
    if start == 0 and base not in used_names:
        return base
    number = max(start, 1)
    while f"{base}_{number}" in used_names:
        number += 1
    return f"{base}_{number}"


def body_block(function: ir.OpView) -> ir.Block:
    """Returns the only block of a function.

    Raises:
      PassFailure: when the function is only declared.
    """
    blocks = function.regions[0].blocks
    if not blocks:
        fail(function, "is only declared, but its body is needed here")
    return blocks[0]


def named_arguments(function: ir.OpView, arguments: Sequence[ir.Value]) -> str:
    """Returns the names of arguments for a message, of many the first ones."""
    attrs = dialect.argument_attrs(function)
    infos = [attrs[argument.arg_number].get(ARGUMENT_INFO) for argument in arguments[:_MAX_NAMED]]
    names = [
        f"#{argument.arg_number}" if info is None else info.value
        for argument, info in zip(arguments, infos, strict=False)
    ]
    more = f" and {len(arguments) - _MAX_NAMED} more" if len(arguments) > _MAX_NAMED else ""
    return f"argument{'s' if len(arguments) > 1 else ''} {', '.join(names)}{more}"


def set_signature(function: ir.OpView, inputs: Sequence[ir.Type], results: Sequence[ir.Type]) -> None:
    """Sets the type of a function whose block arguments or return were changed."""
    function.attributes["function_type"] = ir.TypeAttr.get(ir.FunctionType.get(list(inputs), list(results)))


def add_arguments(
    function: ir.OpView, types: Sequence[ir.Type], attrs: Sequence[Mapping[str, ir.Attribute]]
) -> list[ir.Value]:
    """Appends arguments to a function; callers are the caller's business."""
    all_attrs = [*dialect.argument_attrs(function), *map(dict, attrs)]
    block, location = body_block(function), function.operation.location
    values = [block.add_argument(type_, location) for type_ in types]
    set_signature(function, [*function.type.inputs, *types], function.type.results)
    dialect.set_argument_attrs(function, all_attrs)
    return values


def launches_by_callee(main: ir.OpView) -> dict[str, list[dialect.LaunchOp]]:
    """Returns the launches of each computation, in program order."""
    launches: dict[str, list[dialect.LaunchOp]] = {}
    for op in body_block(main).operations:
        if isinstance(op, dialect.LaunchOp):
            launches.setdefault(op.callee, []).append(op)
    return launches


def drop_arguments(
    function: ir.OpView, launches: Sequence[dialect.LaunchOp], dropped: Collection[int]
) -> list[dialect.LaunchOp]:
    """Drops arguments that nothing reads from a computation and all its launches; returns these anew."""
    block, attrs = body_block(function), dialect.argument_attrs(function)
    remaining = [n for n in range(len(attrs)) if n not in dropped]
    for n in sorted(dropped, reverse=True):
        block.erase_argument(n)
    set_signature(function, [a.type for a in block.arguments], function.type.results)
    dialect.set_argument_attrs(function, [attrs[n] for n in remaining])
    renewed = []
    for launch in launches:
        new = launch.rebuilt([launch.operands[n] for n in remaining])
        replace(launch, new.results)
        renewed.append(new)
    return renewed


def inlined(function: ir.OpView, operands: Sequence[ir.Value]) -> list[ir.Value]:
    """Copies the body of a function to the insertion point; returns its results for these operands.

    Raises:
      PassFailure: when the function is only declared.
    """
    body_block(function)
    return list(dialect.inlined_func_call(function.operation, operands))


def inline_call(call: ir.OpView, callee: ir.OpView) -> None:
    """Replaces a `func.call` by a copy of the body of its callee, and erases it."""
    with ir.InsertionPoint(call), call.operation.location:
        results = inlined(callee, list(call.operands))
    replace(call, results)


def referenced_functions(op: ir.OpView, symbols: Mapping[str, ir.OpView]) -> Iterator[ir.OpView]:
    """Yields the functions that an operation names: callees, and bodies such as reductions."""
    for name in dialect.referenced_symbols(op):
        function = symbols.get(name)
        if function is not None and function.operation.name == "func.func":
            yield function


def erase_unused_functions(module: ir.Module) -> None:
    """Erases private functions that nothing refers to, directly or through others."""
    functions = {n: op for n, op in dialect.symbol_table(module).items() if op.operation.name == "func.func"}
    live: set[str] = set()
    seen: set[ir.Attribute] = set()
    pending = [n for n, op in functions.items() if is_public(op)]
    while pending:
        name = pending.pop()
        if name in live:
            continue
        live.add(name)
        for inner in dialect.nested_ops(functions[name]):
            if dialect.only_computes(type(inner)):
                continue
            pending += [symbol for symbol in dialect.referenced_symbols(inner, seen) if symbol in functions]
    for name, function in functions.items():
        if name not in live:
            function.operation.erase()


def merge_equal_functions(module: ir.Module) -> None:
    """Merges private functions that are equal but for their names, and redirects references to them."""
    first: dict[str, str] = {}
    replaced: dict[str, str] = {}
    for op in module.body.operations:
        if op.operation.name != "func.func" or is_public(op):
            continue
        name = op.attributes["sym_name"].value
        # In local scope attributes are written out: aliases have numbers of the whole module.
        text = op.operation.get_asm(use_local_scope=True)
        head, _, rest = text.partition(f"@{name}(")
        first_name = first.setdefault(head + "@(" + rest, name)
        if first_name != name:
            replaced[name] = first_name
    if not replaced:
        return
    for op in list(module.body.operations):
        if op.operation.name != "func.func":
            continue
        if op.attributes["sym_name"].value in replaced:
            op.operation.erase()
            continue
        for inner in dialect.nested_ops(op):
            if any(name in replaced for name in dialect.referenced_symbols(inner)):
                rename_references(inner, replaced)


def rename_references(op: ir.OpView, names: Mapping[str, str]) -> None:
    """Replaces names of symbols in all attributes of an operation."""
    for name in list(op.attributes):
        attribute = attribute_of(op, name)
        if attribute is not None:
            op.attributes[name] = _renamed(attribute, names)


def _renamed(attribute: ir.Attribute, names: Mapping[str, str]) -> ir.Attribute:
    """Returns an attribute with replaced names of symbols."""
    match attribute:
        case ir.FlatSymbolRefAttr():
            return ir.FlatSymbolRefAttr.get(names.get(attribute.value, attribute.value))
        case ir.ArrayAttr():
            return ir.ArrayAttr.get([_renamed(element, names) for element in attribute])
        case ir.DictAttr():
            entries = entries_of(attribute)
            readable = {name: entry for name, entry in entries.items() if entry is not None}
            if readable == entries:
                return ir.DictAttr.get({name: _renamed(entry, names) for name, entry in readable.items()})
    return attribute


def drop_empty_constraints(function: ir.OpView, symbols: Mapping[str, ir.OpView]) -> None:
    """Drops constraints on a mesh without axes, which JAX puts on typed PRNG keys to no effect."""
    for op in list(dialect.nested_ops(function)):
        if op.operation.name != "sdy.sharding_constraint":
            continue
        mesh = sdy.TensorShardingAttr(op.attributes["sharding"]).mesh_or_ref
        if isinstance(mesh, ir.FlatSymbolRefAttr):
            mesh = symbols[mesh.value].attributes["mesh"]
        if not sdy.MeshAttr(mesh).axes:
            replace(op, op.operands)
