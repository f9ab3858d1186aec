"""Relay of workers' replies to clients, under the request numbers of the clients."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterable
from typing import Any, override

from pathways.runtime.hosts.cluster.host import WorkerHandle
from pathways.runtime.hosts.cluster.reply_sinks import Reply, ReplySink
from pathways.runtime.hosts.cluster.shared_core import SharedCore
from pathways.runtime.hosts.protocol.messages import (
    Chunk,
    Credit,
    Described,
    Failed,
    Fetch,
    MessageError,
    Report,
)
from pathways.runtime.hosts.protocol.wire import ConnectionEnded
from pathways.runtime.resources.threads import start_thread
from pathways.runtime.service.protocol.service_messages import FromHost
from pathways.runtime.service.relaying.array_sender import FIRST_BYTES, RelayedFetch
from pathways.runtime.service.served.served_client import ServedClient


@dataclasses.dataclass(eq=False)
class RelayedRequest(ReplySink):
    """Request of a client to a worker.

    Attributes:
      translate: returns the reply to the client for one of the worker.
    """

    client: ServedClient
    request: int
    translate: Callable[[Any], Described | Report]

    def place(self, chunk: Chunk, size: int) -> memoryview:
        """See `ReplySink.place`.

        Raises:
          MessageError: always, since such a reply has no bytes of an array.
        """
        raise MessageError(f"unexpected {size} bytes of an array in the reply to request {chunk.number}")

    @override
    def accept(self, host: WorkerHandle, answer: Reply) -> bool:
        self.client.watch.send(FromHost(host.index, host.gang.life.key.start, self.translate(answer)))
        return not isinstance(answer, Described) or answer.last


@dataclasses.dataclass(eq=False)
class ClientFetch(ReplySink):
    """Fetch of an array by a client."""

    client: ServedClient
    fetch: RelayedFetch

    @override
    def place(self, chunk: Chunk, size: int) -> memoryview:
        return self.fetch.next_buffer(size)

    @override
    def accept(self, host: WorkerHandle, answer: Reply) -> bool:
        fetch = self.fetch
        if isinstance(answer, Chunk):
            self.client.arrays.relay(fetch, answer)
            if fetch.left > 0:
                return False
        elif isinstance(answer, Failed):
            failure = Failed(fetch.fetch.request, answer.error)
            self.client.arrays.send(FromHost(host.index, fetch.start, failure))
            self.client.arrays.cancel(fetch)
        self.client.fetches.pop(fetch.number, None)
        return True


def start_fetch(
    core: SharedCore,
    client: ServedClient,
    fetch: RelayedFetch,
    *,
    missing: str | None,
    lose: Callable[[WorkerHandle, ConnectionEnded], None],
) -> None:
    """Requests an array from its worker for a client.

    Args:
      missing: the reason why the array does not exist; None if it exists.
      lose: is called if the connection to the worker has ended.
    """
    if fetch.host.gang.is_lost():
        # The notice of the loss, which all clients get, fails the request.
        return
    if missing is not None:
        failure = Failed(fetch.fetch.request, missing)
        client.arrays.send(FromHost(fetch.host.index, fetch.start, failure))
        return
    request = core.request([fetch.host.index], ClientFetch(client, fetch))
    fetch.number = request.number
    client.fetches[request.number] = fetch
    request_of_client = fetch.fetch
    try:
        fetch.host.steps.send(
            Fetch(
                request.number,
                request_of_client.array,
                request_of_client.devices,
                request_of_client.size,
                min(request_of_client.size, FIRST_BYTES),
            )
        )
    except ConnectionEnded as error:
        lose(fetch.host, error)
    client.arrays.start(fetch)


def cancel_lost_fetches(clients: Iterable[ServedClient]) -> None:
    """Takes back the credit of fetches from lost hosts, which other fetches of the client wait for."""
    for client in clients:
        for number, fetch in [*client.fetches.items()]:
            if fetch.host.gang.is_lost():
                client.arrays.cancel(fetch)
                client.fetches.pop(number, None)


def cancel_fetches(client: ServedClient) -> None:
    """Stops workers from sending arrays to a client that has disconnected."""
    fetches = [*client.fetches.values()]

    def cancel() -> None:
        for fetch in fetches:
            with contextlib.suppress(ConnectionEnded):
                fetch.host.arrays.send(Credit(fetch.number, -1))

    if fetches:
        # In a thread: the connections of arrays do not buffer, so that sending may block.
        start_thread(cancel, "cancel")
