"""`pw-schedule`: gives every launch and send its position on its slice, and every transfer a channel."""

from __future__ import annotations

import dataclasses
import difflib
from typing import ClassVar

from jaxlib.mlir import ir

from pathways.dialect import (
    ChannelOp,
    LaunchOp,
    ReduceOp,
    SplitOp,
    TransferOp,
    argument_slices,
    ops_named,
    slices_of,
    symbol_table,
)
from pathways.passes._channels import Span, capacity_for, first_reads
from pathways.passes._order import device_queues
from pathways.passes.base import Pass, fail, main_function, option
from pathways.passes.ir_utils import body_block, unique_name

POLICIES = ("program",)


@dataclasses.dataclass(frozen=True)
class Schedule(Pass):
    """Orders the launches and sends of each slice and assigns channels.

    Slices that may share devices have one order together.

    Policies: `program` keeps the order of the program.

    Transfers of one type and sharding between two slices share a channel as long as their values are
    first read in the order in which they are sent; a channel's capacity is what that order needs so that
    no send waits for room.

    Requires: placed form, without loops.
    Guarantees: every launch and transfer has an `order`, every transfer a `channel`.
    """

    name: ClassVar[str] = "pw-schedule"
    policy: str = option("program", "the order of launches on each slice: program")

    def run(self, module: ir.Module) -> None:
        main = main_function(module)
        if self.policy not in POLICIES:
            near = difflib.get_close_matches(self.policy, POLICIES, 1) or POLICIES
            fail(main, f"cannot be scheduled by unknown policy '{self.policy}'; did you mean '{near[0]}'?")
        operations = list(body_block(main).operations)
        arguments = argument_slices(main)
        queues = device_queues(module)
        counters: dict[str, int] = {}
        for op in operations:
            match op:
                case LaunchOp():
                    place = op.slice
                case TransferOp():
                    place = _source(op, arguments)
                case SplitOp() | ReduceOp():
                    if isinstance(op, SplitOp) or len(op.operands) == 1:
                        fail(op, "is part of a loop that is not unrolled; run pw-unroll-microbatches first")
                    continue
                case _:
                    continue
            op.order = counters.get(queues[place], 0)
            counters[queues[place]] = op.order + 1
        _assign_channels(module, main, operations, arguments)


def _source(op: TransferOp, arguments: list[tuple[str, ...] | None]) -> str:
    slices = slices_of(op.operands[0], arguments)
    if not slices:
        fail(op, "moves a value that is not placed; run pw-infer-placement first")
    return slices[0]


_Endpoints = tuple[str, str, ir.Type, ir.Attribute | None]
"""Source and destination of a channel, the type of its values, and how they lie over the destination."""


@dataclasses.dataclass
class _Channel:
    """A channel in the making: when each value on it is sent and first read, in block positions."""

    name: str
    last_read: int
    spans: list[Span]


def _assign_channels(
    module: ir.Module,
    main: ir.OpView,
    operations: list[ir.OpView],
    arguments: list[tuple[str, ...] | None],
) -> None:
    for op in ops_named(module, ["pw.channel"]):
        op.operation.erase()
    taken = set(symbol_table(module))
    first_read = first_reads(operations)
    channels: dict[_Endpoints, list[_Channel]] = {}
    endpoints: dict[str, _Endpoints] = {}
    for n, op in enumerate(operations):
        if not isinstance(op, TransferOp):
            continue
        key = (_source(op, arguments), op.slice, op.results[0].type, op.sharding)
        read = min(first_read.get(r, len(operations)) for r in op.results)
        fitting = (c for c in channels.setdefault(key, []) if c.last_read <= read)
        channel = next(fitting, None)
        if channel is None:
            channel = _Channel(unique_name(f"c{len(endpoints)}", taken), read, [])
            taken.add(channel.name)
            channels[key].append(channel)
            endpoints[channel.name] = key
        channel.last_read = read
        channel.spans.append((n, read))
        op.channel = channel.name
    for group in channels.values():
        for channel in group:
            src, dst, value_type, sharding = endpoints[channel.name]
            ChannelOp.build(
                sym_name=channel.name,
                src=src,
                dst=dst,
                type=value_type,
                sharding=sharding,
                capacity=capacity_for(channel.spans),
                loc=main.operation.location,
                ip=ir.InsertionPoint(main),
            )
