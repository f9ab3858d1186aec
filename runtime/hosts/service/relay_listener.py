"""Passes what workers say on to the clients that it is for."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, Protocol

from pathways.runtime.control.events import Answered, HostEnded
from pathways.runtime.hosts.cluster.host import HostProcess
from pathways.runtime.hosts.cluster.islands import Islands
from pathways.runtime.hosts.cluster.listener import Listener
from pathways.runtime.hosts.cluster.shared_core import SharedCore
from pathways.runtime.hosts.protocol.messages import (
    Called,
    Chunk,
    ClockTime,
    Described,
    Done,
    Failed,
    MessageError,
    Report,
    RunTimes,
    TraceDone,
    TraceStarted,
)
from pathways.runtime.hosts.protocol.serving import FromHost
from pathways.runtime.hosts.protocol.wire import ConnectionEnded
from pathways.runtime.hosts.service.dispatch_loop import DispatchLoop
from pathways.runtime.hosts.service.sending import RelayedFetch
from pathways.runtime.hosts.service.served_client import ServedClient
from pathways.runtime.hosts.trace.host_traces import HostTraces
from pathways.runtime.resources.threads import start_thread

FromTracing = ClockTime | RunTimes | TraceDone | TraceStarted


@dataclasses.dataclass(eq=False)
class RelayedQuestion:
    """What a client has asked a worker.

    Attributes:
      client: the client.
      request: the number of its request.
      answer: makes what the client is told of the worker's answer.
    """

    client: ServedClient
    request: int
    answer: Callable[[Any], Described | Report]


@dataclasses.dataclass(eq=False)
class ClientFetch:
    """What a client fetches."""

    client: ServedClient
    fetch: RelayedFetch


class Hears(Protocol):
    """What a service hears of workers."""

    def on_done(self, host: HostProcess, done: Done) -> None:
        """A host is done with its part of a step; in the dispatch thread."""

    def on_called(self, host: HostProcess, called: Called) -> None:
        """A host has ended its part of a call; in the dispatch thread."""

    def on_tracing(self, host: HostProcess, message: FromTracing) -> None:
        """A worker says something of a trace."""

    def read_client(self, client: ServedClient) -> None:
        """A client has said something that has an order; in the dispatch thread."""


class RelayListener(Listener):
    """Listens to the workers of a service, and to its clients.

    Args:
      core: is told.
      islands: the workers.
      traces: see `Listener`.
      service: hears what is not relayed here.
    """

    answers: DispatchLoop

    def __init__(self, core: SharedCore, islands: Islands, traces: HostTraces, service: Hears) -> None:
        super().__init__(core, islands, traces, DispatchLoop)
        self._service = service
        self.answers.on_flush_failed = self._on_flush_failed

    def lose(self, host: HostProcess, error: ConnectionEnded) -> None:
        """See `Listener.lose`; not in the dispatch thread, since the end of a process takes a while."""
        self.answers.forget(host)
        start_thread(functools.partial(super().lose, host, error), "lose")

    def find_ended(self, seconds: float = 0.0) -> None:
        """See `Listener.find_ended`; without waiting for it."""
        del seconds
        super().find_ended()

    def _on_step_messages(self, host: Any) -> None:
        if isinstance(host, ServedClient):
            self._service.read_client(host)
            return
        try:
            for message in host.steps.take_some():
                self._on_message(host, message)
        except ConnectionEnded as error:
            self.lose(host, error)
        except MessageError as error:
            self._core.tell(HostEnded(host.gang.life.key, host.index, str(error)))

    def _on_flush_failed(self, party: Any, error: Any) -> None:
        if isinstance(party, ServedClient):
            self._service.read_client(party)
        else:
            self.lose(party, error)

    def _on_message(self, host: HostProcess, message: object) -> None:
        match message:
            case Done():
                super()._on_message(host, message)
                self._service.on_done(host, message)
            case Called():
                super()._on_message(host, message)
                self._service.on_called(host, message)
            case Chunk() | Failed() | Described() | Report():
                number = message.number if isinstance(message, Chunk) else message.request
                request = self._core.core.replies.get(number)
                sink = None if request is None or host.index not in request.hosts else request.sink
                match sink:
                    case ClientFetch():
                        self._pass_on(host, sink, message)
                    case RelayedQuestion():
                        told = FromHost(host.index, host.gang.life.key.start, sink.answer(message))
                        sink.client.watch.send(told)
                        if not isinstance(message, Described) or message.last:
                            self._core.tell(Answered(host.index, number, None))
                    case _:
                        super()._on_message(host, message)
            case ClockTime() | RunTimes() | TraceDone() | TraceStarted():
                self._service.on_tracing(host, message)
            case _:
                super()._on_message(host, message)

    def _pass_on(self, host: HostProcess, sink: ClientFetch, message: object) -> None:
        fetch, client = sink.fetch, sink.client
        if isinstance(message, Chunk):
            client.arrays.pass_on(fetch, message)
            if fetch.left > 0:
                return
        elif isinstance(message, Failed):
            told = Failed(fetch.fetch.request, message.error)
            client.arrays.send(FromHost(host.index, fetch.start, told))
        client.fetches.pop(fetch.number, None)
        self._core.tell(Answered(host.index, fetch.number, None))

    def _place(self, host: HostProcess, message: object, size: int) -> memoryview:
        if isinstance(message, Chunk):
            request = self._core.core.replies.get(message.number)
            if request is not None and host.index in request.hosts and isinstance(request.sink, ClientFetch):
                return request.sink.fetch.place(size)
        return super()._place(host, message, size)
