"""Connection of a client: reads its socket, and passes events to its calls."""

from __future__ import annotations

import contextlib
import logging
import socket
from collections.abc import Callable

from pathways.runtime.proxy.serving.call_writer import CallWriter
from pathways.runtime.proxy.serving.calls import ServiceCall
from pathways.runtime.proxy.serving.methods import start_call
from pathways.runtime.proxy.serving.registry import SessionRegistry
from pathways.runtime.proxy.wire.events import (
    Buffer,
    CallCancelled,
    CallStarted,
    ConnectionLost,
    Event,
    MessageReceived,
    RequestsEnded,
    StreamId,
)
from pathways.runtime.proxy.wire.statuses import StatusCode, StatusError, status_of

_LOG = logging.getLogger("pathways.proxy")

_READ_BYTES = 1 << 20


class ClientConnection:
    """Connection of a client, with its calls.

    Args:
      registry: the sessions of the server.
      client: the socket.
    """

    def __init__(self, registry: SessionRegistry, client: socket.socket) -> None:
        self._registry = registry
        self._socket = client
        self._writer = CallWriter(client)
        self._calls: dict[StreamId, ServiceCall] = {}

    def read(self) -> None:
        """Reads until the connection ends."""
        memory = memoryview(bytearray(_READ_BYTES))
        try:
            self._writer.flush()
            while not self._writer.grpc.is_lost:
                for event in self._writer.receive(memory[: self._receive(memory)]):
                    self._handle(event)
        finally:
            for stream in tuple(self._calls):
                self._fail(stream, StatusError(StatusCode.CANCELLED, "the client disconnected"))
            self._writer.close()
            # Wakes the thread that writes.
            self.close()
            self._socket.close()

    def close(self) -> None:
        """Shuts the connection down; the reading thread frees its resources."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def _receive(self, memory: memoryview) -> int:
        """Receives bytes into `memory`; returns their number, 0 at the end."""
        try:
            return self._socket.recv_into(memory)
        except OSError:
            return 0

    def _handle(self, event: Event) -> None:
        match event:
            case CallStarted():
                self._try(event.stream, lambda: self._start(event))
            case MessageReceived(stream, data):
                self._receive_message(stream, data)
            case RequestsEnded(stream) if stream in self._calls:
                self._try(stream, self._calls[stream].end)
                self._calls.pop(stream, None)
            case CallCancelled(stream):
                self._fail(stream, StatusError(StatusCode.CANCELLED, "the client cancelled the call"))
            case ConnectionLost(reason):
                _LOG.debug("connection ended: %s", reason)

    def _start(self, event: CallStarted) -> None:
        self._calls[event.stream] = start_call(self._registry, self._writer, event)

    def _receive_message(self, stream: StreamId, data: Buffer) -> None:
        call = self._calls.get(stream)
        if call is not None:
            self._try(stream, lambda: call.receive(data))
            if call.is_finished:
                self._calls.pop(stream, None)

    def _try(self, stream: StreamId, work: Callable[[], None]) -> None:
        """Runs a function for a call; an error ends the call."""
        try:
            work()
        except Exception as error:
            status = status_of(error)
            self._fail(stream, status)
            self._writer.finish(stream, status.code, status.message)

    def _fail(self, stream: StreamId, error: StatusError) -> None:
        call = self._calls.pop(stream, None)
        if call is not None:
            call.fail(error)
