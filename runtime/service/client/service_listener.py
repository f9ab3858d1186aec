"""Listener that turns messages of a service into events for the core of its client."""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable
from typing import Any

from pathways.runtime.control.effects import (
    GangDraining,
    GangJoined,
    GangLeaving,
    GangLost,
    GangReturned,
)
from pathways.runtime.control.records.errors import Failure, ServiceLostError
from pathways.runtime.control.records.events import GangKey, ReplyReceived
from pathways.runtime.hosts.cluster.event_loop import EventLoop
from pathways.runtime.hosts.cluster.host import HostGang
from pathways.runtime.hosts.cluster.round_trips import HostRoundTrip
from pathways.runtime.hosts.cluster.shared_core import SharedCore
from pathways.runtime.hosts.cluster.worker_listener import WorkerListener
from pathways.runtime.hosts.cluster.worker_pool import WorkerPool
from pathways.runtime.hosts.protocol.messages import MessageError, Unload
from pathways.runtime.hosts.protocol.wire import Connection, ConnectionEnded
from pathways.runtime.resources.status import SpareStatus
from pathways.runtime.resources.threads import start_thread
from pathways.runtime.service.client.cluster_mirror import (
    SERVICE,
    ServiceLost,
    StepCut,
    StepIndeterminate,
    StepRefused,
)
from pathways.runtime.service.protocol.service_messages import (
    AdmissionDenied,
    CollectRequest,
    DevicesBound,
    FromHost,
    HostsDone,
    Indeterminate,
    IslandAddedNotice,
    IslandDrainingNotice,
    IslandFacts,
    IslandLeavingNotice,
    IslandLostNotice,
    IslandReturnedNotice,
    ProgramLoaded,
    ServicePong,
    StepCutOff,
    StepRefusedNotice,
)

_REASON_TIMEOUT_S = 0.1
"""Time to wait for the reason on other connections after one was closed."""


class AttachedService:
    """Service as its client sees it.

    Args:
      name: its name in messages.
      connections: the connections to it, by the names of `messages.CHANNELS`.

    Attributes:
      heard: the time of its last message, in seconds.
      spares: the status of its spare workers; None if it has none.
    """

    def __init__(self, name: str, connections: dict[str, Connection[Any]]) -> None:
        self.name = name
        self.connections = connections
        self.steps = connections["steps"]
        self.arrays = connections["arrays"]
        self.watch = connections["watch"]
        self.heard = time.monotonic()
        self.round_trip = HostRoundTrip()
        self.spares: SpareStatus | None = None

    def __str__(self) -> str:
        return f"service {self.name}"

    def close(self) -> None:
        """Closes the connections; threads that wait on one get `ConnectionEnded`."""
        for connection in self.connections.values():
            connection.close()

    def leave(self) -> None:
        """Releases the connections in a forked process, since the parent process continues to use them."""
        for connection in self.connections.values():
            connection.detach()


