"""`pw-lower-all-to-alls`: makes transfers of exchanges of blocks, at their positions on each slice."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Sequence
from typing import ClassVar

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from pathways.dialect import AllToAllOp, LaunchOp, TransferOp, argument_slices, ops_named, symbol_table
from pathways.dialect.operations.operation import op_has
from pathways.dialect.operations.traits import Trait
from pathways.dialect.relations.order import device_queues, events_of, proved_order, sort_block
from pathways.dialect.relations.program_view import read_function
from pathways.dialect.verification.forms import ORDERED
from pathways.passes.analysis.computations import Body
from pathways.passes.analysis.functions import body_block
from pathways.passes.manager.base import Pass, main_function
from pathways.passes.schedule.order.channels import assign_channels
from pathways.passes.shard.lower_transfers import LowerTransfers, Side, TransferLowering

type _Key = tuple[float, int, int]
"""The place of an operation on its slice: a position, whether it is in front of it, and a number."""


@dataclasses.dataclass(frozen=True)
class LowerAllToAlls(Pass):
    """Turns each exchange of blocks into transfers between all pairs of its slices.

    1. On each slice a launch cuts the value into its blocks, which leave at the position that the exchange
       has there: first the one for the next slice, then the one for the slice after it, so that no slice
       receives from all others at once.
    2. A transfer between unequal meshes or shardings is cut and joined as by `pw-lower-transfers`.
    3. A launch joins the received blocks, in the order of the slices, right in front of their first reader.
    4. Channels are assigned anew.

    Exchanges that leave one right after the other on all slices, such as of rows and of their counts, share
    the launches.

    Every transfer always happens, for any contents of the blocks: the proof of the order covers all of them.

    ```mlir
    // before
    %2:2 = pw.all_to_all %0, %1 on [@s0, @s1] orders array<i64: 1, 1>
    // after
    %2:2 = pw.launch @cut_blocks(%0) on @s0 order 1
    %3:2 = pw.launch @cut_blocks(%1) on @s1 order 1
    %4 = pw.transfer %2#1 to @s1 over @c0 order 2
    %5 = pw.transfer %3#0 to @s0 over @c1 order 2
    %6 = pw.launch @join_blocks(%2#0, %5) on @s0 order 3
    %9 = pw.launch @join_blocks(%4, %3#1) on @s1 order 4
    ```

    Requires: positions from `pw-schedule`.
    Guarantees: no exchange is left; the order can be met.
    """

    name: ClassVar[str] = "pw-lower-all-to-alls"
    input_forms = (ORDERED,)

    def run(self, module: ir.Module) -> None:
        main = main_function(module)
        exchanges = [op for op in body_block(main).operations if isinstance(op, AllToAllOp)]
        if not exchanges:
            return
        sources = {channel.sym_name: channel.src for channel in ops_named(module, ["pw.channel"])}
        groups = _groups(exchanges)
        first_reads = [_first_reads(group, sources) for group in groups]
        lowering = _ExchangeLowering(module, main)
        for group in groups:
            lowering.lower(group)
        _number(main, device_queues(module), sources, first_reads)
        for first, *_ in reversed(groups):
            first.operation.erase()
        events = events_of(read_function(module, symbol_table(module), main), with_capacities=False)
        in_order = [events[n] for n in proved_order(events) if events[n].kind != "receipt"]
        sort_block(main, [event.op for event in in_order])
        for op in ops_named(module, ["pw.channel"]):
            op.operation.erase()
        assign_channels(module, main, in_order)


class _ExchangeLowering:
    """Writer of launches and transfers in front of exchanges."""

    def __init__(self, module: ir.Module, main: ir.OpView) -> None:
        self.transfers = TransferLowering(module, LowerTransfers())
        self.arguments = argument_slices(main)

    def lower(self, group: Sequence[AllToAllOp]) -> None:
        """Replaces a group by launches and transfers, whose results its readers get; the first one stays."""
        first, transfers = group[0], self.transfers
        slices, count = first.slices, len(first.slices)
        transfers.loop, transfers.microbatch = first.loop, first.microbatch
        sides = [
            [transfers.side(place, transfers.layouts.of(op.operands[s], place)) for op in group]
            for s, place in enumerate(slices)
        ]
        moved: list[TransferOp] = []
        with first.operation.location, ir.InsertionPoint(first):
            sent = [
                self.launch("cut_blocks", group, sides[s], [op.operands[s] for op in group], _cut)
                for s in range(count)
            ]
            # On each slice the blocks of the first exchange, from all slices, and then of the next one.
            received = [
                [blocks[n * count + t] for n in range(len(group)) for blocks in sent] for t in range(count)
            ]
            for step in range(1, count):
                for s in range(count):
                    t = (s + step) % count
                    for n, side in enumerate(sides[t]):
                        block = n * count + s
                        moved.append(
                            TransferOp.build(
                                [received[t][block]],
                                [received[t][block].type],
                                slice=slices[t],
                                sharding=side.attribute(),
                                loop=first.loop,
                                microbatch=first.microbatch,
                            )
                        )
                        received[t][block] = moved[-1].results[0]
            joined = [
                self.launch(
                    "join_blocks", group, sides[t], received[t], functools.partial(_join, count=count)
                )
                for t in range(count)
            ]
        for n, op in enumerate(group):
            for result, values in zip(op.results, joined, strict=True):
                result.replace_all_uses_with(values[n])
        for op in reversed(group[1:]):
            op.operation.erase()
        # Where all slices have one device, each transfer copies it.
        if any(side.mesh.size > 1 for some in sides for side in some):
            for transfer in moved:
                transfers.lower(transfer, self.arguments)

    def launch(
        self,
        name: str,
        group: Sequence[AllToAllOp],
        sides: Sequence[Side],
        operands: list[ir.Value],
        body: Body,
    ) -> list[ir.Value]:
        """Launches a computation between the values of exchanges on a slice and their blocks."""
        types = [op.operands[0].type for op in group]
        key = tuple((side.mesh_name, type_, side.sharding) for side, type_ in zip(sides, types, strict=True))
        values = [side.attribute() for side in sides]
        blocks = [side.attribute() for side in sides for _ in group[0].slices]
        shardings = (values, blocks) if len(operands) == len(group) else (blocks, values)
        return self.transfers.launch_on(sides[0].slice, name, key, operands, *shardings, body)


def _cut(arguments: list[ir.Value]) -> list[ir.Value]:
    return [block for value in arguments for block in _blocks_of(value)]


def _blocks_of(value: ir.Value) -> list[ir.Value]:
    count, *rest = ir.RankedTensorType(value.type).shape
    starts, strides = [0] * len(rest), [1] * (len(rest) + 1)
    return [stablehlo.slice(value, [n, *starts], [n + 1, *rest], strides) for n in range(count)]


def _join(arguments: list[ir.Value], count: int) -> list[ir.Value]:
    return [stablehlo.concatenate(list(blocks), 0) for blocks in itertools.batched(arguments, count)]


def _groups(exchanges: Sequence[AllToAllOp]) -> list[list[AllToAllOp]]:
    """Returns groups of exchanges that leave all slices one right after the other."""
    groups: list[list[AllToAllOp]] = []
    for op in exchanges:
        if groups and _continues(groups[-1][-1], op):
            groups[-1].append(op)
        else:
            groups.append([op])
    return groups


def _continues(before: AllToAllOp, op: AllToAllOp) -> bool:
    """Returns whether the blocks of an exchange exist on each slice when the one before it leaves."""
    return (
        op.slices == before.slices
        and (op.loop, op.microbatch) == (before.loop, before.microbatch)
        and list(op.orders) == [order + 1 for order in before.orders]
        # A launch is in front of both on its slice. A received value may depend on the exchange before it.
        and all(
            isinstance(value, ir.BlockArgument) or op_has(value.owner.opview, Trait.EXECUTES)
            for value in op.operands
        )
    )


def _first_reads(group: Sequence[AllToAllOp], sources: dict[str, str]) -> list[float]:
    """Returns for each slice the position of the first reader of its received blocks."""
    return [
        min(_first_read(op.results[n], place, sources) for op in group)
        for n, place in enumerate(group[0].slices)
    ]


def _first_read(result: ir.Value, slice: str, sources: dict[str, str]) -> float:
    """Returns the position of the first reader of a value on a slice; the return comes last."""
    first = math.inf
    for use in result.uses:
        reader = use.owner.opview
        if isinstance(reader, AllToAllOp):
            place, position = reader.slices[use.operand_number], reader.orders[use.operand_number]
        elif op_has(reader, Trait.ORDERED):
            place, position = _slice_of(reader, sources), reader.order
        else:
            # The operands of a mirror or a reduction are read as its result.
            place = slice
            position = min((_first_read(r, slice, sources) for r in reader.results), default=math.inf)
        first = min(first, position if place == slice else math.inf)
    return first


def _slice_of(op: ir.OpView, sources: dict[str, str]) -> str:
    """Returns the slice that an operation has its position on."""
    return sources[op.channel] if op_has(op, Trait.TRANSFERS) else op.slice


def _number(
    main: ir.OpView,
    queues: dict[str, str],
    sources: dict[str, str],
    first_reads: Sequence[Sequence[float]],
) -> None:
    """Numbers the operations of each slice, with the ones that were added in front of exchanges.

    Args:
      queues: the queue of each slice.
      sources: the slice that each channel starts at.
      first_reads: for each group of exchanges the positions of the first readers of its results.
    """
    members: dict[str, list[tuple[_Key, LaunchOp | TransferOp]]] = {}
    of_exchanges = iter(first_reads)
    added: list[LaunchOp | TransferOp] = []
    for op in body_block(main).operations:
        if isinstance(op, AllToAllOp):
            _place(op, next(of_exchanges), added, queues, members)
            added = []
        elif op_has(op, Trait.ORDERED) and op.order is None:
            added.append(op)
        elif op_has(op, Trait.ORDERED):
            members.setdefault(queues[_slice_of(op, sources)], []).append(((op.order, 1, 0), op))
    for keyed in members.values():
        # Sorting is stable, and keys of different operations of one exchange differ.
        keyed.sort(key=lambda pair: pair[0])
        for number, (_, op) in enumerate(keyed):
            op.order = number


def _place(
    exchange: AllToAllOp,
    first_reads: Sequence[float],
    added: Sequence[LaunchOp | TransferOp],
    queues: dict[str, str],
    members: dict[str, list[tuple[_Key, LaunchOp | TransferOp]]],
) -> None:
    """Gives the operations that were added for an exchange their keys on their slices."""
    leaving = dict(zip(exchange.slices, exchange.orders, strict=True))
    arriving = dict(zip(exchange.slices, first_reads, strict=True))
    moved: set[ir.Value] = set()
    homes: dict[ir.Value, str] = {}
    for number, op in enumerate(added):
        is_transfer = isinstance(op, TransferOp)
        slice = homes[op.operands[0]] if is_transfer else op.slice
        arrives = not moved.isdisjoint(op.operands)
        key = (arriving[slice], 0, number) if arrives else (leaving[slice], 1, number)
        members.setdefault(queues[slice], []).append((key, op))
        homes.update(dict.fromkeys(op.results, op.slice))
        if is_transfer or arrives:
            moved.update(op.results)
