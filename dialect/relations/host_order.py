"""The order of a program that is split over hosts, and the proof that it can be met.

The events are all that has a position in the function of a host. They constrain each other in two ways:

- host order: a host goes through its events one after the other;
- data: a receive waits for its send. What else an event reads comes before it on its host.

No host waits when it runs such a program, so this is more than what can block there: launches wait for what
they read and for those before them on their devices, and everything that waits for another event here waits
after it there. An order of all events that meets these constraints is one for whatever waits less, and also
for hosts that do wait at every step.
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
    """What a host does at one position of its order.

    Attributes:
      host: the host.
    """

    host: int = 0

    def __str__(self) -> str:
        where = f"on @{self.slice} (order {self.order} of host {self.host})"
        if op_has(self.op, Trait.EXECUTES):
            return f"launch of @{self.op.callee} {where}"
        if op_has(self.op, Trait.SENDS):
            return f"send of transfer {self.op.index} {where}"
        if op_has(self.op, Trait.RECEIVES):
            return f"receive of transfer {self.op.index} {where}"
        return f"transfer {where}"


def host_events(programs: Sequence[ProgramView]) -> list[HostEvent]:
    """The events of all hosts in the order of their functions, with all that each waits for.

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
