"""Loops and branches of JAX that hold placed calls: loops over slices are opened, all else has one slice."""

from __future__ import annotations

from collections.abc import Iterable

from jaxlib.mlir import ir

from pathways.dialect import LoopOp, PwOp, loop_of_op, make_slices, only_computes, set_loop
from pathways.dialect.attributes.names import MOST_MICROBATCHES, SLICE
from pathways.passes.import_.inline_calls import Inliner
from pathways.passes.import_.opened_loops import OpenedLoop, drop_dead_carries
from pathways.passes.import_.traced import TracedProgram
from pathways.passes.manager.base import fail
from pathways.passes.util.functions import body_block, unique_name
from pathways.passes.util.turns import turns_of


def open_loops(traced: TracedProgram, inliner: Inliner) -> None:
    """Makes loops of what JAX repeats over several slices, outer ones first."""
    opened = False
    pending = _loops_among(body_block(traced.main).operations)[::-1]
    while pending:
        op = pending.pop()
        if traced.spans_slices(op):
            pending += reversed(_open_loop(traced, inliner, op))
            opened = True
    if opened:
        drop_dead_carries(traced.main, traced.symbols)


def place_regions(traced: TracedProgram) -> None:
    for op in body_block(traced.main).operations:
        if only_computes(type(op)) or op.operation.name == "func.call" or isinstance(op, PwOp):
            continue
        _refuse_loops_inside(traced, op)
        placed = traced.placements_inside(op, set())
        if len(placed) > 1:
            first, second = list(placed.items())[:2]
            fail(
                second[1],
                f"is placed on @{second[0]} inside a branch that also holds a call placed on "
                f"@{first[0]}: what is done on a condition must stay on one slice; use jnp.where on the "
                "results of both branches",
            )
        for name in placed:
            op.attributes[SLICE] = make_slices((traced.slice_symbol(op, name),))


def _open_loop(traced: TracedProgram, inliner: Inliner, op: ir.OpView) -> list[ir.OpView]:
    """Makes a loop of one operation; returns the loops of JAX that its body brings to `@main`."""
    turns = turns_of(op)
    if turns is None:
        fail(
            traced.reason_inside(op),
            "is in a loop over several slices whose number of turns is not known while tracing: use "
            "jax.lax.scan, or jax.lax.fori_loop with bounds that are Python numbers",
        )
    if turns.count == 0:
        for old, init in zip(op.results, op.operands, strict=True):
            old.replace_all_uses_with(init)
        op.operation.erase()
        return []
    if turns.count > MOST_MICROBATCHES:
        fail(
            traced.reason_inside(op),
            f"is in a loop over several slices that takes {turns.count} turns; such a loop is unrolled "
            f"and takes at most {MOST_MICROBATCHES}",
        )
    name = unique_name("loop", traced.symbols)
    loop = LoopOp.build(
        sym_name=name,
        count=turns.count,
        sequential=True,
        parent=loop_of_op(op),
        loc=op.operation.location,
        ip=ir.InsertionPoint(traced.main),
    )
    traced.symbols[name] = loop
    opened = OpenedLoop(op, turns, loop)
    inliner.inline_block(opened.body, traced.main)
    body = opened.move()
    for inner in body:
        _enter_loop(traced, inner, loop)
    inner_loops = _loops_among(body)
    opened.close(body, traced.symbols)
    return inner_loops


def _enter_loop(traced: TracedProgram, op: ir.OpView, loop: LoopOp) -> None:
    """Notes that an operation is in a loop, for the loops that it may be, or be of, itself."""
    if op.operation.name == "stablehlo.while" and traced.spans_slices(op):
        set_loop(op, loop.sym_name)
    metadata = traced.metadata_of(op)
    if metadata.loop is not None:
        traced.loop_symbol(op, metadata).parent = loop.sym_name


def _refuse_loops_inside(traced: TracedProgram, op: ir.OpView) -> None:
    for inner in traced.calls_inside(op, set()):
        if traced.metadata_of(inner).loop is not None:
            fail(
                inner,
                "is part of a pw.accumulate inside a branch (jax.lax.cond, switch); call pw.accumulate "
                "from the program itself",
            )


def _loops_among(operations: Iterable[ir.OpView]) -> list[ir.OpView]:
    return [op for op in operations if op.operation.name == "stablehlo.while"]
