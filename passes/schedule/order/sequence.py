"""Sequence of all events under a schedule: the actions by their times, and all else around them.

A program is a row of segments: the loops, and the code before, between and after them.

    before | @l0 | between | @l1 | after
       0   |  1  |    2    |  3  |    4

Within a loop time goes by in actions. Other launches come right before the action of their time, or right
after it; and around each launch are its receives and sends.

    ... | before, action, after | before, action, after | ...      instants of a loop
                    |
          arrives, runs, leaves                                      around one launch
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple, NoReturn

from jaxlib.mlir import ir

from pathways.dialect.relations.order import Event
from pathways.passes.manager.base import fail
from pathways.passes.schedule.order.replica_loops import first_replica, ranks
from pathways.passes.schedule.order.unrolled_loops import Loop, nearest_after, nearest_before
from pathways.passes.schedule.policies.actions import Action

_BEFORE, _AT, _AFTER = range(3)
_ARRIVES, _RUNS, _LEAVES = range(3)


class Instant(NamedTuple):
    """Instant at which a launch of a loop runs: the time of an action, and before it, at it or after it."""

    time: int
    side: int


_OUTSIDE = Instant(0, _AT)
"""The instant of all that is not of a loop with times: its segment alone gives its position."""


class Key(NamedTuple):
    """The place of an event: sorted by keys, events meet all data edges, and so does the order of each slice.

    Attributes:
      segment: its loop, or its position between loops.
      instant: when it runs there.
      anchor: the number of the launch that it is, that it sends from, or that it sends to.
      rank: whether it arrives at the anchor, is the anchor, or leaves from it.
    """

    segment: int
    instant: Instant
    anchor: int
    rank: int
    number: int


def sequence(
    events: Sequence[Event], loops: Sequence[Loop], times: Sequence[Mapping[Action, int]]
) -> list[int]:
    """Returns the order of all events in which every loop runs by its schedule.

    Launches of an action run at its time. Other launches of a loop run right before the action that first
    reads their result if it is on their slice, else as soon as their operands are ready. Launches outside of
    loops run before the first loop, or after the last one whose results they read; launches without a
    relation to any loop run after all of them. A value is sent, or exchanged, right after the launch that
    makes it; an argument right before the launch that first reads it.

    Args:
      events: the events in block order, each after the events that it reads.
      loops: in an order in which no loop needs a later one.
      times: of each loop, when each of its actions starts; none for a loop that stays in block order.
    """
    segments = _segments(events, loops)
    instants: dict[int, Instant] = {}
    for loop, start in zip(loops, times, strict=True):
        if start:
            instants.update(_Clock(events, loop, start, _leading_on(events, loop, loops)).instants())
    instants.update(_overlapping(events, loops, times, segments, instants))
    keys: dict[int, Key] = {}
    for n, event in enumerate(events):
        makers = [keys[other] for other in event.waits_for if other in keys]
        if event.kind == "launch":
            keys[n] = Key(segments[n], instants.get(n, _OUTSIDE), n, _RUNS, n)
        elif makers:
            # Sends of arguments come later, when it is known which launch reads them first.
            keys[n] = max(makers)._replace(rank=_LEAVES, number=n)
    readers = _first_readers(events, keys)
    beginning = Instant(0, _BEFORE)
    for n, event in enumerate(events):
        if n not in keys:
            # A value that arrives and is returned has no reader.
            arrives = max(
                (keys[other] for other in event.waits_for), default=Key(0, beginning, n, _ARRIVES, n)
            )
            keys[n] = readers.get(n, arrives)._replace(rank=_ARRIVES, number=n)
    return sorted(keys, key=keys.__getitem__)


def _leading_on(events: Sequence[Event], loop: Loop, loops: Sequence[Loop]) -> set[int]:
    """Returns the events that lead to the loop of another replica, which starts from results of this one."""
    name, family = loop.op.sym_name, first_replica(loop)
    leading = {
        n for other in loops if name in other.needs and first_replica(other) == family for n in other.members
    }
    for n in reversed(range(len(events) if leading else 0)):
        if n in leading:
            leading.update(events[n].waits_for)
    return leading


def _overlapping(
    events: Sequence[Event],
    loops: Sequence[Loop],
    times: Sequence[Mapping[Action, int]],
    segments: Sequence[int],
    instants: Mapping[int, Instant],
) -> dict[int, Instant]:
    """Returns the instants of launches that overlap with a loop, and of the sends of its results.

    The launch runs right after its operands; arrivals from another slice get the time of one more action.
    """
    actions: dict[str, list[int]] = {}
    for loop, start in zip(loops, times, strict=True):
        for action, time in start.items():
            actions.setdefault(loop.slices[action.stage], []).append(time)
    overlapping: dict[int, Instant] = {}
    for n, event in enumerate(events):
        makers = [table[m] for m in event.waits_for for table in (overlapping, instants) if m in table]
        if not makers:
            continue
        ready = max(makers)
        if event.moves and any(m in overlapping for m in event.waits_for):
            overlapping[n] = ready
        elif _overlaps(event) and segments[n] % 2:
            arrives = any(events[m].moves for m in event.waits_for)
            later = [time for time in actions.get(event.slice, ()) if time > ready.time] if arrives else []
            overlapping[n] = Instant(min(later, default=ready.time), _AFTER)
    return overlapping


def _overlaps(event: Event) -> bool:
    return event.kind == "launch" and bool(event.op.overlap_with_loop)


def _first_readers(events: Sequence[Event], keys: Mapping[int, Key]) -> dict[int, Key]:
    """Returns the key of the first launch that reads results of each event, directly or after a transfer."""
    readers: dict[int, Key] = {}
    for n in reversed(range(len(events))):
        reader = keys[n] if events[n].kind == "launch" else readers.get(n)
        if reader is not None:
            for other in events[n].waits_for:
                readers[other] = min(readers.get(other, reader), reader)
    return readers


def _inside(loop: int) -> int:
    """Returns the segment of a loop."""
    return 2 * loop + 1


def _at_or_after(segment: int) -> int:
    """Returns the first segment from this one on that is not a loop."""
    return segment + segment % 2


def _segments(events: Sequence[Event], loops: Sequence[Loop]) -> list[int]:
    """Returns the segment of each event; a send has the segment of its operand."""
    rank_of = ranks(loops)
    loop_of = {n: number for number, loop in enumerate(loops) for n in loop.members}
    needed = set(loop_of)
    for n in reversed(range(len(events))):
        if n in needed:
            needed.update(events[n].waits_for)
    segments: list[int] = []
    for n, event in enumerate(events):
        last_read = max((segments[other] for other in event.waits_for), default=0)
        if n in loop_of:
            segments.append(_inside(rank_of[loop_of[n]]))
            if last_read > segments[n]:
                _refuse_between(events, segments, n, loops[loop_of[n]])
        elif _overlaps(event) and last_read % 2:
            # An odd segment is a loop, with which this overlaps.
            segments.append(last_read)
        elif event.kind == "launch":
            idle = not last_read and n not in needed
            segments.append(2 * len(set(rank_of)) if idle else _at_or_after(last_read))
        else:
            segments.append(last_read)
    return segments


def _refuse_between(events: Sequence[Event], segments: Sequence[int], n: int, loop: Loop) -> NoReturn:
    """Fails at the launch after a loop that a launch of the loop reads from."""
    segment = segments[n]
    while True:
        n = next(other for other in events[n].waits_for if segments[other] > segment)
        if events[n].kind == "launch":
            fail(
                events[n].op,
                f"is not part of @{loop.op.sym_name}, but reads results of it and makes what it reads",
            )


class _Clock:
    """Instants of the launches of a loop."""

    def __init__(
        self, events: Sequence[Event], loop: Loop, start: Mapping[Action, int], leading_on: Collection[int]
    ) -> None:
        self._events = events
        self._loop = loop
        self._start = start
        self._leading_on = leading_on
        self._before = nearest_before(events, loop)
        self._after = nearest_after(events, loop)
        self._first_on: dict[tuple[str, int], int] = {}
        self._first: dict[int, int] = {}
        for action, time in start.items():
            here = (loop.slices[action.stage], action.microbatch)
            self._first_on[here] = min(time, self._first_on.get(here, time))
            self._first[action.microbatch] = min(time, self._first.get(action.microbatch, time))

    def instants(self) -> dict[int, Instant]:
        """Returns the instants of launches and sends, each after the events that it reads."""
        members = set(self._loop.members)
        instants: dict[int, Instant] = {}
        for n, event in enumerate(self._events):
            makers = [instants[other] for other in event.waits_for if other in instants]
            if n in self._loop.actions:
                instants[n] = Instant(self._start[self._loop.actions[n][0]], _AT)
            elif n in members:
                instants[n] = max([self._aim(n), *makers])
            elif event.moves and makers:
                instants[n] = max(makers)
        return instants

    def _aim(self, n: int) -> Instant:
        """Returns the instant of a launch without an action: late for its own slice, early for others."""
        op = self._events[n].op
        if n in self._leading_on and not self._before[n]:
            # For example the keys of all microbatches: the next replica does not wait for the work on them.
            return Instant(0, _BEFORE)
        ready = (
            Instant(max(self._start[a] for a in self._before[n]), _AFTER)
            if self._before[n]
            else Instant(self._opening(op), _BEFORE)
        )
        if not self._after[n]:
            return ready
        due = min(self._start[a] for a in self._after[n])
        here = any(self._start[a] == due and self._loop.slices[a.stage] == op.slice for a in self._after[n])
        # Recomputed values are meant to live shortly.
        late = here or any(origin.kind == "recompute" for origin in op.origins)
        return Instant(due, _BEFORE) if late else min(ready, Instant(due, _BEFORE))

    def _opening(self, op: ir.OpView) -> int:
        """Returns the first action of the microbatch on the slice, or on any if it has none there."""
        anywhere = self._first.get(op.microbatch, op.microbatch)
        return self._first_on.get((op.slice, op.microbatch), anywhere)
