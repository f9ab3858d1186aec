"""Fair-share scheduler for the steps of many clients.

Each client has a queue on each island, which keeps the order of its steps and of requests between them, such
as frees and fetches. So a step passes an earlier one of its client only if they share no island. A step is
ready when it is first in all its queues, and all its arrays have arrived or are on their way. It also waits
here for the results of calls of functions, and, before it donates an array, for the calls that read it:
workers have one queue for all clients.

A ready step gets its places on all its islands in one decision, which is final: workers run steps in the
order in which they receive them. Few places exist: `ahead` on an island, and beyond the second only for
`WORK_SECONDS` of work and the round trip, so that new steps wait for little.

The next step is that of the client with the least service on the island where it had most (start-time fair
queueing: Goyal, Vin and Cheng, 1996, by virtual times of each client on each island). Service is the device
time that hosts measure, divided by the client's weight. A client that had nothing to run keeps a credit of at
most `IDLE_SECONDS`.

The time of a step is estimated from the finished steps of its program. Of programs without any, a client has
one step in flight on an island at a time: others would wait for an unknown amount of work.

A step of several islands that lacks a place on one of them claims the others from the time when the last of
them is free: later steps pass it only if they end before. Without claims it would starve, and with claims
alone its islands would idle (backfilling: Lifka, 1995). It gets its places when all of them are free at the
same time, up to a round trip: until its last island is free it blocks the others for all other steps.

All state of the scheduler is in this file. `handle` gets an event and the time, and returns the effects to
carry out; no method waits, sends, or reads a clock.
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
"""Seconds of work that an island may have after its first step, besides its round trip."""

IDLE_SECONDS = 0.05
"""Maximal credit of a client for service that it did not use, in seconds of a device."""

MAX_UNFINISHED = 32
"""Maximum of unfinished steps of a client, queued or in flight."""

_MAX_IN_FLIGHT = MAX_UNFINISHED // 2
"""Maximum of steps in flight on an island, unless its round trip takes longer than they do. With more, all
unfinished steps of a client could be in flight: the one with the largest weight would have none queued."""

_LEARNED = 0.3
_MAX_SKIPPED = 16
"""Maximum of waiting steps that a search skips, so that an event takes no longer with more clients."""

Policy = Literal["fair", "fifo"]


class ScheduledClient:
    """State of a client in the scheduler.

    Attributes:
      weight: its weight: its share of a contended device is this over the sum of all clients' weights.
      steps_done: the number of its finished steps.
      device_seconds: the device time that it had, over all islands.
      unfinished: the number of its unfinished steps.
    """

    def __init__(self, number: int, weight: float, islands: int) -> None:
        self.number = number
        self.weight = weight
        self.steps_done = 0
        self.device_seconds = 0.0
        self.unfinished = 0
        self._queues: list[collections.deque[QueuedStep | OrderedRequest]] = [
            collections.deque() for _ in range(islands)
        ]
        self._served = [0.0] * islands
        self._arrays: list[set[int]] = [set() for _ in range(islands)]
        # Items that wait for an array, by its island and number.
        self._awaited: dict[tuple[int, int], list[QueuedStep | OrderedRequest]] = {}
        # Results of its unfinished calls, by islands and numbers, and how many of these calls read an array.
        self._call_results: set[tuple[int, int]] = set()
        self._call_arguments: collections.Counter[tuple[int, int]] = collections.Counter()
        # Estimated times of steps, by their programs.
        self._estimates: dict[int, float] = {}
        # On each island, the last issued step of a program without an estimate.
        self._tried: list[QueuedStep | None] = [None] * islands
        # The number of its steps in flight on each island.
        self._in_flight = [0] * islands

    @property
    def queued(self) -> int:
        """The number of its steps that wait for a place."""
        return len({id(item) for queue in self._queues for item in queue if isinstance(item, QueuedStep)})

    def is_full(self) -> bool:
        """Returns whether it may not submit another step."""
        return self.unfinished >= MAX_UNFINISHED


class _SharedIsland:
    """State of an island: its steps in flight, and the ready ones."""

    __slots__ = (
        "busy_until",
        "claim",
        "in_flight",
        "is_lost",
        "problem",
        "ready",
        "round_trip",
        "used",
        "virtual",
        "work",
    )

    def __init__(self) -> None:
        self.in_flight: dict[QueuedStep, float] = {}
        self.used = 0
        # Estimated work of the steps in flight.
        self.work = 0.0
        self.busy_until = 0.0
        self.ready: list[tuple[float, int, QueuedStep]] = []
        self.claim: QueuedStep | None = None
        self.virtual = 0.0
        self.round_trip = 0.0
        self.problem: str | None = None
        self.is_lost = False


class Scheduler:
    """Scheduler of one cluster: chooses which step is issued next.

    Args:
      ahead: the maximum of steps in flight on an island.
      policy: `fair`, or `fifo`: in the order of submission.

    Attributes:
      clients: the connected clients, by their numbers.
    """

    def __init__(self, islands: int, ahead: int = 4, policy: Policy = "fair") -> None:
        self.clients: dict[int, ScheduledClient] = {}
        self._islands = [_SharedIsland() for _ in range(islands)]
        self._ahead = ahead
        self._is_fair = policy == "fair"
        self._orders = itertools.count()
        self._effects: list[SchedulerEffect] = []
        # Islands on which a step may be issued that could not be before.
        self._open: set[int] = set()
        # Rotation of the order in which islands are filled.
        self._rotation = 0

    def in_flight(self, island: int) -> int:
        """Returns the number of steps in flight on an island."""
        return len(self._islands[island].in_flight)

    def handle(self, event: SchedulerEvent, now: float) -> list[SchedulerEffect]:
        """Handles an event, and returns the effects to carry out, in this order."""
        return self.handle_all([event], now)

    def handle_all(self, events: Sequence[SchedulerEvent], now: float) -> list[SchedulerEffect]:
        """Handles simultaneous events; each island is filled once for all of them.

        A last step that is not blocked skips the queues: no other one could be chosen.
        """
        if not events:
            return []
        self._effects = []
        *earlier, last = events
        for event in earlier:
            self._handle_one(event, now)
        match last:
            case WorkSubmitted(QueuedStep() as step):
                self._submit_step(step, now)
            case _:
                self._handle_one(last, now)
        while self._open:
            number = min(self._open, key=self._rotated)
            self._open.remove(number)
            self._fill(number, now)
        # Steps of several islands would get all places of an island that is always first.
        self._rotation += 1
        return self._effects

    def _rotated(self, number: int) -> int:
        return (number + self._rotation) % len(self._islands)

    def _handle_one(self, event: SchedulerEvent, now: float) -> None:
        match event:
            case IslandStepDone():
                self._finish_step(event, now)
            case WorkSubmitted(QueuedStep() as step):
                self._submit_step(step, None)
            case WorkSubmitted(OrderedRequest() as item):
                self._submit_request(item)
            case ArrayArrived():
                self._add_array(event)
            case CallFinished(call):
                self._end_call(call)
            case ClientJoined(client, weight):
                self.clients[client] = ScheduledClient(client, weight, len(self._islands))
            case ClientLeft(client):
                self._remove_client(self.clients.pop(client))
            case IslandLeaving(number, why):
                self._islands[number].problem = why
                for each in self.clients.values():
                    self._refuse_all(each, number, why)
            case IslandLost():
                self._lose_island(event)
            case IslandReturned(number):
                self._islands[number].problem, self._islands[number].is_lost = None, False
            case RoundTripMeasured(number, seconds):
                self._islands[number].round_trip = seconds

    # Queues.

    def _submit_request(self, item: OrderedRequest) -> None:
        client = self.clients[item.client]
        queue = client._queues[item.island]
        queue.append(item)
        client._arrays[item.island].update(item.results)
        if len(queue) == 1:
            self._advance(client, item.island)

    def _submit_step(self, item: QueuedStep, now: float | None) -> None:
        """Queues or refuses a submitted step; `now` is the time if it may be issued at once."""
        client = self.clients[item.client]
        if client.is_full():
            self._effects.append(
                DisconnectClient(
                    client.number, f"it has requested more than {MAX_UNFINISHED} unfinished steps"
                )
            )
            return
        # Loops, where a generator for each step would be another call.
        for n in item.islands:
            if (problem := self._islands[n].problem) is not None:
                self._effects.append(RefuseStep(item, problem))
                return
        for n in item.islands:
            for array in item.arguments[n]:
                if array not in client._arrays[n] and array not in item.sent:
                    self._effects.append(RefuseStep(item, "an argument is not available"))
                    return
        item._order = next(self._orders)
        client.unfinished += 1
        for n in item.islands:
            arrays = client._arrays[n]
            for array in item.arguments[n]:
                if array not in arrays:
                    client._awaited.setdefault((n, array), []).append(item)
                    item._missing += 1
            # Later items of the client may use its results at once: they come after it in every queue.
            arrays.update(item.results[n])
        if now is not None and self._is_free_for(client, item, now):
            for n in item.islands:
                self._limit_credit(client, n)
            self._take_places(client, item, now)
            self._open.update(item.islands)
            return
        for n in item.islands:
            queue = client._queues[n]
            if not queue:
                self._limit_credit(client, n)
            queue.append(item)
            if len(queue) == 1:
                item._firsts += 1
        self._check_ready(client, item)

    def _advance(self, client: ScheduledClient, island: int) -> None:
        """Continues a queue whose first item has changed."""
        queue = client._queues[island]
        while queue:
            first = queue[0]
            if isinstance(first, QueuedStep):
                first._firsts += 1
                self._check_ready(client, first)
                return
            arrays = client._arrays[island]
            coming = next(
                (n for n in (*first.frees, *first.arguments) if n in first.sent and n not in arrays), None
            )
            if coming is not None and not self._islands[island].is_lost:
                client._awaited.setdefault((island, coming), []).append(first)
                return
            queue.popleft()
            has_arguments = arrays.issuperset(first.arguments)
            frees = tuple([number for number in first.frees if number in arrays])
            arrays.difference_update(frees)
            if first.is_call and not self._islands[island].is_lost:
                client._call_results.update((island, number) for number in first.results)
                client._call_arguments.update((island, number) for number in first.arguments)
            self._effects.append(DispatchRequest(first, frees, has_arguments))

    def _check_ready(self, client: ScheduledClient, step: QueuedStep) -> None:
        if step._missing or step._firsts < len(step.islands) or step._state != "waits":
            return
        has_calls = client._call_results or client._call_arguments
        if has_calls and (key := _blocking_array(client, step)) is not None:
            client._awaited.setdefault(key, []).append(step)
            step._missing = 1
            return
        step._state = "ready"
        for n in step.islands:
            # Before, it may have waited for an array of its client.
            if not client._in_flight[n]:
                self._limit_credit(client, n)
        self._push(client, step)
        self._open.update(step.islands)

    def _limit_credit(self, client: ScheduledClient, island: int) -> None:
        """Limits the credit of a client for the time in which it had nothing to run."""
        earned = self._islands[island].virtual - IDLE_SECONDS / client.weight
        client._served[island] = max(client._served[island], earned)

    def _push(self, client: ScheduledClient, step: QueuedStep) -> None:
        """Sorts a ready step among the others of its islands."""
        islands = self._islands
        # Entries with an earlier token are obsolete.
        token = step._token = next(self._orders)
        if not self._is_fair:
            step._keys = dict.fromkeys(step.islands, step._order)
        else:
            more = self._excess_service(step)
            step._keys = {n: more + islands[n].virtual for n in step.islands}
        for n, key in step._keys.items():
            heapq.heappush(islands[n].ready, (key, token, step))

    def _excess_service(self, step: QueuedStep) -> float:
        """Returns the client's excess service over others, on the island where it is largest."""
        served, islands = self.clients[step.client]._served, self._islands
        return max([served[n] - islands[n].virtual for n in step.islands])

    def _is_before(self, step: QueuedStep, other: QueuedStep, island: int) -> bool:
        """Returns whether a ready step comes before another one on an island."""
        if not self._is_fair:
            return step._order < other._order
        if len(step.islands) > 1 and len(other.islands) > 1:
            # One order for all islands: otherwise each of two could wait for the other. It is by the service
            # of both until now: service of other clients while a step waits brings it forward.
            return (self._excess_service(step), step._order) < (self._excess_service(other), other._order)
        return (step._keys[island], step._order) < (other._keys[island], other._order)

    # Places.

    def _is_free_for(self, client: ScheduledClient, step: QueuedStep, now: float) -> bool:
        """Returns whether a new step would be issued at once, and no other one could take its place."""
        if step._missing or self._is_blocked(client, step) or self._is_too_early(step):
            return False
        for n in step.islands:
            island = self._islands[n]
            if island.ready or island.claim or not self._has_room(island, step.share):
                return False
        return len(step.islands) < 2 or not self._leaves_islands_idle(step, now)

    def _is_blocked(self, client: ScheduledClient, step: QueuedStep) -> bool:
        """Returns whether a new step waits for an earlier item of its client."""
        for n in step.islands:
            if client._queues[n]:
                return True
        has_calls = client._call_results or client._call_arguments
        return bool(has_calls) and _blocking_array(client, step) is not None

    def _fill(self, number: int, now: float) -> None:
        """Issues the steps that fit on an island."""
        island = self._islands[number]
        skipped: list[tuple[float, int, QueuedStep]] = []
        while island.ready and len(skipped) < _MAX_SKIPPED and self._has_room(island, 1):
            _, token, step = island.ready[0]
            if step._token != token or step._state != "ready":
                heapq.heappop(island.ready)
                continue
            if self._is_too_early(step):
                # Without a claim: it is unknown from when.
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
        """Returns whether its time is unknown, and its client has such a step in flight there already."""
        client = self.clients[step.client]
        if step.loaded in client._estimates:
            return False
        return any((tried := client._tried[n]) is not None and n in tried._left for n in step.islands)

    def _estimate(self, step: QueuedStep) -> float:
        return self.clients[step.client]._estimates.get(step.loaded, FIRST_ESTIMATE)

    def _has_room(self, island: _SharedIsland, share: int) -> bool:
        # An empty island accepts any step, since a share may be larger than `ahead`.
        if not island.used:
            return True
        if island.used + share > self._ahead:
            return False
        if len(island.in_flight) < 2:
            return True
        waiting = island.work - next(iter(island.in_flight.values()))
        window = WORK_SECONDS if len(island.in_flight) < _MAX_IN_FLIGHT else 0.0
        return waiting <= window + island.round_trip

    def _fits(self, step: QueuedStep) -> bool:
        # It starts at the island that had no room the last time: places become free one by one.
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
        """Returns the estimated time when the last of its islands is free."""
        return max(now, *[self._islands[n].busy_until for n in step.islands])

    def _may_pass(self, step: QueuedStep, now: float) -> bool:
        """Returns whether it would delay no waiting step that comes before it."""
        claims = [
            (n, claim)
            for n in step.islands
            if self._islands[n].claim is not None and (claim := self._claim_of(n)) not in (None, step)
        ]
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
        """Returns whether a place remains for a waiting step, which might never get one otherwise."""
        island = self._islands[number]
        return not island.used or island.used + step.share + claim.share <= self._ahead

    def _backfill(self, step: QueuedStep, now: float) -> bool:
        """Issues steps that end on some islands of a step before the others are free.

        Returns whether the step waits for more of them: while an island would idle for long, or while all
        have so much work that the step is checked again before they idle.
        """
        if len(step.islands) < 2:
            return False
        start = self._start_of(step, now)
        # All of them: `any` of a generator would stop at the first.
        is_left = [self._fill_until(n, step, start, now) for n in step.islands]
        if not self._fits(step) or self._leaves_islands_idle(step, now):
            return True
        return any(is_left) and all(len(self._islands[n].in_flight) > 1 for n in step.islands)

    def _leaves_islands_idle(self, step: QueuedStep, now: float) -> bool:
        """Returns whether some islands of a step would wait for others for longer than a round trip."""
        islands = [self._islands[n] for n in step.islands]
        first = max(now, min([island.busy_until for island in islands]))
        return self._start_of(step, now) - first > max([island.round_trip for island in islands])

    def _fill_until(self, number: int, step: QueuedStep, until: float, now: float) -> bool:
        """Issues steps that end on an island in time; returns whether there are more, without places."""
        island = self._islands[number]
        skipped: list[tuple[float, int, QueuedStep]] = []
        is_left = False
        while island.ready and len(skipped) < _MAX_SKIPPED and max(now, island.busy_until) < until:
            entry = heapq.heappop(island.ready)
            _, token, other = entry
            if other._token != token or other._state != "ready":
                continue
            end = max(now, island.busy_until) + self._estimate(other)
            if other.islands != (number,) or end > until or self._is_too_early(other):
                skipped.append(entry)
            elif self._has_room(island, other.share) and self._has_room_beside(number, other, step):
                self._issue(other, now)
            else:
                skipped.append(entry)
                is_left = True
                break
        for entry in skipped:
            heapq.heappush(island.ready, entry)
        return is_left

    def _issue(self, step: QueuedStep, now: float) -> None:
        client = self.clients[step.client]
        self._take_places(client, step, now)
        for n in step.islands:
            client._queues[n].popleft()
        for n in step.islands:
            self._advance(client, n)
        # Other steps may be first on its islands now, or there is still room.
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
            island.in_flight[step] = estimate
            island.used += step.share
            island.work += estimate
            island.busy_until = start + estimate
            island.virtual = max(island.virtual, client._served[n])
            # The estimate is charged now, and corrected when the step is done: otherwise one client could get
            # all places before its first step ends.
            client._served[n] += estimate / client.weight
            client._in_flight[n] += 1

    # Ends of steps, calls, clients and islands.

    def _finish_step(self, done: IslandStepDone, now: float) -> None:
        step, n = done.step, done.island
        island = self._islands[n]
        # Late: the island was lost in the meantime.
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
        self._count_done(client, step)
        if self._is_fair and not step._left:
            self._sort_again(client, step.islands)

    def _sort_again(self, client: ScheduledClient, islands: Iterable[int]) -> None:
        """Sorts a client's ready steps by its measured service, which was an estimate until now."""
        firsts = [queue[0] for n in islands if (queue := client._queues[n])]
        # Once each, though a step may be first on several islands.
        for first in dict.fromkeys([item for item in firsts if isinstance(item, QueuedStep)]):
            if first._state == "ready":
                self._push(client, first)

    def _free_place(self, step: QueuedStep, number: int) -> float:
        """Frees the place of a step on an island; returns its estimated time."""
        island = self._islands[number]
        step._left.discard(number)
        estimate = island.in_flight.pop(step)
        island.used -= step.share
        if (client := self.clients.get(step.client)) is not None:
            client._in_flight[number] -= 1
        # Sums of floats drift: without steps there is no work.
        island.work = max(0.0, island.work - estimate) if island.in_flight else 0.0
        self._open.add(number)
        # A step of several islands may have waited for this place; otherwise only idle islands are filled
        # again.
        if island.claim is not None and (claim := self._claim_of(number)) is not None:
            fits = self._fits(claim)
            self._open.update(n for n in claim.islands if fits or not self._islands[n].in_flight)
        return estimate

    def _count_done(self, client: ScheduledClient, step: QueuedStep) -> None:
        if not step._left:
            client.unfinished -= 1
            client.steps_done += 1

    def _add_array(self, arrived: ArrayArrived) -> None:
        client = self.clients.get(arrived.client)
        if client is None:
            # The end of an array of a client that has left, and that no client would free.
            self._effects.append(FreeClientArrays(arrived.client, arrived.island, (arrived.array,)))
            return
        client._arrays[arrived.island].add(arrived.array)
        self._wake(client, (arrived.island, arrived.array))

    def _end_call(self, call: OrderedRequest) -> None:
        client = self.clients.get(call.client)
        if client is None:
            return
        for number in call.results:
            client._call_results.discard((call.island, number))
            self._wake(client, (call.island, number))
        for number in call.arguments:
            key = call.island, number
            client._call_arguments[key] -= 1
            # The entries of a lost island were dropped.
            if client._call_arguments[key] <= 0:
                del client._call_arguments[key]
                self._wake(client, key)

    def _wake(self, client: ScheduledClient, key: tuple[int, int]) -> None:
        """Continues the items that have waited for an array."""
        for item in client._awaited.pop(key, ()):
            if isinstance(item, OrderedRequest):
                self._advance(client, item.island)
            else:
                item._missing -= 1
                self._check_ready(client, item)

    def _remove_client(self, client: ScheduledClient) -> None:
        for n, queue in enumerate(client._queues):
            for item in queue:
                if isinstance(item, QueuedStep):
                    item._state = "dropped"
                    client._arrays[n].difference_update(item.results[n])
                else:
                    client._arrays[n].difference_update(item.results)
            if client._arrays[n]:
                self._effects.append(FreeClientArrays(client.number, n, tuple(sorted(client._arrays[n]))))
        self._open.update(range(len(self._islands)))

    def _lose_island(self, lost: IslandLost) -> None:
        n = lost.island
        island = self._islands[n]
        island.problem, island.is_lost = lost.why, True
        for step in [*island.in_flight]:
            self._free_place(step, n)
            if (client := self.clients.get(step.client)) is not None:
                self._count_done(client, step)
        island.busy_until = 0.0
        island.claim = None
        for client in self.clients.values():
            client._arrays[n].clear()
            self._refuse_all(client, n, lost.why)
            for keys in (client._awaited, client._call_arguments):
                for key in [key for key in keys if key[0] == n]:
                    del keys[key]
            client._call_results = {key for key in client._call_results if key[0] != n}
            # Only ordered requests are left, which wait for nothing there any more.
            self._advance(client, n)
        self._open.update(range(len(self._islands)))

    def _refuse_all(self, client: ScheduledClient, island: int, why: str) -> None:
        """Refuses the steps of a client on an island that accepts none, and the steps that depend on them."""
        refused: set[QueuedStep] = set()
        missing: set[tuple[int, int]] = set()
        waiting = {item for queue in client._queues for item in queue if isinstance(item, QueuedStep)}
        # In the order of submission: on whatever island, the step that returns an array comes first.
        for step in sorted(waiting, key=lambda step: step._order):
            if island in step.islands or _reads_any(step, missing):
                refused.add(step)
                missing |= {(n, array) for n in step.islands for array in step.results[n]}
        for items in client._awaited.values():
            items[:] = [item for item in items if item not in refused]
        for step in sorted(refused, key=lambda step: step._order):
            step._state = "dropped"
            client.unfinished -= 1
            self._effects.append(RefuseStep(step, why))
        for n, array in missing:
            client._arrays[n].discard(array)
        for n, queue in enumerate(client._queues):
            if any(item in refused for item in queue):
                was = queue[0]
                kept = [item for item in queue if item not in refused]
                queue.clear()
                queue.extend(kept)
                if kept and kept[0] is not was:
                    self._advance(client, n)


def _blocking_array(client: ScheduledClient, step: QueuedStep) -> tuple[int, int] | None:
    """Returns an argument that a call has not returned yet, or a donated one that a call still reads."""
    arguments = [(n, array) for n in step.islands for array in step.arguments[n]]
    donated = [(n, array) for n, own in step.donates.items() for array in own]
    pending = next((key for key in arguments if key in client._call_results), None)
    return pending or next((key for key in donated if key in client._call_arguments), None)


def _reads_any(step: QueuedStep, arrays: Iterable[tuple[int, int]]) -> bool:
    return any((n, array) in arrays for n in step.islands for array in step.arguments[n])
