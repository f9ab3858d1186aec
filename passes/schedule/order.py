"""Order as data: the constraints between launches and transfers, and the proof that they can be met.

The events of a program are its launches, its sends (one per transfer, on the source slice) and its
receipts (one per transfer, at the first launch on the destination that reads it). They constrain each
other in four ways:

- data: a launch or send waits for what it reads;
- slice order: a slice runs its launches and sends in the order of their `order` attributes, and slices
  that may share devices have one order together;
- channel order: values are received in the order in which they were sent;
- channel capacity: a send waits until there is room for its value.

If these constraints have a topological order, running the events by it never blocks: there is no
deadlock. If not, they hold a cycle, and no execution gets past it.
"""

from __future__ import annotations

import dataclasses
import heapq
import itertools
from collections.abc import Iterator, Sequence

from jaxlib.mlir import ir

from pathways.dialect import (
    ChannelOp,
    LaunchOp,
    MirrorOp,
    ReduceOp,
    TransferOp,
    argument_slices,
    ops_named,
    slices_of,
)
from pathways.passes.base import fail
from pathways.passes.util.ir_utils import body_block


def device_queues(module: ir.Module) -> dict[str, str]:
    """For each slice the name of the queue that its work stands in; slices with `overlap` share one."""
    return {
        op.sym_name: "slices that overlap" if op.overlap else op.sym_name
        for op in ops_named(module, ["pw.slice"])
    }


@dataclasses.dataclass
class Event:
    """A launch or the send of a transfer.

    Attributes:
      op: the operation.
      slice: the slice in whose order it stands.
      order: its position there, None when it has none.
      waits_for: the events that must come first, each with the reason.
    """

    op: LaunchOp | TransferOp
    slice: str
    order: int | None
    waits_for: dict[int, str] = dataclasses.field(default_factory=dict)

    def __str__(self) -> str:
        if isinstance(self.op, LaunchOp):
            return f"launch of @{self.op.callee} on @{self.slice} (order {self.order})"
        return f"send from @{self.slice} to @{self.op.slice} (order {self.order})"


class DeadlockError(Exception):
    """The constraints form a cycle; `cycle` lists its events, each waiting for the next."""

    def __init__(self, cycle: list[Event], reasons: list[str]) -> None:
        self.cycle = cycle
        lines = [
            f"{event} waits for {cycle[(n + 1) % len(cycle)]}: {reasons[n]}" for n, event in enumerate(cycle)
        ]
        super().__init__("deadlock: the order has a cycle\n  " + "\n  ".join(lines))


def data_events(module: ir.Module, main: ir.OpView) -> list[Event]:
    """The events of a program in block order; each waits only for those whose results it reads."""
    arguments = argument_slices(main)
    channel_sources = {c.sym_name: c.src for c in ops_named(module, ["pw.channel"])}
    events: list[Event] = []
    made_by: dict[ir.Value, tuple[int, ...]] = {}
    for op in body_block(main).operations:
        makers = [n for value in op.operands for n in made_by.get(value, ())]
        if not isinstance(op, (LaunchOp, TransferOp)):
            # What is joined by a mirror or a reduction is there when all of it is.
            made_by.update(dict.fromkeys(op.results, tuple(makers)))
            continue
        source = op.slice if isinstance(op, LaunchOp) else _source(op, channel_sources, arguments)
        made_by.update(dict.fromkeys(op.results, (len(events),)))
        events.append(Event(op, source, op.order, dict.fromkeys(makers, "it reads its result")))
    return events


def events_of(module: ir.Module, main: ir.OpView, with_capacities: bool = True) -> list[Event]:
    """The events of a program in block order, with all that each waits for.

    Args:
      module: the module.
      main: its program.
      with_capacities: whether sends wait for room; without, channels hold any number of values.
    """
    events = data_events(module, main)
    receipt = _receipts(events)
    _add_slice_order(events, device_queues(module))
    _add_channels(module, events, receipt, with_capacities)
    return events


def sort_block(main: ir.OpView, order: Sequence[ir.OpView]) -> None:
    """Moves the launches and transfers of a program into an order that meets its data edges.

    What joins their results, a mirror or a reduction, stands right before its first reader, or at the end.
    """
    *operations, terminator = body_block(main).operations
    joins = {op.results[0]: op for op in operations if isinstance(op, (MirrorOp, ReduceOp))}

    def place(op: ir.OpView) -> None:
        for value in op.operands:
            join = joins.pop(value, None)
            if join is not None:
                place(join)
        op.operation.move_before(terminator)

    for op in order:
        place(op)
    while joins:
        place(joins.pop(next(iter(joins))))


