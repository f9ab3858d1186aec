"""Pipelines in the IR: which launches of a loop make which action, and where a schedule puts every event."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import NamedTuple, NoReturn

from jaxlib.mlir import ir

from pathways.dialect import LoopOp, loop_of_op, ops_named
from pathways.dialect.graphs import CycleError, topological_order
from pathways.dialect.order import Event
from pathways.passes.base import fail
from pathways.passes.schedule.actions import Action, action_of
from pathways.passes.schedule.schedule_file import Work


@dataclasses.dataclass
class Loop:
    """An unrolled loop.

    Attributes:
      op: its declaration.
      members: its launches, as numbers of events in block order.
      actions: the actions that a launch is, one after the other; glue and what is computed again is none.
      slices: the slice of each stage, by ascending stage.
    """

    op: LoopOp
    members: list[int]
    actions: dict[int, tuple[Action, ...]]
    slices: dict[int, str]


def read_loops(module: ir.Module, events: Sequence[Event]) -> list[Loop]:
    """The loops that have launches, in an order in which no loop needs a later one.

    Raises:
      PassFailure: when loops need each other, or a stage is on several slices.
    """
    loops: dict[str, Loop] = {
        op.sym_name: Loop(op, [], {}, {}) for op in ops_named(module, ["pw.loop"]) if isinstance(op, LoopOp)
    }
    for n, event in enumerate(events):
        name = loop_of_op(event.op)
        if event.kind == "launch" and name is not None:
            _add(loops[name], n, event)
    for loop in loops.values():
        loop.slices = dict(sorted(loop.slices.items()))
    return _sorted([loop for loop in loops.values() if loop.members], events)


def _add(loop: Loop, n: int, event: Event) -> None:
    loop.members.append(n)
    actions = tuple(action for origin in event.op.origins if (action := action_of(origin)) is not None)
    for action in actions:
        place = loop.slices.setdefault(action.stage, event.slice)
        if place != event.slice:
            fail(event.op, f"puts stage {action.stage} on @{event.slice}, but it is on @{place} already")
    if actions:
        loop.actions[n] = actions


def _sorted(loops: list[Loop], events: Sequence[Event]) -> list[Loop]:
    """Sorts loops by what they need; those that need none of each other stay as they are."""
    loop_of = {n: number for number, loop in enumerate(loops) for n in loop.members}
    needed: list[set[int]] = []
    needs: list[set[int]] = [set() for _ in loops]
    for n, event in enumerate(events):
        before = set().union(*(needed[other] for other in event.waits_for))
        number = loop_of.get(n)
        if number is not None:
            needs[number] |= before - {number}
            before |= {number}
        needed.append(before)
    try:
        order = topological_order(dict(enumerate(needs)))
    except CycleError as error:
        first, other = (loops[n].op for n in (*error.cycle, *error.cycle)[:2])
        fail(first, f"needs results of @{other.sym_name}, which needs results of this loop")
    return [loops[n] for n in order]


def nearest_before(events: Sequence[Event], loop: Loop) -> list[frozenset[Action]]:
    """The actions of a loop whose results each event reads, directly or through launches without one."""
    found: list[frozenset[Action]] = []
    through: list[frozenset[Action]] = []
    for n, event in enumerate(events):
        found.append(frozenset().union(*(through[other] for other in event.waits_for)))
        through.append(frozenset(loop.actions[n]) if n in loop.actions else found[n])
    return found


def nearest_after(events: Sequence[Event], loop: Loop) -> list[frozenset[Action]]:
    """The actions of a loop that read the result of each event, directly or through launches without one."""
    found: list[set[Action]] = [set() for _ in events]
    for n in reversed(range(len(events))):
        through = set(loop.actions[n]) if n in loop.actions else found[n]
        for other in events[n].waits_for:
            found[other] |= through
    return [frozenset(actions) for actions in found]


def work_of(module: ir.Module, events: Sequence[Event], loop: Loop) -> Work:
    """The actions of a loop, and what each of them needs."""
    before = nearest_before(events, loop)
    needs: dict[Action, set[Action]] = {}
    for n, actions in loop.actions.items():
        for position, action in enumerate(actions):
            needs.setdefault(action, set()).update((before[n] | set(actions[:position])) - {action})
    placed = set(loop.slices.values())
    rows = [op.sym_name for op in ops_named(module, ["pw.slice"]) if op.sym_name in placed]
    return Work(rows, loop.slices, loop.op.count, needs)


class Key(NamedTuple):
    """The place of an event: sorted by keys, events meet all data edges, and so does the order of each slice.

    Attributes:
      segment: odd inside of loops, even before, between and behind them.
      time: when it runs, in units of one action.
      side: 0 right before the action of that time, 1 as part of it, 2 right behind it.
      anchor: the number of the launch that it is, that it sends from, or that it sends to.
      rank: 0 to be sent to the anchor, 1 for the anchor, 2 for what is sent from it.
      number: its own number.
    """

    segment: int
    time: int
    side: int
    anchor: int
    rank: int
    number: int


def sequence(
    events: Sequence[Event], loops: Sequence[Loop], times: Sequence[Mapping[Action, int]]
) -> list[int]:
    """The order of all events in which every loop runs by its schedule.

    Launches of an action run at its time. Other launches of a loop run right before the action that first
    reads their result if it is on their slice, else as soon as what they read is there. Launches outside of
    loops run before the first loop, or behind the last one whose results they read; those that have nothing
    to do with any loop run behind all of them. A value is sent right behind the launch that makes it; an
    argument right before the launch that first reads it.

    Args:
      events: in block order, each waiting for those whose results it reads.
      loops: in an order in which no loop needs a later one.
      times: of each loop, when each of its actions starts; none for a loop that stays in block order.
    """
    segments = _segments(events, loops)
    instants: dict[int, tuple[int, int]] = {}
    for loop, start in zip(loops, times, strict=True):
        if start:
            instants.update(_Instants(events, loop, start).all())
    keys: dict[int, Key] = {}
    for n, event in enumerate(events):
        makers = [keys[other] for other in event.waits_for if other in keys]
        if event.kind == "launch":
            keys[n] = Key(segments[n], *instants.get(n, (0, 1)), n, 1, n)
        elif makers:
            keys[n] = max(makers)._replace(rank=2, number=n)
    readers: dict[int, Key] = {}
    for n in reversed(range(len(events))):
        reader = keys[n] if events[n].kind == "launch" else readers.get(n)
        if reader is not None:
            for other in events[n].waits_for:
                readers[other] = min(readers.get(other, reader), reader)
    for n in range(len(events)):
        if n not in keys:
            keys[n] = readers.get(n, Key(0, 0, 0, n, 0, n))._replace(rank=0, number=n)
    return sorted(keys, key=keys.__getitem__)


def _segments(events: Sequence[Event], loops: Sequence[Loop]) -> list[int]:
    inside = {n: 2 * number + 1 for number, loop in enumerate(loops) for n in loop.members}
    needed = set(inside)
    for n in reversed(range(len(events))):
        if n in needed:
            needed.update(events[n].waits_for)
    segments: list[int] = []
    for n, event in enumerate(events):
        before = max((segments[other] for other in event.waits_for), default=0)
        if n in inside:
            segments.append(inside[n])
        elif event.kind == "launch":
            segments.append(before + before % 2 if before or n in needed else 2 * len(loops))
        else:
            segments.append(before)
        if before > segments[n]:
            _refuse_between(events, segments, n, loops[inside[n] // 2])
    return segments


def _refuse_between(events: Sequence[Event], segments: Sequence[int], n: int, loop: Loop) -> NoReturn:
    """Fails at the launch behind a loop that a launch of the loop reads from."""
    segment = segments[n]
    while True:
        n = next(other for other in events[n].waits_for if segments[other] > segment)
        if events[n].kind == "launch":
            fail(
                events[n].op,
                f"is not part of @{loop.op.sym_name}, but reads results of it and makes what it reads",
            )


class _Instants:
    """When the launches of a loop run: the time of an action, and on which side of it."""

    def __init__(self, events: Sequence[Event], loop: Loop, start: Mapping[Action, int]) -> None:
        self.events = events
        self.loop = loop
        self.start = start
        self.before = nearest_before(events, loop)
        self.after = nearest_after(events, loop)
        self.first: dict[tuple[str, int], int] = {}
        for action, time in start.items():
            where = (loop.slices[action.stage], action.microbatch)
            self.first[where] = min(time, self.first.get(where, time))

    def all(self) -> dict[int, tuple[int, int]]:
        """The instants of launches and sends; none is earlier than that of an event whose result it reads."""
        members = set(self.loop.members)
        found: dict[int, tuple[int, int]] = {}
        for n, event in enumerate(self.events):
            read = [found[other] for other in event.waits_for if other in found]
            if n in self.loop.actions:
                found[n] = (self.start[self.loop.actions[n][0]], 1)
            elif n in members:
                found[n] = max([self.wanted(n), *read])
            elif event.kind == "send" and read:
                found[n] = max(read)
        return found

    def wanted(self, n: int) -> tuple[int, int]:
        """When a launch without an action of its own should run: late for its own slice, early for others."""
        op = self.events[n].op
        ready = (max(self.start[a] for a in self.before[n]), 2) if self.before[n] else (self.opening(op), 0)
        if not self.after[n]:
            return ready
        needed = min(self.start[a] for a in self.after[n])
        here = any(self.start[a] == needed and self.loop.slices[a.stage] == op.slice for a in self.after[n])
        # What is computed again is meant to live shortly.
        late = here or any(origin.kind == "recompute" for origin in op.origins)
        return (needed, 0) if late else min(ready, (needed, 0))

    def opening(self, op: ir.OpView) -> int:
        """The first action of the microbatch on the slice, or on any if it has none there."""
        if (op.slice, op.microbatch) in self.first:
            return self.first[op.slice, op.microbatch]
        return min((time for (_, m), time in self.first.items() if m == op.microbatch), default=op.microbatch)
