"""Places of islands, and the service of clients by which ready steps get them.

Steps get places, as the docstring of `scheduler.py` explains; which steps are ready is decided there.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Literal

from pathways.runtime.resources.accounts import Wait
from pathways.runtime.service.sharing.memory import DeviceBytes
from pathways.runtime.service.sharing.scheduler_events import FIRST_ESTIMATE, QueuedStep

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


class ClientService:
    """Device time that a client had on each island, by which it is charged.

    Attributes:
      weight: its weight: its share of a contended device is this over the sum of all clients' weights.
      priority: its steps come before all steps of clients with a lower one.
      device_seconds: the device time that it had, over all islands.
      served: on each island, its virtual time.
      estimates: the estimated times of steps, by their programs.
      foreign_estimate: the estimated time of steps of foreign programs; None before the first.
      tried: on each island, the last issued step of a program without an estimate.
      in_flight: the number of its steps in flight on each island.
    """

    def __init__(self, weight: float, priority: int, islands: int) -> None:
        self.weight = weight
        self.priority = priority
        self.device_seconds = 0.0
        self.served = [0.0] * islands
        self.estimates: dict[int, float] = {}
        self.foreign_estimate: float | None = None
        self.tried: list[QueuedStep | None] = [None] * islands
        self.in_flight = [0] * islands

    def add_island(self) -> None:
        """Adds an island on which it had nothing."""
        self.served.append(0.0)
        self.tried.append(None)
        self.in_flight.append(0)

    def estimate_of(self, step: QueuedStep) -> float | None:
        """Returns the estimated time of a step; None if no step tells it."""
        return self.estimates.get(step.loaded, self.foreign_estimate if step.is_foreign else None)

    def learn(self, step: QueuedStep, took: float) -> None:
        """Corrects estimates by the time that a step took."""
        before = self.estimates.get(step.loaded, took)
        self.estimates[step.loaded] = before + _LEARNED * (took - before)
        if step.is_foreign:
            before = took if self.foreign_estimate is None else self.foreign_estimate
            self.foreign_estimate = before + _LEARNED * (took - before)


ReadyEntry = tuple[int, float, int, QueuedStep]
"""Ready step of an island: its negative priority, its key among steps of this one, and the entry's token."""


class SharedIsland:
    """State of an island: its steps in flight, and the ready ones.

    Args:
      pool: the bytes of each device for temporaries of steps; None for no limit.
    """

    __slots__ = (
        "busy_until",
        "claim",
        "in_flight",
        "pool",
        "ready",
        "round_trip",
        "temporaries",
        "used",
        "virtual",
        "work",
    )

    def __init__(self, pool: int | None) -> None:
        self.pool = pool
        # The bytes of the temporaries of the steps in flight, on each device.
        self.temporaries: dict[int, int] = {}
        self.in_flight: dict[QueuedStep, float] = {}
        self.used = 0
        # Estimated work of the steps in flight.
        self.work = 0.0
        self.busy_until = 0.0
        self.ready: list[ReadyEntry] = []
        self.claim: QueuedStep | None = None
        self.virtual = 0.0
        self.round_trip = 0.0


