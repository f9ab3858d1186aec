"""`pw-verify-schedule`: proves that a scheduled program cannot deadlock, and closes the scheduled form."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from jaxlib.mlir import ir

from pathways.dialect import TransferOp, set_form, verify
from pathways.passes.base import Pass, PassFailure, fail, main_function
from pathways.passes.schedule.order import DeadlockError, device_queues, events_of, topological_order


@dataclasses.dataclass(frozen=True)
class VerifySchedule(Pass):
    """Checks the scheduled form, proves it free of deadlock, and claims it.

    Every launch and transfer has an `order`, every transfer a `channel`, and no two events of a slice
    share a position. Data edges, slice order, channel order and channel capacity together must have a
    topological order; when they have none, the error prints a cycle, event by event.

    Requires: the placed form with `order` and channels, from `pw-schedule` or written by hand.
    """

    name: ClassVar[str] = "pw-verify-schedule"

    def run(self, module: ir.Module) -> None:
        main = main_function(module)
        events = events_of(module, main)
        queues = device_queues(module)
        taken: dict[tuple[str, int], int] = {}
        for n, event in enumerate(events):
            if event.order is None:
                fail(event.op, "has no `order`; run pw-schedule first")
            if isinstance(event.op, TransferOp) and event.op.channel is None:
                fail(event.op, "has no `channel`; run pw-schedule first")
            position = (queues[event.slice], event.order)
            if position in taken:
                other = events[taken[position]]
                fail(event.op, f"has order {event.order} on @{event.slice}, which the {other} has too")
            taken[position] = n
        try:
            topological_order(events)
        except DeadlockError as error:
            fail(error.cycle[0].op, str(error))
        set_form(module, "scheduled")
        if not verify(module):
            raise PassFailure("the module is not in scheduled form")
