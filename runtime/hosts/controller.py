"""The controller's side: it tells workers what to run, and knows what became of it."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import itertools
import logging
import secrets
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pathways.runtime.hosts.interrupts import uninterrupted
from pathways.runtime.hosts.messages import (
    CHUNK,
    Chunk,
    DeviceLayout,
    Done,
    Failed,
    Fetch,
    Free,
    Hello,
    Load,
    LoadDone,
    Message,
    MessageError,
    Ping,
    Pong,
    Put,
    Run,
    Unload,
    encode,
)
from pathways.runtime.hosts.shards import cut
from pathways.runtime.hosts.wire import Connection, ConnectionEnded
from pathways.runtime.resources import cluster as resources

AHEAD = 4
"""How many steps may be issued and not done: so many steps' worth of arrays the hosts must have room for."""

HEARTBEAT_SECONDS = 0.5
DEADLINE_SECONDS = 10.0
"""How long a worker may say nothing; then it is killed, and what it had is lost."""

log = logging.getLogger("pathways")


class HostError(RuntimeError):
    """A host is gone, or failed to do what it was asked; names the host."""

    __module__ = "pathways"


@dataclasses.dataclass(eq=False)
class Step:
    """A run of a program.

    Attributes:
      program: the name of the program.
      number: the number of the run.
    """

    program: str
    number: int
    _pending: set[int]

    def __post_init__(self) -> None:
        self._errors: dict[int, str] = {}
        self._lost: str | None = None
        self._changed = threading.Condition()

    def done(self, host: int, error: str | None) -> bool:
        """Notes that a host is done; True when it was the last one."""
        with self._changed:
            self._pending.discard(host)
            if error is not None:
                self._errors.setdefault(host, error)
            self._changed.notify_all()
            return not self._pending

    def lose(self, host: int, error: str) -> None:
        """Notes that a host is gone: whatever else fails does so because of it."""
        with self._changed:
            self._lost = self._lost or error
        self.done(host, error)

    def forget_threads(self) -> None:
        """Makes its lock anew in a forked process, where nobody would release it."""
        self._changed = threading.Condition()

    def is_done(self, host: int | None = None) -> bool:
        """Whether a host, or every host, is done."""
        with self._changed:
            return self._is_done(host)

    def _is_done(self, host: int | None) -> bool:
        return not self._pending if host is None else host not in self._pending

    def wait(self, host: int | None = None) -> None:
        """Waits until a host, or every host, is done: the death of a host ends its part too.

        Raises:
          HostError: it failed.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._is_done(host))
            errors = list(self._errors.values()) if host is None else [self._errors.get(host)]
            failed = next(iter(errors), None)
            lost = self._lost
        if failed is not None:
            raise HostError(f"program {self.program}: {lost or failed}")


class _Fetched:
    """Shards that are coming from a worker."""

    def __init__(self, sizes: Sequence[int]) -> None:
        self.shards = [bytearray(size) for size in sizes]
        self.left = sum(sizes) or len(sizes)
        self.counts_bytes = bool(sum(sizes))
        self.error: str | None = None
        self.ready = threading.Event()

    def take(self, chunk: Chunk) -> None:
        """Fills in some bytes.

        Raises:
          MessageError: they are not of this array.
        """
        if not 0 <= chunk.shard < len(self.shards):
            raise MessageError(f"array {chunk.array} has no shard {chunk.shard}")
        shard = self.shards[chunk.shard]
        if chunk.offset < 0 or chunk.offset + len(chunk.data) > len(shard):
            raise MessageError(f"array {chunk.array} is smaller than what comes of it")
        shard[chunk.offset : chunk.offset + len(chunk.data)] = chunk.data
        self.left -= len(chunk.data) if self.counts_bytes else 1
        if self.left <= 0:
            self.ready.set()

    def fail(self, error: str) -> None:
        self.error = error
        self.ready.set()


class HostProcess:
    """A worker, as the controller sees it.

    Args:
      index: its number.
      process: its process.
      connection: to it.
      hello: what it said of itself.
    """

    def __init__(
        self, index: int, process: subprocess.Popen[bytes], connection: Connection[Any], hello: Hello
    ) -> None:
        self.index = index
        self.process = process
        self.connection = connection
        self.hello = hello
        self.island = f"island{index}"
        self.error: str | None = None
        self.heard = time.monotonic()

    def __str__(self) -> str:
        return f"host {self.index} ({self.island})"


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
    """

    def __init__(self, hosts: Sequence[HostProcess]) -> None:
        self.hosts = list(hosts)
        self.cluster = _cluster(self.hosts)
        self._numbers = itertools.count(1)
        # Handing a step to all its hosts is one thing to all threads: one order of steps everywhere.
        self._order = threading.RLock()
        self._steps: dict[int, Step] = {}
        self._running: collections.deque[Step] = collections.deque()
        self._loading: dict[tuple[int, int], _Future] = {}
        self._fetching: dict[tuple[int, int], _Fetched] = {}
        # Appended to by finalizers, which may run anywhere: nothing else is done there.
        self._unused: collections.deque[tuple[int, int]] = collections.deque()
        self._unneeded: collections.deque[HostedProgram] = collections.deque()
        self._lock = threading.Lock()
        self._closed = threading.Event()
        for host in self.hosts:
            threading.Thread(
                target=self._listen, args=(host,), name=f"pathways host {host.index}", daemon=True
            ).start()
        threading.Thread(target=self._watch, name="pathways hosts", daemon=True).start()

    def close(self) -> None:
        """Ends all workers."""
        if self._closed.is_set():
            return
        self._closed.set()
        for host in self.hosts:
            # Not with a message, which a worker that is stopped would not take.
            host.connection.close()
        for host in self.hosts:
            try:
                host.process.wait(timeout=2)
            except subprocess.TimeoutExpired:
                host.process.kill()
                host.process.wait()

    def leave(self) -> None:
        """Lets go of the workers in a process that was forked from the one that they belong to.

        Of the threads of that process none is here, and any lock may be held by one of them for ever.
        """
        self._lock, self._order, self._closed = threading.Lock(), threading.RLock(), threading.Event()
        self._closed.set()
        for host in self.hosts:
            host.error = f"{host} belongs to the process that this one was forked from"
            host.connection.leave()
            for step in self._steps.values():
                step.forget_threads()
                step.lose(host.index, host.error)

    def is_whole(self) -> bool:
        """Whether no host is lost, and the cluster not closed."""
        return not self._closed.is_set() and all(host.error is None for host in self.hosts)

    def send(self, host: int, *messages: Message) -> None:
        """Sends messages to a host.

        Raises:
          HostError: it is gone.
        """
        target = self.hosts[host]
        if target.error is not None:
            raise HostError(target.error)
        try:
            target.connection.send(*messages)
        except ConnectionEnded as error:
            self._lose(target, str(error))
            raise HostError(target.error) from None

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
        number = next(self._numbers)
        # Nobody can guess what is sent under which number.
        base = secrets.randbelow(1 << 61)
        peers = {host.index: host.hello.data_address for host in self.hosts}
        futures = {host: _Future() for host in modules}
        with self._lock:
            self._loading.update(((host, number), future) for host, future in futures.items())
        program = HostedProgram(number, name, tuple(modules), inputs, outputs)
        try:
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
                self.send(host, part)
            for host, future in futures.items():
                error = future.wait()
                if error is not None:
                    raise HostError(f"program {name}, host {host}: {error}")
        except BaseException:
            # Others may have it.
            self.unload(program)
            raise
        return program

    def unload(self, program: HostedProgram) -> None:
        """Notes that nobody runs a program any more; may be called by finalizers."""
        self._unneeded.append(program)

    def put(self, value: np.ndarray[Any, Any], port: HostPort) -> int:
        """Sends an array to a host; returns its number there.

        Raises:
          HostError: the host is gone.
        """
        number = next(self._numbers)
        shards, order = cut(value, port.placement)
        try:
            self.send(port.host, Put(number, value.shape, value.dtype.name, port.placement, order))
            for n, shard in enumerate(shards):
                raw = memoryview(np.ascontiguousarray(shard).reshape(-1).view(np.uint8))
                for offset in range(0, len(raw), CHUNK):
                    self.send(port.host, Chunk(number, n, offset, bytes(raw[offset : offset + CHUNK])))
        except BaseException:
            # Ctrl-C, such as while something large is sent.
            self.forget(port.host, number)
            raise
        return number

    def run(
        self, program: HostedProgram, arguments: Mapping[int, Sequence[int]]
    ) -> tuple[Step, dict[int, tuple[int, ...]]]:
        """Issues a step: one message to each host, to all of them before any answer.

        Args:
          program: the program.
          arguments: for each host the numbers of the arrays that its part takes.

        Returns:
          The step, and for each host the numbers of the arrays that its part makes.

        Raises:
          HostError: a host is gone.
        """
        results = {host: tuple(next(self._numbers) for _ in program.outputs[host]) for host in program.hosts}
        with self._order:
            self._make_room()
            number = next(self._numbers)
            step = Step(program.name, number, set(program.hosts))
            frames = {
                host: encode(Run(program.number, number, tuple(arguments[host]), results[host]))
                for host in program.hosts
            }
            with uninterrupted():
                self._register(step, program)
                for host, frame in frames.items():
                    try:
                        self.hosts[host].connection.send_frames(frame)
                    except ConnectionEnded as error:
                        self._lose(self.hosts[host], str(error))
        self._free_unused()
        return step, results

    def _register(self, step: Step, program: HostedProgram) -> None:
        """Notes a step that is about to be issued.

        Raises:
          HostError: a host is gone. Who goes later finds the step.
        """
        with self._lock:
            for host in program.hosts:
                if self.hosts[host].error is not None:
                    raise HostError(self.hosts[host].error)
            self._steps[step.number] = step
            self._running.append(step)

    def _make_room(self) -> None:
        """Waits until fewer steps are on their way than may be."""
        while True:
            with self._lock:
                while self._running and self._running[0].is_done():
                    self._running.popleft()
                oldest = self._running[0] if len(self._running) >= AHEAD else None
            if oldest is None:
                return
            with contextlib.suppress(HostError):
                oldest.wait()

    def fetch(self, host: int, number: int, devices: Sequence[int], sizes: Sequence[int]) -> list[bytearray]:
        """The bytes of some shards of an array, when they are ready.

        Raises:
          HostError: the host is gone, or the array is an error.
        """
        fetched = _Fetched(sizes)
        with self._lock:
            # Two threads that ask for one array share what comes.
            shared = self._fetching.setdefault((host, number), fetched)
        if shared is fetched:
            try:
                self.send(host, Fetch(number, tuple(devices)))
            except HostError as error:
                # For all who share it.
                fetched.fail(str(error))
        shared.ready.wait()
        with self._lock:
            self._fetching.pop((host, number), None)
        if shared.error is not None:
            lost = self.hosts[host].error
            raise HostError(lost or f"{self.hosts[host]}: {shared.error}")
        return shared.shards

    def forget(self, host: int, number: int) -> None:
        """Notes that nobody holds an array any more; may be called by finalizers."""
        self._unused.append((host, number))

    def _free_unused(self) -> None:
        by_host: dict[int, list[int]] = {}
        with contextlib.suppress(IndexError):
            while True:
                host, number = self._unused.popleft()
                by_host.setdefault(host, []).append(number)
        for host, numbers in by_host.items():
            with contextlib.suppress(HostError):
                self.send(host, Free(tuple(numbers)))
        with contextlib.suppress(IndexError):
            while True:
                program = self._unneeded.popleft()
                for host in program.hosts:
                    # Steps that were issued still run.
                    with contextlib.suppress(HostError):
                        self.send(host, Unload(program.number))

    def _listen(self, host: HostProcess) -> None:
        """Hears what a worker says, until it says no more."""
        try:
            while True:
                self._hear(host, host.connection.receive())
        except ConnectionEnded:
            self._lose(host, "its process has ended" + status(host.process))
        except MessageError as error:
            self._lose(host, str(error))

    def _hear(self, host: HostProcess, message: object) -> None:
        host.heard = time.monotonic()
        match message:
            case Done():
                step = self._steps.get(message.run)
                error = None if message.error is None else f"{host}: {message.error}"
                if error is not None:
                    self._find_ended()
                if step is not None and step.done(host.index, error):
                    with self._lock:
                        self._steps.pop(message.run, None)
            case LoadDone():
                with self._lock:
                    future = self._loading.pop((host.index, message.program), None)
                if future is not None:
                    future.set(message.error)
            case Chunk():
                fetched = self._fetching.get((host.index, message.array))
                if fetched is not None:
                    fetched.take(message)
            case Failed():
                self._find_ended()
                fetched = self._fetching.get((host.index, message.array))
                if fetched is not None:
                    fetched.fail(message.error)
            case Pong():
                pass
            case _:
                raise MessageError(f"a worker does not say {type(message).__name__}")

    def _find_ended(self) -> None:
        """Finds workers that have just ended, which is why others fail."""
        for host in self.hosts:
            if host.error is None and host.process.poll() is not None:
                self._lose(host, "its process has ended" + status(host.process))

    def _watch(self) -> None:
        """Asks all workers whether they live, and frees what nobody holds."""
        for number in itertools.count():
            if self._closed.wait(HEARTBEAT_SECONDS):
                return
            # Apart, as pings are: a worker that is stopped takes no bytes when its buffers are full.
            threading.Thread(target=self._free_unused, daemon=True).start()
            for host in self.hosts:
                if host.error is not None:
                    continue
                silent = time.monotonic() - host.heard
                if silent > DEADLINE_SECONDS:
                    self._lose(host, f"it has said nothing for {silent:.0f} seconds")
                    continue
                threading.Thread(target=self._ping, args=(host, number), daemon=True).start()

    def _ping(self, host: HostProcess, number: int) -> None:
        with contextlib.suppress(HostError):
            self.send(host.index, Ping(number))

    def _lose(self, host: HostProcess, why: str) -> None:
        """A host is gone: all that depends on it is an error from now on."""
        with self._lock:
            if host.error is not None:
                return
            closed = self._closed.is_set()
            host.error = f"{host} is closed" if closed else f"{host} is lost: {why}"
            steps = list(self._steps.values())
            loading = [self._loading[key] for key in self._loading if key[0] == host.index]
            fetching = [self._fetching[key] for key in self._fetching if key[0] == host.index]
        if not closed:
            log.error("%s", host.error)
        # First who waits for it, so that no error that follows from this one is heard before.
        for step in steps:
            step.lose(host.index, host.error)
        for future in loading:
            future.set(host.error)
        for fetched in fetching:
            fetched.fail(host.error)
        host.process.kill()
        host.connection.close()


class _Future:
    """Something that a host answers once."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self._error: str | None = None

    def set(self, error: str | None) -> None:
        self._error = error
        self._event.set()

    def wait(self) -> str | None:
        self._event.wait()
        return self._error


def status(process: subprocess.Popen[bytes]) -> str:
    """How a process ended, as the end of a sentence."""
    try:
        code = process.wait(timeout=1)
    except subprocess.TimeoutExpired:
        return ""
    return f" (killed by signal {-code})" if code < 0 else f" (exit code {code})"


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
