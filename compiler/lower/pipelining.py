"""Whether the microbatches of a program go through its slices as a pipeline, and if not, why."""

from __future__ import annotations

from collections.abc import Iterator

from jaxlib.mlir import ir

from pathways.dialect import LaunchOp, LoopOp, ops_named, symbol_table
from pathways.dialect.attributes.names import MAIN
from pathways.dialect.verification.forms import working_modules


def why_not_pipelined(module: ir.Module, schedule: str | None) -> Iterator[str]:
    """Says of each loop why its microbatches do not overlap, and what to do; nothing where they do.

    Args:
      module: the program, scheduled.
      schedule: the policy or file that the user asked for; None for none, or each loop for its own.
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
    said: set[tuple[str, ...]] = set()
    for loop in loops:
        places = sorted(slices.get(loop.sym_name, ()))
        what = f"pw.accumulate of '{loop.sym_name}'"
        # Replicas do what the first of them does.
        if loop.count == 1 or tuple(places) in said or loop.replica_of is not None:
            continue
        # In a loop of several turns there is one of it for each turn.
        said.add(tuple(places))
        if not places:
            yield f"{what} calls no pw.jit function: nothing is pipelined"
        elif len(places) == 1 and (schedule or loop.schedule):
            yield f"{what} calls functions on slice {places[0]} alone: nothing is pipelined"
        elif len(places) > 1 and not (schedule or loop.schedule):
            yield (
                f"{what} has no schedule, so that its microbatches run one after the other: give pw.program "
                "schedule='1f1b', for example"
            )
