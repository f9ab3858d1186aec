"""Senders with a thread for each client: a client that does not read delays no other."""

from __future__ import annotations

import collections
import queue
from collections.abc import Callable

from pathways.runtime.hosts.cluster.host import WorkerHandle
from pathways.runtime.hosts.protocol.frames import CHUNK
from pathways.runtime.hosts.protocol.messages import Chunk, Credit, Fetch, Message
from pathways.runtime.hosts.protocol.wire import Connection, ConnectionEnded
from pathways.runtime.resources.threads import start_thread
from pathways.runtime.service.protocol.service_messages import FromHost

MAX_FETCH_BYTES = 1 << 25
"""Limit on the bytes in flight to one client, in addition to the first of each fetch."""

FIRST_BYTES = 1 << 16
"""Bytes of a fetched array that a worker sends before it gets credit."""

_MAX_QUEUED = 1 << 14
"""Limit on the messages that wait for one connection."""


class Sender:
    """Queue of messages for a connection, with a thread that sends them in order.

    Args:
      on_end: is called with the reason when the connection was closed or the client does not read.
    """

    def __init__(self, connection: Connection[object], on_end: Callable[[str], None]) -> None:
        self._connection = connection
        self._on_end = on_end
        self._queue: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        start_thread(self._run, "send")

    def send(self, message: Message, data: memoryview | None = None) -> None:
        """Queues a message, optionally with bytes of an array after it."""
        connection = self._connection
        if data is None:
            self.submit(lambda: connection.send(message))
        else:
            self.submit(lambda: connection.send_with(message, data))

    def submit(self, work: Callable[[], None]) -> None:
        """Queues a function for the thread that sends."""
        if self._queue.qsize() > _MAX_QUEUED:
            self._on_end("it does not read its messages")
            return
        self._queue.put(work)

    def close(self) -> None:
        """Stops the thread after all that is queued."""
        self._queue.put(None)

    def _run(self) -> None:
        while (work := self._queue.get()) is not None:
            try:
                work()
            except ConnectionEnded as error:
                self._on_end(str(error))
                return


class RelayedFetch:
    """Array in flight from a worker to a client.

    Args:
      fetch: the request of the client.
      host: the worker.

    Attributes:
      number: the number of the request to the worker.
      granted: the bytes that the worker may send.
      left: the bytes that the worker has not sent.
      sent: the bytes that the client was sent.
      is_canceled: whether it holds no credit any more.
    """

    def __init__(self, fetch: Fetch, host: WorkerHandle) -> None:
        self.fetch = fetch
        self.host = host
        self.start = host.gang.life.key.start
        self.number = 0
        self.granted = min(fetch.size, FIRST_BYTES)
        self.left = fetch.size
        self.sent = 0
        self.is_canceled = False
        self.buffer = memoryview(b"")

    def next_buffer(self, size: int) -> memoryview:
        """Returns a new buffer for the next bytes from the worker."""
        self.buffer = memoryview(bytearray(size))
        return self.buffer

    def receive(self, chunk: Chunk) -> tuple[FromHost, memoryview]:
        """Counts a chunk in the buffer as received; returns the message for the client, and its bytes."""
        self.left -= chunk.size
        renumbered = Chunk(self.fetch.request, chunk.shard, chunk.offset, chunk.size)
        return FromHost(self.host.index, self.start, renumbered), self.buffer


class ArraySender(Sender):
    """Sender of the arrays that a client fetches, which grants workers credit as the client reads.

    Only its thread accesses the credit, so that needs no lock.
    """

    def __init__(self, connection: Connection[object], on_end: Callable[[str], None]) -> None:
        # Before the base class starts the thread that uses these.
        self._in_flight = 0
        self._waiting: collections.deque[RelayedFetch] = collections.deque()
        super().__init__(connection, on_end)

    def start(self, fetch: RelayedFetch) -> None:
        """Grants the worker credit for the rest of an array, as soon as there is room."""
        if fetch.granted < fetch.fetch.size:
            self.submit(lambda: self._wait(fetch))

    def relay(self, fetch: RelayedFetch, chunk: Chunk) -> None:
        """Sends the client a chunk that the worker has sent."""
        # Not in the thread that sends: `buffer` may have the next chunk by then.
        message, data = fetch.receive(chunk)
        self.submit(lambda: self._send_chunk(fetch, message, data))

    def cancel(self, fetch: RelayedFetch) -> None:
        """Takes back the credit of an array that will not come: it failed, or its worker is lost."""
        self.submit(lambda: self._cancel(fetch))

    def _wait(self, fetch: RelayedFetch) -> None:
        if not fetch.is_canceled:
            self._waiting.append(fetch)
            self._grant()

    def _cancel(self, fetch: RelayedFetch) -> None:
        if not fetch.is_canceled:
            fetch.is_canceled = True
            self._in_flight -= max(0, fetch.granted - FIRST_BYTES) - max(0, fetch.sent - FIRST_BYTES)
            if fetch in self._waiting:
                self._waiting.remove(fetch)
            self._grant()

    def _send_chunk(self, fetch: RelayedFetch, message: FromHost, data: memoryview) -> None:
        self._connection.send_with(message, data)
        # The first bytes of each fetch need no credit, and do not count.
        before = max(0, fetch.sent - FIRST_BYTES)
        fetch.sent += len(data)
        self._in_flight -= max(0, fetch.sent - FIRST_BYTES) - before
        self._grant()

    def _grant(self) -> None:
        """Grants the waiting fetches credit, one chunk at a time."""
        while self._waiting and self._in_flight < MAX_FETCH_BYTES:
            fetch = self._waiting.popleft()
            more = min(CHUNK, fetch.fetch.size - fetch.granted)
            try:
                fetch.host.arrays.send(Credit(fetch.number, more))
            except ConnectionEnded:
                # The fetch fails with its island, whose loss is reported to all clients.
                continue
            fetch.granted += more
            self._in_flight += more
            if fetch.granted < fetch.fetch.size:
                self._waiting.append(fetch)