class Places:
    """Places of steps on islands: decides which ready step is issued next.

    Args:
      pools: for each island, the bytes of each device for temporaries of steps; None for no limit.
      ahead: the maximum of steps in flight on an island.
      is_fair: whether steps are sorted by the service of their clients, not in the order of submission.
      ageing: the seconds after which the priority of a waiting step rises by one, up to the highest one.
      issue: takes a step from the queues of its client, and calls `take`.

    Attributes:
      services: the service of each client.
      open: the islands on which a step may be issued that could not be before.
    """

    def __init__(
        self,
        pools: Sequence[int | None],
        ahead: int,
        is_fair: bool,
        ageing: float,
        issue: Callable[[QueuedStep, float], None],
    ) -> None:
        self.islands = [SharedIsland(pool) for pool in pools]
        self.services: dict[int, ClientService] = {}
        self.open: set[int] = set()
        self._ahead = ahead
        self._is_fair = is_fair
        self._ageing = ageing
        self._aged = -math.inf
        self._has_priorities = False
        self._issue = issue
        self._tokens = itertools.count()
        # Rotation of the order in which islands are filled.
        self._rotation = 0

    def add_island(self, pool: int | None) -> None:
        """Adds an island; see `SharedIsland`."""
        self.islands.append(SharedIsland(pool))
        for service in self.services.values():
            service.add_island()

    def add_client(self, number: int, weight: float, priority: int) -> ClientService:
        """Adds a client, and returns its service."""
        service = self.services[number] = ClientService(weight, priority, len(self.islands))
        self._note_priorities()
        return service

    def change_client(self, number: int, weight: float, priority: int) -> None:
        """Sets the weight and the priority of a client."""
        service = self.services[number]
        # Its service so far stays the same, and its weight counts from now on.
        service.served = [
            island.virtual + (served - island.virtual) * service.weight / weight
            for island, served in zip(self.islands, service.served, strict=True)
        ]
        service.weight, service.priority = weight, priority
        self._note_priorities()
        for step in self._ready_steps():
            if step.client == number:
                step._level = priority
                self.sort(service, step)
        self.open.update(range(len(self.islands)))

    def _note_priorities(self) -> None:
        self._has_priorities = len({service.priority for service in self.services.values()}) > 1
        self._aged = -math.inf

    def _ready_steps(self) -> list[QueuedStep]:
        """Returns the ready steps of all islands, each once."""
        entries = [entry for island in self.islands for entry in island.ready]
        return [*dict.fromkeys(step for *_, token, step in entries if self._is_valid(step, token))]

    @staticmethod
    def _is_valid(step: QueuedStep, token: int) -> bool:
        """Returns whether an entry of a step is its last one, and the step is still ready."""
        return step._token == token and step._state == "ready"

    def age(self, now: float) -> None:
        """Raises the priorities of steps that have waited, up to the highest priority of a ready step.

        They rise no further: among clients of one priority, shares decide however long steps wait.
        """
        if not self._has_priorities or now - self._aged < self._ageing / 8:
            return
        self._aged = now
        steps = self._ready_steps()
        top = max((self.services[step.client].priority for step in steps), default=0)
        for step in steps:
            service = self.services[step.client]
            level = min(top, service.priority + int((now - step._ready_since) / self._ageing))
            if level != step._level:
                step._level = level
                self.sort(service, step)
                self.open.update(step.islands)

    def remove_client(self, number: int) -> None:
        """Removes a client, whose queued steps were dropped."""
        del self.services[number]
        self._note_priorities()
        self.open.update(range(len(self.islands)))

    def lose_island(self, number: int) -> list[QueuedStep]:
        """Frees all places of an island that is lost; returns the steps that were in flight there."""
        island = self.islands[number]
        steps = [*island.in_flight]
        for step in steps:
            self.free(step, number)
        island.busy_until, island.claim = 0.0, None
        self.open.update(range(len(self.islands)))
        return steps

    def add_ready(self, service: ClientService, step: QueuedStep, now: float) -> None:
        """Adds a step that is first in all its queues, and has all its arrays."""
        step._state, step._ready_since, step._level = "ready", now, service.priority
        if step.uses:
            step.wait(self._busy_with(step), now)
        for n in step.islands:
            # Before, it may have waited for an array of its client.
            if not service.in_flight[n]:
                self.limit_credit(service, n)
        self.sort(service, step)
        self.open.update(step.islands)

    def withdraw(self, step: QueuedStep, state: Literal["waits", "dropped"]) -> None:
        """Takes back a step that may be ready: steps may be issued that it came before."""
        if step._state == "ready":
            self.open.update(step.islands)
        step._state = state

    def limit_credit(self, service: ClientService, island: int) -> None:
        """Limits the credit of a client for the time in which it had nothing to run."""
        earned = self.islands[island].virtual - IDLE_SECONDS / service.weight
        service.served[island] = max(service.served[island], earned)

    def sort(self, service: ClientService, step: QueuedStep) -> None:
        """Sorts a ready step among the others of its islands."""
        islands = self.islands
        # Entries with an earlier token are obsolete.
        token = step._token = next(self._tokens)
        if not self._is_fair:
            step._keys = dict.fromkeys(step.islands, step._order)
        else:
            more = self._excess_service(step)
            step._keys = {n: more + islands[n].virtual for n in step.islands}
        for n, key in step._keys.items():
            heapq.heappush(islands[n].ready, (-step._level, key, token, step))

    def _excess_service(self, step: QueuedStep) -> float:
        """Returns the client's excess service over others, on the island where it is largest."""
        served, islands = self.services[step.client].served, self.islands
        return max([served[n] - islands[n].virtual for n in step.islands])

    def _is_before(self, step: QueuedStep, other: QueuedStep, island: int) -> bool:
        """Returns whether a ready step comes before another one on an island."""
        if step._level != other._level:
            return step._level > other._level
        if not self._is_fair:
            return step._order < other._order
        if len(step.islands) > 1 and len(other.islands) > 1:
            # One order for all islands: otherwise each of two could wait for the other. It is by the service
            # of both until now: service of other clients while a step waits brings it forward.
            return (self._excess_service(step), step._order) < (self._excess_service(other), other._order)
        return (step._keys[island], step._order) < (other._keys[island], other._order)

    def is_free_for(self, service: ClientService, step: QueuedStep, now: float) -> bool:
        """Returns whether a new step would be issued at once, and no other one could take its place."""
        if self._is_too_early(step):
            return False
        for n in step.islands:
            island = self.islands[n]
            if island.ready or island.claim or not self._has_room(island, step.share):
                return False
        if step.memory and not self._fits_pools(step):
            return False
        return len(step.islands) < 2 or not self._leaves_islands_idle(step, now)

    def fill(self, now: float) -> None:
        """Issues the steps that fit on islands where one may be issued that could not be before."""
        while self.open:
            number = self.open.pop() if len(self.open) == 1 else min(self.open, key=self._rotated)
            self.open.discard(number)
            self._fill_island(number, now)
        # Steps of several islands would get all places of an island that is always first.
        self._rotation += 1

    def _rotated(self, number: int) -> int:
        return (number + self._rotation) % len(self.islands)

    def _fill_island(self, number: int, now: float) -> None:
        """Issues the steps that fit on an island."""
        island = self.islands[number]
        skipped: list[ReadyEntry] = []
        while island.ready and len(skipped) < _MAX_SKIPPED and self._has_room(island, 1):
            *_, token, step = island.ready[0]
            if not self._is_valid(step, token):
                heapq.heappop(island.ready)
                continue
            if self._is_too_early(step):
                # Without a claim: it is unknown from when.
                step.wait("own", now)
                skipped.append(heapq.heappop(island.ready))
                continue
            obstacle = self._obstacle(step, now)
            # Steps that were issued before it may have taken the rest of a quota.
            if self._is_valid(step, token):
                if obstacle is None:
                    heapq.heappop(island.ready)
                    self._issue(step, now)
                    continue
                step.wait(obstacle, now)
            skipped.append(heapq.heappop(island.ready))
            # One that lacks memory must not see smaller ones pass for ever, either.
            is_passed = len(step.islands) > 1 or (step.memory and not self._fits_pools(step))
            if is_passed and island.claim is not step:
                self._claim(step)
        for entry in skipped:
            heapq.heappush(island.ready, entry)

    def _obstacle(self, step: QueuedStep, now: float) -> Wait | None:
        """Returns why a ready step is not issued now; issues steps that end before it can begin."""
        if not self._fits_places(step):
            return self._busy_with(step)
        if step.memory and not self._fits_pools(step):
            return "pool"
        return None if self._may_pass(step, now) and not self._backfill(step, now) else "claim"

    def _busy_with(self, step: QueuedStep) -> Wait:
        """Returns whose steps have the places that a step waits for."""
        in_flight = self.services[step.client].in_flight
        is_shared = any(len(self.islands[n].in_flight) > in_flight[n] for n in step.islands)
        return "share" if is_shared else "own"

    def _is_too_early(self, step: QueuedStep) -> bool:
        """Returns whether its time is unknown, and its client has such a step in flight there already."""
        service = self.services[step.client]
        if service.estimate_of(step) is not None:
            return False
        return any((tried := service.tried[n]) is not None and n in tried._left for n in step.islands)

    def _estimate(self, step: QueuedStep) -> float:
        estimate = self.services[step.client].estimate_of(step)
        return FIRST_ESTIMATE if estimate is None else estimate

    def _has_room(self, island: SharedIsland, share: int) -> bool:
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
        return self._fits_places(step) and (not step.memory or self._fits_pools(step))

    def _fits_places(self, step: QueuedStep) -> bool:
        # It starts at the island that had no room the last time: places become free one by one.
        islands, at = step.islands, step._blocked_at
        for _ in islands:
            if not self._has_room(self.islands[islands[at]], step.share):
                step._blocked_at = at
                return False
            at = at + 1 if at + 1 < len(islands) else 0
        return True

    def _fits_pools(self, step: QueuedStep) -> bool:
        """Returns whether the temporaries of a step fit beside the temporaries of steps in flight."""
        for n, need in step.memory.items():
            island = self.islands[n]
            if island.pool is None:
                continue
            for device, count in need.temporaries:
                used = island.temporaries.get(device, 0)
                # A device without temporaries accepts any: more than the pool is refused when it is loaded.
                if used and used + count > island.pool:
                    return False
        return True

    def _claim(self, step: QueuedStep) -> None:
        for n in step.islands:
            before = self._claim_of(n)
            if before is None or (before is not step and self._is_before(step, before, n)):
                self.islands[n].claim = step

    def _claim_of(self, number: int) -> QueuedStep | None:
        claim = self.islands[number].claim
        if claim is not None and claim._state != "ready":
            claim = self.islands[number].claim = None
        return claim

    def _start_of(self, step: QueuedStep, now: float) -> float:
        """Returns the estimated time when the last of its islands is free."""
        return max(now, *[self.islands[n].busy_until for n in step.islands])

    def _may_pass(self, step: QueuedStep, now: float) -> bool:
        """Returns whether it would delay no waiting step that comes before it."""
        claims = [
            (n, claim)
            for n in step.islands
            if self.islands[n].claim is not None and (claim := self._claim_of(n)) not in (None, step)
        ]
        if not claims:
            return True
        end = self._start_of(step, now) + self._estimate(step)
        return all(
            claim is None
            or self._is_before(step, claim, n)
            or (
                (end <= self._start_of(claim, now) or self._needs_other_devices(n, step, claim))
                and self._has_room_beside(n, step, claim)
            )
            for n, claim in claims
        )

    def _needs_other_devices(self, number: int, step: QueuedStep, claim: QueuedStep) -> bool:
        """Returns whether a waiting step lacks memory on other devices of an island than a step needs."""
        if claim.islands != (number,) or number not in step.memory or number not in claim.memory:
            return False
        devices = {device for device, _ in claim.memory[number].temporaries}
        return bool(devices) and devices.isdisjoint(device for device, _ in step.memory[number].temporaries)

    def _has_room_beside(self, number: int, step: QueuedStep, claim: QueuedStep) -> bool:
        """Returns whether a place remains for a waiting step, which might never get one otherwise."""
        island = self.islands[number]
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
        return any(is_left) and all(len(self.islands[n].in_flight) > 1 for n in step.islands)

    def _leaves_islands_idle(self, step: QueuedStep, now: float) -> bool:
        """Returns whether some islands of a step would wait for others for longer than a round trip."""
        islands = [self.islands[n] for n in step.islands]
        first = max(now, min([island.busy_until for island in islands]))
        return self._start_of(step, now) - first > max([island.round_trip for island in islands])

    def _fill_until(self, number: int, step: QueuedStep, until: float, now: float) -> bool:
        """Issues steps that end on an island in time; returns whether there are more, without places."""
        island = self.islands[number]
        skipped: list[ReadyEntry] = []
        is_left = False
        while island.ready and len(skipped) < _MAX_SKIPPED and max(now, island.busy_until) < until:
            entry = heapq.heappop(island.ready)
            *_, token, other = entry
            if not self._is_valid(other, token):
                continue
            end = max(now, island.busy_until) + self._estimate(other)
            if other.islands != (number,) or end > until or self._is_too_early(other):
                skipped.append(entry)
            elif self._fits(other) and self._has_room_beside(number, other, step):
                self._issue(other, now)
            else:
                skipped.append(entry)
                is_left = True
                break
        for entry in skipped:
            heapq.heappush(island.ready, entry)
        return is_left

    def take(self, service: ClientService, step: QueuedStep, now: float) -> None:
        """Gives a step its places on all its islands."""
        step._state = "issued"
        step.wait(None, now)
        start, measured = self._start_of(step, now), service.estimate_of(step)
        estimate = FIRST_ESTIMATE if measured is None else measured
        for n in step.islands:
            if measured is None:
                service.tried[n] = step
            island = self.islands[n]
            island.in_flight[step] = estimate
            island.used += step.share
            if n in step.memory:
                self._hold_temporaries(island, step.memory[n].temporaries, 1)
            island.work += estimate
            island.busy_until = start + estimate
            island.virtual = max(island.virtual, service.served[n])
            # The estimate is charged now, and corrected when the step is done: otherwise one client could get
            # all places before its first step ends.
            service.served[n] += estimate / service.weight
            service.in_flight[n] += 1
        # Other steps may be first on its islands now, or there is still room.
        self.open.update(step.islands)

    def finish(self, step: QueuedStep, number: int, took: float, now: float) -> None:
        """Frees the place of a step that ran for `took` seconds on an island, and charges its client."""
        estimate = self.free(step, number)
        island = self.islands[number]
        island.busy_until = now + island.work
        service = self.services.get(step.client)
        if service is None:
            return
        service.served[number] += (took - estimate) / service.weight
        service.device_seconds += took
        service.learn(step, took)

    @staticmethod
    def _hold_temporaries(island: SharedIsland, temporaries: DeviceBytes, sign: int) -> None:
        for device, count in temporaries:
            island.temporaries[device] = island.temporaries.get(device, 0) + sign * count

    def free(self, step: QueuedStep, number: int) -> float:
        """Frees the place of a step on an island; returns its estimated time."""
        island = self.islands[number]
        step._left.discard(number)
        estimate = island.in_flight.pop(step)
        island.used -= step.share
        if number in step.memory:
            self._hold_temporaries(island, step.memory[number].temporaries, -1)
        if (service := self.services.get(step.client)) is not None:
            service.in_flight[number] -= 1
        # Sums of floats drift, so an island without steps has exactly 0.
        island.work = max(0.0, island.work - estimate) if island.in_flight else 0.0
        self.open.add(number)
        # A step of several islands may have waited for this place; otherwise only idle islands are filled
        # again.
        if island.claim is not None and (claim := self._claim_of(number)) is not None:
            fits = self._fits(claim)
            self.open.update(n for n in claim.islands if fits or not self.islands[n].in_flight)
        return estimate
