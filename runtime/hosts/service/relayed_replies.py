"""Answers of workers that are for clients: passed on with the numbers that the clients gave."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from pathways.runtime.hosts.cluster.host import WorkerHandle
from pathways.runtime.hosts.cluster.reply_sinks import Answer, ReplySink
from pathways.runtime.hosts.protocol.messages import Chunk, Described, Failed, MessageError, Report
from pathways.runtime.hosts.protocol.service_messages import FromHost
from pathways.runtime.hosts.service.array_sender import RelayedFetch
from pathways.runtime.hosts.service.served_client import ServedClient


@dataclasses.dataclass(eq=False)
class RelayedRequest(ReplySink):
    """Question of a client to a worker.

    Attributes:
      client: the client.
      request: the number of its request.
      answer: makes what the client is told of the worker's answer.
    """

    client: ServedClient
    request: int
    answer: Callable[[Any], Described | Report]

    def place(self, chunk: Chunk, size: int) -> memoryview:
        """See `ReplySink.place`.

        Raises:
          MessageError: the answer has no bytes of an array.
        """
        raise MessageError(f"request {chunk.number} is answered with {size} bytes of an array")

    def take(self, host: WorkerHandle, answer: Answer) -> bool:
        """See `ReplySink.take`."""
        self.client.watch.send(FromHost(host.index, host.gang.life.key.start, self.answer(answer)))
        return not isinstance(answer, Described) or answer.last


@dataclasses.dataclass(eq=False)
class ClientFetch(ReplySink):
    """Fetch of an array by a client."""

    client: ServedClient
    fetch: RelayedFetch

    def place(self, chunk: Chunk, size: int) -> memoryview:
        """See `ReplySink.place`."""
        return self.fetch.place(size)

    def take(self, host: WorkerHandle, answer: Answer) -> bool:
        """See `ReplySink.take`."""
        fetch = self.fetch
        if isinstance(answer, Chunk):
            self.client.arrays.pass_on(fetch, answer)
            if fetch.left > 0:
                return False
        elif isinstance(answer, Failed):
            told = Failed(fetch.fetch.request, answer.error)
            self.client.arrays.send(FromHost(host.index, fetch.start, told))
        self.client.fetches.pop(fetch.number, None)
        return True
