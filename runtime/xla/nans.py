"""Search for the operation of a computation that produced the first NaN or infinity."""

from __future__ import annotations

from collections.abc import Sequence

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
    """Runs a computation once more, with a result for each of its operations, and checks all of them.

    A loop or branch counts as one operation.

    Returns:
      The operation and its line. None if it cannot be found: the computation calls back into Python, or XLA
      computes other values when it has more results.
    """
    if computation.callbacks or any(operand.is_deleted() for operand in operands):
        return None
    try:
        module, names = _with_all_results(computation.module)
        options = pjrt.compile_options(devices, len(operands), len(names))
        executable = pjrt.compile_anew(module, devices, options)
        values = pjrt.execute_to_shards(executable, list(operands))
    except (jax.errors.JaxRuntimeError, ir.MLIRError, ValueError):
        return None
    for name, shards in zip(names, values, strict=True):
        for shard in map(np.asarray, shards):
            if jax.config.jax_debug_nans and np.isnan(shard).any():
                return f"{name} gives nan"
            if jax.config.jax_debug_infs and np.isinf(shard).any():
                return f"{name} gives inf"
    return None


def _with_all_results(module: bytes) -> tuple[bytes, list[str]]:
    """Returns a module whose `main` returns all its floating-point values, and names of their operations."""
    parsed = pjrt.parse(module)
    with parsed.context, ir.Location.unknown():
        symbols = ir.SymbolTable(parsed.operation)
        main = symbols["main"]
        block = main.regions[0].blocks[0]
        _inline_calls(block, symbols)
        *ops, terminator = block.operations
        values = [value for op in ops for value in op.results if _is_floating(value.type)]
        names = [_describe(value.owner) for value in values]
        with ir.InsertionPoint(terminator):
            ir.Operation.create("func.return", operands=values)
        terminator.operation.erase()
        set_signature(main, main.type.inputs, [value.type for value in values])
        set_result_attrs(main, [{} for _ in values])
        # Donation would consume the operands of the caller, and aliasing names results that are others here.
        attrs = [{k: v for k, v in a.items() if k not in (ALIASING, DONOR)} for a in argument_attrs(main)]
        set_argument_attrs(main, attrs)
    return bytecode_of(parsed), names


def _inline_calls(block: ir.Block, symbols: ir.SymbolTable) -> None:
    """Inlines all calls in a block, so that the operations of functions are checked, too."""
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


def _describe(op: ir.Operation) -> str:
    name = op.name.partition(".")[2]
    position = position_of(op.location)
    return name if position is None else f"{name} at {position}"
