"""`pw-sink-constants`: values that depend on no argument are recomputed by their readers."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import ClassVar

from jaxlib.mlir import ir

from pathways.dialect import LaunchOp, nested_ops, referenced_symbols, symbol_table
from pathways.dialect.verification.forms import OUTLINED
from pathways.passes.analysis.functions import (
    body_block,
    drop_arguments,
    launches_by_callee,
    referenced_functions,
)
from pathways.passes.analysis.operations import EXPENSIVE, captured, copy_into, has_side_effect
from pathways.passes.manager.base import Pass, main_function

_CONSTRAINT = "sdy.sharding_constraint"

_HEAVY = EXPENSIVE | {"stablehlo.while"}
"""Operations that are not repeated."""


@dataclasses.dataclass(frozen=True)
class SinkConstants(Pass):
    """Recomputes values that do not depend on arguments in the computations that read them.

    JAX passes masks, counters and scalars from a forward to its backward as residuals: they
    would stay in memory in between, and a backward that reads them would differ from one that is fused with
    its forward. An argument is removed if all launches of its computation read the same such result; `pw-dce`
    then drops the result. Expensive operations, loops and side effects are not repeated, and a computation
    that computes only constants keeps them. Repeated code has no sharding constraints, since they name the
    mesh of the slice that computed the constant before.

    ```mlir
    // before
    %0:2 = pw.launch @front(%arg0) on @s0 [fwd]
    %1 = pw.launch @back(%0#0, %0#1) on @s0 [bwd]
    // after
    %0:2 = pw.launch @front(%arg0) on @s0 [fwd]
    %1 = pw.launch @back(%0#0) on @s0 [bwd]
    ```

    Requires: no glue in `@main`.
    """

    name: ClassVar[str] = "pw-sink-constants"
    input_forms = (OUTLINED,)

    def run(self, module: ir.Module) -> None:
        symbols = symbol_table(module)
        launches = launches_by_callee(main_function(module))
        called = {name for op in module.body.operations for o in nested_ops(op) for name in _called(o)}
        effects: dict[str, bool] = {}
        by_callee: dict[str, _Constants] = {}
        # In program order: a constant argument of one computation may turn its results into constants.
        for name, group in launches.items():
            function = symbols[name]
            if not function.regions[0].blocks:
                continue
            if name not in called:
                launches[name] = group = _sink(function, group, by_callee)
            constants = _Constants(function, symbols, effects)
            read = {n for launch in group for n, r in enumerate(launch.results) if any(True for _ in r.uses)}
            if any(n not in constants for n in read):
                by_callee[name] = constants


def _called(op: ir.OpView) -> Sequence[str]:
    """Returns the functions that an operation names, except its computation."""
    return [] if isinstance(op, LaunchOp) else list(referenced_symbols(op))


class _Constants:
    """Results that a computation computes from nothing, with the operations that they need."""

    def __init__(
        self, function: ir.OpView, symbols: Mapping[str, ir.OpView], effects: dict[str, bool]
    ) -> None:
        *operations, terminator = body_block(function).operations
        self._operations: dict[ir.Value, ir.OpView] = {}
        for op in operations:
            from_nothing = all(v in self._operations for v in captured(op))
            if from_nothing and _is_cheap(op, symbols) and not has_side_effect(op, symbols, effects):
                self._operations.update((r, op) for r in op.results)
        self.returned = list(terminator.operands)

    def __contains__(self, number: int) -> bool:
        return self.returned[number] in self._operations

    def repeated(self, number: int) -> ir.Value:
        """Works out a result at the insertion point."""
        needed: set[ir.Value] = set()
        pending = [self.returned[number]]
        while pending:
            value = pending.pop()
            # A chain of values that are read twice has exponentially many paths.
            if value not in needed:
                needed.add(value)
                pending += captured(self._operations[value])
        mapping: dict[ir.Value, ir.Value] = {}
        # In program order, each value comes before all that read it.
        for value, op in self._operations.items():
            if value in needed and value not in mapping:
                if op.operation.name == _CONSTRAINT:
                    # A constraint names the mesh of the slice that the constant comes from.
                    mapping[value] = mapping[op.operands[0]]
                    continue
                copy_into([op], mapping)
        return mapping[self.returned[number]]


def _is_cheap(op: ir.OpView, symbols: Mapping[str, ir.OpView]) -> bool:
    """Returns whether an operation, with its callees, is cheap."""
    if op.operation.name == _CONSTRAINT:
        return True
    inside = (op, *nested_ops(op))
    if any(inner.operation.name in _HEAVY or inner.operation.name.startswith("sdy.") for inner in inside):
        return False
    called = [f for inner in (op, *nested_ops(op)) for f in referenced_functions(inner, symbols)]
    return all(_is_cheap(function, symbols) for function in called)


def _sink(
    function: ir.OpView, launches: Sequence[LaunchOp], by_callee: Mapping[str, _Constants]
) -> list[LaunchOp]:
    """Removes arguments of a computation that are constant in all its launches; returns the new launches."""
    sources = [
        {_source(launch.operands[n], by_callee) for launch in launches}
        for n in range(len(launches[0].operands))
    ]
    constant = {n: s for n, (s, *rest) in enumerate(sources) if s is not None and not rest}
    if not constant:
        return list(launches)
    block = body_block(function)
    with ir.InsertionPoint.at_block_begin(block), function.operation.location:
        for n, (callee, number) in constant.items():
            block.arguments[n].replace_all_uses_with(by_callee[callee].repeated(number))
    return drop_arguments(function, launches, constant)


def _source(value: ir.Value, by_callee: Mapping[str, _Constants]) -> tuple[str, int] | None:
    """Returns the computation and the number of a constant result; None for any other value."""
    if isinstance(value, ir.BlockArgument) or not isinstance(value.owner.opview, LaunchOp):
        return None
    callee, number = value.owner.opview.callee, ir.OpResult(value).result_number
    return (callee, number) if callee in by_callee and number in by_callee[callee] else None
