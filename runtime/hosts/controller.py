"""The controller's side: it tells workers what to run, and knows what became of it."""

from __future__ import annotations

import collections
import contextlib
import functools
import itertools
import logging
import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from pathways.runtime.hosts.answers import Answers
from pathways.runtime.hosts.describing import HostFacts, Questions, facts_of
from pathways.runtime.hosts.fetching import Fetched, Fetches
from pathways.runtime.hosts.frames import CHUNK, encode
from pathways.runtime.hosts.garbage import Garbage
from pathways.runtime.hosts.host import HostError, HostProcess
from pathways.runtime.hosts.hosted import HostedProgram, HostPart, Location
from pathways.runtime.hosts.interrupts import Whole
from pathways.runtime.hosts.messages import (
    Chunk,
    ClockTime,
    Describe,
    Described,
    DeviceLayout,
    Done,
    Failed,
    Fetch,
    Free,
    Load,
    LoadDone,
    Message,
    MessageError,
    PeerLost,
    Ping,
    Pong,
    Put,
    Report,
    Run,
    RunTimes,
    TraceDone,
    TraceStarted,
    Unload,
)
from pathways.runtime.hosts.settings import Settings
from pathways.runtime.hosts.shards import cut
from pathways.runtime.hosts.stalls import Reports, Stalls
from pathways.runtime.hosts.starting import Starter
from pathways.runtime.hosts.step import Step
from pathways.runtime.hosts.tracing import HostTraces
from pathways.runtime.hosts.wire import Connection, ConnectionEnded
from pathways.runtime.resources import cluster as resources
from pathways.runtime.resources.status import HostStatus, StepStatus

_PAUSE = 0.5
"""The most seconds from one look at all workers to the next."""

_FREE_SECONDS = 0.05

log = logging.getLogger("pathways")


