"""Session over hosts: issues steps and calls, by messages that workers receive directly or from a service."""

from __future__ import annotations

import abc
import contextlib
import dataclasses
import functools
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, override

import msgspec
import numpy as np

from pathways.runtime.control.cluster_view import REPORT_SECONDS
from pathways.runtime.control.gang import GangView
from pathways.runtime.control.records.errors import HostError, failed, lost
from pathways.runtime.control.records.replies import HostRequest
from pathways.runtime.control.records.step import FunctionCall, Step
from pathways.runtime.control.session import Session
from pathways.runtime.control.stalls import describe_step
from pathways.runtime.hosts.cluster.host import HostGang, Location, WorkerHandle
from pathways.runtime.hosts.cluster.hosted_program import HostedProgram
from pathways.runtime.hosts.cluster.reply_sinks import FetchSink
from pathways.runtime.hosts.cluster.round_trips import WindowWaits
from pathways.runtime.hosts.cluster.shared_core import SharedCore
from pathways.runtime.hosts.cluster.worker_cluster import Split
from pathways.runtime.hosts.cluster.worker_listener import WorkerListener
from pathways.runtime.hosts.cluster.worker_pool import WorkerPool
from pathways.runtime.hosts.protocol.frames import CHUNK
from pathways.runtime.hosts.protocol.host_facts import HostFacts, facts_of
from pathways.runtime.hosts.protocol.interrupts import uninterrupted
from pathways.runtime.hosts.protocol.messages import Call, Chunk, Describe, Fetch, ForeignFacts, Free, Put
from pathways.runtime.hosts.protocol.programs import BoundProgram
from pathways.runtime.hosts.protocol.shards import cut_shards
from pathways.runtime.hosts.protocol.wire import ConnectionEnded
from pathways.runtime.resources.cluster import Cluster
from pathways.runtime.resources.manager import Binding
from pathways.runtime.resources.status import HostStatus, SpareStatus, StepStatus
from pathways.runtime.resources.virtual import VirtualSlice


class MovableProgram(Protocol):
    """Program that is loaded on hosts, and can be loaded on others while it runs."""

    def runs_on(self, gang: HostGang) -> bool:
        """Returns whether it has a part on an island."""

    def load_for(self, bindings: Mapping[VirtualSlice, Binding]) -> Callable[[], None] | None:
        """Loads it for other devices of some slices.

        Args:
          bindings: the devices of slices that move.

        Returns:
          Makes calls from now on run there, with `order` held. None if the program has none of the slices.

        Raises:
          HostError: a host was lost, or cannot compile it.
        """


ShardCutter = Callable[[Sequence[int]], tuple[Sequence[np.ndarray[Any, Any]], tuple[int, ...]]]


