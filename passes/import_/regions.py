"""Loops and branches of JAX, which are opened if they span several slices, and placed if they do not."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, NoReturn

from jaxlib.mlir import ir

from pathways.dialect import LoopOp, PwOp, UntilOp, make_slices, only_computes
from pathways.dialect.attributes.names import MAX_MICROBATCHES, SLICE
from pathways.passes.analysis.functions import body_block, unique_name
from pathways.passes.analysis.operations import has_side_effect, replace
from pathways.passes.analysis.trip_count import trip_count_of
from pathways.passes.import_.branches.open_branches import BRANCHING, open_branches
from pathways.passes.import_.branches.tags import branch_of, set_branch
from pathways.passes.import_.chunked_loops import in_chunks
from pathways.passes.import_.inline_calls import Inliner
from pathways.passes.import_.opened_loops import OpenedLoop, drop_dead_carries
from pathways.passes.import_.traced import NESTED_LOOPS, TracedProgram
from pathways.passes.manager.base import fail


def open_regions(traced: TracedProgram, inliner: Inliner, chunk: int) -> None:
    """Opens loops and branches of JAX that span several slices, outer ones first.

    Args:
      chunk: the iterations in a chunk of a loop whose end depends on values.
    """
    mover = _RegionMover(traced, inliner, chunk)
    pending = [_Region(op, None) for op in reversed(_regions_among(body_block(traced.main).operations))]
    while pending:
        pending += reversed(mover.opened(pending.pop()))
    if mover.loops:
        drop_dead_carries(traced.main, traced.symbols)


def place_regions(traced: TracedProgram) -> None:
    """Gives loops, branches and other operations that hold placed calls the slice of these."""
    for op in body_block(traced.main).operations:
        if only_computes(type(op)) or op.operation.name == "func.call" or isinstance(op, PwOp):
            continue
        placed = traced.placements_inside(op, set())
        if len(placed) > 1:
            _refuse_slices_inside(traced, op, list(placed.values()))
        for name in placed:
            op.attributes[SLICE] = make_slices((traced.slice_symbol(op, name),))


class _Region(NamedTuple):
    """A loop or branch of JAX in `@main`, with the loop that it is inside of."""

    op: ir.OpView
    loop: str | None


class _RegionMover:
    """Mover of loops and branches to `@main`."""

    def __init__(self, traced: TracedProgram, inliner: Inliner, chunk: int) -> None:
        self.traced = traced
        self.chunk = chunk
        self.inliner = inliner
        self.loops: list[LoopOp] = []
        self.conditions: set[str] = set()
        self.effects: dict[str, bool] = {}

    def opened(self, region: _Region) -> list[_Region]:
        """Opens an operation if it must be; returns the loops and branches that this brings to `@main`."""
        op, loop = region
        if op.operation.name in BRANCHING:
            _refuse_loops_inside(self.traced, op)
            return [_Region(inner, loop) for inner in self.open_branches(op)] if self.is_cut(op) else []
        return self.open_loop(op, loop) if self.traced.spans_slices(op) else []

    def is_cut(self, op: ir.OpView) -> bool:
        """Returns whether branches are cut by slice: their calls are of several slices, or there are none."""
        placed = self.traced.placements_inside(op, set())
        if placed:
            return self.traced.spans_slices(op)
        return not has_side_effect(op, self.traced.symbols, self.effects)

    def open_branches(self, op: ir.OpView) -> list[ir.OpView]:
        for region in op.regions:
            self.inliner.inline_block(region.blocks[0], self.traced.main)
        return _regions_among(open_branches(op, self.conditions))

    def open_loop(self, op: ir.OpView, around: str | None) -> list[_Region]:
        """Makes a loop of one operation."""
        trips, branch = trip_count_of(op), branch_of(op)
        is_chunked = trips is None
        if trips is None:
            self.check_chunked(op, around)
            op = in_chunks(op, self.chunk)
            # The condition of a first iteration is computed in front of the loop.
            self.inliner.inline_block(body_block(self.traced.main), self.traced.main)
            trips = trip_count_of(op)
            assert trips is not None
        if trips.count == 0:
            replace(op, op.operands)
            return []
        if trips.count > MAX_MICROBATCHES:
            fail(
                self.traced.reason_inside(op),
                f"is in a loop over several slices that takes {trips.count} iterations; loops are unrolled "
                f"and takes at most {MAX_MICROBATCHES}",
            )
        name = unique_name("loop", self.traced.symbols)
        loop = LoopOp.build(
            sym_name=name,
            count=trips.count,
            sequential=True,
            parent=around,
            loc=op.operation.location,
            ip=ir.InsertionPoint(self.traced.main),
        )
        self.traced.symbols[name] = loop
        if is_chunked:
            # The trip count of a chunk is all that is known of that of the loop.
            loop.chunk, loop.count = loop.count, None
            ip = ir.InsertionPoint.after(op)
            UntilOp.build([op.results[1]], loop=name, loc=op.operation.location, ip=ip)
        opened = OpenedLoop(op, trips, loop)
        self.inliner.inline_block(opened.body, self.traced.main)
        body = opened.move()
        for inner in body:
            _enter_loop(self.traced, inner, loop)
            if not isinstance(inner, PwOp):
                set_branch(inner, branch)
        # Before `close`, which erases some of them.
        inside = [_Region(inner, name) for inner in _regions_among(body)]
        opened.close(body, self.traced.symbols)
        self.loops.append(loop)
        return inside

    def check_chunked(self, op: ir.OpView, around: str | None) -> None:
        """Refuses loops whose trip count depends on values where they cannot be in chunks."""
        calls = self.traced.calls_inside(op, set())
        if around is not None:
            place = "inside of another one"
            remedy = (
                "place the function with the whole inner loop on one slice, write the outer loop in Python, "
                "or use jax.lax.scan with a mask for the inner one"
            )
        elif branch_of(op) is not None:
            place = "inside of a branch (jax.lax.cond, switch)"
            remedy = "place the function with the whole loop on one slice, or use jax.lax.scan with a mask"
        elif any(self.traced.metadata_of(inner).loop is not None for inner in calls):
            place = "with a pw.accumulate in it"
            remedy = (
                "write that loop in Python, around calls of the program, or use jax.lax.scan or fori_loop "
                "with a known number of iterations"
            )
        else:
            return
        fail(
            self.traced.reason_inside(op),
            f"is in a loop over several slices whose trip count is not known while tracing, {place}: {remedy}"
            f"; see {NESTED_LOOPS}",
        )


def _enter_loop(traced: TracedProgram, op: ir.OpView, loop: LoopOp) -> None:
    """Notes that an operation is in a loop, for the one that it may be of itself."""
    metadata = traced.metadata_of(op)
    if metadata.loop is not None:
        traced.loop_symbol(op, metadata).parent = loop.sym_name


def _refuse_slices_inside(traced: TracedProgram, op: ir.OpView, calls: Sequence[ir.OpView]) -> NoReturn:
    """Refuses calls of several slices in regions other than loops and branches, such as reductions."""
    first, second = (traced.metadata_of(call) for call in calls[:2])
    fail(
        calls[1],
        f"'{second.name or '?'}' is placed on @{second.slice}, and '{first.name or '?'}' on @{first.slice}, "
        f"but both are called inside one {op.operation.name}, which runs on one slice; call them from the "
        "program instead",
    )


def _refuse_loops_inside(traced: TracedProgram, op: ir.OpView) -> None:
    for inner in traced.calls_inside(op, set()):
        if traced.metadata_of(inner).loop is not None:
            fail(
                inner,
                "is inside of a branch (jax.lax.cond, switch): call pw.accumulate from the program itself",
            )


def _regions_among(operations: Iterable[ir.OpView]) -> list[ir.OpView]:
    """Returns the loops and branches of JAX among operations."""
    return [op for op in operations if op.operation.name in BRANCHING | {"stablehlo.while"}]
