"""What a client is sent by threads of its own: who does not read holds up nobody else."""

from __future__ import annotations

import collections
import queue
from collections.abc import Callable

from pathways.runtime.hosts.cluster.host import WorkerHandle
from pathways.runtime.hosts.protocol.frames import CHUNK
from pathways.runtime.hosts.protocol.messages import Chunk, Credit, Fetch, Message
from pathways.runtime.hosts.protocol.service_messages import FromHost
from pathways.runtime.hosts.protocol.wire import Connection, ConnectionEnded
from pathways.runtime.resources.threads import start_thread

MOST_FETCHED = 1 << 25
"""How many bytes of what a client fetches may be on their way to it, besides the first of each fetch."""

FIRST_BYTES = 1 << 16
"""How many bytes of an array a worker sends at once when it is fetched."""

_MOST_QUEUED = 1 << 14


class Sender:
    """Sends messages on a connection, in their order.

    Args:
      connection: the connection.
      on_end: is called when it has ended.
    """

    def __init__(self, connection: Connection[object], on_end: Callable[[str], None]) -> None:
        self._connection = connection
        self._on_end = on_end
        self._queue: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        start_thread(self._run, "send")

    def send(self, message: Message, data: memoryview | None = None) -> None:
        """Sends a message, later; with bytes of an array or without."""
        connection = self._connection
        if data is None:
            self.do(lambda: connection.send(message))
        else:
            self.do(lambda: connection.send_with(message, data))

    def do(self, work: Callable[[], None]) -> None:
        """Does something in the thread that sends."""
        if self._queue.qsize() > _MOST_QUEUED:
            self._on_end("it does not read what it is sent")
            return
        self._queue.put(work)

    def close(self) -> None:
        """Sends no more."""
        self._queue.put(None)

    def _run(self) -> None:
        while (work := self._queue.get()) is not None:
            try:
                work()
            except ConnectionEnded as error:
                self._on_end(str(error))
                return


class RelayedFetch:
    """An array on its way from a worker to a client.

    Args:
      fetch: what the client asked for.
      host: the worker.
    """

    def __init__(self, fetch: Fetch, host: WorkerHandle) -> None:
        self.fetch = fetch
        self.host = host
        self.start = host.gang.life.key.start
        # The number of the request to the worker.
        self.number = 0
        self.granted = min(fetch.size, FIRST_BYTES)
        self.left = fetch.size
        self.sent = 0
        self.buffer = memoryview(b"")

    def place(self, size: int) -> memoryview:
        """Where the bytes go that come next."""
        self.buffer = memoryview(bytearray(size))
        return self.buffer

    def take(self, chunk: Chunk) -> tuple[FromHost, memoryview]:
        """What the client is told when they have come."""
        self.left -= chunk.size
        told = Chunk(self.fetch.request, chunk.shard, chunk.offset, chunk.size)
        return FromHost(self.host.index, self.start, told), self.buffer


class ArraySender(Sender):
    """Sends a client what it fetches, and lets workers send more as it takes that.

    Its thread alone looks at what is granted.
    """

    def __init__(self, connection: Connection[object], on_end: Callable[[str], None]) -> None:
        self._under_way = 0
        self._waiting: collections.deque[RelayedFetch] = collections.deque()
        super().__init__(connection, on_end)

    def begin(self, fetch: RelayedFetch) -> None:
        """A fetch has begun."""
        if fetch.granted < fetch.fetch.size:
            self.do(lambda: self._wait(fetch))

    def pass_on(self, fetch: RelayedFetch, chunk: Chunk) -> None:
        """Some bytes have come."""
        message, data = fetch.take(chunk)
        self.do(lambda: self._send(fetch, message, data))

    def _wait(self, fetch: RelayedFetch) -> None:
        self._waiting.append(fetch)
        self._grant()

    def _send(self, fetch: RelayedFetch, message: FromHost, data: memoryview) -> None:
        self._connection.send_with(message, data)
        before = max(0, fetch.sent - FIRST_BYTES)
        fetch.sent += len(data)
        self._under_way -= max(0, fetch.sent - FIRST_BYTES) - before
        self._grant()

    def _grant(self) -> None:
        while self._waiting and self._under_way < MOST_FETCHED:
            fetch = self._waiting.popleft()
            more = min(CHUNK, fetch.fetch.size - fetch.granted)
            try:
                fetch.host.arrays.send(Credit(fetch.number, more))
            except ConnectionEnded:
                # With its island it is lost, which the client is told.
                continue
            fetch.granted += more
            self._under_way += more
            if fetch.granted < fetch.fetch.size:
                self._waiting.append(fetch)