class HostSession(Session[HostedProgram, HostGang, Location]):
    """Session over workers, each with direct or relayed connections.

    Args:
      core: the core that decides about the workers.
      pool: the workers.
      listener: the listener to their messages.

    Attributes:
      pool: see above.
      hosts: these workers, by their numbers.
      listener: see above.
      fetching: a lock like `order`, held from reading the number of an array until its fetch is sent. Nothing
        blocks while it is held.
      used: the islands that programs were loaded on, or that functions of the user were called on.
      programs: the programs of the user that are loaded.
      puts: the arrays that are being sent, each by the workers of its island and its number.
      waits: the waits for room, see `WindowWaits`.
    """

    def __init__(self, core: SharedCore, pool: WorkerPool, listener: WorkerListener) -> None:
        self._core = core
        self.pool = pool
        self.hosts = pool.hosts
        self.listener = listener
        self._loop = listener.loop
        self.waits = WindowWaits()
        self.used: set[int] = set()
        self.programs: weakref.WeakSet[MovableProgram] = weakref.WeakSet()
        self.puts: set[tuple[HostGang, int]] = set()
        self.fetching = threading.Lock()
        self._closed = threading.Event()

    @property
    @override
    def cluster(self) -> Cluster:
        return self.pool.cluster

    @property
    @override
    def is_multi_host(self) -> bool:
        return self._core.core.has_multi_host_islands

    @property
    @override
    def gangs(self) -> Sequence[GangView]:
        return [gang.life for gang in self.pool.gangs]

    @property
    def is_closed(self) -> bool:
        """Whether the session is closed."""
        return self._closed.is_set()

    @property
    def order(self) -> threading.RLock:
        """Lock of the order of steps, see `WorkerPool`. `run` waits for room while it holds the lock."""
        return self.pool.order

    def is_usable(self) -> bool:
        """Returns whether it is open, and all islands have workers or restart."""
        return not self.is_closed and not any(gang.is_dead() for gang in self.gangs)

    def is_whole(self) -> bool:
        """Returns whether it is open, and no host is lost or leaves."""
        return not self.is_closed and all(gang.problem is None for gang in self.gangs)

    def current_cluster(self) -> Cluster:
        """Returns the cluster with the present state and round trip of each island."""
        cluster = self.cluster
        # An island may join in between.
        islands = zip(cluster.islands, [*self.pool.gangs], strict=False)
        return dataclasses.replace(
            cluster,
            islands=tuple(
                dataclasses.replace(island, state=gang.life.state_name(), round_trip=gang.round_trip)
                for island, gang in islands
            ),
        )

    @override
    def load(self, program: BoundProgram, split: Split) -> HostedProgram:
        loaded = self._load(program, split)
        self.used.update(gang.number for gang in loaded.gangs)
        return loaded

    @abc.abstractmethod
    def load_foreign(
        self, name: str, hosts: Sequence[WorkerHandle], kind: str, body: bytes, about: int = 0
    ) -> tuple[int, list[ForeignFacts]]:
        """Loads a program of an extension on hosts of an island.

        Args:
          name: its name in messages.
          kind: the name of its loader in workers.
          body: the program, as the loader reads it.
          about: the number of a loaded program that the loader reads; 0 for none.

        Returns:
          Its number, and the reply of the loader of each host.

        Raises:
          HostError: a host is lost, or cannot load it.
        """

    @abc.abstractmethod
    def _load(self, program: BoundProgram, split: Split) -> HostedProgram:
        """Loads the program; see `load`."""

    @override
    def take_numbers(self, count: int = 1) -> int:
        return self._core.take_numbers(count)

    @override
    def wait(self, is_done: Callable[[], bool], seconds: float = 0.5) -> None:
        self._loop.wait(is_done, seconds)

    @override
    def wait_for(self, request: HostRequest, seconds: float | None = None) -> None:
        self._core.wait_for(request, seconds)

    @override
    def poll(self) -> None:
        self._loop.poll()

    def wake(self) -> None:
        """Wakes all threads in `wait`, which check their conditions again."""
        self._loop.wake()

    @override
    def request_reports(self, hosts: Sequence[int]) -> HostRequest:
        return self._core.request_reports(hosts)

    @override
    def unfinished(self) -> list[Step]:
        return self._core.core.steps.unfinished()

    def spares(self) -> SpareStatus | None:
        """Returns the status of the spare workers of the cluster; None if none are configured."""
        return None

    @abc.abstractmethod
    def _send_step(self, step: Step, program: HostedProgram, arguments: Mapping[int, Sequence[int]]) -> None:
        """Sends the messages of a step; the listener handles connections that are closed."""

    @abc.abstractmethod
    def _send_call(self, hosts: Sequence[WorkerHandle], call: Call) -> None:
        """Sends a call to hosts; the listener handles connections that are closed."""

    @abc.abstractmethod
    def _lose(self, host: WorkerHandle, error: ConnectionEnded) -> None:
        """Handles the end of a connection to a worker."""

    def run(
        self,
        program: HostedProgram,
        arguments: Mapping[int, Sequence[int]],
        producers: Sequence[Step | None] = (),
    ) -> Step:
        """Issues a step, when there is room for it.

        Args:
          program: the program.
          arguments: for each island the numbers of the arrays that it consumes.
          producers: the steps that compute these arrays.

        Returns:
          The step. The outputs of an island have the numbers that follow the number of the step.

        Raises:
          HostError: a host is lost.
        """
        with self.pool.order:
            self.wait_for_room(program)
            with uninterrupted():
                return self.issue(program, arguments, producers)

    @override
    def issue(
        self,
        program: HostedProgram,
        arguments: Mapping[int, Sequence[int]],
        producers: Sequence[Step | None] = (),
    ) -> Step:
        step = self._core.run(program, producers)
        self._send_step(step, program, arguments)
        return step

    def call(
        self,
        name: str,
        gang: HostGang,
        hosts: Sequence[WorkerHandle],
        message: Call,
        producers: Sequence[Step | None] = (),
    ) -> FunctionCall:
        """Starts a call of a function; one message to each host, as for a step.

        Args:
          name: its name in messages.
          gang: the workers of the island.
          hosts: the workers that run the call.
          message: the call without the numbers and the hosts.
          producers: the steps that compute its arguments.

        Returns:
          The call. Its outputs have the numbers that follow the number of the call.

        Raises:
          HostError: a host is lost.
        """
        with self.pool.order:
            gang.life.check_open()
            number = self.take_numbers(1 + len(message.results or ()))
            indices = tuple(host.index for host in hosts)
            call = FunctionCall(name, number, indices, time.monotonic())
            numbered = msgspec.structs.replace(message, call=number, first=number + 1, hosts=indices)
            # With results, to all hosts of the island: clients may fetch shards of them from each.
            receivers = [host for host in gang.hosts if message.results or host in hosts]
            with uninterrupted():
                self._core.issue(call, (gang.life,), producers)
                self._send_call(receivers, numbered)
        return call

    @override
    def put(self, value: np.ndarray[Any, Any], location: Location, number: int) -> None:
        value = location.block.of(value)
        cut = functools.partial(cut_shards, value, location.placement)
        self.put_shards(value.shape, value.dtype, location, number, cut)

    def put_shards(
        self, shape: tuple[int, ...], dtype: np.dtype[Any], location: Location, number: int, cut: ShardCutter
    ) -> None:
        """Sends an array by its shards, see `put`.

        Args:
          cut: returns the different shards for the devices at some positions, and for each device of the
            location the number of its shard; -1 for other devices.
        """
        location.gang.life.check_open()
        try:
            for host in location.receivers:
                shards, order = cut(location.holders.get(host, ()))
                put = Put(number, shape, dtype.name, location.placement, order)
                self._send(host, host.arrays.send, put)
                for n, shard in enumerate(shards):
                    raw = memoryview(np.ascontiguousarray(shard).reshape(-1).view(np.uint8))
                    for offset in range(0, len(raw), CHUNK):
                        piece = raw[offset : offset + CHUNK]
                        chunk = Chunk(number, n, offset, len(piece))
                        self._send(host, host.arrays.send_with, chunk, piece)
        except BaseException:
            # Also for Ctrl-C, which may come while a large array is sent.
            with uninterrupted():
                self._cancel_put(location, number)
            raise

    def _cancel_put(self, location: Location, number: int) -> None:
        """Frees the shards that hosts have received of an array."""
        for host in location.receivers:
            with contextlib.suppress(HostError):
                self._send(host, host.arrays.send, Free((number,)))

    @override
    def request_bytes(
        self, location: Location, host: int, number: int, devices: Sequence[int], sizes: Sequence[int]
    ) -> HostRequest:
        # No request is sent for shards without bytes.
        request = self._core.request([host] if any(sizes) else [], FetchSink(sizes))
        if not request.is_done():
            # From the gang of the location: the pool may have a new worker of that number.
            worker = next(worker for worker in location.gang.hosts if worker.index == host)
            # On `steps`: after the step that computes the array, and before a later one that donates it.
            fetch = Fetch(request.number, number, tuple(devices), sum(sizes))
            self._send_request(request, worker, worker.steps.send, fetch)
        return request

    def describe(self, program: HostedProgram, *, text: bool = False) -> HostFacts:
        """Returns XLA's facts about a program on its hosts, with the text of its modules if `text`.

        Raises:
          HostError: a host is lost.
        """
        request = self._core.request(program.host_numbers)
        for host in program.hosts:
            self._send_request(request, host, host.watch.send, Describe(request.number, program.number, text))
        self.wait_for(request)
        for _, failure in request.first_failure():
            raise failure.error(f"program {program.name}")
        # All hosts of an island that run a computation report the same facts.
        pieces = [request.answers[host.index] for host in program.hosts]
        error = next(
            (piece.error for of_host in pieces for piece in of_host if piece.error is not None), None
        )
        if error is not None:
            raise failed(error).error(f"program {program.name}")
        return facts_of(pieces)

    def fetch(self, request: HostRequest) -> list[bytearray]:
        """Waits for requested bytes, and returns them.

        Raises:
          HostError: the host is lost, or the array is an error.
        """
        self.wait_for(request)
        for _, failure in request.first_failure():
            raise failure.error()
        assert isinstance(request.sink, FetchSink)
        return request.sink.shards

    def wait_for_step(self, step: Step, location: Location | None = None, number: int | None = None) -> None:
        """Waits until the hosts of a location, or all hosts, are done with a step.

        On islands of more than one host, waits until no failure can spoil the step any more.

        Args:
          step: the step.
          location: the location; None for all hosts.
          number: the number of an array that they compute; None for all.

        Raises:
          HostError: the array failed, or a host is lost.
        """
        hosts = None if location is None else [host.index for host in location.holders]
        self.wait(self._is_known(step, hosts))
        step.check(hosts, number)
        if location is not None:
            location.gang.life.check()

    def wait_for_call(self, call: FunctionCall) -> None:
        """Waits until all hosts have completed a call, or are lost.

        Raises:
          HostError: the call may have consumed wrong values.
        """
        self.wait(self._is_known(call, None))
        call.check_spoiled()

    def describe_call(self, call: FunctionCall) -> str:
        """Returns a description of the current operations of the hosts that have not completed a call."""
        request = self.request_reports(call.pending())
        self.wait_for(request, 2 * REPORT_SECONDS)
        reports = {host: replies[-1] for host, replies in request.answers.items()}
        return describe_step(call, time.monotonic() - call.began, reports)

    def has_ended(self, call: FunctionCall) -> bool:
        """Returns whether all hosts have completed a call, or are lost."""
        if not call.is_done():
            self.poll()
        return call.is_done()

    def settle(self, step: Step) -> None:
        """Waits until no failure can spoil the outputs of a step, on islands of more than one host.

        Raises:
          HostError: they are spoiled.
        """
        if self.is_multi_host:
            self.wait(step.is_settled)
            step.check_spoiled()

    def is_done(self, step: Step, location: Location) -> bool:
        """Returns whether the hosts of a location are done with a step; see `wait`."""
        hosts = [host.index for host in location.holders]
        is_done = self._is_known(step, hosts)
        if not is_done():
            self.poll()
        return is_done()

    def _is_known(self, step: Step, hosts: Sequence[int] | None) -> Callable[[], bool]:
        """Returns a test for whether the results of some hosts, or all, are known."""
        is_done = step.is_settled if self.is_multi_host else functools.partial(step.is_done, hosts)
        return lambda: is_done() or step.has_cut_hosts(hosts)

    def status(self) -> tuple[tuple[HostStatus, ...], tuple[StepStatus, ...]]:
        """Returns the status of all hosts, and of the steps that are not done."""
        request = self.request_reports(range(len(self.hosts)))
        # The core ends the request after REPORT_SECONDS, unless the cluster is closed meanwhile, which stops
        # its clock.
        self.wait_for(request, 2 * REPORT_SECONDS)
        self.poll()
        reports = {host: replies[-1] for host, replies in request.answers.items()}
        now = time.monotonic()
        return (
            tuple(host.status(reports.get(host.index)) for host in self.hosts),
            tuple(step.status(now) for step in self.unfinished()),
        )

    def waits_for_network(self) -> bool:
        """Returns whether steps wait for the longest round trip to a host."""
        trips = [trip for host in [*self.hosts] if (trip := host.round_trip.seconds) is not None]
        return self.waits.is_network(max(trips, default=None))

    @override
    def leave(self) -> None:
        # Replaced: a thread of the parent process may hold the lock of the old ones for ever.
        self.fetching, self._closed = threading.Lock(), threading.Event()
        self._closed.set()

    def _send_request(
        self, request: HostRequest, host: WorkerHandle, send: Callable[..., None], message: Any
    ) -> None:
        try:
            self._send(host, send, message)
        except BaseException:
            self._core.drop(request)
            raise

    def _send(self, host: WorkerHandle, send: Callable[..., None], *message: Any) -> None:
        """Sends a message, and bytes that follow it, to a host.

        Raises:
          HostError: it is lost.
        """
        host.gang.life.check()
        try:
            with uninterrupted():
                send(*message)
        except ConnectionEnded as error:
            self._lose(host, error)
            host.gang.life.check_open()
            raise lost(f"{host}: {error}").error() from None