class ServiceListener(WorkerListener):
    """Listener to a service.

    Args:
      core: the core that handles the events.
      pool: the workers.
      gang_of: creates the handles of the workers of an island.

    Attributes:
      collect: is called where this client exceeds its quota.
      move: is called where an island will leave, with the notice.
      on_joined: is called when an island has joined.
    """

    def __init__(
        self,
        core: SharedCore,
        pool: WorkerPool,
        service: AttachedService,
        gang_of: Callable[[int, IslandFacts], HostGang],
    ) -> None:
        super().__init__(core, pool, EventLoop())
        self._service = service
        self._gang_of = gang_of
        self.collect: Callable[[], object] = lambda: None
        self.move: Callable[[IslandDrainingNotice], object] = lambda notice: None
        self.on_joined: Callable[[], object] = lambda: None
        service.arrays.place = self._place_relayed
        read = functools.partial(service.steps.process_available, self._on_service_message)
        self.loop.add(service.steps, functools.partial(self._read_from_service, read))

    def start(self) -> None:
        """Starts to listen."""
        for connection in (self._service.arrays, self._service.watch):
            start_thread(functools.partial(self._listen_to, connection), "listen")

    def lose_service(self, error: ConnectionEnded) -> None:
        """Handles a closed connection to the service, which may have sent the reason on another one."""
        time.sleep(_REASON_TIMEOUT_S)
        self.loop.poll()
        self.report_loss(f"is disconnected: {error}")

    def report_loss(self, why: str) -> None:
        """Reports the loss of the service; the first reason counts."""
        self.loop.remove(self._service.steps)
        self._core.handle(ServiceLost(Failure(ServiceLostError, f"{self._service} {why}")))
        self._pool.wake()
        self.loop.wake()

    def find_exited(self, seconds: float = 0.0) -> None:
        """No-op: the service reports worker exits."""

    def _listen_to(self, connection: Connection[Any]) -> None:
        def listen() -> None:
            while True:
                self._on_service_message(connection.receive())

        self._read_from_service(listen)

    def _read_from_service(self, read: Callable[[], None]) -> None:
        try:
            read()
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
            case CollectRequest():
                self.collect()
            case StepRefusedNotice():
                self._core.handle(StepRefused(message.step, message.why.failure()))
            case Indeterminate():
                self._core.handle(StepIndeterminate(message.step, message.why.failure()))
            case StepCutOff():
                self._core.handle(StepCut(message.step, message.hosts, message.why.failure()))
            case IslandDrainingNotice():
                key = GangKey(message.island, message.start)
                self._core.handle(GangDraining(key, message.why.failure()))
                self.move(message)
            case IslandLeavingNotice():
                key = GangKey(message.island, message.start)
                self._core.handle(GangLeaving(key, message.why.failure()))
            case IslandLostNotice():
                self._lose_island(message)
            case IslandReturnedNotice():
                self._replace_island(message)
            case IslandAddedNotice():
                self._add_island(message)
            case ProgramLoaded():
                self._on_loaded(message)
            case DevicesBound():
                self._core.handle(ReplyReceived(SERVICE, message.request, message))
            case AdmissionDenied():
                self.report_loss(f"has ended this client: {message.why}")
            case ServicePong():
                self._on_pong(message, now)
            case _:
                raise MessageError(f"unexpected message {type(message).__name__} from service")

    def _on_pong(self, message: ServicePong, now: float) -> None:
        """Notes the spares, and the round trips to hosts: that to the service plus those from there."""
        self._service.spares = message.spares
        self._service.round_trip.note_pong(message.number, now)
        to_service = self._service.round_trip.seconds
        if to_service is not None:
            for number, seconds in message.round_trips.items():
                # The notice of an island that has joined may come later, on another connection.
                if number < len(self._pool.hosts):
                    self._pool.host(number).round_trip.add(to_service + seconds)

    def _place_relayed(self, message: object, size: int) -> memoryview:
        if not isinstance(message, FromHost):
            raise MessageError(f"unexpected {size} bytes of an array after {type(message).__name__}")
        return self._place(self._pool.host(message.host), message.message, size)

    def _lose_island(self, message: IslandLostNotice) -> None:
        key = GangKey(message.island, message.start)
        gang = self._pool.get(key)
        for host in () if gang is None else gang.hosts:
            for observer in self._pool.observers:
                observer.lose(host.index)
        self._core.handle(GangLost(key, message.why.failure(), message.is_dead, message.is_out))
        self._pool.wake()
        self.loop.wake()

    def _replace_island(self, message: IslandReturnedNotice) -> None:
        # In this order: handles need the new state of the core, and a worker must know that it records before
        # the pool shows it to threads that send steps.
        self._core.handle(GangReturned(GangKey(message.island, message.facts.start)))
        gang = self._gang_of(message.island, message.facts)
        for observer in self._pool.observers:
            for host in gang.hosts:
                observer.attach(host)
        self._pool.replace(gang)
        self.loop.wake()

    def _add_island(self, message: IslandAddedNotice) -> None:
        # See `_replace_island`. Ctrl-C may have interrupted this at any place the first time.
        hosts = tuple(host.host for host in message.facts.hosts)
        self._core.handle(GangJoined(GangKey(message.island, message.facts.start), hosts))
        if message.island == len(self._pool.gangs):
            gang = self._gang_of(message.island, message.facts)
            for observer in self._pool.observers:
                for host in gang.hosts:
                    observer.attach(host)
            self._pool.add(gang)
        self.on_joined()
        self.loop.wake()

    def _on_loaded(self, message: ProgramLoaded) -> None:
        request = self._core.core.replies.get(message.request)
        if request is None:
            # The request was dropped, so that the program is not needed.
            with contextlib.suppress(ConnectionEnded):
                self._service.watch.send(Unload(message.program))
            return
        value = message if message.error is None else message.error.failure()
        self._core.handle(*(ReplyReceived(host, message.request, value) for host in request.hosts))
