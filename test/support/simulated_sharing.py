"""Random clients on simulated islands with a real scheduler.

An island runs its steps in the order in which it received them; a step of several islands runs when it is
first on all of them, as workers do that wait for each other. Seeds differ in islands, clients, quotas, kills
and losses, and every event is followed by a check of the invariants.
"""

from __future__ import annotations

import collections
import heapq
import itertools
import random
import time
from collections.abc import Callable, Iterable, Sequence

from simulated_accounts import SimulatedAccounts

from pathways.runtime.hosts.launch.options import MAX_AHEAD
from pathways.runtime.service.sharing.accounts import Accounts
from pathways.runtime.service.sharing.memory import DeviceBytes, DeviceLimits, SharedMemory, StepBytes
from pathways.runtime.service.sharing.scheduler import Scheduler
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
    SchedulerEvent,
    WorkSubmitted,
)
from pathways.runtime.simulate.events import SimulatedTime

SECONDS = {1: 0.0004, 2: 0.003, 3: 0.012}
"""Seconds that a step of each program takes, within `SPREAD`."""

SPREAD = 0.1
MAX_RATIO = (1 + SPREAD) / (1 - SPREAD)
"""Maximal ratio between the times of two steps of a program."""

WINDOW = 0.02
MAX_UNFINISHED = 32
MAX_IN_FLIGHT = 16
"""Promises of the scheduler: the maximum of seconds of work after the first step of an island when it gets a
third one, besides its round trip; of unfinished steps of a client; of steps of an island, unless those after
the first take no longer than its round trip."""


