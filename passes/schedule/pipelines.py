"""Pipelines in the IR: which launches of a loop make which action, and where a schedule puts every event."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import NamedTuple, NoReturn

from jaxlib.mlir import ir

from pathways.dialect import LaunchOp, LoopOp, TransferOp, ops_named
from pathways.passes.base import fail
from pathways.passes.schedule.actions import Action
from pathways.passes.schedule.order import Event
from pathways.passes.schedule.schedule_file import Work


@dataclasses.dataclass
class Loop:
    """An unrolled loop.

    Attributes:
      op: its declaration.
      members: its launches, as numbers of events in block order.
      actions: the action that a launch is part of; glue and recomputation are part of none.
      slices: the slice of each stage, by ascending stage.
    """

    op: LoopOp
    members: list[int]
    actions: dict[int, Action]
    slices: dict[int, str]


def read_loops(module: ir.Module, events: Sequence[Event]) -> list[Loop]:
    """The loops that have launches, in an order in which no loop needs a later one.

    Raises:
      PassFailure: when loops need each other, a launch has no microbatch or one that its loop does not have,
        or a stage is on several slices.
    """
    loops: dict[str, Loop] = {
        op.sym_name: Loop(op, [], {}, {}) for op in ops_named(module, ["pw.loop"]) if isinstance(op, LoopOp)
    }
    for n, event in enumerate(events):
        if isinstance(event.op, LaunchOp) and event.op.loop is not None:
            _add(loops[event.op.loop], n, event.op)
    for loop in loops.values():
        loop.slices = dict(sorted(loop.slices.items()))
    return _sorted([loop for loop in loops.values() if loop.members], events)


def _add(loop: Loop, n: int, op: LaunchOp) -> None:
    if op.microbatch is None:
        fail(op, "is part of a loop that is not unrolled; run pw-unroll-microbatches first")
    if not 0 <= op.microbatch < loop.op.count:
        fail(op, f"works on microbatch {op.microbatch}, but @{op.loop} has {loop.op.count}")
    loop.members.append(n)
    if op.stage is None or op.phase not in ("fwd", "bwd"):
        return
    if loop.slices.setdefault(op.stage, op.slice) != op.slice:
        fail(op, f"puts stage {op.stage} on @{op.slice}, but it is on @{loop.slices[op.stage]} already")
    kind = "F" if op.phase == "fwd" else {None: "B", "input": "I", "weight": "W"}[op.part]
    loop.actions[n] = Action(op.stage, kind, op.microbatch)


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
    order: list[int] = []
    while len(order) < len(loops):
        free = [n for n in range(len(loops)) if n not in order and needs[n] <= set(order)]
        if not free:
            first = next(n for n in range(len(loops)) if n not in order)
            other = min(needs[first].difference(order))
            fail(
                loops[first].op,
                f"needs results of @{loops[other].op.sym_name}, which needs results of this loop",
            )
        order.append(free[0])
    return [loops[n] for n in order]


def nearest_before(events: Sequence[Event], loop: Loop) -> list[frozenset[Action]]:
    """The actions of a loop whose results each event reads, directly or through launches without one."""
    found: list[frozenset[Action]] = []
    through: list[frozenset[Action]] = []
    for n, event in enumerate(events):
        found.append(frozenset().union(*(through[other] for other in event.waits_for)))
        through.append(frozenset({loop.actions[n]}) if n in loop.actions else found[n])
    return found


def nearest_after(events: Sequence[Event], loop: Loop) -> list[frozenset[Action]]:
    """The actions of a loop that read the result of each event, directly or through launches without one."""
    found: list[set[Action]] = [set() for _ in events]
    for n in reversed(range(len(events))):
        through = {loop.actions[n]} if n in loop.actions else found[n]
        for other in events[n].waits_for:
            found[other] |= through
    return [frozenset(actions) for actions in found]


def work_of(module: ir.Module, events: Sequence[Event], loop: Loop) -> Work:
    """The actions of a loop, and what each of them needs."""
    before = nearest_before(events, loop)
    needs: dict[Action, set[Action]] = {}
    for n, action in loop.actions.items():
        needs.setdefault(action, set()).update(before[n] - {action})
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
        if isinstance(event.op, LaunchOp):
            keys[n] = Key(segments[n], *instants.get(n, (0, 1)), n, 1, n)
        elif makers:
            keys[n] = max(makers)._replace(rank=2, number=n)
    readers: dict[int, Key] = {}
    for n in reversed(range(len(events))):
        reader = keys[n] if isinstance(events[n].op, LaunchOp) else readers.get(n)
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
        elif isinstance(event.op, LaunchOp):
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
        if isinstance(events[n].op, LaunchOp):
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
                found[n] = (self.start[self.loop.actions[n]], 1)
            elif n in members:
                found[n] = max([self.wanted(n), *read])
            elif isinstance(event.op, TransferOp) and read:
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
        late = here or op.phase == "recompute"
        return (needed, 0) if late else min(ready, (needed, 0))

    def opening(self, op: LaunchOp) -> int:
        """The first action of the microbatch on the slice, or on any if it has none there."""
        if (op.slice, op.microbatch) in self.first:
            return self.first[op.slice, op.microbatch]
        return min((time for (_, m), time in self.first.items() if m == op.microbatch), default=op.microbatch)
