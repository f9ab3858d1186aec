"""The controller's side: it tells workers what to run, and knows what became of it."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import functools
import itertools
import logging
import secrets
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from pathways.runtime.hosts.answers import Answers
from pathways.runtime.hosts.describing import HostFacts, Questions, facts_of
from pathways.runtime.hosts.fetching import Fetches
from pathways.runtime.hosts.host import HostError, HostProcess
from pathways.runtime.hosts.interrupts import Whole
from pathways.runtime.hosts.messages import (
    CHUNK,
    Chunk,
    ClockTime,
    Close,
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
    Ping,
    Pong,
    Put,
    Run,
    RunTimes,
    TraceDone,
    TraceStarted,
    Unload,
    encode,
)
from pathways.runtime.hosts.shards import cut
from pathways.runtime.hosts.step import Step
from pathways.runtime.hosts.tracing import HostTraces
from pathways.runtime.hosts.wire import Connection, ConnectionEnded
from pathways.runtime.resources import cluster as resources

HEARTBEAT_SECONDS = 0.5
DEADLINE_SECONDS = 10.0
"""How long a worker may say nothing; then it is killed, and what it had is lost."""

_FREE_SECONDS = 0.05

log = logging.getLogger("pathways")


@dataclasses.dataclass(frozen=True)
class HostPort:
    """Where one array enters or leaves a program on a host.

    Attributes:
      number: the number of the argument or result in the program.
      slice: the slice that it lives on.
      host: the host.
      placement: how it lies there.
    """

    number: int
    slice: str
    host: int
    placement: DeviceLayout


@dataclasses.dataclass(frozen=True, eq=False)
class HostedProgram:
    """A program that is loaded on its hosts.

    Attributes:
      number: its number.
      name: its name.
      hosts: the hosts that have a part of it.
      inputs: what each part takes, in order.
      outputs: what each part returns, in order.
    """

    number: int
    name: str
    hosts: tuple[int, ...]
    inputs: Mapping[int, tuple[HostPort, ...]]
    outputs: Mapping[int, tuple[HostPort, ...]]


class Controller:
    """All workers of a cluster.

    Args:
      hosts: the workers.
      ahead: how many steps may be issued and not done.

    Attributes:
      hosts: the workers.
      ahead: how many steps may be issued and not done: so many steps' worth of arrays hosts have room for.
      cluster: the devices of all workers; each is an island.
    """

    def __init__(self, hosts: Sequence[HostProcess], ahead: int) -> None:
        self.hosts = list(hosts)
        self.ahead = ahead
        self.cluster = _cluster(self.hosts)
        self._next = 1
        # Handing a step to all its hosts is one thing to all threads: one order of steps everywhere.
        self._order = threading.RLock()
        self._lock = threading.Lock()
        self._steps: dict[int, Step] = {}
        self._running: collections.deque[Step] = collections.deque()
        self._loading: dict[tuple[int, int], _Answer] = {}
        self._fetches = Fetches()
        self._answers = Answers(self.hosts, self._hear_some)
        # Appended to by finalizers, which may run anywhere: nothing else is done there.
        self._unused: list[collections.deque[int]] = [collections.deque() for _ in self.hosts]
        self._closed = threading.Event()
        self.traces = HostTraces(self.hosts, self.tell_all)
        self._questions = Questions()
        for host in self.hosts:
            host.arrays.place = functools.partial(self._fetches.place, host.index)
            for connection in (host.arrays, host.watch):
                self._start(self._listen, host, connection)
        for work in (self._watch, self._free):
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
            with contextlib.suppress(ConnectionEnded):
                host.steps.send(Close())
        for host in self.hosts:
            try:
                host.process.wait(timeout=2)
            except subprocess.TimeoutExpired:
                host.process.kill()
                host.process.wait()
            host.close()

    def is_whole(self) -> bool:
        """Whether no host is lost, and the cluster not closed."""
        return not self._closed.is_set() and all(host.error is None for host in self.hosts)

    def tell_all(self, *messages: Message) -> None:
        """Sends messages to all hosts that are left, to all of them between the same two steps."""
        with self._order:
            for host in self.hosts:
                with contextlib.suppress(HostError):
                    self._send(host.index, *messages)

    def load(
        self,
        name: str,
        modules: Mapping[int, bytes],
        devices: Mapping[str, tuple[int, ...]],
        stride: int,
        inputs: Mapping[int, tuple[HostPort, ...]],
        outputs: Mapping[int, tuple[HostPort, ...]],
        argument_names: Mapping[int, tuple[str, ...]],
        weak_results: Mapping[int, tuple[bool, ...]],
    ) -> HostedProgram:
        """Compiles the parts of a program on their hosts, all at the same time, and waits for all.

        Raises:
          HostError: one of them cannot; says which host and why.
        """
        number = self._number()
        # Nobody can guess what is sent under which number.
        base = secrets.randbelow(1 << 61)
        peers = {host.index: host.hello.data_address for host in self.hosts}
        answers = {host: _Answer() for host in modules}
        with self._lock:
            self._loading.update(((host, number), answer) for host, answer in answers.items())
        for host, module in modules.items():
            part = Load(
                number,
                name,
                module,
                host,
                dict(devices),
                peers,
                base,
                stride,
                argument_names[host],
                weak_results[host],
            )
            self._send(host, part)
        for host, answer in answers.items():
            self._answers.wait(answer.is_given)
            if answer.error is not None:
                raise HostError(f"program {name}, host {host}: {answer.error}")
        return HostedProgram(number, name, tuple(modules), inputs, outputs)

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
        """Forgets a program on its hosts; steps that were issued still run."""
        for host in program.hosts:
            with contextlib.suppress(HostError):
                self._send(host, Unload(program.number))

    def put(self, value: np.ndarray[Any, Any], port: HostPort) -> int:
        """Sends an array to a host; returns its number there.

        Raises:
          HostError: the host is gone.
        """
        number = self._number()
        shards, order = cut(value, port.placement)
        host = self._alive(port.host)
        try:
            put = Put(number, value.shape, value.dtype.name, port.placement, order)
            self._speak(host, host.arrays.send, put)
            for n, shard in enumerate(shards):
                raw = memoryview(np.ascontiguousarray(shard).reshape(-1).view(np.uint8))
                for offset in range(0, len(raw), CHUNK):
                    piece = raw[offset : offset + CHUNK]
                    self._speak(host, host.arrays.send_with, Chunk(number, n, offset, len(piece)), piece)
        except BaseException:
            self.forget(port.host, number)
            raise
        return number

    def run(
        self, program: HostedProgram, arguments: Mapping[int, Sequence[int]]
    ) -> tuple[Step, dict[int, int]]:
        """Issues a step: one message to each host, to all of them before any answer.

        Args:
          program: the program.
          arguments: for each host the numbers of the arrays that its part takes.

        Returns:
          The step, and for each host the number of the first array that its part makes; others follow it.

        Raises:
          HostError: a host is gone.
        """
        self._make_room()
        with self._order:
            hosts = [self._alive(host) for host in program.hosts]
            step = Step(program.name, self._number(), program.hosts)
            results = {host: self._number(len(program.outputs[host])) for host in program.hosts}
            frames = [
                encode(
                    Run(
                        program.number,
                        step.number,
                        tuple(arguments[host]),
                        results[host],
                        self._take_unused(host),
                    )
                )
                for host in program.hosts
            ]
            with self._lock:
                self._steps[step.number] = step
                self._running.append(step)
            try:
                self._send_all(hosts, frames)
            except BaseException:
                # A step that only some hosts have would wait for ever; a worker knows those that it has had.
                with Whole():
                    self._send_all(hosts, frames)
                raise
        return step, results

    def _number(self, count: int = 1) -> int:
        """The first of some numbers that nothing else has."""
        with self._lock:
            first = self._next
            self._next += count
        return first

    def _send_all(self, hosts: Sequence[HostProcess], frames: Sequence[bytes]) -> None:
        for host, frame in zip(hosts, frames, strict=True):
            try:
                host.steps.send_frames(frame)
            except ConnectionEnded as error:
                self._lose(host, str(error))

    def fetch(self, host: int, number: int, devices: Sequence[int], sizes: Sequence[int]) -> list[bytearray]:
        """The bytes of some shards of an array, when they are ready.

        Raises:
          HostError: the host is gone, or the array is an error.
        """
        # Two threads that ask for one array share what comes.
        fetched, is_first = self._fetches.begin((host, number), sizes)
        try:
            if is_first:
                self._send(host, Fetch(number, tuple(devices)))
            fetched.wait()
        finally:
            self._fetches.end((host, number))
        if fetched.error is not None:
            raise HostError(self.hosts[host].error or f"{self.hosts[host]}: {fetched.error}")
        return fetched.shards

    def wait(self, step: Step, host: int | None = None) -> None:
        """Waits until a host, or every host, is done with a step.

        Raises:
          HostError: the step failed there, or the host is gone.
        """
        self._answers.wait(lambda: step.is_done(host))
        step.check(host)
        if host is not None:
            self._alive(host)

    def is_done(self, step: Step, host: int) -> bool:
        """Whether a host is done with a step."""
        if not step.is_done(host):
            self._answers.poll()
        return step.is_done(host)

    def forget(self, host: int, number: int) -> None:
        """Notes that nobody holds an array any more; may be called by finalizers."""
        self._unused[host].append(number)

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
            self._lose(host, str(error))
            raise HostError(host.error) from None

    def _make_room(self) -> None:
        """Waits until fewer steps are on their way than may be."""
        while True:
            with self._lock:
                while self._running and self._running[0].is_done():
                    self._running.popleft()
                oldest = self._running[0] if len(self._running) >= self.ahead else None
            if oldest is None:
                return
            self._answers.wait(oldest.is_done)

    def _hear_some(self, host: HostProcess) -> None:
        """Hears what a worker has said of steps."""
        try:
            host.steps.act_on_some(functools.partial(self._hear, host))
        except ConnectionEnded:
            self._lose(host, "its process has ended" + host.ending())
        except MessageError as error:
            self._lose(host, str(error))

    def _listen(self, host: HostProcess, connection: Connection[Any]) -> None:
        """Hears what a worker says besides."""
        try:
            while True:
                self._hear(host, connection.receive())
        except ConnectionEnded:
            self._lose(host, "its process has ended" + host.ending())
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
                self._fetches.hear(host.index, message)
            case Pong():
                pass
            case TraceStarted() | RunTimes() | TraceDone() | ClockTime():
                self.traces.hear(host.index, message)
            case Described():
                self._questions.hear(host.index, message)
            case _:
                raise MessageError(f"a worker does not say {type(message).__name__}")

    def _end_step(self, host: HostProcess, done: Done) -> None:
        error = None if done.error is None else f"{host}: {done.error}"
        if error is not None:
            self._find_ended()
        step = self._steps.get(done.run)
        if step is not None and step.done(host.index, error):
            with self._lock:
                self._steps.pop(done.run, None)

    def _find_ended(self) -> None:
        """Finds workers that have just ended, which is why others fail."""
        for host in self.hosts:
            if host.error is None and host.process.poll() is not None:
                self._lose(host, "its process has ended" + host.ending())

    def _watch(self) -> None:
        """Asks all workers whether they live."""
        for number in itertools.count():
            if self._closed.wait(HEARTBEAT_SECONDS):
                return
            self._answers.poll()
            for host in self.hosts:
                if host.error is not None:
                    continue
                silent = time.monotonic() - host.heard
                if silent > DEADLINE_SECONDS:
                    self._lose(host, f"it has said nothing for {silent:.0f} seconds")
                    continue
                # Never more than the system keeps for a worker that does not read: the deadline is before.
                with contextlib.suppress(ConnectionEnded):
                    host.watch.send(Ping(number))

    def _free(self) -> None:
        """Frees what nobody holds, in batches, where no step does so."""
        while not self._closed.wait(_FREE_SECONDS):
            for host in self.hosts:
                unused = self._take_unused(host.index)
                if unused:
                    with contextlib.suppress(HostError):
                        self._send(host.index, Free(unused))

    def _take_unused(self, host: int) -> tuple[int, ...]:
        """The arrays of a host that nobody holds, once."""
        unused = self._unused[host]
        return tuple(unused.popleft() for _ in range(len(unused)))

    def _lose(self, host: HostProcess, why: str) -> None:
        """A host is gone: all that depends on it is an error from now on."""
        with self._lock:
            if host.error is not None:
                return
            closed = self._closed.is_set()
            host.error = f"{host} is closed" if closed else f"{host} is lost: {why}"
            steps = list(self._steps.values())
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
            resources.Island(
                host.island,
                tuple(
                    resources.Device(
                        next(positions),
                        device,
                        host.hello.platform,
                        resources.Host(host.index),
                        host.island,
                        memory,
                    )
                    for device, memory in zip(host.hello.devices, host.hello.memory, strict=True)
                ),
            )
            for host in hosts
        )
    )
