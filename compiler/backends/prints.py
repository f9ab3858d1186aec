"""Lines of `jax.debug.print` on hosts: their text and plain values are sent, and no function."""

from __future__ import annotations

import json
from typing import Any

from jaxlib.mlir import ir

from pathways.compiler.backends.executable import Scheduled
from pathways.compiler.frontend import jax_internals
from pathways.compiler.lower.phases import ProgramError
from pathways.compiler.lower.python_calls import python_call_of
from pathways.dialect import nested_ops
from pathways.dialect.syntax.bytecode import bytecode_of
from pathways.runtime.hosts.protocol import plain
from pathways.runtime.hosts.splitting.prints import PRINT, is_readable

_PLAIN = (str, int, float, bool)


def module_for_hosts(program: Scheduled) -> bytes:
    """Returns the module of a program, with the format of each call of `jax.debug.print` as its attribute.

    Raises:
      ProgramError: it calls other Python, which hosts cannot.
    """
    written = bytecode_of(program.module)
    calling = [computation for computation in program.plan.computations.values() if computation.callbacks]
    if not calling:
        return written
    with program.module.context:
        module = ir.Module.parse(written)
        for op in nested_ops(module.operation):
            if op.operation.name != "stablehlo.custom_call":
                continue
            if "callback" not in op.attributes["call_target_name"].value:
                continue
            index = ir.IntegerAttr(ir.DictAttr(_config(op))["index"]).value
            described = _described(program.callbacks[index]) if index < len(program.callbacks) else None
            if described is None:
                raise ProgramError(
                    f"program '{program.plan.name}': computation {calling[0].name} calls back into Python: "
                    f"{python_call_of(program.module, calling[0].name)}, which workers on hosts cannot; "
                    "pw.on_hosts calls functions there, between programs"
                )
            op.attributes[PRINT] = ir.StringAttr.get(json.dumps({"index": index, **described}))
        return bytecode_of(module)


def _config(op: ir.OpView) -> ir.Attribute:
    for name in ("backend_config", "mhlo.backend_config"):
        if name in op.attributes and isinstance(op.attributes[name], ir.DictAttr):
            return op.attributes[name]
    raise KeyError(str(op.attributes))


def _described(callback: Any) -> dict[str, Any] | None:
    """Returns the format of a host callback that prints, as JSON; None for other callbacks."""
    printed = jax_internals.printed_by(callback)
    if printed is None or not is_readable(printed["text"]):
        return None
    values, count = printed["values"], printed["tree"].num_leaves
    if not all(type(value) in _PLAIN for value in values.values()):
        return None
    leaves: list[Any] = []
    numbered = printed["tree"].unflatten(range(count))
    try:
        tree = plain.tree_of(numbered, "jax.debug.print", lambda leaf: isinstance(leaf, int), leaves)
        options = json.loads(json.dumps(printed["options"]))
    except TypeError:
        return None
    return {
        "text": printed["text"],
        "fields": printed["fields"],
        "options": options,
        "tree": tree,
        "leaves": [[values[n]] if n in values else None for n in leaves],
    }
