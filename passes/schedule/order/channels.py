"""Channels of transfers: each is shared by transfers whose values are read in the order of sending."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from jaxlib.mlir import ir

from pathways.dialect import ChannelOp, symbol_table
from pathways.dialect.relations.order import Event
from pathways.passes.analysis.functions import unique_name
from pathways.passes.schedule.order.positions import Span, capacity_for, first_reads

_Endpoints = tuple[str, str, ir.Type, ir.Attribute | None]
"""Source and destination of a channel, the type of its values, and their sharding there."""


@dataclasses.dataclass
class _Channel:
    """A channel in the making: when each value on it is sent and first read, in block positions."""

    name: str
    last_read: int
    spans: list[Span]


def assign_channels(module: ir.Module, main: ir.OpView, events: Sequence[Event]) -> None:
    """Gives every transfer a channel; the program has none yet.

    Args:
      events: the launches and sends, in an order that they can run in.
    """
    used_names = set(symbol_table(module))
    operations = [event.op for event in events]
    first_read = first_reads(operations)
    channels: dict[_Endpoints, list[_Channel]] = {}
    endpoints: dict[str, _Endpoints] = {}
    for n, event in enumerate(events):
        op = event.op
        if event.kind != "send":
            continue
        key = (event.slice, op.slice, op.results[0].type, op.sharding)
        read = min(first_read.get(r, len(operations)) for r in op.results)
        # A channel delivers in the order of sending: a value may only follow values that are read before it.
        fitting = (c for c in channels.setdefault(key, []) if c.last_read <= read)
        channel = next(fitting, None)
        if channel is None:
            channel = _Channel(unique_name(f"c{len(endpoints)}", used_names), read, [])
            used_names.add(channel.name)
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
                value_type=value_type,
                sharding=sharding,
                capacity=capacity_for(channel.spans),
                loc=main.operation.location,
                ip=ir.InsertionPoint(main),
            )
