"""Finds the operation of a computation that made the first NaN or infinity."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import jax
import numpy as np
from jaxlib.mlir import ir

from pathways.dialect import argument_attrs, set_argument_attrs, set_result_attrs
from pathways.dialect.attributes.names import ALIASING, DONOR
from pathways.dialect.syntax.bytecode import bytecode_of
from pathways.passes.analysis.functions import inline_call, set_signature
from pathways.passes.manager.driver import position_of
from pathways.runtime.plan.plan import Computation
from pathways.runtime.xla import pjrt


def find(
    computation: Computation, devices: Sequence[jax.Device], operands: Sequence[jax.Array]
) -> str | None:
    """Runs a computation once more, with a result for each of its operations, and looks at all of them.

    Operations inside of loops and branches count as one, the loop or branch.

    Args:
      computation: the computation, with locations.
      devices: those of its slice.
      operands: what it was launched with.

    Returns:
      The operation and its line, or None when it cannot be found: it calls back into Python, or computes
      something else when it has more results.
    """
    if computation.callbacks or any(operand.is_deleted() for operand in operands):
        return None
    try:
        module, said = _with_all_results(computation.module)
        options = pjrt.compile_options(devices, len(operands), len(said))
        executable = pjrt.compile_anew(module, devices, options)
        values = pjrt.execute_to_shards(executable, list(operands))
    except (jax.errors.JaxRuntimeError, ir.MLIRError, ValueError):
        return None
    for what, shards in zip(said, values, strict=True):
        for shard in map(np.asarray, shards):
            if jax.config.jax_debug_nans and np.isnan(shard).any():
                return f"{what} gives nan"
            if jax.config.jax_debug_infs and np.isinf(shard).any():
                return f"{what} gives inf"
    return None


def _with_all_results(module: bytes) -> tuple[bytes, list[str]]:
    """A module whose `main` returns all floating-point values that it computes, and what makes each."""
    parsed = pjrt.parse(module)
    with parsed.context, ir.Location.unknown():
        symbols = ir.SymbolTable(parsed.operation)
        main = symbols["main"]
        block = main.regions[0].blocks[0]
        _inline_calls(block, symbols)
        *ops, terminator = block.operations
        values = [value for op in ops for value in op.results if _is_floating(value.type)]
        said = [_said(value.owner) for value in values]
        with ir.InsertionPoint(terminator):
            ir.Operation.create("func.return", operands=values)
        terminator.operation.erase()
        set_signature(main, main.type.inputs, [value.type for value in values])
        set_result_attrs(main, [{} for _ in values])
        set_argument_attrs(main, [_without_donation(attrs) for attrs in argument_attrs(main)])
    return bytecode_of(parsed), said


def _inline_calls(block: ir.Block, symbols: ir.SymbolTable) -> None:
    """Puts the bodies of functions in the places of their calls, so that their operations are looked at."""
    calls = [op for op in block.operations if op.operation.name == "func.call"]
    while calls:
        for call in calls:
            callee = symbols[ir.FlatSymbolRefAttr(call.attributes["callee"]).value]
            inline_call(call, callee)
        calls = [op for op in block.operations if op.operation.name == "func.call"]


def _is_floating(type_: ir.Type) -> bool:
    if not isinstance(type_, ir.RankedTensorType):
        return False
    return isinstance(type_.element_type, ir.FloatType | ir.ComplexType)


def _said(op: ir.Operation) -> str:
    name = op.name.partition(".")[2]
    position = position_of(op.location)
    return name if position is None else f"{name} at {position}"


def _without_donation(attrs: Mapping[str, ir.Attribute]) -> dict[str, ir.Attribute]:
    return {name: value for name, value in attrs.items() if name not in (ALIASING, DONOR)}
