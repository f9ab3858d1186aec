"""Exchanges of blocks in a traced program, and the slices that take part in each."""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Mapping, Sequence

from jaxlib.mlir import ir

from pathways.dialect import AllToAllOp, Slices, argument_slices, loop_of_op, slices_of_op
from pathways.passes.analysis.functions import body_block
from pathways.passes.analysis.operations import captured, replace
from pathways.passes.import_.traced import TracedProgram
from pathways.passes.manager.base import fail


@dataclasses.dataclass
class BlockExchange:
    """An exchange of blocks, on the slices of its blocks.

    Attributes:
      number: the number of the exchange of the program that it stems from.
      derived: whether it is on the slices of the exchange of the program, as are cotangents and counts.
    """

    op: AllToAllOp
    number: str
    derived: bool


def make_exchanges(traced: TracedProgram) -> list[BlockExchange]:
    """Replaces each call of `pw.all_to_all` by an exchange, whose slices are named once launches exist."""
    exchanges: list[BlockExchange] = []
    for call in list(body_block(traced.main).operations):
        metadata = traced.metadata_of(call)
        if metadata.exchange is None:
            continue
        if len(call.operands) != len(call.results):
            fail(call, f"exchanges {len(call.operands)} blocks, but has {len(call.results)} results")
        op = AllToAllOp.build(
            list(call.operands),
            [result.type for result in call.results],
            slices=[],
            loop=loop_of_op(call),
            loc=call.operation.location,
            ip=ir.InsertionPoint(call),
        )
        replace(call, op.results)
        exchanges.append(BlockExchange(op, metadata.exchange, metadata.kind == "bwd"))
    return exchanges


def place_exchanges(main: ir.OpView, exchanges: Sequence[BlockExchange]) -> None:
    """Names the slices of each exchange; a derived one has the slices of the exchange of the program.

    A block is on the slice of the placed calls that it is computed from.
    """
    by_op = {exchange.op.operation: exchange for exchange in exchanges}
    block = body_block(main)
    slices_by_value = {
        argument: places
        for argument, places in zip(block.arguments, argument_slices(main), strict=True)
        if places is not None
    }
    of_number: dict[str, list[Slices]] = {}
    for op in block.operations if exchanges else ():
        if op.operation in by_op:
            slices = _slices_of(by_op[op.operation], slices_by_value, of_number)
            op.slices = slices
            slices_by_value.update(
                (result, (place,)) for result, place in zip(op.results, slices, strict=True)
            )
            continue
        places = slices_of_op(op)
        if places is None:
            read = (slices_by_value[value] for value in captured(op) if value in slices_by_value)
            places = tuple(dict.fromkeys(place for some in read for place in some))
        if places:
            slices_by_value.update(dict.fromkeys(op.results, places))


def _slices_of(
    exchange: BlockExchange, slices_by_value: Mapping[ir.Value, Slices], of_number: dict[str, list[Slices]]
) -> Slices:
    """Returns the slices of an exchange."""
    places = [slices_by_value.get(value, ()) for value in exchange.op.operands]
    candidates = of_number.setdefault(exchange.number, [])
    if exchange.derived and candidates:
        # More than one if JAX has reused the trace of a function: then the exchange of the same blocks.
        return max(candidates, key=lambda some: sum(map(operator.contains, places, some)))
    slices = _checked(exchange.op, places)
    candidates.append(slices)
    return slices


def _checked(op: AllToAllOp, places: Sequence[Slices]) -> Slices:
    """Returns the slice of each block, all different."""
    for number, some in enumerate(places):
        prefix = f"exchanges block {number} of type {op.operands[number].type}"
        if not some:
            fail(
                op,
                f"{prefix}, which is on no slice: let a function placed by pw.jit return it, whose slice "
                "takes part",
            )
        if len(some) > 1:
            names = " and ".join(f"@{s}" for s in some)
            fail(op, f"{prefix}, which is on {names}: each block is on one slice, and so are its counts")
        if some in places[:number]:
            other = places.index(some)
            fail(
                op,
                f"{prefix} on @{some[0]}, where block {other} is already: each slice takes part once, so "
                "place one of them on another slice",
            )
    return tuple(some[0] for some in places)
