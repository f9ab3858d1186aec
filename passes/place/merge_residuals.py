"""`pw-merge-residuals`: equal results of a computation are handed over once."""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Mapping, Sequence
from typing import ClassVar

from jaxlib.mlir import ir

import pathways.dialect as dialect
from pathways.dialect.operations.operation import attributes_of
from pathways.dialect.verification.forms import OUTLINED
from pathways.passes.analysis.functions import body_block, drop_arguments, inline_call, launches_by_callee
from pathways.passes.analysis.operations import has_side_effect
from pathways.passes.manager.base import Pass, main_function

_SMALL = 64
"""The number of operations up to which a function is inlined where residuals come from."""


@dataclasses.dataclass(frozen=True)
class MergeResiduals(Pass):
    """Merges equal results of a computation, so that each residual is passed on once.

    A forward that normalises its input for the queries, and again for the keys and values, saves the result
    twice for its backward. XLA computes equal values once, but keeps each result in separate memory
    until the backward of the microbatch. Here the launches that read one of them read the first, and an
    argument that always has the value of another is removed; `pw-dce` then drops unused results.

    Values are equal when the same operations make them of the same values. Small functions that the
    computation calls are inlined, so that their results are compared as well, and `pw-sink-constants` sees
    the constants that they compute. Results that the caller gets are unchanged.

    ```mlir
    // before
    %0:4 = pw.launch @f(%arg0) on @s0
    %1 = pw.launch @f_bwd(%0#0, %0#1, %0#2, %0#3) on @s0
    // after
    %0:4 = pw.launch @f(%arg0) on @s0
    %1 = pw.launch @f_bwd(%0#0, %0#3) on @s0
    ```

    Requires: no glue in `@main`.
    """

    name: ClassVar[str] = "pw-merge-residuals"
    input_forms = (OUTLINED,)

    def run(self, module: ir.Module) -> None:
        symbols = dialect.symbol_table(module)
        launches = launches_by_callee(main_function(module))
        called = {
            name
            for function in module.body.operations
            for op in dialect.nested_ops(function)
            if not dialect.only_computes(type(op)) and not isinstance(op, dialect.LaunchOp)
            for name in dialect.referenced_symbols(op)
        }
        effects: dict[str, bool] = {}
        # In program order: arguments that became one may make results equal.
        for name, group in launches.items():
            function = symbols[name]
            if not function.regions[0].blocks:
                continue
            if name not in called:
                group = _merge_arguments(function, group)
            _merge_results(function, group, symbols, effects)


def _merge_arguments(function: ir.OpView, launches: list[dialect.LaunchOp]) -> list[dialect.LaunchOp]:
    """Removes arguments that equal another one in all launches; returns the new launches."""
    first: dict[object, int] = {}
    attrs = dialect.argument_attrs(function)
    columns = zip(*(list(launch.operands) for launch in launches), strict=True)
    # Arguments with other attributes, such as another sharding, cannot take each other's place.
    same = [first.setdefault((column, frozenset(attrs[n].items())), n) for n, column in enumerate(columns)]
    merged = [n for n, representative in enumerate(same) if n != representative]
    if not merged:
        return launches
    arguments = body_block(function).arguments
    for n in merged:
        arguments[n].replace_all_uses_with(arguments[same[n]])
    return drop_arguments(function, launches, merged)


def _merge_results(
    function: ir.OpView,
    launches: Sequence[dialect.LaunchOp],
    symbols: Mapping[str, ir.OpView],
    effects: dict[str, bool],
) -> None:
    """Replaces results that launches read by the first equal result."""
    handed = {
        n
        for launch in launches
        for n, result in enumerate(launch.results)
        if any(isinstance(use.owner, dialect.LaunchOp) for use in result.uses)
    }
    if len(handed) < 2:
        return
    _inline_helpers(function, symbols)
    numbers = _value_numbers(function, symbols, effects)
    first: dict[int, int] = {}
    for n, value in enumerate(body_block(function).operations[-1].operands):
        representative = first.setdefault(numbers[value], n) if n in handed else n
        if representative == n:
            continue
        for launch in launches:
            for use in list(launch.results[n].uses):
                if isinstance(use.owner, dialect.LaunchOp):
                    use.owner.operands[use.operand_number] = launch.results[representative]


def _inline_helpers(function: ir.OpView, symbols: Mapping[str, ir.OpView]) -> None:
    """Inlines the small functions that a function calls, after their own callees."""
    for op in list(body_block(function).operations):
        # A call with attributes besides its callee is left alone.
        if op.operation.name != "func.call" or len(op.attributes) > 1:
            continue
        callee = symbols[op.attributes["callee"].value]
        if not callee.regions[0].blocks:
            continue
        if len(body_block(callee).operations) <= _SMALL:
            _inline_helpers(callee, symbols)
        # Again: inlining its own calls may have made it large.
        if len(body_block(callee).operations) <= _SMALL:
            inline_call(op, callee)


def _value_numbers(
    function: ir.OpView, symbols: Mapping[str, ir.OpView], effects: dict[str, bool]
) -> Mapping[ir.Value, int]:
    """Returns a number for each value of a computation; equal values have equal numbers."""
    block = body_block(function)
    # Local value numbering. The number of values so far is larger than any number in use, also where equal
    # values share one.
    numbers: dict[ir.Value, int] = {argument: n for n, argument in enumerate(block.arguments)}
    numbers_by_key: dict[Hashable, int] = {}
    for op in block.operations:
        fresh = len(numbers)
        is_function = op.operation.name != "stablehlo.rng" and not has_side_effect(op, symbols, effects)
        key = _key(op, numbers) if is_function else None
        number = fresh if key is None else numbers_by_key.setdefault(key, fresh)
        numbers.update((result, number + n) for n, result in enumerate(op.results))
    return numbers


def _key(op: ir.OpView, numbers: Mapping[ir.Value, int]) -> Hashable | None:
    """Returns the key of operations that do the same to the same values; None for one without equals."""
    attributes = attributes_of(op)
    # None represents an attribute that bindings cannot return: two of them may differ.
    if any(attribute is None for attribute in attributes.values()) or any(
        value not in numbers for value in op.operands
    ):
        return None
    code = [_code(region) for region in op.regions]
    if any(region_code is None for region_code in code):
        return None
    read = tuple(numbers[value] for value in op.operands)
    types = tuple(result.type for result in op.results)
    return op.operation.name, read, tuple(attributes.items()), types, tuple(code)


def _code(region: ir.Region) -> Hashable | None:
    """Returns the code of a region that reads nothing from outside; None for one that does."""
    numbers: dict[ir.Value, int] = {}
    code: list[Hashable] = []
    for block in region.blocks:
        for argument in block.arguments:
            code.append(argument.type)
            numbers[argument] = len(numbers)
        for op in block.operations:
            key = _key(op, numbers)
            if key is None:
                return None
            code.append(key)
            for result in op.results:
                numbers[result] = len(numbers)
    return tuple(code)
