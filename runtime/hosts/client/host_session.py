"""Session over hosts: the messages that workers receive directly or relayed by a service."""

from __future__ import annotations

import abc
import contextlib
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, override

import numpy as np

from pathways.runtime.control.gang import GangView
from pathways.runtime.control.records.errors import HostError, lost
from pathways.runtime.control.records.replies import HostRequest
from pathways.runtime.control.records.step import FunctionCall, Step
from pathways.runtime.control.session import Session
from pathways.runtime.hosts.cluster.host import HostGang, Location, WorkerHandle
from pathways.runtime.hosts.cluster.hosted_program import HostedProgram
from pathways.runtime.hosts.cluster.reply_sinks import FetchSink
from pathways.runtime.hosts.cluster.round_trips import WindowWaits
from pathways.runtime.hosts.cluster.shared_core import SharedCore
from pathways.runtime.hosts.cluster.worker_listener import WorkerListener
from pathways.runtime.hosts.cluster.worker_pool import WorkerPool
from pathways.runtime.hosts.protocol.frames import CHUNK
from pathways.runtime.hosts.protocol.interrupts import uninterrupted
from pathways.runtime.hosts.protocol.messages import Call, Chunk, Describe, Fetch, Free, Put
from pathways.runtime.hosts.protocol.shards import cut_shards
from pathways.runtime.hosts.protocol.wire import ConnectionEnded
from pathways.runtime.resources.status import SpareStatus


class HostSession(Session[HostedProgram, HostGang, Location]):
    """Session over workers, each with connections of its own or relayed ones.

    Args:
      core: the core that decides about the workers.
      pool: the workers.
      listener: the listener to their messages.

    Attributes:
      pool: see above.
      listener: see above.
      waits: the waits for room, see `WindowWaits`.
    """

    def __init__(self, core: SharedCore, pool: WorkerPool, listener: WorkerListener) -> None:
        self._core = core
        self.pool = pool
        self.listener = listener
        self._loop = listener.loop
        self.cluster = pool.cluster
        self.is_multi_host = core.core.has_multi_host_islands
        self.waits = WindowWaits()
        self._closed = threading.Event()

    @property
    @override
    def gangs(self) -> Sequence[GangView]:
        return [gang.life for gang in self.pool.gangs]

    @property
    def is_closed(self) -> bool:
        """Whether the session is closed."""
        return self._closed.is_set()

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

    @override
    def run(
        self,
        program: HostedProgram,
        arguments: Mapping[int, Sequence[int]],
        producers: Sequence[Step | None] = (),
    ) -> Step:
        step = self._core.run(program, producers)
        self._send_step(step, program, arguments)
        return step

    def call(
        self, call: FunctionCall, workers: HostGang, message: Any, producers: Sequence[Step | None] = ()
    ) -> None:
        """See `Session.call`; `message` is a `Call` that names the hosts and numbers."""
        # With results, to all hosts of the island: clients may fetch shards of them from each.
        hosts = [host for host in workers.hosts if message.results or host.index in message.hosts]
        with uninterrupted():
            self._core.issue(call, (workers.life,), producers)
            self._send_call(hosts, message)

    @override
    def put(self, value: np.ndarray[Any, Any], location: Location, number: int) -> None:
        location.gang.life.check_open()
        value = location.block.of(value)
        try:
            for host in location.gang.hosts:
                shards, order = cut_shards(value, location.placement, location.holders.get(host, ()))
                put = Put(number, value.shape, value.dtype.name, location.placement, order)
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
        for host in location.gang.hosts:
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

    @override
    def request_description(self, program: HostedProgram, *, text: bool) -> HostRequest:
        request = self._core.request(program.host_numbers)
        for host in program.hosts:
            describe = Describe(request.number, program.number, text)
            self._send_request(request, host, host.watch.send, describe)
        return request

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
