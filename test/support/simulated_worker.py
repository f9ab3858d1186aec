"""Model of a worker: it receives the messages that a real worker receives, and computes numbers.

The result of a step is a number that depends on all its inputs, so that a reader sees whether it is right.
The hosts of an island compute it together, in collectives. When a host skips a collective, as after a failed
launch, the others pair it with its next one: their results are wrong, and look as good as any other.
"""

from __future__ import annotations

import collections
import random
from collections.abc import Callable, Generator
from typing import Protocol

from simulated_messages import (
    Call,
    Called,
    Cancel,
    Done,
    FailedArray,
    Fetch,
    Free,
    Leave,
    Lost,
    Missed,
    Ping,
    Pong,
    Reply,
    RequestReport,
    Run,
)

from pathways.runtime.control.records.errors import failed
from pathways.runtime.control.records.events import GangKey
from pathways.runtime.control.records.reports import HostReport, StepReport, WaitReport
from pathways.runtime.control.records.step import SESSION_BITS
from pathways.runtime.simulate.events import SimulatedTime


class Network(Protocol):
    """Links of a worker to the controller and to other workers."""

    def send_from(self, worker: SimulatedWorker, channel: str, message: object) -> None:
        """Sends a message to the controller."""

    def pull(self, worker: SimulatedWorker, peer: SimulatedWorker, run: int, stage: int) -> None:
        """Requests the value of a stage from another worker; `worker.receive_pulled` gets it."""

    def report_exit(self, worker: SimulatedWorker, how: str) -> None:
        """Reports that a process has exited."""


class Collectives:
    """Collectives of the hosts of an island: all of them have to join each one, in order.

    Args:
      size: the number of hosts.
    """

    def __init__(self, size: int) -> None:
        self.members: list[SimulatedWorker] = []
        self._size = size
        self._values: dict[int, dict[int, int]] = {}

    def join(self, number: int, rank: int, value: int) -> None:
        """Joins a collective with a value."""
        values = self._values.setdefault(number, {})
        values[rank] = value
        if len(values) == self._size:
            for member in self.members:
                member.advance()

    def is_multi_host(self) -> bool:
        """Returns whether the island has other hosts."""
        return self._size > 1

    def is_complete(self, number: int) -> bool:
        """Returns whether all hosts have joined."""
        return len(self._values[number]) == self._size

    def value(self, number: int) -> int:
        """Returns the value of a collective, which is right if all hosts have joined with the same one."""
        values = self._values[number]
        return values[0] if len(set(values.values())) == 1 else hash(tuple(sorted(values.items())))