class Controller:
    """All workers of a cluster.

    Args:
      starter: starts the workers.
      settings: what the user says of them.

    Attributes:
      hosts: the workers.
      settings: what the user says of them.
      cluster: the devices of all workers; each is an island.
      order: held from the look at the numbers of arrays until the step that takes them is issued, and while
        arrays are deleted: a worker would wait for ever for what it has freed. `run` waits under it until
        there is room.
      asking: the same for numbers that are sent to fetch an array. Nobody waits under it.
    """

    def __init__(self, starter: Starter, settings: Settings) -> None:
        self._closed = threading.Event()
        self._starter = starter
        islands = starter.start(range(len(settings.islands)), self._closed)
        self.hosts = [host for island in islands for host in island]
        self.settings = settings
        self.cluster = _cluster(self.hosts)
        self._next = 1
        # Handing a step to all its hosts is one thing to all threads: one order of steps everywhere.
        self.order = threading.RLock()
        self.asking = threading.Lock()
        self._lock = threading.Lock()
        self._steps: dict[int, Step] = {}
        self._running: collections.deque[Step] = collections.deque()
        self._loading: dict[tuple[int, int], _Answer] = {}
        self._fetches = Fetches()
        self._locations: dict[tuple[int, DeviceLayout, int, int], Location] = {}
        self._answers = Answers(self.hosts, self._hear_some)
        self._garbage = Garbage(len(self.hosts))
        self.traces = HostTraces(self.hosts, self.tell_all)
        self._reports = Reports(self.hosts)
        self._stalls = Stalls(
            self.hosts,
            self._reports,
            self._unfinished,
            self._lose,
            settings.stall_report,
            settings.step_deadline,
        )
        self._questions = Questions()
        for host in self.hosts:
            host.arrays.place = functools.partial(self._fetches.place, host.index)
            for connection in (host.arrays, host.watch):
                self._start(self._listen, host, connection)
        for work in (self._watch, self._free, self._look_for_stalls):
            self._start(work)

    def _start(self, work: Callable[..., None], *args: Any) -> None:
        threading.Thread(target=work, args=args, name=f"pathways {work.__name__}", daemon=True).start()

    def close(self) -> None:
        """Ends all workers."""
        if self._closed.is_set():
            return
        self.traces.close()
        self._closed.set()
        for host in self.hosts:
            # Not with a message, which a worker that is stopped would not take: it hears that this side is
            # gone.
            self._lose(host, "")
        for host in self.hosts:
            if host.process.ending(2.0) is None:
                host.process.kill()
                host.process.ending(2.0)
        self._starter.close()

    def leave(self) -> None:
        """Lets go of the workers in a process that was forked from the one that they belong to.

        Of the threads of that process none is here, and any lock may be held by one of them for ever.
        """
        self.order, self.asking = threading.RLock(), threading.Lock()
        self._lock, self._closed = threading.Lock(), threading.Event()
        self._answers.forget_threads()
        self._fetches.forget_threads()
        self._closed.set()
        for host in self.hosts:
            host.error = f"{host} belongs to the process that this one was forked from"
            host.leave()
            for step in self._steps.values():
                step.forget_threads()
                step.lose(host.index, host.error)

    def is_whole(self) -> bool:
        """Whether no host is lost, and the cluster not closed."""
        return not self._closed.is_set() and all(host.error is None for host in self.hosts)

    def tell_all(self, *messages: Message) -> None:
        """Sends messages to all hosts that are left, to all of them between the same two steps."""
        with self.order:
            for host in self.hosts:
                with contextlib.suppress(HostError):
                    self._send(host.index, *messages)

    def load(
        self,
        name: str,
        parts: Mapping[int, HostPart],
        devices: Mapping[str, tuple[int, ...]],
        stride: int,
    ) -> HostedProgram:
        """Compiles the parts of a program on their hosts, all at the same time, and waits for all.

        Args:
          name: the name of the program.
          parts: what each host gets.
          devices: the ids of the devices of each slice, on its host.
          stride: how many transfers between hosts a run has, on all hosts together.

        Raises:
          HostError: one of them cannot; says which host and why.
        """
        number = self._number()
        # Nobody can guess what is sent under which number.
        base = secrets.randbelow(1 << 61)
        peers = {host.index: host.ready.data_address for host in self.hosts}
        probes = {host.index: host.ready.probe_address for host in self.hosts}
        answers = {host: _Answer() for host in parts}
        with self._lock:
            self._loading.update(((host, number), answer) for host, answer in answers.items())
        loads = {
            host: Load(
                number,
                name,
                part.module,
                part.declared_computations(),
                part.declared_constants(),
                host,
                dict(devices),
                peers,
                probes,
                base,
                stride,
                part.argument_names,
                part.weak_results,
            )
            for host, part in parts.items()
        }
        program = HostedProgram(
            number,
            name,
            tuple(parts),
            {host: part.inputs for host, part in parts.items()},
            {host: part.outputs for host, part in parts.items()},
        )
        try:
            for host, load in loads.items():
                self._send(host, load)
            for host, answer in answers.items():
                self._answers.wait(answer.is_given)
                if answer.error is not None:
                    raise HostError(f"program {name}, host {host}: {answer.error}")
        except BaseException:
            # Others may have it.
            self.unload(program)
            raise
        return program

    def describe(self, program: HostedProgram, *, text: bool = False) -> HostFacts:
        """What XLA made of a program on its hosts, with the text of its modules or without.

        Raises:
          HostError: a host is gone.
        """
        request = self._questions.ask()
        with self._questions.expected(program.hosts, request):
            for number in program.hosts:
                host = self._alive(number)
                self._speak(host, host.watch.send, Describe(request, program.number, text))
            pieces = [piece for host in program.hosts for piece in self._questions.answer(host, request)]
        error = next((piece.error for piece in pieces if piece.error is not None), None)
        if error is not None:
            raise HostError(f"program {program.name}: {error}")
        return facts_of(pieces)

    def unload(self, program: HostedProgram) -> None:
        """Notes that nobody runs a program any more; may be called by finalizers."""
        self._garbage.add_program(program)

    def location(self, host: int, placement: DeviceLayout, replica: int = 0, replicas: int = 1) -> Location:
        """Where arrays lie on a host, or one of so many blocks of their rows."""
        key = (host, placement, replica, replicas)
        return self._locations.setdefault(key, Location(*key))

    def put(self, value: np.ndarray[Any, Any], location: Location) -> int:
        """Sends what belongs there of an array to a host; returns its number there.

        Raises:
          HostError: the host is gone.
        """
        value = location.rows(value)
        number = self._number()
        shards, order = cut(value, location.placement)
        host = self._alive(location.host)
        try:
            put = Put(number, value.shape, value.dtype.name, location.placement, order)
            self._speak(host, host.arrays.send, put)
            for n, shard in enumerate(shards):
                raw = memoryview(np.ascontiguousarray(shard).reshape(-1).view(np.uint8))
                for offset in range(0, len(raw), CHUNK):
                    piece = raw[offset : offset + CHUNK]
                    self._speak(host, host.arrays.send_with, Chunk(number, n, offset, len(piece)), piece)
        except BaseException:
            # Ctrl-C, such as while something large is sent.
            with contextlib.suppress(HostError):
                self._speak(host, host.arrays.send, Free((number,)))
            raise
        return number

    def run(self, program: HostedProgram, arguments: Mapping[int, Sequence[int]]) -> Step:
        """Issues a step: one message to each host, to all of them before any answer.

        Args:
          program: the program.
          arguments: for each host the numbers of the arrays that its part takes.

        Returns:
          The step. The first array that a part makes has the number behind that of the step on its host, and
          others follow it.

        Raises:
          HostError: a host is gone.
        """
        with self.order:
            self._make_room()
            hosts = [self._alive(host) for host in program.hosts]
            step = Step(program.name, self._number(1 + program.most_outputs), program.hosts)
            frames = [
                encode(
                    Run(
                        program.number,
                        step.number,
                        tuple(arguments[host]),
                        self._garbage.take_arrays(host),
                    )
                )
                for host in program.hosts
            ]
            try:
                self._begin(step, hosts, frames)
            except BaseException:
                # A step that only some hosts have would wait for ever; a worker knows those that it has had.
                with Whole():
                    self._begin(step, hosts, frames)
                raise
        return step

    def _number(self, count: int = 1) -> int:
        """The first of some numbers that nothing else has."""
        with self._lock:
            first = self._next
            self._next += count
        return first

    def _begin(self, step: Step, hosts: Sequence[HostProcess], frames: Sequence[bytes]) -> None:
        """Hands a step to its hosts; nothing is wrong when that is done twice."""
        if step.number not in self._steps:
            self._steps[step.number] = step
            self._running.append(step)
        for host, frame in zip(hosts, frames, strict=True):
            try:
                host.steps.send_frames(frame)
            except ConnectionEnded as error:
                self._lose_ended(host, error)
                # It may have been lost before the step was there to be told.
                step.lose(host.index, host.error or str(error))

    def ask(self, host: int, number: int, devices: Sequence[int], sizes: Sequence[int]) -> Fetched:
        """Asks for the bytes of some shards of an array; `fetch` waits for them."""
        # Two threads that ask for one array share what comes.
        fetched, is_first = self._fetches.begin((host, number), sizes)
        if is_first:
            try:
                self._send(host, Fetch(number, tuple(devices)))
            except HostError as error:
                # For all who share it.
                fetched.fail(str(error))
        return fetched

    def fetch(self, host: int, number: int, fetched: Fetched) -> list[bytearray]:
        """The bytes that were asked for, when they are ready.

        Raises:
          HostError: the host is gone, or the array is an error.
        """
        fetched.wait()
        self._fetches.end((host, number), fetched)
        if fetched.error is not None:
            raise HostError(self.hosts[host].error or f"{self.hosts[host]}: {fetched.error}")
        return fetched.shards

    def wait(self, step: Step, host: int | None = None, number: int | None = None) -> None:
        """Waits until a host, or every host, is done with a step.

        Args:
          step: the step.
          host: the host; None for all.
          number: the number of an array that its part makes; None for all.

        Raises:
          HostError: the array failed, or the host is gone.
        """
        self._answers.wait(lambda: step.is_done(host))
        step.check(host, number)
        if host is not None:
            self._alive(host)

    def is_done(self, step: Step, host: int) -> bool:
        """Whether a host is done with a step."""
        if not step.is_done(host):
            self._answers.poll()
        return step.is_done(host)

    def forget(self, host: int, number: int) -> None:
        """Notes that nobody holds an array any more; may be called by finalizers."""
        self._garbage.add_array(host, number)

    def check(self, host: int) -> None:
        """Checks that a host, and with it what it has, is there.

        Raises:
          HostError: it is gone.
        """
        self._alive(host)

    def _alive(self, index: int) -> HostProcess:
        """A host.

        Raises:
          HostError: it is gone.
        """
        host = self.hosts[index]
        if host.error is not None:
            raise HostError(host.error)
        return host

    def _send(self, index: int, *messages: Message) -> None:
        """Sends a host what has an order.

        Raises:
          HostError: it is gone.
        """
        host = self._alive(index)
        self._speak(host, host.steps.send, *messages)

    def _speak(self, host: HostProcess, send: Callable[..., None], *what: Any) -> None:
        """Sends something to a host.

        Raises:
          HostError: it is gone.
        """
        try:
            with Whole():
                send(*what)
        except ConnectionEnded as error:
            self._lose_ended(host, error)
            raise HostError(host.error) from None

    def _make_room(self) -> None:
        """Waits until fewer steps are on their way than may be; under `order`, as all that issues steps."""
        while len(self._running) >= self.settings.ahead:
            oldest = self._running[0]
            if not oldest.is_done():
                self._answers.wait(oldest.is_done)
            self._running.popleft()

    def _hear_some(self, host: HostProcess) -> None:
        """Hears what a worker has said of steps."""
        try:
            host.steps.act_on_some(functools.partial(self._hear, host))
        except ConnectionEnded as error:
            self._lose_ended(host, error)
        except MessageError as error:
            self._lose(host, str(error))

    def _listen(self, host: HostProcess, connection: Connection[Any]) -> None:
        """Hears what a worker says besides."""
        try:
            while True:
                self._hear(host, connection.receive())
        except ConnectionEnded as error:
            self._lose_ended(host, error)
        except MessageError as error:
            self._lose(host, str(error))

    def _hear(self, host: HostProcess, message: object) -> None:
        host.heard = time.monotonic()
        match message:
            case Done():
                self._end_step(host, message)
            case LoadDone():
                with self._lock:
                    answer = self._loading.pop((host.index, message.program), None)
                if answer is not None:
                    answer.give(message.error)
            case Chunk() | Failed():
                if isinstance(message, Failed):
                    self._find_ended()
                self._fetches.hear(host.index, message)
            case Pong():
                pass
            case Report():
                self._reports.hear(host.index, message)
            case PeerLost():
                self._start(self._lose_peer, host, self.hosts[message.host], message.error)
            case TraceStarted() | RunTimes() | TraceDone() | ClockTime():
                self.traces.hear(host.index, message)
            case Described():
                self._questions.hear(host.index, message)
            case _:
                raise MessageError(f"a worker does not say {type(message).__name__}")

    def _end_step(self, host: HostProcess, done: Done) -> None:
        host.progressed = host.heard
        step = self._steps.get(done.run)
        if step is None:
            return
        if done.error is None and not done.failed:
            is_last = step.done(host.index, None)
        else:
            self._find_ended()
            failed = {position: f"{host}: {what}" for position, what in done.failed.items()}
            is_last = step.done(host.index, done.error and f"{host}: {done.error}", failed)
        if is_last:
            self._steps.pop(done.run, None)

    def _lose_ended(self, host: HostProcess, error: ConnectionEnded) -> None:
        """Loses a worker whose connection has ended, which its process explains where it has ended, too."""
        if host.error is None:
            self._lose(host, host.ending() or str(error))

    def _lose_peer(self, host: HostProcess, peer: HostProcess, why: str) -> None:
        """Loses a worker that another one does not reach."""
        # Waits a little: that a process has ended is seen later than that its connections have.
        self._lose(peer, peer.ending() or f"{host} does not reach it: {why}")

    def _find_ended(self) -> None:
        """Finds workers that have just ended, which is why others fail."""
        for host in self.hosts:
            if host.error is None and (how := host.ending(0)):
                self._lose(host, how)

    def _watch(self) -> None:
        """Asks all workers whether they live."""
        pause = min(_PAUSE, self.settings.heartbeat / 4)
        asked = time.monotonic()
        for number in itertools.count():
            if self._closed.wait(pause):
                return
            # When this process did not run, as after Ctrl-Z, nobody could be heard.
            late = time.monotonic() - asked - pause
            asked = time.monotonic()
            self._answers.poll()
            for host in self.hosts:
                host.heard += late
                if host.error is not None:
                    continue
                silent = time.monotonic() - host.heard
                if silent > self.settings.heartbeat:
                    self._lose(host, f"it has said nothing for {silent:.0f} seconds")
                    continue
                # Never more than the system keeps for a worker that does not read: the deadline is before.
                with contextlib.suppress(ConnectionEnded):
                    host.watch.send(Ping(number))

    def _look_for_stalls(self) -> None:
        """Reports steps that do not end, and ends them."""
        while not self._closed.wait(_PAUSE):
            self._stalls.look()

    def _unfinished(self) -> list[Step]:
        """The steps that are not done, in the order in which they were issued."""
        return [step for step in [*self._steps.values()] if not step.is_done()]

    def status(self) -> tuple[tuple[HostStatus, ...], tuple[StepStatus, ...]]:
        """How all hosts are, and the steps that are not done."""
        reports = self._reports.ask(range(len(self.hosts)))
        self._answers.poll()
        return (
            tuple(host.status(reports.get(host.index)) for host in self.hosts),
            tuple(step.status() for step in self._unfinished()),
        )

    def _free(self) -> None:
        """Frees what nobody holds, in batches, where no step does so."""
        while not self._closed.wait(_FREE_SECONDS):
            for host in self.hosts:
                unused = self._garbage.take_arrays(host.index)
                if unused:
                    with contextlib.suppress(HostError):
                        self._send(host.index, Free(unused))
            for program in self._garbage.take_programs():
                for index in program.hosts:
                    # Steps that were issued still run.
                    with contextlib.suppress(HostError):
                        self._send(index, Unload(program.number))

    def _lose(self, host: HostProcess, why: str) -> None:
        """A host is gone: all that depends on it is an error from now on."""
        with self._lock:
            if host.error is not None:
                return
            closed = self._closed.is_set()
            host.error = f"{host} is closed" if closed else f"{host} is lost: {why}"
            steps = [*self._steps.values()]
            loading = [self._loading[key] for key in self._loading if key[0] == host.index]
        if not closed:
            log.error("%s", host.error)
        # First who waits for it, so that no error that follows from this one is heard before.
        for step in steps:
            if step.lose(host.index, host.error):
                self._steps.pop(step.number, None)
        for answer in loading:
            answer.give(host.error)
        self._fetches.lose(host.index, host.error)
        self._questions.lose(host.index, host.error)
        self.traces.lose(host.index)
        if not closed:
            host.process.kill()
        self._answers.forget(host)
        host.close()
        self._answers.wake()


class _Answer:
    """What a host answers once: what is wrong."""

    def __init__(self) -> None:
        self.error: str | None = None
        self._given = False

    def give(self, error: str | None) -> None:
        self.error = error
        self._given = True

    def is_given(self) -> bool:
        return self._given


def _cluster(hosts: Sequence[HostProcess]) -> resources.Cluster:
    """The devices of all hosts; each host is an island."""
    positions = itertools.count()
    return resources.Cluster(
        tuple(
            resources.DeviceIsland(
                host.island,
                tuple(
                    resources.Device(
                        next(positions),
                        device,
                        host.ready.platform,
                        resources.Host(host.index),
                        host.island,
                        memory,
                    )
                    for device, memory in zip(host.ready.devices, host.ready.memory, strict=True)
                ),
            )
            for host in hosts
        )
    )
