"""Fair-share scheduler for the steps of many clients.

Each client has a queue on each island, which keeps the order of its steps and of requests between them, such
as frees and fetches. So a step passes an earlier one of its client only if they share no island. A step is
ready when it is first in all its queues, and all its arrays have arrived or are on their way. It also waits
here for the results of calls of functions, and, before it donates an array, for the calls that read it:
workers have one queue for all clients.

A ready step gets its places on all its islands in one decision, which is final: workers run steps in the
order in which they receive them. Few places exist: `ahead` on an island, and beyond the second only for
`WORK_SECONDS` of work and the round trip, so that new steps wait for little.

The next step belongs to the client with the least service on the island where it had most (start-time fair
queueing: Goyal, Vin and Cheng, 1996, by virtual times of each client on each island). Service is the device
time that hosts measure, divided by the client's weight. A client that had nothing to run keeps a credit of at
most `IDLE_SECONDS`.

The time of a step is estimated from the finished steps of its program. Of programs without any, a client has
one step in flight on an island at a time: others would wait for an unknown amount of work. Eager JAX is
hundreds of programs that run once: a new one is expected to take as long as its client's last ones did.

A step of several islands that lacks a place on one of them claims the others from the time when the last of
them is free: later steps pass it only if they end before. Without claims it would starve, and with claims
alone its islands would idle (backfilling: Lifka, 1995). It gets its places when all of them are free at the
same time, up to a round trip: until its last island is free it blocks the others for all other steps.

The steps of a client with a higher priority come before all others; a waiting one rises, see `Places.age`.

A step is ready only when the arrays that it makes fit the quota of its client. Where they do not, and no step
of the client in flight could free memory there, the client is requested to free arrays without references,
and then the step is refused, see `memory.py`. A ready step waits for its temporaries to fit the pool of its
islands as it waits for places.

All state of the scheduler is in this file, `places.py`, `memory.py` and `accounts.py`. `handle` gets an event
and the time, and returns the effects to carry out; no method waits, sends, or reads a clock.
"""

from __future__ import annotations

import collections
import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

from pathways.runtime.resources.tables import size, table
from pathways.runtime.service.sharing.accounts import Account, Accounts, HeldArrays, StepUse
from pathways.runtime.service.sharing.memory import ClientMemory, Quota, SharedMemory
from pathways.runtime.service.sharing.places import MAX_UNFINISHED, ClientService, Places
from pathways.runtime.service.sharing.rules import Sharing
from pathways.runtime.service.sharing.scheduler_events import (
    AcceptArray,
    ArrayArrived,
    ArrayOffered,
    CallFinished,
    ClientChanged,
    ClientJoined,
    ClientLeft,
    CollectMemory,
    DenyArray,
    DisconnectClient,
    DispatchRequest,
    FreeClientArrays,
    IslandJoined,
    IslandLeaving,
    IslandLost,
    IslandReturned,
    IslandStepDone,
    IssueStep,
    MemoryCollected,
    OrderedRequest,
    QueuedStep,
    RefuseStep,
    RoundTripMeasured,
    SchedulerEffect,
    SchedulerEvent,
    WorkSubmitted,
)

MAX_DENIED = 1 << 16
"""Maximum of arrays above its quota, which do not exist, that a client has not freed."""


