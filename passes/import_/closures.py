"""Closed-over constants of a program: large ones become hidden arguments."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from jaxlib.mlir import ir

from pathways.dialect import ConstantOp, LaunchOp, nested_ops, referenced_symbols, symbol_table
from pathways.dialect.attributes.names import CONSTANT
from pathways.passes.analysis.functions import add_arguments, body_block, unique_name
from pathways.passes.analysis.operations import byte_size, replace
from pathways.passes.manager.base import main_function


def hoist_constants(module: ir.Module, launches: Iterable[LaunchOp], limit: int) -> None:
    """Turns constants of `@main` and of its computations above a size into hidden arguments.

    A computation that is called as well, such as inside of a branch, keeps its constants.

    Args:
      limit: the bytes of the largest constant that stays where it is.
    """
    main, symbols = main_function(module), symbol_table(module)
    names: dict[ir.Attribute, str] = {}
    arguments: dict[str, ir.Value] = {}
    used_names = set(symbols)

    def argument_for(value: ir.Attribute, location: ir.Location) -> ir.Value:
        if value not in names:
            name = unique_name(f"k{len(names)}", used_names)
            used_names.add(name)
            names[value] = name
            ConstantOp.build(sym_name=name, value=value, loc=location, ip=ir.InsertionPoint(main))
            attrs = {CONSTANT: ir.FlatSymbolRefAttr.get(name)}
            (arguments[name],) = add_arguments(main, [value.type], [attrs])
        return arguments[names[value]]

    launches_of: dict[str, list[LaunchOp]] = {}
    for launch in launches:
        launches_of.setdefault(launch.callee, []).append(launch)
    holders = (main, *(symbols[name] for name in launches_of))
    constants = [(function, *constant) for function in holders for constant in _constants(function, limit)]
    called = _called(symbols) if any(function is not main for function, _, _ in constants) else set()
    for function, op, value in constants:
        name = function.attributes["sym_name"].value
        if name in called:
            continue
        hidden = argument_for(value, op.operation.location)
        if function is not main:
            hidden = _pass_to_callee(function, launches_of[name], hidden)
        replace(op, [hidden])


def _constants(function: ir.OpView, limit: int) -> Iterator[tuple[ir.OpView, ir.Attribute]]:
    """Yields the constants of a function above a size, each with its value."""
    for op in body_block(function).operations:
        if op.operation.name != "stablehlo.constant" or byte_size(op.results[0].type) <= limit:
            continue
        try:
            value = op.attributes["value"]
        except TypeError:
            # The bindings cannot return complex elements; they stay in the computation.
            continue
        # A splat of any size is stored as one element.
        if not (isinstance(value, ir.DenseElementsAttr) and value.is_splat):
            yield op, value


def _called(symbols: Mapping[str, ir.OpView]) -> set[str]:
    """Returns the functions that are called, and not only launched."""
    seen: set[ir.Attribute] = set()
    functions = (op for op in symbols.values() if op.operation.name == "func.func")
    calls = (op for function in functions for op in nested_ops(function) if not isinstance(op, LaunchOp))
    return {name for op in calls for name in referenced_symbols(op, seen)}


def _pass_to_callee(function: ir.OpView, launches: list[LaunchOp], value: ir.Value) -> ir.Value:
    """Gives a computation one more argument, and all its launches the value for it."""
    (argument,) = add_arguments(function, [value.type], [{}])
    for number, launch in enumerate(launches):
        longer = launch.rebuilt([*launch.operands, value])
        replace(launch, longer.results)
        launches[number] = longer
    return argument
