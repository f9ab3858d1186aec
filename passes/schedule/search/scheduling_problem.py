"""Problem of a search: actions with times, and limits on live values."""

from __future__ import annotations

import dataclasses
import functools
import heapq
import math
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence

from pathways.dialect.relations.graphs import CycleError, topological_order
from pathways.passes.schedule.policies.actions import Action, Needs
from pathways.passes.schedule.policies.chains import stages_read, stages_to_loss

_LARGE = 2_000_000
"""Limit on the steps that a lower bound is worth."""


@dataclasses.dataclass(frozen=True)
class Held:
    """Memory of a slice that is held from the beginning of one action to the end of others.

    Attributes:
      first: the action that begins it.
      last: the actions that it outlives, all of the slice of `first`: it ends with the last of them.
    """

    size: int
    first: Action
    last: tuple[Action, ...]


@dataclasses.dataclass(frozen=True)
class Limit:
    """Limit on a live quantity on a slice, such as bytes.

    Attributes:
      quantity: its name, for messages.
      most: the size that may be alive at once.
      held: the counted values.
    """

    quantity: str
    most: int
    held: Sequence[Held]


class SearchProblem:
    """Actions of a loop, numbered, and the constraints on their orders.

    An action of one stage and kind comes after that of the microbatch before, so that sums over microbatches
    have one order in every schedule.

    Attributes:
      actions: every action; its position is its number.
      rows: the numbers of the actions of each slice.
      place: the slice of each action.
      needs: the numbers of the actions that each one waits for, and the delays of their results.
      ties: the durations that decide between orders that take equally long; None for none.
      limits: the limits on live quantities.
      takes: for each action the limits that count something from its beginning on, and how much.
      gives: the same from its end on.
      joint: for each action the numbers of joint ends: of values that end with the last of several actions.
      joints: for each joint end its limit, its size, and the number of its actions.
    """

    def __init__(
        self,
        slices: Mapping[int, int],
        needs: Needs,
        durations: Mapping[Action, float],
        limits: Sequence[Limit] = (),
        delays: Mapping[tuple[Action, Action], float] | None = None,
        ties: Mapping[Action, float] | None = None,
    ) -> None:
        delays = delays or {}
        self.actions = sorted(needs)
        number = {action: n for n, action in enumerate(self.actions)}
        self.number = number
        self.place = [slices[action.stage] for action in self.actions]
        self.rows: list[list[int]] = [[] for _ in range(max(slices.values(), default=-1) + 1)]
        self.letters: dict[tuple[int, str], list[int]] = {}
        self.needs: list[tuple[tuple[int, float], ...]] = []
        for n, action in enumerate(self.actions):
            # Actions are sorted, so that the last one there is that of the microbatch before.
            before = self.letters.setdefault((action.stage, action.kind), [])
            late = ((number[other], delays.get((other, action), 0.0)) for other in sorted(needs[action]))
            self.needs.append((*((other, 0.0) for other in before[-1:]), *late))
            before.append(n)
            self.rows[self.place[n]].append(n)
        self.durations = [durations[action] for action in self.actions]
        self.ties = None if ties is None else [ties[action] for action in self.actions]
        self.limits = limits
        self.takes: list[list[tuple[int, int]]] = [[] for _ in self.actions]
        self.gives: list[list[tuple[int, int]]] = [[] for _ in self.actions]
        self.joint: list[list[int]] = [[] for _ in self.actions]
        self.joints: list[tuple[int, int, int]] = []
        for k, limit in enumerate(limits):
            for held in limit.held:
                self.takes[number[held.first]].append((k, held.size))
                if len(held.last) == 1:
                    self.gives[number[held.last[0]]].append((k, held.size))
                    continue
                for action in held.last:
                    self.joint[number[action]].append(len(self.joints))
                self.joints.append((k, held.size, len(held.last)))

    @functools.cached_property
    def readers(self) -> list[list[tuple[int, float]]]:
        """The actions that wait for each action, and how long its results are on the way to them."""
        readers: list[list[tuple[int, float]]] = [[] for _ in self.actions]
        for n, needs in enumerate(self.needs):
            for other, delay in needs:
                readers[other].append((n, delay))
        return readers

    @functools.cached_property
    def to_loss(self) -> dict[int, int]:
        """Number of stages in the longest chain from each stage to the loss, itself included."""
        waits = enumerate(self.needs)
        needs = {self.actions[n]: [self.actions[other] for other, _ in before] for n, before in waits}
        return stages_to_loss(stages_read(needs))

    @functools.cached_property
    def before(self) -> list[float]:
        """The longest way into each action: it cannot begin before."""
        longest = [0.0] * len(self.actions)
        for n in self.in_order:
            for other, delay in (*self.needs[n], *self.room[n]):
                longest[n] = max(longest[n], longest[other] + self.durations[other] + delay)
        return longest

    @functools.cached_property
    def after(self) -> list[float]:
        """The longest way out of each action: the step ends no sooner after its end."""
        longest = [0.0] * len(self.actions)
        for n in reversed(self.in_order):
            for other, delay in (*self.needs[n], *self.room[n]):
                longest[other] = max(longest[other], longest[n] + self.durations[n] + delay)
        return longest

    @functools.cached_property
    def room(self) -> list[list[tuple[int, float]]]:
        """The actions that must have ended before each action, since they leave no room for it.

        A limit allows some number of equal things at once; since microbatches come in order, each waits for
        the one that is this number before it. Empty for limits that nothing keeps to.
        """
        room: list[list[tuple[int, float]]] = [[] for _ in self.actions]
        for limit in self.limits:
            alike: dict[Hashable, list[Held]] = {}
            for held in limit.held:
                if 0 < held.size <= limit.most:
                    since = held.first.microbatch
                    ends = tuple((a.stage, a.kind, a.microbatch - since) for a in held.last)
                    alike.setdefault((held.size, held.first[:2], ends), []).append(held)
            for same in alike.values():
                same.sort(key=lambda held: held.first.microbatch)
                at_once = limit.most // same[0].size
                for held, before in zip(same[at_once:], same, strict=False):
                    room[self.number[held.first]] += [(self.number[action], 0.0) for action in before.last]
        try:
            topological_order(self._waits(room))
        except CycleError:
            return [[] for _ in self.actions]
        return room

    def _waits(self, room: Sequence[Sequence[tuple[int, float]]]) -> dict[int, set[int]]:
        pairs = enumerate(zip(self.needs, room, strict=True))
        return {n: {other for other, _ in (*needs, *more)} for n, (needs, more) in pairs}

    @functools.cached_property
    def in_order(self) -> list[int]:
        """All actions, each after the actions that it waits for and the actions that make room for it."""
        return topological_order(self._waits(self.room))

    def lower_bound(self) -> float:
        """Returns a time that no order can be faster than.

        The bound is the longest of three times: the way through actions that wait for each other, or make
        room for each other; the work of a slice that may interrupt its actions, each with its way into the
        slice and out of it; and the way into the held values, as many at once as their limit allows, and out.
        """
        ways = (a + d + b for a, d, b in zip(self.before, self.durations, self.after, strict=True))
        work = map(self._time_of_slice, self.rows)
        return max((*ways, *work, *map(self._time_held, self.limits)), default=0.0)

    def _time_of_slice(self, row: Sequence[int]) -> float:
        """Returns the least time in which one slice can do its actions, if it may interrupt them.

        Always choosing the action with the longest way out is best: Jackson's preemptive schedule (Carlier,
        *The One-Machine Sequencing Problem*, 1982).
        """
        coming = sorted(row, key=self.before.__getitem__, reverse=True)
        ready: list[tuple[float, int]] = []
        left = {n: self.durations[n] for n in row}
        now = most = 0.0
        while coming or ready:
            if not ready:
                now = max(now, self.before[coming[-1]])
            while coming and self.before[coming[-1]] <= now:
                n = coming.pop()
                heapq.heappush(ready, (-self.after[n], n))
            n = ready[0][1]
            ends = now + left[n]
            arrives = self.before[coming[-1]] if coming else math.inf
            if ends <= arrives:
                heapq.heappop(ready)
                now = ends
                most = max(most, now + self.after[n])
            else:
                left[n] -= arrives - now
                now = arrives
        return most

    def _time_held(self, limit: Limit) -> float:
        """Returns the time to hold all that a limit counts, each for the shortest possible time."""
        if not limit.held or len(limit.held) * len(self.letters) > _LARGE:
            return 0.0
        of_microbatch: dict[int, list[int]] = {}
        for n in self.in_order:
            of_microbatch.setdefault(self.actions[n].microbatch, []).append(n)
        total = 0.0
        for held in limit.held:
            # The longest way inside of the microbatch from the first action to the end of the last.
            ends = {self.number[held.first]: self.durations[self.number[held.first]]}
            for n in of_microbatch[held.first.microbatch]:
                before = [ends[other] + delay for other, delay in self.needs[n] if other in ends]
                if before:
                    ends[n] = max(before) + self.durations[n]
            total += held.size * max(ends.get(self.number[action], 0.0) for action in held.last)
        into = min(self.before[self.number[held.first]] for held in limit.held)
        out = min(self.after[self.number[action]] for held in limit.held for action in held.last)
        # At each moment the limit lets `most` be held, of a total of sizes times durations.
        return into + total / limit.most + out

    def numbered(self, orders: Iterable[Iterable[Action]]) -> list[list[int]]:
        """Orders with the numbers of the actions."""
        return [[self.number[action] for action in row] for row in orders]

    def named(self, orders: Iterable[Iterable[int]]) -> list[list[Action]]:
        """Orders with the actions of the numbers."""
        return [[self.actions[n] for n in row] for row in orders]

    def most_alive(self, orders: Iterable[Iterable[int]]) -> int:
        """Counts the microbatches in progress at once: the peak of each slice, added up."""
        # By the alphabet W is the last of I and W.
        ends = {stage: max(k for s, k in self.letters if s == stage and k != "F") for stage in self._trained}
        total = 0
        for row in orders:
            alive = most = 0
            for n in row:
                stage, kind, _ = self.actions[n]
                alive += (kind == "F" and stage in ends) - (kind == ends.get(stage))
                most = max(most, alive)
            total += most
        return total

    @functools.cached_property
    def _trained(self) -> set[int]:
        """The stages with a forward and a backward."""
        forward, backward = ({s for s, k in self.letters if (k == "F") == first} for first in (True, False))
        return forward & backward

    def broken(self, order: Iterable[int]) -> tuple[Limit, int] | None:
        """Returns the limit that the order of a slice exceeds, and its peak; None when all limits hold."""
        alive = Alive(self)
        worst: tuple[Limit, int] | None = None
        for n in order:
            for k, size in self.takes[n]:
                alive.now[k] += size
                if alive.now[k] > self.limits[k].most and (worst is None or alive.now[k] > worst[1]):
                    worst = self.limits[k], alive.now[k]
            alive.end(n)
        return worst


