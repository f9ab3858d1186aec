"""Order as data: the constraints between launches and transfers, and the proof that they can be met.

The events of a program are its launches, and for each transfer a send on the slice that it leaves and a
receipt on the slice that it goes to. A `pw.all_to_all` is an event on each of its slices, and a reader
of its results waits for all of them. Events constrain each other in four ways:

- data: a launch or send waits for its operands, a receipt for its send;
- slice order: a slice runs its launches and sends in the order of their `order` attributes, and slices
  that may share devices have one order together; it receives a value right before the first launch or send
  that reads it;
- channel order: values are received in the order in which they were sent;
- channel capacity: a send waits until a receipt has freed room for its value.

If these constraints have a topological order, running the events by it never blocks: there is no
deadlock. If not, they hold a cycle, and no execution gets past it.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Literal

from jaxlib.mlir import ir

from pathways.dialect.operations.operation import op_has, ops_named
from pathways.dialect.operations.ops import AllToAllOp, ChannelOp, LaunchOp, TransferOp
from pathways.dialect.operations.placement import Slices
from pathways.dialect.operations.traits import Trait
from pathways.dialect.relations.graphs import CycleError, topological_order
from pathways.dialect.relations.program_view import ProgramView

_DATA = "it reads its result"


def device_queues(module: ir.Module) -> dict[str, str]:
    """Returns the name of the queue that holds each slice's work; slices with `overlap` share one."""
    return {
        op.sym_name: "slices that overlap" if op.overlap else op.sym_name
        for op in ops_named(module, ["pw.slice"])
    }


@dataclasses.dataclass(slots=True)
class Event:
    """Launch, send of a transfer, its receipt, or the part of a slice in an exchange of blocks.

    Attributes:
      kind: `launch`, `send`, `receipt` or `exchange`.
      op: the operation.
      slice: the slice where it happens.
      order: its position in the order of the slice; None for a receipt, and before scheduling.
      waits_for: the events that must precede it, each with the reason.
    """

    kind: Literal["launch", "send", "receipt", "exchange"]
    op: LaunchOp | TransferOp | AllToAllOp
    slice: str
    order: int | None
    waits_for: dict[int, str] = dataclasses.field(default_factory=dict)

    @property
    def moves(self) -> bool:
        """Whether values leave the slice."""
        return self.kind in ("send", "exchange")

    @property
    def results(self) -> list[ir.Value]:
        """The values that it makes: of an exchange, the blocks that its slice receives."""
        results = list(self.op.results)
        return [results[self.op.slices.index(self.slice)]] if self.kind == "exchange" else results

    def set_order(self, order: int) -> None:
        """Writes its position on its slice to the operation."""
        self.order = order
        if self.kind != "exchange":
            self.op.order = order
            return
        slices = self.op.slices
        orders = list(self.op.orders or [0] * len(slices))
        orders[slices.index(self.slice)] = order
        self.op.orders = orders

    def __str__(self) -> str:
        match self.kind:
            case "launch":
                return f"launch of @{self.op.callee} on @{self.slice} (order {self.order})"
            case "send":
                return f"send from @{self.slice} to @{self.op.slice} (order {self.order})"
            case "exchange":
                return f"exchange of blocks on @{self.slice} (order {self.order})"
        return f"receive on @{self.slice} from channel @{self.op.channel} (sent with order {self.op.order})"


class DeadlockError(Exception):
    """Constraints form a cycle; `cycle` lists its events, each waiting for the next."""

    def __init__(self, cycle: list[Event], reasons: list[str]) -> None:
        self.cycle = cycle
        lines = [
            f"{event} waits for {cycle[(n + 1) % len(cycle)]}: {reasons[n]}" for n, event in enumerate(cycle)
        ]
        super().__init__("deadlock: the order has a cycle\n  " + "\n  ".join(lines))


def data_events(program: ProgramView) -> list[Event]:
    """Returns the launches and sends of a program in block order; each waits for the producers of its
    operands.

    Every value of the program must be placed.
    """
    sources = {op.sym_name: op.src for op in program.symbols.values() if isinstance(op, ChannelOp)}
    events: list[Event] = []
    producers_of: dict[ir.Value, tuple[int, ...]] = {}
    for op, read, results in zip(program.ops, program.reads, program.produces, strict=True):
        if op_has(op, Trait.EXCHANGES):
            numbers = tuple(range(len(events), len(events) + len(read)))
            orders = op.orders or [None] * len(read)
            for value, place, order in zip(read, op.slices, orders, strict=True):
                waits_for = dict.fromkeys(producers_of.get(value, ()), _DATA)
                events.append(Event("exchange", op, place, order, waits_for))
            # A result holds a block of each slice.
            producers_of.update(dict.fromkeys(results, numbers))
            continue
        makers = [n for value in read if value in producers_of for n in producers_of[value]]
        if not op_has(op, Trait.ORDERED):
            # The result of a mirror or a reduction is ready when all of its operands are.
            producers_of.update(dict.fromkeys(results, tuple(makers)))
            continue
        number = (len(events),)
        for value in results:
            producers_of[value] = number
        moves = op_has(op, Trait.TRANSFERS)
        slice = _source(op, sources, program.slices.get(read[0])) if moves else op.slice
        kind: Literal["launch", "send"] = "send" if moves else "launch"
        events.append(Event(kind, op, slice, op.order, dict.fromkeys(makers, _DATA)))
    return events


