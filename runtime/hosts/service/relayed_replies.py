"""Relay of workers' replies to clients, under the request numbers of the clients."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, override

from pathways.runtime.hosts.cluster.host import WorkerHandle
from pathways.runtime.hosts.cluster.reply_sinks import Reply, ReplySink
from pathways.runtime.hosts.protocol.messages import Chunk, Described, Failed, MessageError, Report
from pathways.runtime.hosts.protocol.service_messages import FromHost
from pathways.runtime.hosts.service.array_sender import RelayedFetch
from pathways.runtime.hosts.service.served_client import ServedClient


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