class Alive:
    """Sizes that are alive while slices go through their orders.

    Attributes:
      now: the size that each limit counts.
    """

    def __init__(self, problem: SearchProblem) -> None:
        self._problem = problem
        self.now = [0] * len(problem.limits)
        self._left = [count for _, _, count in problem.joints]

    def fits(self, n: int) -> bool:
        """Returns whether an action can begin."""
        limits, now = self._problem.limits, self.now
        return all(now[k] + size <= limits[k].most for k, size in self._problem.takes[n])

    def run(self, n: int) -> None:
        """Begins and ends an action."""
        for k, size in self._problem.takes[n]:
            self.now[k] += size
        self.end(n)

    def end(self, n: int) -> None:
        """Ends an action that has begun."""
        for k, size in self._problem.gives[n]:
            self.now[k] -= size
        for j in self._problem.joint[n]:
            self._left[j] -= 1
            if not self._left[j]:
                k, size, _ = self._problem.joints[j]
                self.now[k] -= size


def counted(needs: Collection[Action], max_live: int = 0, max_pending: int = 0) -> list[Limit]:
    """Returns the limits on how many microbatches a stage may work at once, and hold halves of weights for.

    Args:
      needs: all actions.
      max_live: from a forward to the end of its backward; 0 for no limit.
      max_pending: from the first half of a backward to the end of the second one; 0 for no limit.
    """
    every = set(needs)
    live: dict[int, list[Held]] = {}
    pending: dict[int, list[Held]] = {}
    for action in sorted(every):
        stage, kind, microbatch = action
        ends = [end for kind in "WBI" if (end := Action(stage, kind, microbatch)) in every]
        if kind == "F" and ends:
            live.setdefault(stage, []).append(Held(1, action, (ends[0],)))
        if kind == "I" and ends[0].kind == "W":
            pending.setdefault(stage, []).append(Held(1, action, (ends[0],)))
    limits: list[Limit] = []
    if max_live:
        limits += [Limit(f"microbatches of stage {stage}", max_live, held) for stage, held in live.items()]
    if max_pending:
        quantity = "halves of weights of stage {} pending"
        limits += [Limit(quantity.format(stage), max_pending, held) for stage, held in pending.items()]
    return limits