def events_of(program: ProgramView, with_capacities: bool = True) -> list[Event]:
    """Returns the events of a program in block order, each receipt after its send, with all their
    constraints.

    Args:
      with_capacities: whether sends wait for room; without, channels hold any number of values.
    """
    events = _with_receipts(data_events(program))
    _add_slice_order(events, device_queues(program.module))
    _add_channels(program.module, events, with_capacities)
    return events


def proved_order(events: Sequence[Event]) -> list[int]:
    """Returns the events in an order that meets all constraints, as near to block order as possible.

    Raises:
      DeadlockError: there is none.
    """
    try:
        return topological_order({n: event.waits_for for n, event in enumerate(events)})
    except CycleError as error:
        # The message begins with an event that is in the block, so that it has a location.
        standing = [n for n in error.cycle if events[n].kind != "receipt"]
        first = error.cycle.index(min(standing or error.cycle))
        cycle = [*error.cycle[first:], *error.cycle[:first]]
        pairs = zip(cycle, [*cycle[1:], cycle[0]], strict=True)
        raise DeadlockError([events[n] for n in cycle], [events[n].waits_for[m] for n, m in pairs]) from None


def sort_block(main: ir.OpView, order: Sequence[ir.OpView]) -> None:
    """Moves the launches and transfers of a program into an order that meets its data edges.

    An operation without an order (a mirror, a reduction) comes right before its first reader, or at the end.
    """
    *operations, terminator = main.regions[0].blocks[0].operations
    joins = {
        op.results[0]: op
        for op in operations
        if op.results and not op_has(op, Trait.ORDERED) and not op_has(op, Trait.EXCHANGES)
    }

    def place(op: ir.OpView) -> None:
        for value in op.operands:
            # Popped, so that the first reader places it, and after the copies that it joins in turn.
            join = joins.pop(value, None)
            if join is not None:
                place(join)
        op.operation.move_before(terminator)

    for op in order:
        place(op)
    while joins:
        place(joins.pop(next(iter(joins))))


def _source(op: TransferOp, sources: dict[str, str], slices: Slices | None) -> str:
    # Before channels are chosen, a mirrored value leaves from the first of its slices.
    starts_at = sources.get(op.channel)
    places = slices or ()
    return starts_at if starts_at in places else places[0]


def _with_receipts(events: Sequence[Event]) -> list[Event]:
    """Returns the events with a receipt after each send; readers of a sent value wait for its receipt."""
    position = {}
    all_events: list[Event] = []
    # Everything below relies on this: the receipt of a send is the event right after it.
    for n, event in enumerate(events):
        position[n] = len(all_events)
        all_events.append(event)
        if event.kind == "send":
            all_events.append(
                Event("receipt", event.op, event.op.slice, None, {position[n]: "it receives what is sent"})
            )
    for n, event in enumerate(events):
        waits_for = {position[m] + (events[m].kind == "send"): why for m, why in event.waits_for.items()}
        all_events[position[n]].waits_for = waits_for
    return all_events


def _position(event: Event, n: int) -> tuple[int, int]:
    return (n if event.order is None else event.order, n)


def _add_slice_order(events: list[Event], queues: dict[str, str]) -> None:
    by_queue: dict[str, list[int]] = {}
    for n, event in enumerate(events):
        if event.kind != "receipt":
            by_queue.setdefault(queues[event.slice], []).append(n)
    received: set[int] = set()
    for name, members in by_queue.items():
        members.sort(key=lambda n: _position(events[n], n))
        runner = f"@{name} runs" if name in queues else f"{name} run"
        before: int | None = None
        for n in members:
            receipts = [m for m in events[n].waits_for if events[m].kind == "receipt" and m not in received]
            received.update(receipts)
            if before is not None:
                # A value occupies its channel until its first reader is next: that is how a channel fills up,
                # and how capacities can deadlock.
                for m in (*receipts, n):
                    events[m].waits_for.setdefault(before, f"{runner} in this order")
            before = n


def _add_channels(module: ir.Module, events: list[Event], with_capacities: bool) -> None:
    capacity = {channel.sym_name: channel.capacity for channel in ops_named(module, ["pw.channel"])}
    sends: dict[str, list[int]] = {}
    for n, event in enumerate(events):
        if event.kind == "send" and event.op.channel is not None:
            sends.setdefault(event.op.channel, []).append(n)
    for name, members in sends.items():
        members.sort(key=lambda n: _position(events[n], n))
        # Sends need no edges of their own: they are all on the source slice, whose queue orders them.
        for before, after in itertools.pairwise(members):
            why = f"channel @{name} delivers in the order of sending"
            events[after + 1].waits_for.setdefault(before + 1, why)
        room = capacity[name] if with_capacities else len(members)
        # The send `room` places later takes the room that the receipt of this one frees.
        for n, sent in zip(members, members[room:], strict=False):
            events[sent].waits_for.setdefault(n + 1, f"channel @{name} holds {room} and is full until then")
