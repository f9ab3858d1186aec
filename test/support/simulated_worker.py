"""A model of a worker: it takes what `runtime.hosts.worker.process` takes, and computes numbers.

What a step makes is a number that depends on all that it takes, so that whoever gets it sees whether it is
right. The hosts of an island compute it together: each takes turns with the others, and one that leaves out a
turn has the others take its next one for it. What they make then is wrong, and looks as good as any other.
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
    RequestReport,
    Run,
    Said,
)

from pathways.runtime.control.records.errors import failed
from pathways.runtime.control.records.events import GangKey
from pathways.runtime.control.records.reports import HostReport, StepReport, WaitReport
from pathways.runtime.control.records.step import SESSION_BITS
from pathways.runtime.simulate.events import SimulatedTime


class Network(Protocol):
    """Links of a worker to the others."""

    def say(self, worker: SimulatedWorker, channel: str, message: object) -> None:
        """Tells the controller something."""

    def pull(self, worker: SimulatedWorker, peer: SimulatedWorker, run: int, turn: int) -> None:
        """Asks another worker for what a turn has made; `worker.take_pulled` gets it."""

    def ended(self, worker: SimulatedWorker, how: str) -> None:
        """Notes that a process has ended."""


class Together:
    """The turns that the hosts of an island take together.

    Args:
      size: how many hosts there are.
    """

    def __init__(self, size: int) -> None:
        self.members: list[SimulatedWorker] = []
        self._size = size
        self._turns: dict[int, dict[int, int]] = {}

    def take(self, turn: int, rank: int, value: int) -> None:
        """Takes part in a turn."""
        values = self._turns.setdefault(turn, {})
        values[rank] = value
        if len(values) == self._size:
            for member in self.members:
                member.go_on()

    def is_several(self) -> bool:
        """Returns whether other hosts take part."""
        return self._size > 1

    def is_taken(self, turn: int) -> bool:
        """Returns whether all have taken part."""
        return len(self._turns[turn]) == self._size

    def value(self, turn: int) -> int:
        """Returns the value of a turn, which is right if all hosts mean the same."""
        values = self._turns[turn]
        return values[0] if len(set(values.values())) == 1 else hash(tuple(sorted(values.items())))


class SimulatedWorker:
    """A worker.

    Args:
      island: the number of its island.
      host: its number.
      rank: its place among the hosts of its island.
      together: what it does with them.
      time: the time.
      chance: how long it takes.
      network: what it reaches others by.

    Attributes:
      key: the gang that it is one of, once that stands for its island.
      store: its arrays.
      offers: what others are to fetch: by run, turn and worker.
      is_alive: whether its process is there.
      is_stopped: whether its process does nothing, as after SIGSTOP.
      fails: what its next steps do wrong: `whole`, `single`, or nothing.
      pace: seconds that its next step takes besides.
    """

    def __init__(
        self,
        island: int,
        host: int,
        rank: int,
        together: Together,
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
        self._together, self._time, self._chance, self._network = together, time, chance, network
        self._turn = 0
        # Of each session.
        self._last: collections.Counter[int] = collections.Counter()
        self._queue: collections.deque[object] = collections.deque()
        self._unread: list[Callable[[], None]] = []
        self._asked: set[tuple[int, int, SimulatedWorker]] = set()
        self._lost: set[SimulatedWorker] = set()
        self._pulled: dict[tuple[int, int], int | FailedArray] = {}
        self._waits: tuple[int, SimulatedWorker, float] | None = None
        self._begun: tuple[int, float] | None = None
        self._calls = 0
        self._work = self._serve()
        self._is_ready = next(self._work)
        together.members.append(self)

    def __repr__(self) -> str:
        return f"host {self.host}" + (f" (start {self.key.start})" if self.key and self.key.start else "")

    def is_idle(self) -> bool:
        """Returns whether it has nothing to do."""
        return not self._queue and self._begun is None and not self._calls

    # What happens to its process.

    def end(self, how: str) -> None:
        """Its process ends."""
        if self.is_alive:
            self.is_alive = False
            self._network.ended(self, how)

    def stop(self) -> None:
        """Its process does nothing until `go_on`."""
        self.is_stopped = True

    def wake(self) -> None:
        """Its process goes on after `stop`."""
        self.is_stopped = False
        unread, self._unread = self._unread, []
        for read in unread:
            read()
        self.go_on()

    # What it hears.

    def hear(self, channel: str, message: object) -> None:
        """Takes a message of the controller."""
        if self.is_stopped:
            self._unread.append(lambda: self.hear(channel, message))
        elif self.is_alive:
            if channel == "steps":
                self._queue.append(message)
                self.go_on()
            else:
                self._answer(message)

    def _answer(self, message: object) -> None:
        match message:
            case Ping():
                self._network.say(self, "watch", Pong(message.number))
            case RequestReport():
                self._network.say(self, "watch", Said(message.request, self._report(message.request)))
            case Lost():
                for peer in message.hosts:
                    self.lose_peer(peer)
            case Leave():
                self.end("exit code 0")

    def _report(self, request: int) -> HostReport:
        """Reports its current operation; `bytes` is the number of the request, for checks of the answer."""
        steps: tuple[StepReport, ...] = ()
        now = self._time.now
        if self._begun is not None:
            run, began = self._begun
            waiting: tuple[WaitReport, ...] = ()
            if self._waits is not None:
                turn, peer, since = self._waits
                address = f"10.0.0.{peer.host}:1"
                waiting = (WaitReport(peer.host, address, "c", "s", "d", turn, now - since, True),)
            steps = (StepReport("f", run, now - began, False, waiting),)
        arrays = sum(not isinstance(array, FailedArray) for array in self.store.values())
        return HostReport(arrays, request, ("f",), steps)

    # Other workers.

    def give(
        self, run: int, turn: int, peer: SimulatedWorker, answer: Callable[[int | FailedArray], None]
    ) -> None:
        """Another worker asks for what a turn has made; it gets that when it is there."""
        if self.is_stopped:
            self._unread.append(lambda: self.give(run, turn, peer, answer))
        elif (run, turn, peer) in self.offers:
            answer(self.offers.pop((run, turn, peer)))
        else:
            self._asked.add((run, turn, peer))

    def take_pulled(self, run: int, turn: int, value: int | FailedArray) -> None:
        """Accepts the value that another worker was asked for, or a stand-in for it."""
        if self.is_alive:
            self._pulled[run, turn] = value
            self.go_on()

    def lose_peer(self, peer: SimulatedWorker) -> None:
        """Nothing comes of another worker any more."""
        self._lost.add(peer)
        self.go_on()

    # What it does, in the order in which it is asked.

    def go_on(self) -> None:
        """Does what can be done now."""
        # What it does may have others go on, and these have it go on.
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
        """Looks its arrays up now, and goes on beside what follows."""
        arrays = [self.store[number] for number in call.arguments]
        error = next((array.error for array in arrays if isinstance(array, FailedArray)), None)
        error = "bad row" if error is None and call.raises else error
        value = 0 if error is not None else hash((call.salt, *arrays))
        self._calls += 1
        self._time.after(call.seconds, lambda: self._end_call(Called(call.call, value, error)))

    def _end_call(self, said: Called) -> None:
        if self.is_stopped:
            self._unread.append(lambda: self._end_call(said))
        elif self.is_alive:
            self._calls -= 1
            self._network.say(self, "steps", said)

    def _send(self, fetch: Fetch) -> None:
        array = self.store[fetch.array]
        if isinstance(array, FailedArray):
            self._network.say(self, "arrays", Said(fetch.request, failed(f"host {self.host}: {array.error}")))
            return
        # In two pieces.
        self._network.say(self, "arrays", Said(fetch.request, array, False))
        self._network.say(self, "arrays", Said(fetch.request, array))

    def _run(self, run: Run) -> Generator[Callable[[], bool]]:
        program = run.program
        arrays = [self.store[number] for number in run.arguments]
        error = next((array.error for array in arrays if isinstance(array, FailedArray)), None)
        taken = tuple(array for array in arrays if not isinstance(array, FailedArray))
        how = self.fails.popleft() if self.fails else ""
        value = 0
        missed = None
        for turn in program.turns(self.island):
            if turn:
                received = yield from self._pull(run, turn - 1, is_needed=error is None)
                if isinstance(received, FailedArray) and error is None and self._together.is_several():
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
                value = yield from self._together_with(program.value(turn, taken, value))
            if turn + 1 < len(program.route):
                self._offer(run, turn, value if error is None else FailedArray(error))
        if missed is not None:
            self._network.say(self, "steps", Missed(run.run, missed))
        self._finish(run, value, error, how == "single")

    def _finish(self, run: Run, value: int, error: str | None, is_one_wrong: bool) -> None:
        wrong: dict[int, str] = {}
        for position in range(run.program.outputs):
            what = error
            if error is None and is_one_wrong and not position:
                what = wrong[position] = "a result is wrong"
            made = hash((value, position)) if what is None else FailedArray(what)
            self.store[run.first + position] = made
        self._network.say(self, "steps", Done(run.run, error, wrong))

    def _sleep(self, seconds: float) -> Generator[Callable[[], bool]]:
        until = self._time.now + seconds
        self._time.at(until, self.go_on)
        yield lambda: self._time.now >= until

    def _together_with(self, value: int) -> Generator[Callable[[], bool], None, int]:
        together, turn = self._together, self._turn
        self._turn += 1
        together.take(turn, self.rank, value)
        if not together.is_taken(turn):
            yield lambda: together.is_taken(turn)
        return together.value(turn)

    def _offer(self, run: Run, turn: int, value: int | FailedArray) -> None:
        own, others = run.gangs[self.island], run.gangs[run.program.route[turn + 1]]
        for peer in others:
            if peer.rank % len(own) == self.rank:
                key = run.run, turn, peer
                self.offers[key] = value
                if key in self._asked:
                    self._asked.remove(key)
                    self._network.pull(peer, self, run.run, turn)

    def _pull(
        self, run: Run, turn: int, *, is_needed: bool
    ) -> Generator[Callable[[], bool], None, int | FailedArray]:
        gang = run.gangs[run.program.route[turn]]
        peer, key = gang[self.rank % len(gang)], (run.run, turn)
        if peer not in self._lost:
            self._network.pull(self, peer, *key)
        if not is_needed:
            return FailedArray("")
        self._waits = turn, peer, self._time.now
        if key not in self._pulled:
            yield lambda: key in self._pulled or peer in self._lost
        self._waits = None
        return self._pulled.pop(key, FailedArray(f"host {peer.host} is lost"))
