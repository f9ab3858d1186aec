"""Lifetimes of slots: the slots that are filled and freed at each step of a plan."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from pathways.runtime.plan.plan import Launch, Plan, Receive, Release, Send, Slot, Transfer

BEFORE = -1
"""Number that represents the time before the first step."""


@dataclasses.dataclass(frozen=True)
class SlotChanges:
    """Slots that a step frees and fills.

    Attributes:
      step: the number of the step, `BEFORE` for arguments and for received arrays: these have their memory
        before the first step runs, since the thread that issues steps does not wait for any.
      freed: the slots whose arrays are donated to the launch, before it fills others, or released.
    """

    step: int
    freed: tuple[Slot, ...]
    filled: tuple[Slot, ...]


def slot_changes(plan: Plan) -> Iterator[SlotChanges]:
    """Yields the changes at each step of a plan, in its order. A slot that is never freed is the caller's."""
    arguments = tuple(slot for argument in plan.arguments for slot in argument.slots.values())
    received = tuple(slot for step in plan.steps if isinstance(step, Receive) for slot in step.results)
    yield SlotChanges(BEFORE, (), arguments + received)
    for number, step in enumerate(plan.steps):
        match step:
            case Launch():
                # A donated operand and the result in its place are one buffer.
                yield SlotChanges(number, plan.donated_operands(step), step.results)
            case Transfer():
                yield SlotChanges(number, (), step.results)
            case Send() | Receive():
                yield SlotChanges(number, (), ())
            case Release():
                yield SlotChanges(number, step.slots, ())
