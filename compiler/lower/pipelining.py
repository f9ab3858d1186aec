"""Warnings about programs whose microbatches do not overlap, with the reason."""

from __future__ import annotations

from collections.abc import Iterator

from jaxlib.mlir import ir

from pathways.dialect import LaunchOp, LoopOp, ops_named, symbol_table
from pathways.dialect.attributes.names import MAIN
from pathways.dialect.verification.forms import working_modules


def why_not_pipelined(module: ir.Module, schedule: str | None) -> Iterator[str]:
    """Yields for each loop why its microbatches do not overlap, and the remedy; nothing for pipelined loops.

    Args:
      module: the program, scheduled.
      schedule: the policy or file that the user requested; None for none, or for one per loop.
    """
    parts = working_modules(module)
    loops = [
        op
        for part in parts
        for op in ops_named(part, ["pw.loop"])
        if isinstance(op, LoopOp) and not op.sequential
    ]
    if schedule is not None and not loops:
        yield (
            f"schedule '{schedule}' orders the microbatches of pw.accumulate, but there is none: "
            "nothing is pipelined"
        )
    slices: dict[str, set[str]] = {}
    for op in (op for part in parts for op in symbol_table(part)[MAIN].regions[0].blocks[0].operations):
        if isinstance(op, LaunchOp) and op.loop is not None and not op.is_glue:
            slices.setdefault(op.loop, set()).add(op.slice)
    reported: set[tuple[str, ...]] = set()
    for loop in loops:
        places = sorted(slices.get(loop.sym_name, ()))
        subject = f"pw.accumulate of '{loop.sym_name}'"
        # Replicas have the placement of the first of them.
        if loop.count == 1 or tuple(places) in reported or loop.replica_of is not None:
            continue
        # A loop with iterations stands in the module once for each of them after unrolling.
        reported.add(tuple(places))
        if not places:
            yield f"{subject} calls no pw.jit function: nothing is pipelined"
        elif len(places) == 1 and (schedule or loop.schedule):
            yield f"{subject} calls functions on slice {places[0]} alone: nothing is pipelined"
        elif len(places) > 1 and not (schedule or loop.schedule):
            yield (
                f"{subject} has no schedule, so that its microbatches run one after the other: give "
                "pw.program schedule='1f1b', for example"
            )
