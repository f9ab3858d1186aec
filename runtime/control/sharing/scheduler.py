"""Whose step is next: the core of a service that lets many clients share islands.

Each client has a line of its own on each island. What is in a line keeps its order: steps, and between them
whatever else has an order, such as frees and fetches. So a step passes an earlier one of its client only if
they share no island. One that is first in all its lines, and whose arrays are all there or on their way, is
ready. For what a call of a function makes it waits here, and so it does before it donates what a call takes:
workers have one line for all clients.

A ready step gets its places on all its islands in one decision, for good: workers run what they have in the
order in which they got it. Few places are given: `ahead` on an island, and beyond the second only for
`WORK_SECONDS` of work and the round trip, so that whoever comes next waits for little.

Next is who was served least on the island where he was served most (start-time fair queueing: Goyal, Vin and
Cheng, 1996, by virtual times of each client on each island): the device time that hosts measure, by the
client's weight. What a client did not use while it had nothing that could run earns it `IDLE_SECONDS` at
most.

How long a step takes is estimated from those of its program that are done. Of programs of which none is, a
client has one step under way on an island at a time: others would wait behind a window of unknown work.

A step of several islands that has no place on one of them claims the others from when the last of them is
free: what comes after it passes only if it ends before. Without claims it would starve, and with claims
alone its islands would idle (backfilling: Lifka, 1995). It gets its places when all of them are free at
the same time, but for a round trip: until its last island is free it keeps the others from all other steps.

All state of the scheduler is in this file. `handle` takes what happened and the time, and returns what is to
be done; nothing here waits, sends or looks at a clock.
"""

from __future__ import annotations

import collections
import heapq
import itertools
from collections.abc import Iterable, Sequence
from typing import Literal

from pathways.runtime.control.sharing.scheduler_events import (
    FIRST_ESTIMATE,
    ArrayArrived,
    CallFinished,
    ClientJoined,
    ClientLeft,
    DisconnectClient,
    DispatchRequest,
    FreeClientArrays,
    IslandLeaving,
    IslandLost,
    IslandReturned,
    IslandStepDone,
    IssueStep,
    OrderedRequest,
    QueuedStep,
    RefuseStep,
    RoundTripMeasured,
    SchedulerEffect,
    SchedulerEvent,
    WorkSubmitted,
)

WORK_SECONDS = 0.02
"""How much work an island may have behind its second step, besides its round trip."""

IDLE_SECONDS = 0.05
"""How much service a client may make up for that it had no use for, in seconds of a device."""

MOST_UNFINISHED = 32
"""How many steps of a client may be unfinished, those in its lines and those under way."""

_MOST_UNDER_WAY = MOST_UNFINISHED // 2
"""How many steps may be under way on an island, unless its round trip takes longer than they do. With more,
all that a client may have unfinished could be under way: who should have most would have none in its line."""

_LEARNED = 0.3
_LOOKS = 16
"""How many steps behind one that waits are looked at, so that an event takes no longer with more clients."""

Policy = Literal["fair", "fifo"]


class ScheduledClient:
    """A client, as the scheduler sees it.

    Attributes:
      number: its number.
      weight: its share of a device that others want, too, is this over the sum of theirs.
      steps_done: how many of its steps are done.
      device_seconds: for how long it had devices of islands, added up.
      unfinished: how many of its steps are not done.
    """

    def __init__(self, number: int, weight: float, islands: int) -> None:
        self.number = number
        self.weight = weight
        self.steps_done = 0
        self.device_seconds = 0.0
        self.unfinished = 0
        self._lines: list[collections.deque[QueuedStep | OrderedRequest]] = [
            collections.deque() for _ in range(islands)
        ]
        self._served = [0.0] * islands
        self._arrays: list[set[int]] = [set() for _ in range(islands)]
        # What waits for an array, by its island and number.
        self._awaited: dict[tuple[int, int], list[QueuedStep | OrderedRequest]] = {}
        # What its unfinished calls make, by islands and numbers, and how many of them take an array.
        self._promised: set[tuple[int, int]] = set()
        self._held: collections.Counter[tuple[int, int]] = collections.Counter()
        # How long steps of its programs take.
        self._estimates: dict[int, float] = {}
        # The last step of a program without an estimate that was issued on each island.
        self._tried: list[QueuedStep | None] = [None] * islands
        # How many of its steps are under way on each island.
        self._under_way = [0] * islands

    @property
    def queued(self) -> int:
        """How many of its steps wait for a place."""
        return len({id(item) for line in self._lines for item in line if isinstance(item, QueuedStep)})

    def is_full(self) -> bool:
        """Whether it may not ask for another step."""
        return self.unfinished >= MOST_UNFINISHED