class SimulatedWorker:
    """Simulated worker process.

    Args:
      island: the number of its island.
      host: its number.
      rank: its index among the hosts of its island.
      collectives: the collectives of its island.
      time: the simulated time.
      chance: draws its delays.
      network: its links.

    Attributes:
      key: the key of its gang, once that stands for its island.
      store: its arrays.
      offers: the values that other workers are to fetch, by run, stage and worker.
      is_alive: whether its process is running.
      is_stopped: whether its process is stopped, as after SIGSTOP.
      fails: the failures of its next steps: `whole`, `single`, or none.
      pace: seconds that its next step takes in addition.
    """

    def __init__(
        self,
        island: int,
        host: int,
        rank: int,
        collectives: Collectives,
        time: SimulatedTime,
        chance: random.Random,
        network: Network,
    ) -> None:
        self.island, self.host, self.rank = island, host, rank
        self.key: GangKey | None = None
        self.store: dict[int, int | FailedArray] = {}
        self.offers: dict[tuple[int, int, SimulatedWorker], int | FailedArray] = {}
        self.is_alive, self.is_stopped = True, False
        self.fails: collections.deque[str] = collections.deque()
        self.pace = 0.0
        self._collectives, self._time, self._chance, self._network = collectives, time, chance, network
        self._next_collective = 0
        # The number of the last step or call of each session.
        self._last: collections.Counter[int] = collections.Counter()
        self._queue: collections.deque[object] = collections.deque()
        self._unread: list[Callable[[], None]] = []
        self._requested: set[tuple[int, int, SimulatedWorker]] = set()
        self._lost: set[SimulatedWorker] = set()
        self._pulled: dict[tuple[int, int], int | FailedArray] = {}
        self._waits: tuple[int, SimulatedWorker, float] | None = None
        self._begun: tuple[int, float] | None = None
        self._calls = 0
        self._work = self._serve()
        self._is_ready = next(self._work)
        collectives.members.append(self)

    def __repr__(self) -> str:
        return f"host {self.host}" + (f" (start {self.key.start})" if self.key and self.key.start else "")

    def is_idle(self) -> bool:
        """Returns whether it has nothing to do."""
        return not self._queue and self._begun is None and not self._calls

    # Signals to its process.

    def exit(self, how: str) -> None:
        """Ends its process."""
        if self.is_alive:
            self.is_alive = False
            self._network.report_exit(self, how)

    def stop(self) -> None:
        """Stops its process until `wake`."""
        self.is_stopped = True

    def wake(self) -> None:
        """Continues its process after `stop`."""
        self.is_stopped = False
        unread, self._unread = self._unread, []
        for read in unread:
            read()
        self.advance()

    # Messages of the controller.

    def receive(self, channel: str, message: object) -> None:
        """Handles a message of the controller."""
        if self.is_stopped:
            self._unread.append(lambda: self.receive(channel, message))
        elif self.is_alive:
            if channel == "steps":
                self._queue.append(message)
                self.advance()
            else:
                self._reply_to(message)

    def _reply_to(self, message: object) -> None:
        match message:
            case Ping():
                self._network.send_from(self, "watch", Pong(message.number))
            case RequestReport():
                self._network.send_from(self, "watch", Reply(message.request, self._report(message.request)))
            case Lost():
                for peer in message.hosts:
                    self.lose_peer(peer)
            case Leave():
                self.exit("exit code 0")

    def _report(self, request: int) -> HostReport:
        """Reports its current operation; `bytes` is the number of the request, for checks of the reply."""
        steps: tuple[StepReport, ...] = ()
        now = self._time.now
        if self._begun is not None:
            run, began = self._begun
            waiting: tuple[WaitReport, ...] = ()
            if self._waits is not None:
                stage, peer, since = self._waits
                address = f"10.0.0.{peer.host}:1"
                waiting = (WaitReport(peer.host, address, "c", "s", "d", stage, now - since, True),)
            steps = (StepReport("f", run, now - began, False, waiting),)
        arrays = sum(not isinstance(array, FailedArray) for array in self.store.values())
        return HostReport(arrays, request, ("f",), steps)

    # Messages of other workers.

    def serve(
        self, run: int, stage: int, peer: SimulatedWorker, reply: Callable[[int | FailedArray], None]
    ) -> None:
        """Replies to another worker with the value of a stage, once it is computed."""
        if self.is_stopped:
            self._unread.append(lambda: self.serve(run, stage, peer, reply))
        elif (run, stage, peer) in self.offers:
            reply(self.offers.pop((run, stage, peer)))
        else:
            self._requested.add((run, stage, peer))

    def receive_pulled(self, run: int, stage: int, value: int | FailedArray) -> None:
        """Accepts the requested value from another worker, or a stand-in for it."""
        if self.is_alive:
            self._pulled[run, stage] = value
            self.advance()

    def lose_peer(self, peer: SimulatedWorker) -> None:
        """Notes that another worker is lost, so that no values of it will arrive."""
        self._lost.add(peer)
        self.advance()

    # Steps and other messages, in the order in which they arrive.

    def advance(self) -> None:
        """Continues with its messages as far as possible."""
        # Sending may resume another worker, which may resume this one: that call returns here.
        while not self._work.gi_running and self.is_alive and not self.is_stopped and self._is_ready():
            self._is_ready = next(self._work)

    def _serve(self) -> Generator[Callable[[], bool]]:
        while True:
            yield lambda: bool(self._queue)
            match self._queue.popleft():
                case Run() as message:
                    self._check_order(message.run)
                    self._free(message.free)
                    self._begun = message.run, self._time.now
                    yield from self._run(message)
                    self._begun = None
                case Call() as message:
                    self._check_order(message.call)
                    self._call(message)
                case Free(arrays):
                    self._free(arrays)
                case Fetch() as message:
                    self._send(message)
                case Cancel(hosts, runs):
                    kept = self.offers.items()
                    self.offers = {key: v for key, v in kept if key[0] not in runs or key[2] not in hosts}

    def _check_order(self, number: int) -> None:
        session = number >> SESSION_BITS
        last = self._last[session]
        assert number > last, f"{self} gets step or call {number} after {last}, of the same session"
        self._last[session] = number

    def _free(self, arrays: tuple[int, ...]) -> None:
        for array in arrays:
            assert array in self.store, f"{self} frees array {array}, which it does not have"
            del self.store[array]

    def _call(self, call: Call) -> None:
        """Looks its arrays up now, and runs beside the following messages."""
        arrays = [self.store[number] for number in call.arguments]
        error = next((array.error for array in arrays if isinstance(array, FailedArray)), None)
        error = "bad row" if error is None and call.raises else error
        value = 0 if error is not None else hash((call.salt, *arrays))
        self._calls += 1
        self._time.after(call.seconds, lambda: self._end_call(Called(call.call, value, error)))

    def _end_call(self, message: Called) -> None:
        if self.is_stopped:
            self._unread.append(lambda: self._end_call(message))
        elif self.is_alive:
            self._calls -= 1
            self._network.send_from(self, "steps", message)

    def _send(self, fetch: Fetch) -> None:
        array = self.store[fetch.array]
        if isinstance(array, FailedArray):
            self._network.send_from(
                self, "arrays", Reply(fetch.request, failed(f"host {self.host}: {array.error}"))
            )
            return
        # In two pieces.
        self._network.send_from(self, "arrays", Reply(fetch.request, array, False))
        self._network.send_from(self, "arrays", Reply(fetch.request, array))

    def _run(self, run: Run) -> Generator[Callable[[], bool]]:
        program = run.program
        arrays = [self.store[number] for number in run.arguments]
        error = next((array.error for array in arrays if isinstance(array, FailedArray)), None)
        arguments = tuple(array for array in arrays if not isinstance(array, FailedArray))
        how = self.fails.popleft() if self.fails else ""
        value = 0
        missed = None
        for stage in program.stages(self.island):
            if stage:
                received = yield from self._pull(run, stage - 1, is_needed=error is None)
                if isinstance(received, FailedArray) and error is None and self._collectives.is_multi_host():
                    missed = received.error
                elif isinstance(received, FailedArray):
                    error = error or received.error
                else:
                    value = received
            if error is None and how == "whole":
                error = "out of memory"
            if error is None:
                yield from self._sleep(self._chance.expovariate(20) + self.pace)
                self.pace = 0.0
                value = program.value(stage, arguments, value)
                if program.alone is None:
                    value = yield from self._combine(value)
            if stage + 1 < len(program.route):
                self._offer(run, stage, value if error is None else FailedArray(error))
        if missed is not None:
            self._network.send_from(self, "steps", Missed(run.run, missed))
        self._finish(run, value, error, how == "single")

    def _finish(self, run: Run, value: int, error: str | None, is_one_wrong: bool) -> None:
        wrong: dict[int, str] = {}
        for position in range(run.program.outputs):
            what = error
            if error is None and is_one_wrong and not position:
                what = wrong[position] = "a result is wrong"
            array = hash((value, position)) if what is None else FailedArray(what)
            self.store[run.first + position] = array
        self._network.send_from(self, "steps", Done(run.run, error, wrong))

    def _sleep(self, seconds: float) -> Generator[Callable[[], bool]]:
        until = self._time.now + seconds
        self._time.at(until, self.advance)
        yield lambda: self._time.now >= until

    def _combine(self, value: int) -> Generator[Callable[[], bool], None, int]:
        collectives, number = self._collectives, self._next_collective
        self._next_collective += 1
        collectives.join(number, self.rank, value)
        if not collectives.is_complete(number):
            yield lambda: collectives.is_complete(number)
        return collectives.value(number)

    def _offer(self, run: Run, stage: int, value: int | FailedArray) -> None:
        own, peers = run.gangs[self.island], run.gangs[run.program.route[stage + 1]]
        for peer in peers:
            if peer.rank % len(own) == self.rank:
                key = run.run, stage, peer
                self.offers[key] = value
                if key in self._requested:
                    self._requested.remove(key)
                    self._network.pull(peer, self, run.run, stage)

    def _pull(
        self, run: Run, stage: int, *, is_needed: bool
    ) -> Generator[Callable[[], bool], None, int | FailedArray]:
        gang = run.gangs[run.program.route[stage]]
        peer, key = gang[self.rank % len(gang)], (run.run, stage)
        if peer not in self._lost:
            self._network.pull(self, peer, *key)
        if not is_needed:
            return FailedArray("")
        self._waits = stage, peer, self._time.now
        if key not in self._pulled:
            yield lambda: key in self._pulled or peer in self._lost
        self._waits = None
        return self._pulled.pop(key, FailedArray(f"host {peer.host} is lost"))
