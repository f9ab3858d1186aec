"""Writer of the replies, statuses and credit of calls to a connection, for any thread."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

from pathways.runtime.proxy.wire.events import Buffer, Event, Message, StreamId
from pathways.runtime.proxy.wire.grpc_connection import GrpcConnection
from pathways.runtime.proxy.wire.socket_writer import SocketWriter
from pathways.runtime.proxy.wire.statuses import StatusCode

MAX_PENDING_BYTES = 8 << 20
"""Bytes of unread replies of a session, beyond which it waits for its client to read."""


class CallWriter:
    """Writer of a connection: its state and its socket under one lock. Writes after its end are dropped."""

    def __init__(self, client: socket.socket) -> None:
        self.grpc = GrpcConnection()
        self._lock = threading.Lock()
        self.socket = SocketWriter(client, self.grpc, self._lock)

    def flush(self) -> None:
        """Writes the first bytes of the connection."""
        with self._lock:
            self.socket.flush()

    def receive(self, data: Buffer) -> list[Event]:
        """Returns the events in bytes from the socket."""
        with self._lock:
            events = self.grpc.receive(data)
            self.socket.flush()
            # Replies to frames of a client that does not read would add up.
            self.socket.wait_for(lambda: not self.grpc.is_congested)
        return events

    def send(self, stream: StreamId, *messages: Message) -> None:
        """Sends messages of a call."""
        with self._lock:
            if not self.grpc.is_lost:
                self.grpc.send(stream, *messages)
                self.socket.flush()

    def send_last(self, stream: StreamId, *messages: Message) -> None:
        """Sends messages of a call and ends it, in one write, so that the client wakes up once."""
        with self._lock:
            if not self.grpc.is_lost:
                self.grpc.send(stream, *messages)
                self.grpc.finish(stream)
                self.socket.flush()

    def finish(self, stream: StreamId, code: StatusCode = StatusCode.OK, message: str = "") -> None:
        """Ends a call."""
        with self._lock:
            if not self.grpc.is_lost:
                self.grpc.finish(stream, code, message)
                self.socket.flush()

    def return_credit(self, stream: StreamId, size: int) -> None:
        """Returns credit to the client, after a message of `size` bytes was handled."""
        with self._lock:
            if not self.grpc.is_lost:
                self.grpc.handled(stream, size)
                self.socket.flush()

    def reply(
        self,
        stream: StreamId,
        replies: Sequence[bytes],
        handled: int,
        count: int,
        watch: Callable[[], AbstractContextManager[object]],
    ) -> None:
        """Sends replies to requests; waits while too many are unread and the client is connected.

        Args:
          stream: the call.
          handled: the bytes of the requests.
          count: the number of requests.
          watch: returns the context in which it waits.
        """

        def is_drained() -> bool:
            return self.grpc.pending_bytes(stream) <= MAX_PENDING_BYTES

        with self._lock:
            if not self.grpc.is_lost:
                self.grpc.send(stream, *replies)
                self.grpc.handled(stream, handled, count)
                self.socket.flush()
            if not is_drained():
                with watch():
                    self.socket.wait_for(is_drained)

    def close(self) -> None:
        """Drops all bytes that are not written."""
        with self._lock:
            self.grpc.is_lost = True
            self.socket.close()
