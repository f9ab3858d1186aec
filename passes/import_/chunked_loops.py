"""Loops over several slices whose end depends on values, in chunks; iterations after the end do nothing."""

from __future__ import annotations

from collections.abc import Sequence

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from pathways.passes.analysis.operations import copy_into, integer
from pathways.passes.import_.branches.predicated import on_condition


def in_chunks(loop: ir.OpView, count: int) -> ir.OpView:
    """Replaces a `stablehlo.while` by one of `count` iterations, which do nothing once the loop has ended.

    Iterations pass on a counter, whether the loop has ended, and the values of the loop that iterations
    change.

    Returns:
      The new loop; its result #1 is whether the loop has ended after all its iterations.
    """
    location = loop.operation.location
    (condition,), (body,) = (region.blocks for region in loop.regions)
    # Values that stay the same need no carry: iterations read the initial values.
    following = list(list(body.operations)[-1].operands)
    changing = [n for n, argument in enumerate(body.arguments) if following[n] != argument]
    for n, init in enumerate(list(loop.operands)):
        if n not in changing:
            for value in (condition.arguments[n], body.arguments[n], loop.results[n]):
                value.replace_all_uses_with(init)
    inits = [loop.operands[n] for n in changing]
    with ir.InsertionPoint(loop), location:
        zero, step, most = map(integer, (0, 1, count))
        goes_on = _copied(
            condition, dict(zip((condition.arguments[n] for n in changing), inits, strict=True))
        )[0]
        passed = [zero, stablehlo.not_(goes_on), *inits]
        types = [value.type for value in passed]
        chunk = stablehlo.WhileOp(types, passed)
        blocks = [region.blocks.append(*types, arg_locs=[location] * len(types)) for region in chunk.regions]
    with ir.InsertionPoint(blocks[0]), location:
        # `trip_count_of` recognizes a counter from 0 to a constant.
        direction = stablehlo.ComparisonDirectionAttr.get("LT")
        stablehlo.ReturnOp([stablehlo.compare(blocks[0].arguments[0], most, direction)])
    with ir.InsertionPoint(blocks[1]), location:
        counter, done, *values = blocks[1].arguments
        iteration = on_condition(done, types[1:])
        stablehlo.ReturnOp([stablehlo.add(counter, step), *iteration.results])
    # The branch of False comes first, which is that of a loop that has not ended.
    something, nothing = (region.blocks[0] for region in iteration.regions)
    with ir.InsertionPoint(nothing), location:
        stablehlo.ReturnOp([done, *values])
    with ir.InsertionPoint(something), location:
        returned = _copied(body, dict(zip((body.arguments[n] for n in changing), values, strict=True)))
        new = [returned[n] for n in changing]
        more = _copied(condition, dict(zip((condition.arguments[n] for n in changing), new, strict=True)))
        stablehlo.ReturnOp([stablehlo.not_(*more), *new])
    for n, result in zip(changing, list(chunk.results)[2:], strict=True):
        loop.results[n].replace_all_uses_with(result)
    loop.operation.erase()
    return chunk


def _copied(block: ir.Block, mapping: dict[ir.Value, ir.Value]) -> Sequence[ir.Value]:
    """Copies a block to the insertion point, for values of its arguments; returns its results."""
    *operations, terminator = block.operations
    copy_into(operations, mapping)
    return [mapping.get(value, value) for value in terminator.operands]
