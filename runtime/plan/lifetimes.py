"""Which slots of a plan begin to hold an array, and which cease to, at each of its steps."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from pathways.runtime.plan.plan import Launch, Plan, Receive, Release, Send, Slot, Transfer

BEFORE = -1
"""Stands for what happens before the first step."""


@dataclasses.dataclass(frozen=True)
class SlotChanges:
    """What changes at a step.

    Attributes:
      step: the number of the step, `BEFORE` for arguments and for what is received: that has its memory
        before the first step runs, since what issues the steps does not wait.
      ended: the slots whose arrays end: donated to the launch, before it fills others, or released.
      begun: the slots that are filled.
    """

    step: int
    ended: tuple[Slot, ...]
    begun: tuple[Slot, ...]


def slot_changes(plan: Plan) -> Iterator[SlotChanges]:
    """The changes at each step of a plan, in its order; what never ends is the caller's."""
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
