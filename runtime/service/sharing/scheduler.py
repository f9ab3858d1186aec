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
one step in flight on an island at a time: others would wait for an unknown amount of work. Eager JAX is
hundreds of programs that run once: a new one is expected to take as long as its client's last ones did.

A step of several islands that lacks a place on one of them claims the others from the time when the last of
them is free: later steps pass it only if they end before. Without claims it would starve, and with claims
alone its islands would idle (backfilling: Lifka, 1995). It gets its places when all of them are free at the
same time, up to a round trip: until its last island is free it blocks the others for all other steps.

All state of the scheduler is in this file. `handle` gets an event and the time, and returns the effects to
carry out; no method waits, sends, or reads a clock.
"""

from __future__ import annotations

import collections
import itertools
from collections.abc import Iterable, Sequence
from typing import Literal

from pathways.runtime.service.sharing.places import MAX_UNFINISHED, ClientService, Places
from pathways.runtime.service.sharing.scheduler_events import (
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

Policy = Literal["fair", "fifo"]


class ScheduledClient:
    """State of a client in the scheduler.

    Attributes:
      service: the device time that it had and is owed.
      steps_done: the number of its finished steps.
      unfinished: the number of its unfinished steps.
    """

    def __init__(self, number: int, service: ClientService, islands: int) -> None:
        self.number = number
        self.service = service
        self.steps_done = 0
        self.unfinished = 0
        self._queues: list[collections.deque[QueuedStep | OrderedRequest]] = [
            collections.deque() for _ in range(islands)
        ]
        self._arrays: list[set[int]] = [set() for _ in range(islands)]
        # Items that wait for an array, by its island and number.
        self._awaited: dict[tuple[int, int], list[QueuedStep | OrderedRequest]] = {}
        # Results of its unfinished calls, by islands and numbers, and how many of these calls read an array.
        self._call_results: set[tuple[int, int]] = set()
        self._call_arguments: collections.Counter[tuple[int, int]] = collections.Counter()

    @property
    def queued(self) -> int:
        """The number of its steps that wait for a place."""
        return len({id(item) for queue in self._queues for item in queue if isinstance(item, QueuedStep)})


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
        self._is_fair = policy == "fair"
        self._places = Places(islands, ahead, self._is_fair, self._issue)
        # Why islands accept no steps; None while they do.
        self._problems: list[str | None] = [None] * islands
        self._lost: set[int] = set()
        self._orders = itertools.count()
        self._effects: list[SchedulerEffect] = []

    def in_flight(self, island: int) -> int:
        """Returns the number of steps in flight on an island."""
        return len(self._places.islands[island].in_flight)

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
            case CallFinished(call):
                self._end_call(call)
            case ClientJoined(client, weight):
                service = self._places.add_client(client, weight)
                self.clients[client] = ScheduledClient(client, service, len(self._problems))
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
        if (
            now is not None
            and not item._missing
            and not self._is_blocked(client, item)
            and self._places.is_free_for(client.service, item, now)
        ):
            for n in item.islands:
                self._places.limit_credit(client.service, n)
            self._places.take(client.service, item, now)
            self._effects.append(IssueStep(item))
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
            if coming is not None and island not in self._lost:
                client._awaited.setdefault((island, coming), []).append(first)
                return
            queue.popleft()
            has_arguments = arrays.issuperset(first.arguments)
            frees = tuple([number for number in first.frees if number in arrays])
            arrays.difference_update(frees)
            if first.is_call and island not in self._lost:
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
        self._places.add_ready(client.service, step)

    def _is_blocked(self, client: ScheduledClient, step: QueuedStep) -> bool:
        """Returns whether a new step waits for an earlier item of its client."""
        for n in step.islands:
            if client._queues[n]:
                return True
        has_calls = client._call_results or client._call_arguments
        return bool(has_calls) and _blocking_array(client, step) is not None

    def _issue(self, step: QueuedStep, now: float) -> None:
        """Issues a step from the queues of its client, which get other first items."""
        client = self.clients[step.client]
        self._places.take(client.service, step, now)
        self._effects.append(IssueStep(step))
        for n in step.islands:
            client._queues[n].popleft()
        for n in step.islands:
            self._advance(client, n)

    # Ends of steps, calls, clients and islands.

    def _finish_step(self, done: IslandStepDone, now: float) -> None:
        step, n = done.step, done.island
        # Late: the island was lost in the meantime.
        if n not in step._left:
            return
        self._places.finish(step, n, done.took, now)
        client = self.clients.get(step.client)
        if client is None:
            return
        self._count_done(client, step)
        if self._is_fair and not step._left:
            self._sort_again(client, step.islands)

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
        self._places.remove_client(client.number)
        for n, queue in enumerate(client._queues):
            for item in queue:
                if isinstance(item, QueuedStep):
                    item._state = "dropped"
                    client._arrays[n].difference_update(item.results[n])
                else:
                    client._arrays[n].difference_update(item.results)
            if client._arrays[n]:
                self._effects.append(FreeClientArrays(client.number, n, tuple(sorted(client._arrays[n]))))

    def _lose_island(self, lost: IslandLost) -> None:
        n = lost.island
        self._problems[n] = lost.why
        self._lost.add(n)
        for step in self._places.lose_island(n):
            if (client := self.clients.get(step.client)) is not None:
                self._count_done(client, step)
        for client in self.clients.values():
            client._arrays[n].clear()
            self._refuse_all(client, n, lost.why)
            for keys in (client._awaited, client._call_arguments):
                for key in [key for key in keys if key[0] == n]:
                    del keys[key]
            client._call_results = {key for key in client._call_results if key[0] != n}
            # Only ordered requests are left, which wait for nothing there any more.
            self._advance(client, n)

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
