"""Launches of the placed calls of a traced program."""

from __future__ import annotations

from jaxlib.mlir import ir

from pathways.dialect import LaunchOp, Origin, PwOp, loop_of_op, nested_ops, only_computes, symbol_table
from pathways.dialect.operations.metadata import CallMetadata
from pathways.passes.analysis.functions import (
    body_block,
    referenced_functions,
    rename_references,
    unique_name,
)
from pathways.passes.analysis.operations import replace
from pathways.passes.import_.branches.predicated import Predicates, drop_selections, make_predicated
from pathways.passes.import_.branches.tags import branch_of, conditions
from pathways.passes.import_.stage_numbers import PlacedCall
from pathways.passes.import_.traced import TracedProgram
from pathways.passes.manager.base import fail


def make_launches(traced: TracedProgram) -> list[PlacedCall]:
    """Makes a launch of each placed call; returns them in their order, and brings the symbols up to date."""
    handed_on = drop_selections(traced.main)
    calls: list[PlacedCall] = []
    predicates = Predicates(conditions(traced.main))
    predicated: dict[tuple[str, tuple[int | None, ...]], str] = {}
    renamed: dict[str, str] = {}
    used_names = set(traced.symbols)
    for op in list(body_block(traced.main).operations):
        if op.operation.name != "func.call":
            continue
        metadata = traced.metadata_of(op)
        slice_name = traced.slice_symbol(op, metadata.slice or "")
        callee = op.attributes["callee"].value
        if callee not in renamed:
            base = metadata.name or callee
            _check_nested(traced, callee, slice_name, base)
            base = base if metadata.kind == "fwd" else f"{base}_{metadata.kind}"
            renamed[callee] = unique_name(base, used_names - {callee})
            used_names.add(renamed[callee])
        operands, computation, branch = list(op.operands), renamed[callee], branch_of(op)
        if branch is not None:
            # Calls of one function may hand on different operands, and then need computations of their own.
            key = callee, tuple(map(handed_on.get, op.results))
            if key not in predicated:
                predicated[key] = unique_name(f"{computation}_if", used_names)
                used_names.add(predicated[key])
            operands, computation = [predicates.of(branch), *operands], predicated[key]
        origin = Origin(metadata.kind, metadata.stage, when=branch is not None)
        launch = LaunchOp.build(
            operands,
            [r.type for r in op.results],
            callee=computation,
            slice=slice_name,
            loop=loop_of_op(op),
            loc=op.operation.location,
            ip=ir.InsertionPoint(op),
        )
        calls.append(PlacedCall(launch, metadata.call, origin, metadata.lineage))
        replace(op, launch.results)
    _rename_functions(traced, renamed)
    for (callee, numbers), name in predicated.items():
        make_predicated(traced.symbols[callee], name, numbers)
    traced.symbols = symbol_table(traced.module)
    return calls


def _check_nested(traced: TracedProgram, callee: str, slice_name: str, name: str) -> None:
    for other, inner in traced.placements_inside(traced.symbols[callee], {callee}).items():
        if other != slice_name:
            fail(
                inner,
                f"is placed on @{other} but called inside '{name}', which is placed on @{slice_name}; call "
                "it from the program instead",
            )


def _rename_functions(traced: TracedProgram, renamed: dict[str, str]) -> None:
    """Renames the functions that launches call, also in regions and functions with metadata already read."""
    # Not before all of it was read: functions are shared by regions and by launches of several slices.
    pending = [op for op in body_block(traced.main).operations if not isinstance(op, PwOp)]
    pending += [traced.symbols[name] for name in renamed]
    seen = set(renamed)
    while pending:
        current = pending.pop()
        for inner in (current, *nested_ops(current)):
            if only_computes(type(inner)):
                continue
            if inner.operation.name == "func.call":
                CallMetadata().write(inner)
            names = {f.attributes["sym_name"].value for f in referenced_functions(inner, traced.symbols)}
            pending += [traced.symbols[name] for name in sorted(names - seen)]
            seen |= names
            if not names.isdisjoint(renamed):
                rename_references(inner, renamed)
    for old, new in renamed.items():
        traced.symbols[old].attributes["sym_name"] = ir.StringAttr.get(new)