class ScheduledClient:
    """State of a client in the scheduler.

    Attributes:
      name: the name by which it has a quota.
      service: the device time that it had and is owed.
      memory: the memory of its arrays.
      is_suspended: whether nothing of it is dispatched.
      steps_done: the number of its finished steps.
      unfinished: the number of its unfinished steps.
    """

    def __init__(
        self, number: int, name: str, service: ClientService, memory: ClientMemory, islands: int
    ) -> None:
        self.number = number
        self.name = name
        self.service = service
        self.memory = memory
        self.is_suspended = False
        self.steps_done = 0
        self.unfinished = 0
        self._queues: list[collections.deque[QueuedStep | OrderedRequest]] = [
            collections.deque() for _ in range(islands)
        ]
        self._arrays: list[set[int]] = [set() for _ in range(islands)]
        self._held = [HeldArrays() for _ in range(islands)]
        # Items that wait for an array, by its island and number.
        self._awaited: dict[tuple[int, int], list[QueuedStep | OrderedRequest]] = {}
        # Results of its unfinished calls, by islands and numbers, and how many of these calls read an array.
        self._call_results: set[tuple[int, int]] = set()
        self._call_arguments: collections.Counter[tuple[int, int]] = collections.Counter()
        # Steps that are first in their queues, and an array that it sends, which do not fit the quota.
        self._short: dict[QueuedStep, None] = {}
        self._offer: ArrayOffered | None = None
        # Why arrays do not exist that exceed the quota, by islands and numbers.
        self._denied: dict[tuple[int, int], str] = {}
        # The islands on which a call waits until it is resumed.
        self._stopped: set[int] = set()
        # Whether it was requested to free arrays without references, and has.
        self._collecting: Literal["no", "asked", "done"] = "no"

    def add_island(self) -> None:
        """Adds an island on which it has nothing; its memory and its service are added elsewhere."""
        self._queues.append(collections.deque())
        self._arrays.append(set())
        self._held.append(HeldArrays())

    @property
    def queued(self) -> int:
        """The number of its steps that wait for a place."""
        return len({id(item) for queue in self._queues for item in queue if isinstance(item, QueuedStep)})


