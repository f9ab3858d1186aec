"""Calls of Python in lowered programs, as refusals name them: functions cannot leave their process."""

from __future__ import annotations

from jaxlib.mlir import ir

from pathways.dialect import nested_ops, referenced_symbols, symbol_table
from pathways.passes.manager.driver import position_of

_NAMES = {
    "debug_callback": "jax.debug.callback",
    "debug_print": "jax.debug.print",
    "io_callback": "jax.experimental.io_callback",
    "pure_callback": "jax.pure_callback",
}
"""Names of JAX's functions, by the names of its primitives."""


def python_call_of(module: ir.Module, computation: str) -> str:
    """Returns the first call of Python in a computation, with its line and the user's function.

    Args:
      module: the program that the computation is in.
    """
    symbols = symbol_table(module)
    pending, seen = [computation], {computation}
    for name in pending:
        if name not in symbols:
            continue
        for op in nested_ops(symbols[name]):
            if op.operation.name == "stablehlo.custom_call":
                target = op.attributes["call_target_name"].value
                if "callback" in target:
                    return _described(op.operation.location, target)
            new = [symbol for symbol in referenced_symbols(op) if symbol not in seen]
            seen.update(new)
            pending += new
    return "a host callback"


def _described(location: ir.Location, target: str) -> str:
    """Returns the name in JAX, the line and the function of a call that has a location of JAX's lowering."""
    names = _names_of(location)
    primitive = next((name for name in names if name in _NAMES), None)
    called = _NAMES[primitive] if primitive is not None else target
    position = position_of(location)
    if position is None:
        return called
    place = f"{called} at {position.file}:{position.line}"
    # The innermost name names the function with the line.
    function = names[-1].rpartition("<locals>.")[2] if names else primitive
    return place if function == primitive else f"{place} in {function}"


def _names_of(location: ir.Location) -> list[str]:
    """Returns the names around the position of a location, the outermost first."""
    match location:
        case ir.NameLoc():
            # Such as `while/body/debug_print:`.
            return [location.name_str.rstrip(":").rpartition("/")[2], *_names_of(location.child_loc)]
        case ir.CallSiteLoc():
            return _names_of(location.callee)
        case ir.FusedLoc():
            return next(filter(None, map(_names_of, location.locations)), [])
    return []