def topological_order(events: list[Event]) -> list[int]:
    """The events in an order that meets all constraints, as near to block order as can be.

    Raises:
      DeadlockError: when there is none.
    """
    missing = [len(e.waits_for) for e in events]
    frees: list[list[int]] = [[] for _ in events]
    for n, event in enumerate(events):
        for other in event.waits_for:
            frees[other].append(n)
    ready = [n for n, count in enumerate(missing) if count == 0]
    heapq.heapify(ready)
    order: list[int] = []
    while ready:
        n = heapq.heappop(ready)
        order.append(n)
        for freed in frees[n]:
            missing[freed] -= 1
            if missing[freed] == 0:
                heapq.heappush(ready, freed)
    if len(order) < len(events):
        raise _cycle(events, {n for n, count in enumerate(missing) if count > 0})
    return order


def _source(op: TransferOp, channel_sources: dict[str, str], arguments: list[tuple[str, ...] | None]) -> str:
    slices = slices_of(op.operands[0], arguments)
    if not slices:
        fail(op, "moves a value that is not placed; run pw-infer-placement first")
    starts_at = channel_sources.get(op.channel)
    return starts_at if starts_at in slices else slices[0]


def _receipts(events: list[Event]) -> dict[int, int]:
    """For each send the first launch, by the order of its slice, that reads what it moves."""
    sent_by = {
        value: n for n, e in enumerate(events) if isinstance(e.op, TransferOp) for value in e.op.results
    }
    receipt: dict[int, int] = {}
    for n, event in enumerate(events):
        if not isinstance(event.op, LaunchOp):
            continue
        for sent in {sent_by[value] for value in event.op.operands if value in sent_by}:
            first = receipt.get(sent)
            if first is None or _position(event, n) < _position(events[first], first):
                receipt[sent] = n
    return receipt


def _position(event: Event, n: int) -> tuple[int, int]:
    return (n if event.order is None else event.order, n)


def _add_slice_order(events: list[Event], queues: dict[str, str]) -> None:
    by_queue: dict[str, list[int]] = {}
    for n, event in enumerate(events):
        by_queue.setdefault(queues[event.slice], []).append(n)
    for name, members in by_queue.items():
        members.sort(key=lambda n: _position(events[n], n))
        who = f"@{name} runs" if name in queues else f"{name} run"
        for before, after in _pairs(members):
            events[after].waits_for.setdefault(before, f"{who} in this order")


def _add_channels(
    module: ir.Module, events: list[Event], receipt: dict[int, int], with_capacities: bool
) -> None:
    capacity = {c.sym_name: c.capacity for c in ops_named(module, ["pw.channel"]) if isinstance(c, ChannelOp)}
    sends: dict[str, list[int]] = {}
    for n, event in enumerate(events):
        if isinstance(event.op, TransferOp) and event.op.channel is not None:
            sends.setdefault(event.op.channel, []).append(n)
    for name, members in sends.items():
        members.sort(key=lambda n: _position(events[n], n))
        for before, after in _pairs([receipt[n] for n in members if n in receipt]):
            if before != after:
                events[after].waits_for.setdefault(
                    before, f"channel @{name} delivers in the order of sending"
                )
        room = capacity[name] if with_capacities else len(members)
        for n, sent in enumerate(members[room:]):
            blocker = receipt.get(members[n])
            if blocker is not None:
                events[sent].waits_for.setdefault(
                    blocker, f"channel @{name} holds {room} and is full until then"
                )


def _pairs(members: list[int]) -> Iterator[tuple[int, int]]:
    return itertools.pairwise(members)


def _cycle(events: list[Event], stuck: set[int]) -> DeadlockError:
    """A cycle among events that wait for each other, found by walking backwards until one repeats."""
    path: list[int] = []
    seen: dict[int, int] = {}
    current = min(stuck)
    while current not in seen:
        seen[current] = len(path)
        path.append(current)
        current = min(n for n in events[current].waits_for if n in stuck)
    cycle = path[seen[current] :]
    reasons = [events[n].waits_for[cycle[(position + 1) % len(cycle)]] for position, n in enumerate(cycle)]
    return DeadlockError([events[n] for n in cycle], reasons)
