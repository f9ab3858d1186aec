"""Order of a program that is split over hosts, and the proof that it can be met.

The events are the operations with a position in the function of a host. They constrain each other in two
ways:

- host order: a host goes through its events one after the other;
- data: a receive waits for its send. Every other value that an event reads precedes it on its host.

No host waits when it runs such a program, so this is stricter than execution: launches wait for their
operands and for earlier launches on their devices, and every wait of execution is also one here. So an order
that meets these constraints is free of deadlock for hosts that wait less, and also for hosts that do wait at
every step.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Literal

from pathways.dialect.operations.operation import op_has
from pathways.dialect.operations.traits import Trait
from pathways.dialect.relations.order import Event
from pathways.dialect.relations.program_view import ProgramView


@dataclasses.dataclass
class HostEvent(Event):
    """Event at one position of a host's order."""

    host: int = 0

    def __str__(self) -> str:
        position = f"on @{self.slice} (order {self.order} of host {self.host})"
        if op_has(self.op, Trait.EXECUTES):
            return f"launch of @{self.op.callee} {position}"
        if op_has(self.op, Trait.SENDS):
            return f"send of transfer {self.op.index} {position}"
        if op_has(self.op, Trait.RECEIVES):
            return f"receive of transfer {self.op.index} {position}"
        return f"transfer {position}"


def host_events(programs: Sequence[ProgramView]) -> list[HostEvent]:
    """Returns the events of all hosts in the order of their functions, each with the events it waits for.

    Every receive must have a send.
    """
    events: list[HostEvent] = []
    sends: dict[int, int] = {}
    for program in programs:
        before: int | None = None
        for op in program.ops:
            if not op_has(op, Trait.ORDERED):
                continue
            number = len(events)
            host = program.host or 0
            waits_for = {} if before is None else {before: f"host {host} does this in this order"}
            kind: Literal["launch", "send"] = "send" if op_has(op, Trait.SENDS) else "launch"
            events.append(HostEvent(kind, op, op.slice, op.order, waits_for, host))
            if op_has(op, Trait.SENDS):
                sends[op.index] = number
            before = number
    for event in events:
        if op_has(event.op, Trait.RECEIVES):
            event.waits_for.setdefault(sends[event.op.index], "it receives what is sent")
    return events