class SimulatedClient:
    """Client: its submitted work, by island, and the arrays that it has not freed."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.is_connected = True
        # Whether it has submitted more steps than it may, and has to be disconnected.
        self.is_greedy = False
        # Arrays that wait to be sent, with what sends each.
        self.offers: collections.deque[tuple[ArrayOffered, Callable[[], None]]] = collections.deque()
        self.submitted: dict[int, collections.deque[object]] = collections.defaultdict(collections.deque)
        self.unfinished: set[QueuedStep] = set()
        self.held: dict[int, list[int]] = collections.defaultdict(list)
        self.is_suspended = False


class SimulatedMemory:
    """Memory of the devices of islands, as workers use it: arrays live until no step in flight needs them.

    Clients 0 and 1 have quotas; each other client has one, or all share the rest.

    Attributes:
      sizes: the bytes of each array on the devices of its island.
    """

    DEVICES = 2

    def __init__(self, chance: random.Random, islands: int) -> None:
        self.pool = chance.choice([20, 40])
        self.quotas = {"0": 15, "1": 5}
        self.default = chance.choice([None, 10])
        self.is_limited = [chance.random() < 0.8 for _ in range(islands)]
        self.sizes: dict[int, DeviceBytes] = {}
        self.views: set[int] = set()
        self._families: dict[int, set[int]] = {}
        # For each island and array: the client, and the arrays whose memory it has.
        self.arrays: dict[tuple[int, int], tuple[int, frozenset[int]]] = {}
        self.allocated: dict[tuple[int, QueuedStep], DeviceBytes] = {}
        # Steps in flight that keep arrays which are freed.
        self.kept: dict[tuple[int, int], set[QueuedStep]] = {}
        self.left: set[int] = set()

    def family(self, array: int) -> set[int]:
        """Returns the arrays that may share memory with one."""
        return self._families.get(array, {array})

    def limits(self) -> SharedMemory:
        """Returns the quotas as the scheduler has them."""
        islands = [
            DeviceLimits(20 + self.pool + 50, self.pool) if is_limited else None
            for is_limited in self.is_limited
        ]
        return SharedMemory(islands, self.quotas, self.default)

    def join(self, *, is_limited: bool) -> DeviceLimits | None:
        """Adds an island, and returns its limits."""
        self.is_limited.append(is_limited)
        return DeviceLimits(20 + self.pool + 50, self.pool) if is_limited else None

    def quota(self, client: int) -> int:
        """Returns the quota of a client, or of all that share one."""
        return self.quotas.get(str(client), 50 if self.default is None else self.default)

    def random_bytes(self, chance: random.Random) -> DeviceBytes:
        """Returns the bytes of an array on one device, or on all."""
        devices = range(self.DEVICES) if chance.random() < 0.4 else [chance.randrange(self.DEVICES)]
        count = chance.choice([1, 2, 4, 6])
        return tuple((device, count) for device in devices)

    def needs(
        self,
        chance: random.Random,
        arguments: dict[int, tuple[int, ...]],
        results: dict[int, tuple[int, ...]],
        donates: dict[int, tuple[int, ...]],
    ) -> dict[int, StepBytes]:
        """Returns the memory of a step; a donated argument may become its first result."""
        needs = {}
        for n, own in results.items():
            if not self.is_limited[n]:
                continue
            donated = [array for array in donates.get(n, ()) if array in self.sizes.keys() - self.views]
            is_view = bool(arguments[n]) and not donated and chance.random() < 0.1
            if is_view:
                self.views.update(own)
                joined = {each for array in (*own, *arguments[n]) for each in self.family(array)}
                self._families.update(dict.fromkeys(joined, joined))
            reused = set()
            for array in own:
                self.sizes[array] = self.random_bytes(chance)
                if donated and not reused and chance.random() < 0.7:
                    self.sizes[array] = self.sizes[donated[0]]
                    reused.add(array)
            new = [] if is_view else [self.sizes[array] for array in own if array not in reused]
            temporaries = tuple((device, chance.choice([0, 0, 5, 15])) for device in range(self.DEVICES))
            needs[n] = StepBytes(
                _sum(new), temporaries, tuple(self.sizes[array] for array in own), is_view=is_view
            )
        return needs

    def begin(self, step: QueuedStep) -> None:
        """Notes the memory of a step that is issued."""
        for n, need in step.memory.items():
            self.allocated[n, step] = need.allocated

    def add(self, offer: ArrayOffered) -> None:
        """Notes the memory of an array that may be sent."""
        self.arrays[offer.island, offer.array] = offer.client, frozenset([offer.array])

    def finish(self, step: QueuedStep, island: int) -> None:
        """Notes that a step is done: it has results, and has consumed arguments."""
        need = step.memory.get(island)
        if need is None:
            return
        del self.allocated[island, step]
        read = [self.arrays.get((island, array)) for array in step.arguments[island]]
        for array in step.results[island]:
            views = frozenset().union(*(known[1] for known in read if known is not None))
            self.arrays[island, array] = step.client, views if need.is_view else frozenset([array])
        for array in step.donates.get(island, ()):
            # Views of a donated array are deleted with it.
            _, deleted = self.arrays.pop((island, array), (0, frozenset()))
            for key, (client, own) in [*self.arrays.items()]:
                if key[0] == island and not own.isdisjoint(deleted):
                    self.arrays[key] = client, own - deleted
        for key, steps in [*self.kept.items()]:
            if key[0] == island:
                steps.discard(step)
            if not steps:
                del self.kept[key]
                self.arrays.pop(key, None)

    def free(self, island: int, arrays: Iterable[int], queue: Iterable[QueuedStep]) -> None:
        """Frees arrays once the steps in flight that read or return them are done."""
        for array in arrays:
            users = {
                step for step in queue if array in step.arguments[island] or array in step.results[island]
            }
            if users:
                self.kept[island, array] = users
            else:
                self.arrays.pop((island, array), None)

    def cancel(self, client: int, sent: set[int], arrived: set[tuple[int, int]]) -> None:
        """Forgets the arrays of a client that have not arrived."""
        for key, (owner, _) in [*self.arrays.items()]:
            if owner == client and key[1] in sent and key not in arrived:
                del self.arrays[key]

    def lose(self, island: int) -> None:
        """Forgets an island."""
        for table in (self.arrays, self.allocated, self.kept):
            for key in [key for key in table if key[0] == island]:
                del table[key]

    def check(self, queues: Sequence[Sequence[QueuedStep]]) -> None:
        """Checks that nobody has more than its quota, and steps in flight no more than the pool."""
        for n, queue in enumerate(queues):
            if not self.is_limited[n]:
                continue
            held: collections.Counter[tuple[str, int]] = collections.Counter()
            for (island, step), allocated in self.allocated.items():
                if island == n:
                    held.update({(self._owner(step.client), device): count for device, count in allocated})
            owners = {
                array: client
                for (island, _), (client, own) in self.arrays.items()
                if island == n
                for array in own
            }
            for array, client in owners.items():
                for device, count in self.sizes[array]:
                    held[self._owner(client), device] += count
            for (owner, device), count in held.items():
                limit = 50 if owner == "shared" else self.quota(int(owner))
                assert count <= limit, f"client {owner} holds {count} of {limit} on device {device} of {n}"
            for device in range(self.DEVICES):
                used = [dict(step.memory[n].temporaries).get(device, 0) for step in queue if n in step.memory]
                assert sum(used) <= max(self.pool, *used, 0), f"temporaries of {sum(used)} on island {n}"

    def _owner(self, client: int) -> str:
        is_shared = str(client) not in self.quotas and self.default is None
        return "shared" if is_shared else str(client)


def _sum(sizes: Iterable[DeviceBytes]) -> DeviceBytes:
    total: collections.Counter[int] = collections.Counter()
    for of_devices in sizes:
        total.update(dict(of_devices))
    return tuple(total.items())


class SimulatedSharing:
    """Player of a random history.

    Args:
      seed: the seed of the history.
      make: creates the scheduler; a planted fault is a subclass.

    Attributes:
      events: the number of events that the scheduler has handled.
    """

    def __init__(self, seed: int, make: type[Scheduler] = Scheduler) -> None:
        self.chance = random.Random(seed)
        self.time = SimulatedTime()
        self.count = self.chance.randint(1, 4)
        self.ahead = self.chance.choice([1, 2, 4, 4, 256, 256])
        self.trip = self.chance.choice([0.0, 0.001, 0.004])
        policy = self.chance.choice(["fair", "fair", "fifo"])
        self.memory = SimulatedMemory(self.chance, self.count) if seed % 6 == 4 else None
        self.has_priorities = seed % 10 in (2, 8)
        limits = None if self.memory is None else self.memory.limits()
        self.scheduler = make(self.count, self.ahead, policy, limits, 0.01)
        if seed % 5 == 0:
            self.scheduler.accounts = Accounts(most=seed % 7)
        # Of its own: the history is the same without accounts.
        self.accounts = SimulatedAccounts(random.Random(seed), self.scheduler.accounts)
        self.joins = random.Random(f"{seed} joins")
        self.has_joins = seed % 3 == 1
        self.queues: list[collections.deque[QueuedStep]] = [collections.deque() for _ in range(self.count)]
        self.arrays: list[set[int]] = [set() for _ in range(self.count)]
        self.lost: set[int] = set()
        self.losses = [0] * self.count
        self.has_foreign = seed % 4 == 2
        self.sent: set[int] = set()
        self.owner: dict[int, int] = {}
        self.running: set[QueuedStep] = set()
        # The states of steps that are first on all their islands: `runs`, or `fails`.
        self.state: dict[QueuedStep, str] = {}
        self.seconds: dict[QueuedStep, float] = {}
        # Programs of clients with a measured step, steps that were issued before their program was measured,
        # and programs with a wrong measurement.
        self.known: set[tuple[int, int]] = set()
        self.tried: set[QueuedStep] = set()
        # Clients with a measured step of a foreign program, and steps that were issued by its estimate.
        self.known_foreign: set[int] = set()
        self.guessed: set[QueuedStep] = set()
        self.unsure: set[tuple[int, int]] = set()
        # Dispatched calls, with the arrays that they read and return.
        self.calls: list[OrderedRequest] = []
        self.ended: set[QueuedStep] = set()
        self.clients: list[SimulatedClient] = []
        # Results of refused steps, which never exist.
        self.refused: set[int] = set()
        self.leaving: set[int] = set()
        self.numbers = itertools.count(1)
        self.events = 0
        # Events that are passed together with the next one.
        self.pending: list[object] = []
        self.largest = self.chance.choice([1, 1, 2])

    def play(self) -> None:
        """Plays the history; an assertion fails when an invariant does not hold."""
        for island in range(self.count):
            self.handle(RoundTripMeasured(island, self.trip))
        for number in range(self.chance.randint(1, 5)):
            self.clients.append(SimulatedClient(number))
            priority = self.chance.choice([-1, 0, 0, 2]) if self.has_priorities else 0
            self.handle(ClientJoined(number, self.chance.choice([0.5, 1, 2]), str(number), priority))
            if self.has_priorities and self.chance.random() < 0.5:
                self.time.at(self.chance.uniform(0, 0.1), lambda n=number: self.suspend(self.clients[n]))
            most = self.chance.choice([1, 1, 16, 40])
            for _ in range(self.chance.randint(1, 60)):
                self.time.at(
                    self.chance.uniform(0, 0.2), lambda n=number, m=most: self.act(self.clients[n], m)
                )
            if self.chance.random() < 0.3:
                self.time.at(self.chance.uniform(0, 0.25), lambda n=number: self.kill(self.clients[n]))
        if self.chance.random() < 0.3:
            self.time.at(self.chance.uniform(0, 0.2), self.chance.choice([self.lose, self.leave]))
        for _ in range(self.joins.choice([0, 1, 1, 2]) if self.has_joins else 0):
            self.time.at(self.joins.uniform(0, 0.2), self.join)
        while self.time.step() or self.pending:
            if self.pending and self.chance.random() < 0.5:
                self.handle()
        self.check_end()

    def handle(self, *events: object) -> None:
        batch, self.pending = [*self.pending, *events], []
        self.events += len(batch)
        for event in batch:
            if isinstance(event, IslandStepDone):
                program = event.step.client, event.step.loaded
                self.known.add(program)
                if event.step.is_foreign:
                    self.known_foreign.add(event.step.client)
                if event.took != self.seconds[event.step]:
                    self.unsure.add(program)
        self.follow_waits()
        for effect in self.scheduler.handle_all(batch, self.time.now):
            self.carry_out(effect)
        self.follow_waits()
        if self.memory is not None:
            self.memory.check(self.queues)
        for n, queue in enumerate(self.queues):
            used = sum(step.share for step in queue)
            assert used <= self.ahead or len(queue) == 1, f"island {n} has {used} steps in flight"
        for n in range(self.count):
            self.start(n)

    def follow_waits(self) -> None:
        """Has the model of the accounts know which steps are first in all queues of their clients."""
        firsts = []
        for client in self.clients:
            if client.is_connected:
                heads = {n: queue[0] for n, queue in client.submitted.items() if queue}
                steps = {step for step in heads.values() if isinstance(step, QueuedStep)}
                firsts += [step for step in steps if all(heads.get(n) is step for n in step.islands)]
        self.accounts.follow(firsts, self.time.now)

    # Actions of clients.

    def act(self, client: SimulatedClient, most: int) -> None:
        if not client.is_connected:
            return
        alive = [n for n in range(self.count) if n not in self.lost]
        what = self.chance.random()
        if not alive:
            return
        if what < 0.15:
            self.put(client, self.chance.choice(alive))
        elif what < 0.3:
            island = self.chance.choice(alive)
            frees = tuple(self.chance.sample(client.held[island], min(2, len(client.held[island]))))
            client.held[island] = [array for array in client.held[island] if array not in frees]
            sent = frozenset(self.sent.intersection(frees))
            self.submit_in_order(
                client, OrderedRequest(client.number, island, frees, (), (), sent, context=object())
            )
        elif what < 0.4:
            island = self.chance.choice(alive)
            arguments = tuple(self.chance.sample(client.held[island], min(1, len(client.held[island]))))
            sent = frozenset(self.sent.intersection(arguments))
            # A call may return an array, which exists when it has ended.
            is_call = self.chance.random() < 0.6
            results = tuple(next(self.numbers) for _ in range(self.chance.choice([0, 1]) if is_call else 0))
            client.held[island] += results
            self.owner.update(dict.fromkeys(results, client.number))
            moved = 8 if arguments and not is_call else 0
            uses = self.accounts.uses(client.number, 0, {island: results}, self.time.now)
            request = OrderedRequest(
                *(client.number, island, (), arguments, results, sent, is_call),
                use=uses[island] if is_call else None,
                moved=moved,
                context=object(),
            )
            self.submit_in_order(client, request)
        else:
            islands = self.chance.sample(alive, self.chance.randint(1, min(3, len(alive))))
            for _ in range(self.chance.randint(1, most)):
                if not client.is_connected:
                    return
                if len(client.unfinished) < MAX_UNFINISHED:
                    self.step(client, islands)
                elif self.chance.random() < 0.02:
                    self.exceed_limit(client, islands)

    def put(self, client: SimulatedClient, island: int) -> None:
        array = next(self.numbers)
        client.held[island].append(array)
        self.sent.add(array)
        self.owner[array] = client.number
        losses = self.losses[island]
        count = self.accounts.new_size(array)
        is_late = self.chance.random() < 0.3

        def arrive() -> None:
            # Arrays that a client has not sent when it ends are never sent, except those in flight.
            if (client.is_connected or is_late) and self.losses[island] == losses:
                self.arrays[island].add(array)
                self.accounts.arrive(client.number, island, array, is_kept=client.is_connected)
                self.handle(ArrayArrived(client.number, island, losses, array, count))

        delay = self.chance.uniform(0, 0.05)
        if self.memory is None:
            self.time.after(delay, arrive)
            return
        size = self.memory.random_bytes(self.chance)
        self.memory.sizes[array] = size
        offer = ArrayOffered(client.number, island, losses, array, size)
        # A client sends one array at a time.
        client.offers.append((offer, lambda: self.time.after(delay, arrive)))
        if len(client.offers) == 1:
            self.handle(offer)

    def end_offer(self, offer: ArrayOffered, *, is_accepted: bool) -> None:
        client = self.clients[offer.client]
        first, send = client.offers.popleft()
        assert first is offer, f"array {offer.array} is not the one that was offered"
        if is_accepted:
            send()
        if client.offers and client.is_connected:
            self.pending.append(client.offers[0][0])

    def suspend(self, client: SimulatedClient) -> None:
        """Suspends a client, and resumes it later with another priority."""
        if client.is_connected:
            client.is_suspended = True
            self.handle(ClientChanged(client.number, 1.0, 0, True))
            self.time.after(self.chance.uniform(0, 0.1), lambda: self.resume(client))

    def resume(self, client: SimulatedClient) -> None:
        client.is_suspended = False
        if client.is_connected:
            self.handle(ClientChanged(client.number, 1.0, self.chance.choice([0, 1]), False))

    def step(self, client: SimulatedClient, islands: list[int]) -> None:
        arguments, results = {}, {}
        for n in islands:
            held = client.held[n]
            arguments[n] = tuple(self.chance.sample(held, self.chance.randint(0, min(2, len(held)))))
            results[n] = tuple(next(self.numbers) for _ in range(self.chance.randint(0, 2)))
            held += results[n]
            self.owner.update(dict.fromkeys(results[n], client.number))
        share = self.chance.randint(1, self.largest)
        program = self.chance.randint(1, 3)
        donates = {n: own[:1] for n, own in arguments.items() if self.chance.random() < 0.3}
        if self.memory is not None:
            # No step reads a donated array again, or a view of it: a result may have its memory.
            for n, own in donates.items():
                deleted = {each for array in own for each in self.memory.family(array)}
                client.held[n] = [array for array in client.held[n] if array not in deleted]
        # Those of some sessions run a few times each, as those of eager JAX.
        is_foreign = self.has_foreign and client.number % 3 == 2
        loaded = program + len(SECONDS) * self.chance.randint(0, 50) if is_foreign else program
        step = QueuedStep(
            client.number,
            next(self.numbers),
            loaded,
            arguments,
            results,
            self.sent_of(arguments),
            share,
            donates,
            is_foreign=is_foreign,
            memory={} if self.memory is None else self.memory.needs(self.chance, arguments, results, donates),
            uses=self.accounts.uses(client.number, program, results, self.time.now),
        )
        self.seconds[step] = SECONDS[program] * self.chance.uniform(1 - SPREAD, 1 + SPREAD)
        client.unfinished.add(step)
        for n in islands:
            client.submitted[n].append(step)
        self.handle(WorkSubmitted(step))

    def exceed_limit(self, client: SimulatedClient, islands: list[int]) -> None:
        client.is_greedy = True
        nothing: dict[int, tuple[int, ...]] = dict.fromkeys(islands, ())
        self.handle(WorkSubmitted(QueuedStep(client.number, next(self.numbers), 1, nothing, nothing)))
        assert not client.is_greedy, f"client {client.number} has {MAX_UNFINISHED + 1} unfinished steps"
        self.kill(client)

    def sent_of(self, arguments: dict[int, tuple[int, ...]]) -> frozenset[int]:
        return frozenset(array for own in arguments.values() for array in own if array in self.sent)

    def submit_in_order(self, client: SimulatedClient, item: OrderedRequest) -> None:
        client.submitted[item.island].append(item)
        self.handle(WorkSubmitted(item))

    def kill(self, client: SimulatedClient) -> None:
        if not client.is_connected:
            return
        client.is_connected = False
        if self.memory is not None:
            # Arrays that have not arrived are canceled.
            arrived = {(n, array) for n, arrays in enumerate(self.arrays) for array in arrays}
            self.memory.cancel(client.number, self.sent, arrived)
        self.accounts.leave(client.number)
        self.handle(ClientLeft(client.number))
        self.ended |= {step for step in client.unfinished if step not in self.running}
        client.unfinished.clear()

    # Effects of the scheduler, and events of islands.

    def carry_out(self, effect: object) -> None:
        match effect:
            case IssueStep(step):
                client = self.clients[step.client]
                assert client.is_connected, f"step {step.number} of a client that has left is issued"
                assert step not in self.running | self.ended, f"step {step.number} is issued twice"
                assert step in client.unfinished, (
                    f"step {step.number} of client {step.client} is one too many"
                )
                self.running.add(step)
                if (step.client, step.loaded) not in self.known:
                    is_guessed = step.is_foreign and step.client in self.known_foreign
                    (self.guessed if is_guessed else self.tried).add(step)
                assert not client.is_suspended, f"step {step.number} of a suspended client is issued"
                if self.memory is not None:
                    self.memory.begin(step)
                for n in step.islands:
                    assert n not in self.lost, f"step {step.number} is issued to island {n}, which is lost"
                    assert n not in self.leaving, f"step {step.number} is issued to island {n}, which leaves"
                    missing = set(step.arguments[n]) - self.arrays[n]
                    assert not missing, f"step {step.number} waits on island {n} for {missing} for ever"
                    self.check_calls(step, n)
                    self.check_window(step, n)
                    self.pop(client, n, step)
                    self.arrays[n].update(step.results[n])
                    self.queues[n].append(step)
            case DispatchRequest(item, frees, has_arguments):
                is_early = item.context is None
                if not is_early:
                    self.pop(self.clients[item.client], item.island, item)
                if self.memory is not None:
                    self.memory.free(item.island, frees, self.queues[item.island])
                arrays = self.arrays[item.island]
                assert arrays.issuperset(frees) or item.island in self.lost
                assert not has_arguments or arrays.issuperset(item.arguments)
                # Arrays that the client has not freed exist, except results of refused steps.
                assert (
                    has_arguments or item.island in self.lost or not self.refused.isdisjoint(item.arguments)
                )
                arrays.difference_update(frees)
                self.accounts.free(item.island, frees)
                if item.moved and has_arguments and item.island not in self.lost:
                    self.accounts.fetch(item.client, item.moved)
                if item.island not in self.lost:
                    arrays.update(item.results)
                    if item.is_call:
                        self.calls.append(item)
                        self.time.after(self.chance.uniform(0, 0.05), lambda: self.end_call(item))
            case CollectMemory(number):
                self.time.after(self.chance.uniform(0, 0.02), lambda: self.collect(self.clients[number]))
            case AcceptArray(offer):
                assert self.memory is not None
                self.memory.add(offer)
                self.end_offer(offer, is_accepted=True)
            case DenyArray(offer, why):
                if why is not None:
                    self.refused.add(offer.array)
                self.end_offer(offer, is_accepted=False)
            case RefuseStep(step, _, is_over_quota):
                assert self.memory is not None or not is_over_quota
                assert step not in self.running | self.ended
                self.end(step)
                self.accounts.fail(step, step.islands)
                self.refused.update(*step.results.values())
                for n in step.islands:
                    self.clients[step.client].submitted[n].remove(step)
            case FreeClientArrays(_, island, arrays):
                if island not in self.lost:
                    assert self.arrays[island].issuperset(arrays)
                    self.arrays[island].difference_update(arrays)
                    if self.memory is not None:
                        self.memory.free(island, arrays, self.queues[island])
            case DisconnectClient(number, why):
                assert self.clients[number].is_greedy, f"client {number} is disconnected: {why}"
                self.clients[number].is_greedy = False

    def collect(self, client: SimulatedClient) -> None:
        """Frees an array of a client that exceeds its quota, or none, and replies."""
        if not client.is_connected:
            return
        islands = [n for n, held in client.held.items() if held and n not in self.lost]
        if islands and self.chance.random() < 0.5:
            island = self.chance.choice(islands)
            array = client.held[island].pop(self.chance.randrange(len(client.held[island])))
            sent = self.sent.intersection([array])
            self.submit_in_order(
                client,
                OrderedRequest(client.number, island, (array,), sent=frozenset(sent), context=object()),
            )
        self.handle(MemoryCollected(client.number))

    def end_call(self, call: OrderedRequest) -> None:
        if call in self.calls:
            self.calls.remove(call)
            self.accounts.end_call(call, self.existing(call.client, call.island))
            self.handle(CallFinished(call))

    def existing(self, client: int, island: int) -> set[int]:
        """Returns the arrays of an island, or none for a client that has left."""
        return self.arrays[island] if self.clients[client].is_connected else set()

    def check_calls(self, step: QueuedStep, island: int) -> None:
        """Checks that a step waits for no call in flight on the island: all later steps would wait, too."""
        calls = [call for call in self.calls if (call.client, call.island) == (step.client, island)]
        for call in calls:
            assert not set(step.arguments[island]) & set(call.results), (
                f"step {step.number} reads a result of {call}"
            )
            donated = set(step.donates.get(island, ()))
            assert not donated & set(call.arguments), f"step {step.number} donates an argument of {call}"

    def check_window(self, step: QueuedStep, island: int) -> None:
        """Checks how much work is in front of a step on an island that gets one more."""
        queue = self.queues[island]
        # Steps that failed with another island have a wrong measurement.
        if len(queue) < 2 or any((own.client, own.loaded) in self.unsure for own in queue):
            return
        waiting = [own for own in queue if own is not queue[0]]
        work = sum(self.seconds[own] for own in waiting if own not in self.tried | self.guessed)
        window = WINDOW if len(queue) < MAX_IN_FLIGHT else 0.0
        limit = MAX_RATIO * (window + self.trip)
        assert work <= limit, f"{work} seconds of work wait on island {island} before step {step.number}"
        new = [own for own in [*queue, step] if own in self.tried]
        assert len({own.client for own in new}) == len(new), f"two steps of new programs are on {island}"

    def pop(self, client: SimulatedClient, island: int, item: object) -> None:
        first = client.submitted[island].popleft()
        assert first is item, f"on island {island} client {client.number} is served out of order"

    def start(self, island: int) -> None:
        """Starts the first step of an island, if it is first on all its islands."""
        queue = self.queues[island]
        if not queue:
            return
        step = queue[0]
        if step in self.state or any(self.queues[n][0] is not step for n in step.islands):
            return
        self.state[step] = "runs"
        seconds = self.seconds[step]
        for n in step.islands:
            self.time.after(seconds, lambda n=n: self.finish(step, n, seconds))

    def finish(self, step: QueuedStep, island: int, seconds: float) -> None:
        if island in self.lost or step not in self.queues[island]:
            return
        self.queues[island].remove(step)
        has_failed = self.state[step] == "fails"
        existing = self.existing(step.client, island)
        is_last = not any(step in queue for queue in self.queues)
        self.accounts.finish(step, island, seconds, existing, has_failed=has_failed, is_last=is_last)
        if self.memory is not None:
            self.memory.finish(step, island)
        if not any(step in queue for queue in self.queues):
            self.end(step)
        self.pending.append(IslandStepDone(step, island, seconds, has_failed))
        if self.chance.random() < 0.7:
            self.handle()

    def end(self, step: QueuedStep) -> None:
        self.running.discard(step)
        self.ended.add(step)
        self.clients[step.client].unfinished.discard(step)

    def join(self) -> None:
        """Adds an island, which clients use from now on."""
        island, self.count = self.count, self.count + 1
        self.queues.append(collections.deque())
        self.arrays.append(set())
        self.losses.append(0)
        is_limited = self.joins.random() < 0.8
        self.handle(
            IslandJoined(island, None if self.memory is None else self.memory.join(is_limited=is_limited))
        )
        self.handle(RoundTripMeasured(island, self.trip))

    def leave(self) -> None:
        """Drains an island, as after SIGTERM: it finishes its steps, and is lost some time later."""
        island = self.chance.randrange(self.count)
        self.leaving.add(island)
        self.handle(IslandLeaving(island, f"island {island} leaves"))
        self.time.after(self.chance.uniform(0.01, 0.1), lambda: self.lose(island))

    def lose(self, island: int | None = None) -> None:
        island = self.chance.randrange(self.count) if island is None else island
        self.lost.add(island)
        self.leaving.discard(island)
        self.losses[island] += 1
        self.accounts.lose(island)
        steps = [*self.queues[island]]
        for step in steps:
            self.accounts.fail(step, [island])
        self.queues[island].clear()
        self.arrays[island].clear()
        if self.memory is not None:
            self.memory.lose(island)
        self.calls = [call for call in self.calls if call.island != island]
        for client in self.clients:
            client.held[island].clear()
        for step in steps:
            # The other hosts of the step wait for a value that never comes, and fail.
            if step not in self.state:
                self.state[step] = "fails"
                for n in set(step.islands) - {island}:
                    self.time.after(0.001, lambda step=step, n=n: self.finish(step, n, 0.0))
            if step.islands == (island,) or not any(step in queue for queue in self.queues):
                self.end(step)
        self.handle(IslandLost(island, f"island {island} is lost"))
        self.time.after(self.chance.uniform(0.01, 0.1), lambda: self.come_back(island))

    def come_back(self, island: int) -> None:
        self.lost.discard(island)
        self.handle(IslandReturned(island))

    def check_end(self) -> None:
        """Checks that each step has ended, the accounts, and that nobody else holds arrays on islands."""
        self.accounts.check()
        assert not any(self.queues), "islands wait for each other"
        for client in self.clients:
            waiting = [step for step in client.unfinished if self.is_possible(client, step)]
            assert not waiting, f"step {waiting[0].number} of client {client.number} never ends"
            if client.is_connected and not client.unfinished:
                known = self.scheduler.clients[client.number]
                assert known.unfinished == 0
        left = {
            array
            for arrays in self.arrays
            for array in arrays
            if not self.clients[self.owner[array]].is_connected
        }
        assert not left, f"arrays {left} have no owner"

    def is_possible(self, client: SimulatedClient, step: QueuedStep) -> bool:
        """Returns whether no argument of a step was lost on its way with an island."""
        return all(set(step.arguments[n]) <= self.arrays[n] for n in step.islands)


def problem(seed: int) -> str | None:
    """Returns the problem of a history; None when there is none."""
    try:
        SimulatedSharing(seed).play()
    except Exception as error:
        return f"seed {seed}: {type(error).__name__}: {error}"
    return None


class DeviceTimers:
    """Simulated devices whose steps take given times, for clients that always have queued steps.

    Args:
      weights: the weights of the clients.
      islands: the number of islands, each with one device.
      ahead: the maximum of steps in flight on an island; by default as in a service.
      memory: the quotas of the clients.
      priorities: the priorities of the clients; by default the same.
      is_timed: whether the CPU time of the scheduler is measured.

    Attributes:
      busy: the seconds for which each device had a step.
      served: the seconds for which each client had devices.
      events: the number of events that the scheduler has handled.
      cpu_seconds: the CPU time of these events.
    """

    def __init__(
        self,
        weights: Sequence[float],
        islands: int = 1,
        *,
        ahead: int = MAX_AHEAD,
        memory: SharedMemory | None = None,
        priorities: Sequence[int] = (),
        is_timed: bool = False,
    ) -> None:
        self.now = 0.0
        self.core = Scheduler(islands, ahead, memory=memory)
        self.busy = [0.0] * islands
        self.served: collections.Counter[int] = collections.Counter()
        self.events = 0
        self.cpu_seconds = 0.0
        self._is_timed = is_timed
        self._queues: list[collections.deque[QueuedStep]] = [collections.deque() for _ in range(islands)]
        self._ends: list[tuple[float, int, QueuedStep]] = []
        self._begun: set[QueuedStep] = set()
        self._seconds: dict[QueuedStep, float] = {}
        self._makers: dict[int, tuple[tuple[int, ...], float]] = {}
        self._numbers = itertools.count(1)
        for client, weight in enumerate(weights):
            priority = priorities[client] if priorities else 0
            self.handle(ClientJoined(client, weight, priority=priority))

    def keep_busy(self, client: int, islands: tuple[int, ...], seconds: float, steps: int = 8) -> None:
        """Submits steps for a client, and another one after each that is done."""
        self._makers[client] = islands, seconds
        for _ in range(steps):
            self._submit_next(client)

    def submit(self, step: QueuedStep, seconds: float) -> None:
        """Submits a step that takes the given time."""
        self._seconds[step] = seconds
        self.handle(WorkSubmitted(step))

    def handle(self, event: SchedulerEvent) -> None:
        """Passes an event to the scheduler, and carries out its effects."""
        self.events += 1
        before = time.process_time() if self._is_timed else 0.0
        effects = self.core.handle(event, self.now)
        if self._is_timed:
            self.cpu_seconds += time.process_time() - before
        for effect in effects:
            if isinstance(effect, IssueStep):
                for n in effect.step.islands:
                    self._queues[n].append(effect.step)
                for n in effect.step.islands:
                    self._begin(n)

    def run(self, seconds: float) -> None:
        """Advances the time."""
        until = self.now + seconds
        while self._ends and self._ends[0][0] <= until:
            self.now, _, first = heapq.heappop(self._ends)
            self._begun.discard(first)
            seconds = self._seconds.pop(first)
            for n in first.islands:
                self._queues[n].popleft()
                self.busy[n] += seconds
            self.served[first.client] += seconds * len(first.islands)
            for n in first.islands:
                self.handle(IslandStepDone(first, n, seconds))
                self._begin(n)
            if first.client in self.core.clients:
                self._submit_next(first.client)
        self.now = until

    def _submit_next(self, client: int) -> None:
        islands, seconds = self._makers[client]
        none = dict.fromkeys(islands, ())
        self.submit(QueuedStep(client, next(self._numbers), client, none, none), seconds)

    def _begin(self, island: int) -> None:
        queue = self._queues[island]
        if (
            not queue
            or queue[0] in self._begun
            or any(self._queues[n][0] is not queue[0] for n in queue[0].islands)
        ):
            return
        self._begun.add(queue[0])
        heapq.heappush(self._ends, (self.now + self._seconds[queue[0]], queue[0].number, queue[0]))


def unfairness(seed: int) -> str | None:
    """Returns the unfairness to random clients that want too much, or the idle time; None if there is none.

    One client has steps of two islands, others of one; the last joins long after the others.
    """
    chance = random.Random(seed)
    timers = DeviceTimers([1.0] * 5, 2)
    for island in range(2):
        timers.handle(RoundTripMeasured(island, 0.0003))
    for client, islands in enumerate([(0,), (1,), (0, 1), chance.choice([(0,), (1,)])]):
        timers.keep_busy(client, islands, 0.001 * 10 ** chance.uniform(0, 1), steps=chance.choice([16, 32]))
    timers.run(1)
    busy, served = [*timers.busy], timers.served.copy()
    timers.run(3)
    shares = [(timers.served[client] - served[client]) / 3 for client in range(4)]
    used = min(timers.busy[island] - busy[island] for island in range(2)) / 3
    served = timers.served.copy()
    timers.keep_busy(4, (0,), 0.003)
    timers.run(0.5)
    late = (timers.served[4] - served[4]) / 0.5
    if used < 0.85:
        return f"seed {seed}: an island was busy for {used:.2f} of the time"
    if shares[2] / 2 < 0.25:
        return f"seed {seed}: steps of two islands had {shares[2] / 2:.2f} of both"
    if late > 0.7:
        return f"seed {seed}: a late client had {late:.2f} of an island"
    return None
