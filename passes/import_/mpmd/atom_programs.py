"""Atom programs of IFRT IR: nested modules with the computations of its calls."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from jaxlib.mlir import ir

from pathways.dialect import nested_ops, ops_named, symbol_table
from pathways.dialect.attributes.meshes import Mesh
from pathways.dialect.attributes.names import MAIN
from pathways.dialect.attributes.shardings import read_mesh
from pathways.dialect.operations.operation import symbol_name
from pathways.passes.analysis.functions import rename_references, unique_name
from pathways.passes.manager.base import fail


def function_of(call: ir.OpView, symbols: Mapping[str, ir.OpView]) -> str:
    """Returns the name of the atom program, or of the function of the module, that a call executes.

    Raises:
      PassFailure: there is none.
    """
    names = ir.SymbolRefAttr(call.attributes["callee"]).value
    callee = symbols.get(names[0])
    kind = "" if callee is None else callee.operation.name
    if (kind, *names[1:]) not in (("builtin.module", MAIN), ("func.func",)):
        fail(call, f"calls {call.attributes['callee']}, which is not an atom program of the module")
    return names[0]


def meshes_in(module: ir.Module | ir.OpView) -> list[Mesh]:
    """Returns the meshes with axes that a module declares, or an atom program; none for a plain function."""
    if module.operation.name != "builtin.module":
        return []
    meshes = [read_mesh(op) for op in ops_named(module, ["sdy.mesh"])]
    return list(dict.fromkeys(mesh for mesh in meshes if mesh.axes))


def flatten(module: ir.Module, calls: Iterable[ir.OpView]) -> None:
    """Replaces each atom program by its functions, in the module itself; calls of `@f::@main` then name `@f`.

    Raises:
      PassFailure: an atom program holds anything but functions and meshes, or has no `@main`.
    """
    symbols = symbol_table(module)
    for call in calls:
        call.attributes["callee"] = ir.FlatSymbolRefAttr.get(function_of(call, symbols))
    for atom in ops_named(module, ["builtin.module"]):
        name = symbol_name(atom)
        if name is None:
            fail(atom, "has no name, by which calls could refer to it")
        operations = list(atom.body.operations)
        if MAIN not in symbol_table(atom):
            fail(atom, f"has no function @{MAIN}, which calls could execute")
        del symbols[name]
        renamed = {}
        for op in operations:
            symbol = symbol_name(op)
            match op.operation.name:
                case "sdy.mesh":
                    _move_mesh(op, symbol, module, symbols)
                case "func.func" if symbol is not None:
                    renamed[symbol] = name if symbol == MAIN else unique_name(f"{name}_{symbol}", symbols)
                    symbols[renamed[symbol]] = op
                case _:
                    fail(op, "is in an atom program, which may only have functions and meshes")
        _move_functions(module, [op for op in operations if op.operation.name == "func.func"], renamed)
        atom.operation.erase()


def _move_mesh(op: ir.OpView, name: str | None, module: ir.Module, symbols: dict[str, ir.OpView]) -> None:
    other = symbols.get(name or "")
    if other is None and name is not None:
        op.operation.move_before(module.body.operations[0])
        symbols[name] = op
    elif (
        other is None
        or other.operation.name != "sdy.mesh"
        or other.attributes["mesh"] != op.attributes["mesh"]
    ):
        fail(op, f"declares @{name}, which is something else elsewhere in the program")


def _move_functions(module: ir.Module, functions: Sequence[ir.OpView], names: Mapping[str, str]) -> None:
    for function in functions:
        if not function.regions[0].blocks:
            fail(function, "is only declared")
        for inner in nested_ops(function):
            if inner.operation.name == "func.call":
                rename_references(inner, names)
    for function in functions:
        function.operation.detach_from_parent()
        module.body.append(function)
        function.attributes["sym_name"] = ir.StringAttr.get(names[symbol_name(function) or ""])
        function.attributes["sym_visibility"] = ir.StringAttr.get("private")
