"""Turns what a service says into events for the core of its client."""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable
from typing import Any

from pathways.runtime.control.cluster_mirror import (
    SERVICE,
    ServiceLost,
    StepCut,
    StepIndeterminate,
    StepRefused,
)
from pathways.runtime.control.effects import GangLeaving, GangLost, GangReturned
from pathways.runtime.control.records.errors import lost
from pathways.runtime.control.records.events import GangKey, ReplyReceived
from pathways.runtime.hosts.cluster.event_loop import EventLoop
from pathways.runtime.hosts.cluster.host import HostGang
from pathways.runtime.hosts.cluster.round_trips import HostRoundTrip
from pathways.runtime.hosts.cluster.shared_core import SharedCore
from pathways.runtime.hosts.cluster.worker_listener import WorkerListener
from pathways.runtime.hosts.cluster.worker_pool import WorkerPool
from pathways.runtime.hosts.protocol.messages import MessageError, Unload
from pathways.runtime.hosts.protocol.service_messages import (
    AdmissionDenied,
    DevicesBound,
    FromHost,
    HostsDone,
    Indeterminate,
    IslandFacts,
    IslandLeavingNotice,
    IslandLostNotice,
    IslandReturnedNotice,
    ProgramLoaded,
    ServicePong,
    StepCutOff,
    StepRefusedNotice,
)
from pathways.runtime.hosts.protocol.wire import Connection, ConnectionEnded
from pathways.runtime.hosts.trace.host_traces import HostTraces
from pathways.runtime.resources.threads import start_thread

_REASON_SECONDS = 0.1
"""How long to wait for the reason when a connection has ended."""


class AttachedService:
    """The service, as its client sees it.

    Args:
      name: what messages call it.
      connections: to it, by the names of `messages.CHANNELS`.

    Attributes:
      heard: when it said something last, in seconds.
      round_trip: how long a question to it and the answer take.
    """

    def __init__(self, name: str, connections: dict[str, Connection[Any]]) -> None:
        self.name = name
        self.connections = connections
        self.steps = connections["steps"]
        self.arrays = connections["arrays"]
        self.watch = connections["watch"]
        self.heard = time.monotonic()
        self.round_trip = HostRoundTrip()

    def __str__(self) -> str:
        return f"service {self.name}"

    def close(self) -> None:
        """Ends the connections; whoever waits on one gets `ConnectionEnded`."""
        for connection in self.connections.values():
            connection.close()

    def leave(self) -> None:
        """Forgets the connections, which another process goes on with."""
        for connection in self.connections.values():
            connection.detach()


class ServiceListener(WorkerListener):
    """Listens to a service.

    Args:
      core: is told.
      pool: the workers.
      traces: takes what they say about traces.
      service: the service.
      gang_of: makes the workers of an island.
    """

    def __init__(
        self,
        core: SharedCore,
        pool: WorkerPool,
        traces: HostTraces,
        service: AttachedService,
        gang_of: Callable[[int, IslandFacts], HostGang],
    ) -> None:
        super().__init__(core, pool, traces, EventLoop())
        self._service = service
        self._gang_of = gang_of
        service.arrays.place = self._place_relayed
        read = functools.partial(service.steps.process_available, self._on_service_message)
        self.loop.add(service.steps, functools.partial(self._act, read))

    def start(self) -> None:
        """Listens from now on."""
        for connection in (self._service.arrays, self._service.watch):
            start_thread(functools.partial(self._listen_to, connection), "listen")

    def lose_service(self, error: ConnectionEnded) -> None:
        """A connection to the service has ended; it may have said why on another one."""
        time.sleep(_REASON_SECONDS)
        self.loop.poll()
        self.report_loss(f"is gone: {error}")

    def report_loss(self, why: str) -> None:
        """The service is gone; who says so first says why."""
        self.loop.remove(self._service.steps)
        self._core.handle(ServiceLost(lost(f"{self._service} {why}")))
        self._pool.wake()
        self.loop.wake()

    def find_exited(self, seconds: float = 0.0) -> None:
        """What becomes of workers, the service says."""

    def _listen_to(self, connection: Connection[Any]) -> None:
        def listen() -> None:
            while True:
                self._on_service_message(connection.receive())

        self._act(listen)

    def _act(self, act: Callable[[], None]) -> None:
        try:
            act()
        except ConnectionEnded as error:
            self.lose_service(error)
        except MessageError as error:
            self._service.close()
            self.report_loss(f"sent a message that cannot be understood: {error}")

    def _on_service_message(self, message: object) -> None:
        now = self._service.heard = time.monotonic()
        match message:
            case HostsDone():
                for number in message.hosts:
                    self._core.done(self._pool.host(number).gang.life, number, message.step, now)
            case FromHost():
                self._on_message(self._pool.host(message.host), message.message)
            case StepRefusedNotice():
                self._core.handle(StepRefused(message.step, message.why.failure()))
            case Indeterminate():
                self._core.handle(StepIndeterminate(message.step, message.why.failure()))
            case StepCutOff():
                self._core.handle(StepCut(message.step, message.hosts, message.why.failure()))
            case IslandLeavingNotice():
                key = GangKey(message.island, message.start)
                self._core.handle(GangLeaving(key, message.why.failure()))
            case IslandLostNotice():
                self._lose(message)
            case IslandReturnedNotice():
                self._replace(message)
            case ProgramLoaded():
                self._loaded(message)
            case DevicesBound():
                self._core.handle(ReplyReceived(SERVICE, message.request, message))
            case AdmissionDenied():
                self.report_loss(f"has ended this client: {message.why}")
            case ServicePong():
                self._on_pong(message, now)
            case _:
                raise MessageError(f"a service does not say {type(message).__name__}")

    def _on_pong(self, message: ServicePong, now: float) -> None:
        """Notes the round trips to hosts: to the service, and on from there."""
        self._service.round_trip.note_pong(message.number, now)
        way = self._service.round_trip.seconds
        if way is not None:
            for number, seconds in message.round_trips.items():
                self._pool.host(number).round_trip.add(way + seconds)

    def _place_relayed(self, message: object, size: int) -> memoryview:
        if not isinstance(message, FromHost):
            raise MessageError(f"{type(message).__name__} comes with {size} bytes of an array")
        return self._place(self._pool.host(message.host), message.message, size)

    def _lose(self, message: IslandLostNotice) -> None:
        key = GangKey(message.island, message.start)
        gang = self._pool.get(key)
        for host in () if gang is None else gang.hosts:
            self._traces.lose(host.index)
        self._core.handle(GangLost(key, message.why.failure(), message.is_dead))
        self._pool.wake()
        self.loop.wake()

    def _replace(self, message: IslandReturnedNotice) -> None:
        self._core.handle(GangReturned(GangKey(message.island, message.facts.start)))
        gang = self._gang_of(message.island, message.facts)
        for host in gang.hosts:
            self._traces.attach(host)
        self._pool.replace(gang)

    def _loaded(self, message: ProgramLoaded) -> None:
        request = self._core.core.replies.get(message.request)
        if request is None:
            # It is no longer waited for.
            with contextlib.suppress(ConnectionEnded):
                self._service.watch.send(Unload(message.program))
            return
        value = message if message.error is None else message.error.failure()
        self._core.handle(*(ReplyReceived(host, message.request, value) for host in request.hosts))