class Scheduler:
    """Scheduler of one cluster: chooses which step is issued next.

    Args:
      ahead: the maximum of steps in flight on an island.
      sharing: `fair`, or `fifo`: in the order of submission.
      memory: the quotas of clients; by default there are none.
      ageing: the seconds after which the priority of a waiting step rises by one.

    Attributes:
      clients: the connected clients, by their numbers.
      accounts: the use of islands by clients, also by clients that have left.
    """

    def __init__(
        self,
        islands: int,
        ahead: int = 4,
        sharing: Sharing = "fair",
        memory: SharedMemory | None = None,
        ageing: float = 1.0,
    ) -> None:
        self.memory = SharedMemory([None] * islands) if memory is None else memory
        self.clients: dict[int, ScheduledClient] = {}
        self.accounts = Accounts()
        self._is_fair = sharing == "fair"
        pools = [None if limits is None else limits.pool for limits in self.memory.islands]
        self._places = Places(pools, ahead, self._is_fair, ageing, self._issue)
        # Why islands accept no steps; None while they do.
        self._problems: list[str | None] = [None] * islands
        self._lost: set[int] = set()
        self._orders = itertools.count()
        self._effects: list[SchedulerEffect] = []
        # The time of the event that is being handled.
        self._now = 0.0

    def in_flight(self, island: int) -> int:
        """Returns the number of steps in flight on an island."""
        return len(self._places.islands[island].in_flight)

    def users(self, island: int) -> list[int]:
        """Returns the clients that have arrays on an island, or that wait for it."""
        return [
            number
            for number, client in self.clients.items()
            if client._arrays[island] or client._queues[island]
        ]

    def has_queued(self, island: int) -> bool:
        """Returns whether steps or requests of clients wait for an island."""
        return any(client._queues[island] for client in self.clients.values())

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
        self._now = now
        *earlier, last = events
        for event in earlier:
            self._handle_one(event, now)
        match last:
            case WorkSubmitted(QueuedStep() as step):
                self._submit_step(step, now)
            case _:
                self._handle_one(last, now)
        self._places.age(now)
        self._places.fill(now)
        return self._effects

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
            case ArrayOffered():
                self._offer_array(event)
            case MemoryCollected(number):
                if (collecting := self.clients.get(number)) is not None:
                    collecting._collecting = "done"
                    self._settle(collecting)
            case CallFinished(call):
                self._end_call(call)
            case ClientJoined():
                self._add_client(event)
            case ClientChanged():
                self._change_client(event)
            case ClientLeft(client):
                self._remove_client(self.clients.pop(client))
            case IslandLeaving(number, why):
                self._problems[number] = why
                for each in self.clients.values():
                    self._refuse_all(each, number, why)
            case IslandLost():
                self._lose_island(event)
            case IslandReturned(number):
                self._problems[number] = None
                self._lost.discard(number)
            case IslandJoined():
                self._add_island(event)
            case RoundTripMeasured(number, seconds):
                self._places.islands[number].round_trip = seconds

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
        if client.unfinished >= MAX_UNFINISHED:
            self._effects.append(
                DisconnectClient(
                    client.number, f"it has requested more than {MAX_UNFINISHED} unfinished steps"
                )
            )
            return
        # Loops, where a generator for each step would be another call.
        for n in item.islands:
            if (problem := self._problems[n]) is not None:
                self._refuse_step(item, problem)
                return
        for n in item.islands:
            for array in item.arguments[n]:
                if array in client._arrays[n]:
                    continue
                denied = client._denied.get((n, array))
                if denied is not None or array not in item.sent:
                    why = denied or "an argument is not available"
                    self._refuse_step(item, why, is_over_quota=denied is not None)
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
        if (
            now is not None
            and not item._missing
            and not self._is_blocked(client, item)
            and (not item.memory or client.memory.fits(item.memory))
            and self._places.is_free_for(client.service, item, now)
        ):
            for n in item.islands:
                self._places.limit_credit(client.service, n)
            self._dispatch_step(client, item, now)
            self._hold_sharers_back(client, item)
            return
        for n in item.islands:
            queue = client._queues[n]
            if not queue:
                self._places.limit_credit(client.service, n)
            queue.append(item)
            if len(queue) == 1:
                item._firsts += 1
        self._check_ready(client, item)

    def _advance(self, client: ScheduledClient, island: int) -> None:
        """Continues a queue whose first item has changed."""
        has_freed = has_added = False
        queue = client._queues[island]
        while queue and isinstance(first := queue[0], OrderedRequest):
            if not self._may_start(client, first):
                break
            queue.popleft()
            frees = self._dispatch_request(client, first)
            has_freed, has_added = has_freed or bool(frees), has_added or bool(first.memory)
        else:
            if queue:
                assert isinstance(first, QueuedStep)
                first._firsts += 1
                self._check_ready(client, first)
        # Last, for it may change the queue.
        if has_added:
            self._hold_all_back(client.number, client.memory.quota)
        if has_freed:
            self._settle_all(client.number, client.memory.quota)

    def _may_start(self, client: ScheduledClient, item: OrderedRequest) -> bool:
        """Returns whether an item that is first in its queue is dispatched now; one that waits is noted."""
        if item.island in self._lost:
            return True
        if item.is_call and client.is_suspended:
            client._stopped.add(item.island)
            return False
        needed = (*item.frees, *item.arguments)
        coming = next((number for number in needed if self._comes(client, item, number)), None)
        if coming is not None:
            client._awaited.setdefault((item.island, coming), []).append(item)
        return coming is None

    def _dispatch_request(self, client: ScheduledClient, item: OrderedRequest) -> tuple[int, ...]:
        """Dispatches a request; returns the arrays that it frees."""
        island, arrays = item.island, client._arrays[item.island]
        has_arguments = arrays.issuperset(item.arguments)
        denied = None
        if client._denied and not has_arguments:
            keys = ((island, number) for number in item.arguments)
            denied = next((client._denied[key] for key in keys if key in client._denied), None)
        frees = self._free(client, island, item.frees)
        if item.is_call and island not in self._lost:
            client._call_results.update((island, number) for number in item.results)
            client._call_arguments.update((island, number) for number in item.arguments)
            for number, of_devices in zip(item.results, item.memory, strict=False):
                client.memory.add(island, number, of_devices)
        if item.moved and has_arguments and island not in self._lost:
            self._transfers_of(client, island).current().new.moved_bytes += item.moved
        self._effects.append(DispatchRequest(item, frees, has_arguments, denied=denied))
        return frees

    def _transfers_of(self, client: ScheduledClient, island: int) -> Account:
        """Returns the account of the arrays that a client sends and fetches."""
        return self.accounts.open(client.name, "", island, self._now)

    @staticmethod
    def _comes(client: ScheduledClient, item: OrderedRequest, array: int) -> bool:
        """Returns whether an array that an item needs is one that its client still sends."""
        key = item.island, array
        return array in item.sent and array not in client._arrays[item.island] and key not in client._denied

    def _free(self, client: ScheduledClient, island: int, arrays: Sequence[int]) -> tuple[int, ...]:
        """Frees arrays of a client; returns the numbers of existing ones."""
        existing = client._arrays[island]
        frees = tuple([number for number in arrays if number in existing])
        existing.difference_update(frees)
        client.memory.free(island, frees)
        client._held[island].free(frees)
        for number in arrays if client._denied else ():
            client._denied.pop((island, number), None)
        return frees

    def _check_ready(self, client: ScheduledClient, step: QueuedStep) -> None:
        if step._firsts < len(step.islands) or step._state != "waits":
            return
        if step._missing:
            step.wait("data", self._now)
            return
        has_calls = client._call_results or client._call_arguments
        if has_calls and (key := _blocking_array(client, step)) is not None:
            client._awaited.setdefault(key, []).append(step)
            step._missing = 1
            step.wait("data", self._now)
            return
        if client.is_suspended:
            step.wait("suspended", self._now)
            return
        if step.memory and not client.memory.fits(step.memory):
            client._short[step] = None
            step.wait("quota", self._now)
            self._settle(client)
            return
        self._places.add_ready(client.service, step, self._now)

    def _is_blocked(self, client: ScheduledClient, step: QueuedStep) -> bool:
        """Returns whether a new step waits for an earlier item of its client, or as all its steps do."""
        if client.is_suspended:
            return True
        for n in step.islands:
            if client._queues[n]:
                return True
        has_calls = client._call_results or client._call_arguments
        return bool(has_calls) and _blocking_array(client, step) is not None

    def _issue(self, step: QueuedStep, now: float) -> None:
        """Issues a step from the queues of its client, which get other first items."""
        client = self.clients[step.client]
        self._dispatch_step(client, step, now)
        for n in step.islands:
            client._queues[n].popleft()
        if step.memory and len(step.islands) > 1:
            self._advance_all(client, step.islands)
        else:
            for n in step.islands:
                self._advance(client, n)
        self._hold_sharers_back(client, step)

    def _advance_all(self, client: ScheduledClient, islands: Iterable[int]) -> None:
        """Continues queues whose first items have changed, unless another queue has continued them."""
        firsts = {n: queue[0] for n in islands if (queue := client._queues[n])}
        for n, first in firsts.items():
            queue = client._queues[n]
            if queue and queue[0] is first:
                self._advance(client, n)

    def _dispatch_step(self, client: ScheduledClient, step: QueuedStep, now: float) -> None:
        self._places.take(client.service, step, now)
        if step.memory:
            client.memory.begin(step, step.memory, step.arguments, step.results, step.donates)
            step._owner = client.memory
            client._collecting = "no"
        self._effects.append(IssueStep(step))

    def _hold_sharers_back(self, client: ScheduledClient, step: QueuedStep) -> None:
        """Takes back ready steps of clients that share a quota after an issued step has used a part of it.

        The steps of one client need no such check: ready ones share no island.
        """
        if step.memory and self.memory.is_shared(client.memory.quota):
            self._hold_all_back(client.number, client.memory.quota)

    # Memory.

    def _offer_array(self, offer: ArrayOffered) -> None:
        client = self.clients.get(offer.client)
        if client is None or offer.island in self._lost:
            self._effects.append(DenyArray(offer, None))
            return
        client._offer = offer
        self._settle(client)

    def _settle(self, client: ScheduledClient) -> None:
        """Decides about the steps and the array of a client that did not fit its quota.

        A step that fits continues. The others wait for steps of the client in flight; without any, the client
        frees arrays without references, and then they are refused.
        """
        memory = client.memory
        offer = client._offer
        reserved = {} if offer is None else self._reserved(client, offer)
        if offer is not None and memory.quota.fits(
            offer.island, tuple((device, n + reserved.get(device, 0)) for device, n in offer.memory)
        ):
            client._offer = None
            memory.add(offer.island, offer.array, offer.memory)
            self._effects.append(AcceptArray(offer))
            self._hold_all_back(client.number, memory.quota)
            offer = None
        for step in [*client._short]:
            if step._state != "waits" or memory.fits(step.memory):
                client._short.pop(step, None)
                if step._state == "waits":
                    self._check_ready(client, step)
        if client.is_suspended:
            return
        stuck = [step for step in client._short if all(map(memory.is_idle, memory.short_of(step.memory)))]
        is_denied = offer is not None and not reserved and memory.is_idle(offer.island)
        if not stuck and not is_denied:
            return
        if self._free_early(client):
            self._settle(client)
        elif client._collecting == "no":
            client._collecting = "asked"
            self._effects.append(CollectMemory(client.number))
        elif client._collecting == "done":
            client._collecting = "no"
            if offer is not None and is_denied:
                self._deny(client, offer)
            for step in stuck:
                if step in client._short:
                    del client._short[step]
                    self._refuse(client, {step}, self._why_short(client, step), is_over_quota=True)
            if client._offer is not None:
                # It may have waited for these steps.
                self._settle(client)

    def _reserved(self, client: ScheduledClient, offer: ArrayOffered) -> dict[int, int]:
        """Returns the bytes on devices that queued steps need before an array: it must not take their memory.

        The client may send the arguments of steps far ahead. A step counts if it needs no array that is sent
        after this one: otherwise both would wait for each other.
        """
        reserved: collections.Counter[int] = collections.Counter()
        left = [collections.deque(queue) for queue in client._queues]
        is_any = True
        while is_any:
            is_any = False
            for queue in left:
                while queue and self._needs_nothing_later(client, queue[0], offer):
                    item = queue[0]
                    if isinstance(item, QueuedStep):
                        if any(not left[m] or left[m][0] is not item for m in item.islands):
                            break
                        if offer.island in item.memory:
                            reserved.update(dict(item.memory[offer.island].allocated))
                        for m in item.islands:
                            left[m].popleft()
                    else:
                        queue.popleft()
                    is_any = True
        return reserved

    @staticmethod
    def _needs_nothing_later(
        client: ScheduledClient, item: QueuedStep | OrderedRequest, offer: ArrayOffered
    ) -> bool:
        """Returns whether the arrays that an item waits for are on their way already, or never come."""
        needs: Mapping[int, Sequence[int]] = (
            item.arguments if isinstance(item, QueuedStep) else {item.island: (*item.arguments, *item.frees)}
        )
        return not any(
            (n, array) == (offer.island, offer.array)
            or (array in item.sent and array not in client._arrays[n] and not client.memory.has(n, array))
            for n, arrays in needs.items()
            for array in arrays
        )

    def _settle_all(self, number: int, quota: Quota) -> None:
        """Decides about steps and arrays that did not fit the quota of a client, after memory was freed."""
        for client in self._users(number, quota):
            if client._short or client._offer is not None:
                self._settle(client)

    def _hold_all_back(self, number: int, quota: Quota) -> None:
        """Takes back the ready steps that do not fit the quota of a client any more."""
        for client in self._users(number, quota):
            if self._hold_back(client):
                self._settle(client)

    def _users(self, number: int, quota: Quota) -> Sequence[ScheduledClient]:
        """Returns the connected clients that have a quota: one, or all that share it."""
        if self.memory.is_shared(quota):
            return [client for client in self.clients.values() if client.memory.quota is quota]
        client = self.clients.get(number)
        return () if client is None else (client,)

    def _hold_back(self, client: ScheduledClient) -> bool:
        """Takes back the ready steps of a client that do not fit its quota; returns whether there are any."""
        before = len(client._short)
        for step in {queue[0]: None for queue in client._queues if queue}:
            if not isinstance(step, QueuedStep) or step._state != "ready" or not step.memory:
                continue
            if not client.memory.fits(step.memory):
                self._places.withdraw(step, "waits")
                step.wait("quota", self._now)
                client._short[step] = None
        return len(client._short) > before

    def _free_early(self, client: ScheduledClient) -> bool:
        """Frees arrays whose frees wait behind items that do not need them; returns whether there are any."""
        is_any = False
        for n, queue in enumerate(client._queues):
            used: set[int] = set()
            for item in queue:
                if isinstance(item, QueuedStep):
                    used.update(item.arguments[n], item.results[n])
                else:
                    used.update(item.arguments, item.results)
                if isinstance(item, QueuedStep) or not item.frees:
                    continue
                existing = client._arrays[n]
                early = [number for number in item.frees if number in existing and number not in used]
                frees = self._free(client, n, early)
                if frees:
                    is_any = True
                    item.frees = tuple(number for number in item.frees if number not in frees)
                    self._effects.append(DispatchRequest(OrderedRequest(client.number, n), frees))
        return is_any

    def _deny(self, client: ScheduledClient, offer: ArrayOffered) -> None:
        """Denies an array, and the steps and requests that need it."""
        key = offer.island, offer.array
        count = max(count for _, count in offer.memory)
        why = self._why_over(client, "an array that it sends", offer.island, count)
        self._note_denied(client, [key], why)
        client._offer = None
        self._effects.append(DenyArray(offer, why))
        waiting = client._awaited.pop(key, [])
        steps = {item for item in waiting if isinstance(item, QueuedStep)}
        if steps:
            self._refuse(client, steps, why, is_over_quota=True)
        for item in waiting:
            if isinstance(item, OrderedRequest):
                self._advance(client, item.island)

    def _note_denied(self, client: ScheduledClient, arrays: Iterable[tuple[int, int]], why: str) -> None:
        """Notes arrays that do not exist, for steps that are submitted before the client knows."""
        client._denied.update(dict.fromkeys(arrays, why))
        if len(client._denied) > MAX_DENIED:
            self._effects.append(
                DisconnectClient(
                    client.number,
                    f"it has not freed more than {MAX_DENIED} arrays above its quota, which do not exist",
                )
            )

    def _why_short(self, client: ScheduledClient, step: QueuedStep) -> str:
        island = client.memory.short_of(step.memory)[0]
        count = max(count for _, count in step.memory[island].allocated)
        return self._why_over(client, f"a step of program '{step.program}'", island, count)

    def _why_over(self, client: ScheduledClient, subject: str, island: int, count: int) -> str:
        memory = client.memory
        limit, held = memory.quota.limits[island], memory.held(island)
        assert limit is not None
        largest = ", ".join(map(size, memory.largest(island, 3))) or "-"
        # The quota that clients share may be held by others.
        shared = "" if self.memory.quota_of(client.name) is not None else " with others"
        rows = [
            ("client", "quota", "held", "made", "largest arrays"),
            (client.name, size(limit) + shared, size(max(held.values(), default=0)), size(count), largest),
        ]
        return (
            f"{subject} exceeds the quota of client {client.name!r} on a device of island{island}: free "
            f"arrays, or have the quota raised (pw-cluster set)\n{table(rows)}"
        )

    # Ends of steps, calls, clients and islands.

    def _add_client(self, joined: ClientJoined) -> None:
        service = self._places.add_client(joined.client, joined.weight, joined.priority)
        client = self.clients[joined.client] = ScheduledClient(
            joined.client, joined.name, service, self.memory.join(joined.name), len(self._problems)
        )
        client.is_suspended = joined.is_suspended

    def change_quota(self, name: str, quota: int) -> None:
        """Sets the quota of a client; `ClientChanged` follows if it is connected.

        Raises:
          ValueError: all quotas together exceed the memory of an island without its pool.
        """
        client = next((client for client in self.clients.values() if client.name == name), None)
        self.memory.change(name, quota, None if client is None else client.memory)

    def _change_client(self, changed: ClientChanged) -> None:
        client = self.clients[changed.client]
        self._places.change_client(client.number, changed.weight, changed.priority)
        was_suspended, client.is_suspended = client.is_suspended, changed.is_suspended
        for first in {queue[0]: None for queue in client._queues if queue}:
            if isinstance(first, OrderedRequest):
                continue
            if changed.is_suspended and first._state == "ready":
                self._places.withdraw(first, "waits")
                first.wait("suspended", self._now)
            elif was_suspended and not changed.is_suspended:
                self._check_ready(client, first)
        if not changed.is_suspended:
            stopped, client._stopped = client._stopped, set()
            for n in stopped:
                self._advance(client, n)
        self._hold_back(client)
        self._settle_all(client.number, client.memory.quota)

    def _finish_step(self, done: IslandStepDone, now: float) -> None:
        step, n = done.step, done.island
        # Late: the island was lost in the meantime.
        if n not in step._left:
            return
        self._places.finish(step, n, done.took, now)
        if step._owner is not None:
            step._owner.finish(step, n)
            self._settle_all(step.client, step._owner.quota)
        client = self.clients.get(step.client)
        if step.uses:
            self._count_use(client, done)
        if client is None:
            return
        self._count_done(client, step)
        if self._is_fair and not step._left:
            self._sort_again(client, step.islands)

    def _count_use(self, client: ScheduledClient | None, done: IslandStepDone) -> None:
        """Counts the use of an island by a step that is done there, and its results."""
        step, n = done.step, done.island
        use = step.uses[n]
        use.count_end(done.took, self._now, has_failed=done.has_failed, is_last=not step._left)
        if client is not None:
            client._held[n].free(step.donates.get(n, ()))
        if not done.has_failed:
            self._hold(client, n, use, step.results[n])

    @staticmethod
    def _hold(client: ScheduledClient | None, island: int, use: StepUse, results: Sequence[int]) -> None:
        """Counts results that are computed as held, unless their client has freed them or left."""
        if client is None:
            return
        held, existing = client._held[island], client._arrays[island]
        for number, count in zip(results, use.results, strict=True):
            if number in existing:
                held.add(number, use.account, count)

    def _sort_again(self, client: ScheduledClient, islands: Iterable[int]) -> None:
        """Sorts a client's ready steps by its measured service, which was an estimate until now."""
        firsts = [queue[0] for n in islands if (queue := client._queues[n])]
        # Once each, though a step may be first on several islands.
        for first in dict.fromkeys([item for item in firsts if isinstance(item, QueuedStep)]):
            if first._state == "ready":
                self._places.sort(client.service, first)

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
        if arrived.bytes:
            account = self._transfers_of(client, arrived.island)
            account.current().new.moved_bytes += arrived.bytes
            client._held[arrived.island].add(arrived.array, account, arrived.bytes)
        self._wake(client, (arrived.island, arrived.array))

    def _end_call(self, call: OrderedRequest) -> None:
        client = self.clients.get(call.client)
        if call.use is not None:
            call.use.count_end(0.0, self._now)
            self._hold(client, call.island, call.use, call.results)
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
        self._places.remove_client(client.number)
        client.memory.free_all()
        self._settle_all(client.number, client.memory.quota)
        if client._offer is not None:
            self._effects.append(DenyArray(client._offer, None))
        for n, queue in enumerate(client._queues):
            for item in queue:
                if isinstance(item, QueuedStep):
                    self._places.withdraw(item, "dropped")
                    item.wait(None, self._now)
                    client._arrays[n].difference_update(item.results[n])
                else:
                    client._arrays[n].difference_update(item.results)
            client._held[n].free_all()
            if client._arrays[n]:
                self._effects.append(FreeClientArrays(client.number, n, tuple(sorted(client._arrays[n]))))

    def _add_island(self, joined: IslandJoined) -> None:
        assert joined.island == len(self._problems), joined
        limits = joined.limits
        self._problems.append(None)
        self._places.add_island(None if limits is None else limits.pool)
        self.memory.add_island(limits, [(client.name, client.memory) for client in self.clients.values()])
        for client in self.clients.values():
            client.add_island()

    def _lose_island(self, lost: IslandLost) -> None:
        n = lost.island
        self._problems[n] = lost.why
        self._lost.add(n)
        for step in self._places.lose_island(n):
            if n in step.uses:
                step.uses[n].count_failure()
            if (client := self.clients.get(step.client)) is not None:
                self._count_done(client, step)
        for client in self.clients.values():
            client._arrays[n].clear()
            client._held[n].free_all()
            client.memory.lose_island(n)
            client._stopped.discard(n)
            client._denied = {key: why for key, why in client._denied.items() if key[0] != n}
            if client._offer is not None and client._offer.island == n:
                self._effects.append(DenyArray(client._offer, None))
                client._offer = None
            self._refuse_all(client, n, lost.why)
            for keys in (client._awaited, client._call_arguments):
                for key in [key for key in keys if key[0] == n]:
                    del keys[key]
            client._call_results = {key for key in client._call_results if key[0] != n}
            # Only ordered requests are left, which wait for nothing there any more.
            self._advance(client, n)
            self._settle(client)

    def _refuse_all(self, client: ScheduledClient, island: int, why: str) -> None:
        """Refuses the steps of a client on an island that accepts none, and the steps that depend on them."""
        waiting = (item for queue in client._queues for item in queue if isinstance(item, QueuedStep))
        self._refuse(client, {step for step in waiting if island in step.islands}, why)

    def _refuse_step(self, step: QueuedStep, why: str, *, is_over_quota: bool = False) -> None:
        """Refuses a step that is in no queue, or is being removed from its queues."""
        step.wait(None, self._now)
        for use in step.uses.values():
            use.count_failure()
        self._effects.append(RefuseStep(step, why, is_over_quota))

    def _refuse(
        self, client: ScheduledClient, steps: set[QueuedStep], why: str, *, is_over_quota: bool = False
    ) -> None:
        """Refuses queued steps of a client, and the steps that depend on them."""
        refused: set[QueuedStep] = set()
        missing: set[tuple[int, int]] = set()
        waiting = {item for queue in client._queues for item in queue if isinstance(item, QueuedStep)}
        # In the order of submission: on whatever island, the step that returns an array comes first.
        for step in sorted(waiting, key=lambda step: step._order):
            if step in steps or _reads_any(step, missing):
                refused.add(step)
                missing |= {(n, array) for n in step.islands for array in step.results[n]}
        for items in client._awaited.values():
            items[:] = [item for item in items if item not in refused]
        for step in sorted(refused, key=lambda step: step._order):
            self._places.withdraw(step, "dropped")
            client.unfinished -= 1
            self._refuse_step(step, why, is_over_quota=is_over_quota)
            client._short.pop(step, None)
        for n, array in missing:
            client._arrays[n].discard(array)
        if is_over_quota:
            self._note_denied(client, missing, why)
        changed: list[int] = []
        for n, queue in enumerate(client._queues):
            if any(item in refused for item in queue):
                was = queue[0]
                remaining = [item for item in queue if item not in refused]
                queue.clear()
                queue.extend(remaining)
                if remaining and remaining[0] is not was:
                    changed.append(n)
        self._advance_all(client, changed)


def _blocking_array(client: ScheduledClient, step: QueuedStep) -> tuple[int, int] | None:
    """Returns an argument that a call has not returned yet, or a donated one that a call still reads."""
    arguments = [(n, array) for n in step.islands for array in step.arguments[n]]
    donated = [(n, array) for n, arrays in step.donates.items() for array in arrays]
    pending = next((key for key in arguments if key in client._call_results), None)
    return pending or next((key for key in donated if key in client._call_arguments), None)


def _reads_any(step: QueuedStep, arrays: Iterable[tuple[int, int]]) -> bool:
    return any((n, array) in arrays for n in step.islands for array in step.arguments[n])