class _SharedIsland:
    """An island: what is under way on it, and who is ready for it."""

    __slots__ = (
        "busy_until",
        "claim",
        "is_lost",
        "problem",
        "ready",
        "round_trip",
        "under_way",
        "used",
        "virtual",
        "work",
    )

    def __init__(self) -> None:
        self.under_way: collections.OrderedDict[QueuedStep, float] = collections.OrderedDict()
        self.used = 0
        # Of what is under way, as estimated.
        self.work = 0.0
        self.busy_until = 0.0
        self.ready: list[tuple[float, int, QueuedStep]] = []
        self.claim: QueuedStep | None = None
        self.virtual = 0.0
        self.round_trip = 0.0
        self.problem: str | None = None
        self.is_lost = False


class Scheduler:
    """Decides whose step is next.

    Args:
      islands: how many islands there are.
      ahead: how many steps may be under way on an island.
      policy: `fair`, or `fifo`: in the order in which they were asked for.

    Attributes:
      clients: those that are there, by their numbers.
    """

    def __init__(self, islands: int, ahead: int = 4, policy: Policy = "fair") -> None:
        self.clients: dict[int, ScheduledClient] = {}
        self._islands = [_SharedIsland() for _ in range(islands)]
        self._ahead = ahead
        self._is_fair = policy == "fair"
        self._orders = itertools.count()
        self._effects: list[SchedulerEffect] = []
        # Islands on which something may be issued that was not possible before.
        self._open: set[int] = set()
        # What is added to the number of an island to say which comes first.
        self._first = 0

    def under_way(self, island: int) -> int:
        """How many steps are under way on an island."""
        return len(self._islands[island].under_way)

    def handle(self, event: SchedulerEvent, now: float) -> list[SchedulerEffect]:
        """Takes note of what happened, and returns what is to be done, in this order."""
        return self.handle_all([event], now)

    def handle_all(self, events: Sequence[SchedulerEvent], now: float) -> list[SchedulerEffect]:
        """The same for what happened at the same time; islands are looked at once for all of it.

        A step that comes last, and that nothing keeps back, skips the lines: nothing else could be chosen.
        """
        if not events:
            return []
        self._effects = []
        *earlier, last = events
        for event in earlier:
            self._take(event, now)
        match last:
            case WorkSubmitted(QueuedStep() as step):
                self._ask_step(step, now)
            case _:
                self._take(last, now)
        while self._open:
            number = min(self._open, key=self._rotated)
            self._open.remove(number)
            self._fill(number, now)
        # Steps of several islands would have all of one that is always first.
        self._first += 1
        return self._effects

    def _rotated(self, number: int) -> int:
        return (number + self._first) % len(self._islands)

    def _take(self, event: SchedulerEvent, now: float) -> None:
        match event:
            case WorkSubmitted(QueuedStep() as step):
                self._ask_step(step, None)
            case WorkSubmitted(OrderedRequest() as item):
                self._ask(item)
            case IslandStepDone():
                self._done(event, now)
            case ArrayArrived():
                self._arrive(event)
            case CallFinished(call):
                self._end_call(call)
            case ClientJoined(client, weight):
                self.clients[client] = ScheduledClient(client, weight, len(self._islands))
            case ClientLeft(client):
                self._leave(self.clients.pop(client))
            case IslandLeaving(number, why):
                self._islands[number].problem = why
                for each in self.clients.values():
                    self._refuse_all(each, number, why)
            case IslandLost():
                self._lose(event)
            case IslandReturned(number):
                self._islands[number].problem, self._islands[number].is_lost = None, False
            case RoundTripMeasured(number, seconds):
                self._islands[number].round_trip = seconds

    # Lines.

    def _ask(self, item: OrderedRequest) -> None:
        client = self.clients[item.client]
        line = client._lines[item.island]
        line.append(item)
        client._arrays[item.island].update(item.makes)
        if len(line) == 1:
            self._advance(client, item.island)

    def _ask_step(self, item: QueuedStep, now: float | None) -> None:
        """Notes a step that a client asks for; `now` is the time if it may be issued at once."""
        client = self.clients[item.client]
        if client.is_full():
            self._effects.append(
                DisconnectClient(
                    client.number, f"it has asked for more than {MOST_UNFINISHED} unfinished steps"
                )
            )
            return
        problem = next((p for n in item.islands if (p := self._islands[n].problem) is not None), None)
        if problem is not None:
            self._effects.append(RefuseStep(item, problem))
            return
        if any(
            n not in item.sent and n not in client._arrays[at] for at in item.islands for n in item.takes[at]
        ):
            self._effects.append(RefuseStep(item, "it takes an array that is not there"))
            return
        item._order = next(self._orders)
        client.unfinished += 1
        for n in item.islands:
            there = client._arrays[n]
            for array in item.takes[n]:
                if array not in there:
                    client._awaited.setdefault((n, array), []).append(item)
                    item._missing += 1
            there.update(item.makes[n])
        if now is not None and self._is_free_for(client, item, now):
            for n in item.islands:
                self._forget_idleness(client, n)
            self._take_places(client, item, now)
            self._open.update(item.islands)
            return
        for n in item.islands:
            line = client._lines[n]
            if not line:
                self._forget_idleness(client, n)
            line.append(item)
            if len(line) == 1:
                item._firsts += 1
        self._see_if_ready(client, item)

    def _advance(self, client: ScheduledClient, island: int) -> None:
        """Goes on with a line of which the first has changed."""
        line = client._lines[island]
        while line:
            first = line[0]
            if isinstance(first, QueuedStep):
                first._firsts += 1
                self._see_if_ready(client, first)
                return
            there = client._arrays[island]
            coming = next(
                (n for n in (*first.frees, *first.takes) if n in first.sent and n not in there), None
            )
            if coming is not None and not self._islands[island].is_lost:
                client._awaited.setdefault((island, coming), []).append(first)
                return
            line.popleft()
            is_there = there.issuperset(first.takes)
            frees = tuple([number for number in first.frees if number in there])
            there.difference_update(frees)
            if first.is_call and not self._islands[island].is_lost:
                client._promised.update((island, number) for number in first.makes)
                client._held.update((island, number) for number in first.takes)
            self._effects.append(DispatchRequest(first, frees, is_there))

    def _see_if_ready(self, client: ScheduledClient, step: QueuedStep) -> None:
        if step._missing or step._firsts < len(step.islands) or step._state != "waits":
            return
        has_calls = client._promised or client._held
        if has_calls and (key := _kept_by_calls(client, step)) is not None:
            client._awaited.setdefault(key, []).append(step)
            step._missing = 1
            return
        step._state = "ready"
        for n in step.islands:
            # It may have waited for an array of its client.
            if not client._under_way[n]:
                self._forget_idleness(client, n)
        self._push(client, step)
        self._open.update(step.islands)

    def _forget_idleness(self, client: ScheduledClient, island: int) -> None:
        """Forgets what a client was not served while it had nothing that could run, but for a little."""
        earned = self._islands[island].virtual - IDLE_SECONDS / client.weight
        client._served[island] = max(client._served[island], earned)

    def _push(self, client: ScheduledClient, step: QueuedStep) -> None:
        """Sorts a ready step among the others of its islands."""
        islands = self._islands
        # What has another one is of no account any more.
        token = step._token = next(self._orders)
        if not self._is_fair:
            step._keys = dict.fromkeys(step.islands, step._order)
        else:
            more = self._more(step)
            step._keys = {n: more + islands[n].virtual for n in step.islands}
        for n, key in step._keys.items():
            heapq.heappush(islands[n].ready, (key, token, step))

    def _more(self, step: QueuedStep) -> float:
        """By how much its client was served more than others now, where that is most."""
        served, islands = self.clients[step.client]._served, self._islands
        return max([served[n] - islands[n].virtual for n in step.islands])

    def _is_before(self, step: QueuedStep, other: QueuedStep, island: int) -> bool:
        """Whether it is the turn of a ready step on an island before it is that of another one."""
        if not self._is_fair:
            return step._order < other._order
        if len(step.islands) > 1 and len(other.islands) > 1:
            # One order for all islands: else each of two could wait for the other. By what both were served
            # until now: what others were served while a step waits brings it forward.
            return (self._more(step), step._order) < (self._more(other), other._order)
        return (step._keys[island], step._order) < (other._keys[island], other._order)

    # Places.

    def _is_free_for(self, client: ScheduledClient, step: QueuedStep, now: float) -> bool:
        """Says if a new step would be issued at once, and nothing else could be in its place."""
        if step._missing or self._is_kept_back(client, step) or self._is_too_early(step):
            return False
        islands = [self._islands[n] for n in step.islands]
        if any(island.ready or island.claim or not self._has_room(island, step.share) for island in islands):
            return False
        return len(islands) < 2 or not self._idles_others(step, now)

    def _is_kept_back(self, client: ScheduledClient, step: QueuedStep) -> bool:
        """Says if a new step waits for something that its client has asked for before."""
        has_calls = client._promised or client._held
        return bool(has_calls and _kept_by_calls(client, step)) or any(client._lines[n] for n in step.islands)

    def _fill(self, number: int, now: float) -> None:
        """Issues what there is room for on an island."""
        island = self._islands[number]
        skipped: list[tuple[float, int, QueuedStep]] = []
        while island.ready and len(skipped) < _LOOKS and self._has_room(island, 1):
            _, token, step = island.ready[0]
            if step._token != token or step._state != "ready":
                heapq.heappop(island.ready)
                continue
            if self._is_too_early(step):
                # Without a claim: nobody knows from when.
                skipped.append(heapq.heappop(island.ready))
                continue
            if self._fits(step) and self._may_pass(step, now) and not self._backfill(step, now):
                heapq.heappop(island.ready)
                self._issue(step, now)
                continue
            skipped.append(heapq.heappop(island.ready))
            if len(step.islands) > 1 and island.claim is not step:
                self._claim(step)
        for entry in skipped:
            heapq.heappush(island.ready, entry)

    def _is_too_early(self, step: QueuedStep) -> bool:
        """Whether it is unknown how long it takes, as of another one that its client has under way there."""
        client = self.clients[step.client]
        if step.loaded in client._estimates:
            return False
        return any((tried := client._tried[n]) is not None and n in tried._left for n in step.islands)

    def _estimate(self, step: QueuedStep) -> float:
        return self.clients[step.client]._estimates.get(step.loaded, FIRST_ESTIMATE)

    def _has_room(self, island: _SharedIsland, share: int) -> bool:
        if not island.used:
            return True
        if island.used + share > self._ahead:
            return False
        if len(island.under_way) < 2:
            return True
        behind = island.work - next(iter(island.under_way.values()))
        window = WORK_SECONDS if len(island.under_way) < _MOST_UNDER_WAY else 0.0
        return behind <= window + island.round_trip

    def _fits(self, step: QueuedStep) -> bool:
        # From the island that had no room the last time: places come one by one.
        islands, at = step.islands, step._blocked_at
        for _ in islands:
            if not self._has_room(self._islands[islands[at]], step.share):
                step._blocked_at = at
                return False
            at = at + 1 if at + 1 < len(islands) else 0
        return True

    def _claim(self, step: QueuedStep) -> None:
        for n in step.islands:
            before = self._claim_of(n)
            if before is None or (before is not step and self._is_before(step, before, n)):
                self._islands[n].claim = step

    def _claim_of(self, number: int) -> QueuedStep | None:
        claim = self._islands[number].claim
        if claim is not None and claim._state != "ready":
            claim = self._islands[number].claim = None
        return claim

    def _start_of(self, step: QueuedStep, now: float) -> float:
        """When the last of its islands is free, as estimated."""
        return max(now, *[self._islands[n].busy_until for n in step.islands])

    def _may_pass(self, step: QueuedStep, now: float) -> bool:
        """Whether it would delay none that waits and comes before it."""
        claims = [(n, claim) for n in step.islands if (claim := self._claim_of(n)) not in (None, step)]
        if not claims:
            return True
        end = self._start_of(step, now) + self._estimate(step)
        return all(
            claim is None
            or self._is_before(step, claim, n)
            or (end <= self._start_of(claim, now) and self._has_room_beside(n, step, claim))
            for n, claim in claims
        )

    def _has_room_beside(self, number: int, step: QueuedStep, claim: QueuedStep) -> bool:
        """Whether a place is left for one that waits: else there never is one on all its islands."""
        island = self._islands[number]
        return not island.used or island.used + step.share + claim.share <= self._ahead

    def _backfill(self, step: QueuedStep, now: float) -> bool:
        """Issues what ends on some islands of a step before the others are free; whether the step waits for
        more of it. It does while one of them would idle for long, or while all of them have so much that
        there is another look before they do."""
        if len(step.islands) < 2:
            return False
        start = self._start_of(step, now)
        # All of them: no `any`, which would stop at the first.
        is_left = [self._fill_until(n, step, start, now) for n in step.islands]
        if not self._fits(step) or self._idles_others(step, now):
            return True
        return any(is_left) and all(len(self._islands[n].under_way) > 1 for n in step.islands)

    def _idles_others(self, step: QueuedStep, now: float) -> bool:
        """Says if some islands of a step would wait for others for longer than a round trip."""
        islands = [self._islands[n] for n in step.islands]
        first = max(now, min([island.busy_until for island in islands]))
        return self._start_of(step, now) - first > max([island.round_trip for island in islands])

    def _fill_until(self, number: int, step: QueuedStep, until: float, now: float) -> bool:
        """Issues what ends on an island in time; whether there is more that would, if there were places."""
        island = self._islands[number]
        looked: list[tuple[float, int, QueuedStep]] = []
        is_left = False
        while island.ready and len(looked) < _LOOKS and max(now, island.busy_until) < until:
            entry = heapq.heappop(island.ready)
            _, token, other = entry
            if other._token != token or other._state != "ready":
                continue
            end = max(now, island.busy_until) + self._estimate(other)
            if other.islands != (number,) or end > until or self._is_too_early(other):
                looked.append(entry)
            elif self._has_room(island, other.share) and self._has_room_beside(number, other, step):
                self._issue(other, now)
            else:
                looked.append(entry)
                is_left = True
                break
        for entry in looked:
            heapq.heappush(island.ready, entry)
        return is_left

    def _issue(self, step: QueuedStep, now: float) -> None:
        client = self.clients[step.client]
        self._take_places(client, step, now)
        for n in step.islands:
            client._lines[n].popleft()
        for n in step.islands:
            self._advance(client, n)
        # Others may be first on its islands now, or there is room yet.
        self._open.update(step.islands)

    def _take_places(self, client: ScheduledClient, step: QueuedStep, now: float) -> None:
        step._state = "issued"
        self._effects.append(IssueStep(step))
        start, estimate = self._start_of(step, now), self._estimate(step)
        is_tried = step.loaded not in client._estimates
        for n in step.islands:
            if is_tried:
                client._tried[n] = step
            island = self._islands[n]
            island.under_way[step] = estimate
            island.used += step.share
            island.work += estimate
            island.busy_until = start + estimate
            island.virtual = max(island.virtual, client._served[n])
            client._served[n] += estimate / client.weight
            client._under_way[n] += 1

    # Ends.

    def _done(self, done: IslandStepDone, now: float) -> None:
        step, n = done.step, done.island
        island = self._islands[n]
        if n not in step._left:
            return
        estimate = self._free_place(step, n)
        island.busy_until = now + island.work
        client = self.clients.get(step.client)
        if client is None:
            return
        client._served[n] += (done.took - estimate) / client.weight
        client.device_seconds += done.took
        before = client._estimates.get(step.loaded)
        guess = done.took if before is None else before + _LEARNED * (done.took - before)
        client._estimates[step.loaded] = guess
        self._note_end(client, step)
        if self._is_fair and not step._left:
            self._sort_again(client, step.islands)

    def _sort_again(self, client: ScheduledClient, islands: Iterable[int]) -> None:
        """Sorts what is ready of a client by what it was served, which was an estimate until now."""
        firsts = [line[0] for n in islands if (line := client._lines[n])]
        for first in dict.fromkeys(item for item in firsts if isinstance(item, QueuedStep)):
            if first._state == "ready":
                self._push(client, first)

    def _free_place(self, step: QueuedStep, number: int) -> float:
        """Gives back the place of a step on an island; returns how long it was to take there."""
        island = self._islands[number]
        step._left.discard(number)
        estimate = island.under_way.pop(step)
        island.used -= step.share
        if (client := self.clients.get(step.client)) is not None:
            client._under_way[number] -= 1
        # Sums of floats drift: of nothing the work is none.
        island.work = max(0.0, island.work - estimate) if island.under_way else 0.0
        self._open.add(number)
        # One of several islands may have waited for this place; else only those look again that idle.
        if (claim := self._claim_of(number)) is not None:
            fits = self._fits(claim)
            self._open.update(n for n in claim.islands if fits or not self._islands[n].under_way)
        return estimate

    def _note_end(self, client: ScheduledClient, step: QueuedStep) -> None:
        if not step._left:
            client.unfinished -= 1
            client.steps_done += 1

    def _arrive(self, arrived: ArrayArrived) -> None:
        client = self.clients.get(arrived.client)
        if client is None:
            # The rest of what it sent; nobody is left who would free it.
            self._effects.append(FreeClientArrays(arrived.client, arrived.island, (arrived.array,)))
            return
        client._arrays[arrived.island].add(arrived.array)
        self._wake(client, (arrived.island, arrived.array))

    def _end_call(self, call: OrderedRequest) -> None:
        client = self.clients.get(call.client)
        if client is None:
            return
        for number in call.makes:
            client._promised.discard((call.island, number))
            self._wake(client, (call.island, number))
        for number in call.takes:
            key = call.island, number
            client._held[key] -= 1
            # Of an island that was lost nothing is known any more.
            if client._held[key] <= 0:
                del client._held[key]
                self._wake(client, key)

    def _wake(self, client: ScheduledClient, key: tuple[int, int]) -> None:
        """Goes on with what has waited for an array."""
        for item in client._awaited.pop(key, ()):
            if isinstance(item, OrderedRequest):
                self._advance(client, item.island)
            else:
                item._missing -= 1
                self._see_if_ready(client, item)

    def _leave(self, client: ScheduledClient) -> None:
        for n, line in enumerate(client._lines):
            for item in line:
                if isinstance(item, QueuedStep):
                    item._state = "dropped"
                    client._arrays[n].difference_update(item.makes[n])
                else:
                    client._arrays[n].difference_update(item.makes)
            if client._arrays[n]:
                self._effects.append(FreeClientArrays(client.number, n, tuple(sorted(client._arrays[n]))))
        self._open.update(range(len(self._islands)))

    def _lose(self, lost: IslandLost) -> None:
        n = lost.island
        island = self._islands[n]
        island.problem, island.is_lost = lost.why, True
        for step in [*island.under_way]:
            self._free_place(step, n)
            if (client := self.clients.get(step.client)) is not None:
                self._note_end(client, step)
        island.busy_until = 0.0
        island.claim = None
        for client in self.clients.values():
            client._arrays[n].clear()
            self._refuse_all(client, n, lost.why)
            for keys in (client._awaited, client._held):
                for key in [key for key in keys if key[0] == n]:
                    del keys[key]
            client._promised = {key for key in client._promised if key[0] != n}
            # Only what has an order is left, which waits for nothing there any more.
            self._advance(client, n)
        self._open.update(range(len(self._islands)))

    def _refuse_all(self, client: ScheduledClient, island: int, why: str) -> None:
        """Refuses the steps that a client wants on an island that takes none, and those that need them."""
        refused: set[QueuedStep] = set()
        made: set[tuple[int, int]] = set()
        waiting = {item for line in client._lines for item in line if isinstance(item, QueuedStep)}
        # In the order in which they were asked for: on whatever island, what makes an array comes first.
        for step in sorted(waiting, key=lambda step: step._order):
            if island in step.islands or _takes_any(step, made):
                refused.add(step)
                made |= {(n, array) for n in step.islands for array in step.makes[n]}
        for items in client._awaited.values():
            items[:] = [item for item in items if item not in refused]
        for step in sorted(refused, key=lambda step: step._order):
            step._state = "dropped"
            client.unfinished -= 1
            self._effects.append(RefuseStep(step, why))
        for n, array in made:
            client._arrays[n].discard(array)
        for n, line in enumerate(client._lines):
            if any(item in refused for item in line):
                was = line[0]
                kept = [item for item in line if item not in refused]
                line.clear()
                line.extend(kept)
                if kept and kept[0] is not was:
                    self._advance(client, n)


def _kept_by_calls(client: ScheduledClient, step: QueuedStep) -> tuple[int, int] | None:
    """An array that a step takes and a call has not made yet, or that it donates and a call still has."""
    taken = [(n, array) for n in step.islands for array in step.takes[n]]
    donated = [(n, array) for n, own in step.donates.items() for array in own]
    making = next((key for key in taken if key in client._promised), None)
    return making or next((key for key in donated if key in client._held), None)


def _takes_any(step: QueuedStep, made: Iterable[tuple[int, int]]) -> bool:
    return any((n, array) in made for n in step.islands for array in step.takes[n])
