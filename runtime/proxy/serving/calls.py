"""Calls of clients: sessions, host buffers that are sent, and requests with one reply."""

from __future__ import annotations

import abc
import enum
import functools
import logging
import queue
import threading
from collections.abc import Callable, Sequence

from pathways.runtime.proxy.host_buffers import Arrival, IncomingBuffer, data_of
from pathways.runtime.proxy.serving.call_writer import CallWriter
from pathways.runtime.proxy.serving.registry import SessionRegistry
from pathways.runtime.proxy.serving.waiting import WaitingThreads
from pathways.runtime.proxy.sessions.session import ProxySession
from pathways.runtime.proxy.stalls import WAIT_LIMIT_S
from pathways.runtime.proxy.wire.descriptors import Messages
from pathways.runtime.proxy.wire.events import Buffer, Message, StreamId
from pathways.runtime.proxy.wire.statuses import StatusCode, StatusError, status_of
from pathways.runtime.resources.threads import start_thread

_LOG = logging.getLogger("pathways.proxy")

_WAITING_THREADS = 16
_MAX_WAITING = 1024
"""Maximum of requests of a session that wait for arrays or compilations."""

_MAX_REPLIES_AT_ONCE = 16


class Signal(enum.Enum):
    """Work of a dispatching thread besides requests."""

    END_SESSION = "the stream has ended"
    FREE_LOST_ARRAYS = "an island was lost"


Requests = queue.SimpleQueue[Buffer | Signal]
"""Queue of requests of a session that are not dispatched, and of signals between them."""


class ServiceCall(abc.ABC):
    """Call of a method of the service. The reading thread of the connection calls all methods of this class.

    Args:
      writer: writes to the connection.
      stream: the id of the call.

    Attributes:
      is_finished: whether the call expects nothing more from the client.
    """

    is_finished = False

    def __init__(self, writer: CallWriter, stream: StreamId) -> None:
        self.writer = writer
        self.stream = stream

    @abc.abstractmethod
    def receive(self, data: Buffer) -> None:
        """Handles a message of the client; an error ends the call."""

    @abc.abstractmethod
    def end(self) -> None:
        """Handles the end of the client's messages; an error ends the call."""

    @abc.abstractmethod
    def fail(self, error: StatusError) -> None:
        """Frees the resources of a call that was cancelled, or has failed."""


class UnaryCall(ServiceCall):
    """Call with one request and one reply.

    Args:
      reply: returns the messages of the reply to a request.
    """

    def __init__(
        self, writer: CallWriter, stream: StreamId, reply: Callable[[Buffer], Sequence[Message]]
    ) -> None:
        super().__init__(writer, stream)
        self._reply = reply

    def receive(self, data: Buffer) -> None:
        # Set before the reply, which may fail: a further message must not be handled.
        self.is_finished = True
        self.writer.send_last(self.stream, *self._reply(data))

    def end(self) -> None:
        """Does nothing: the one message has ended the call, or there was none."""

    def fail(self, error: StatusError) -> None:
        """Does nothing: the call has no resources."""


class StoreCall(ServiceCall, Arrival):
    """Call in which a client sends a host buffer to a session.

    The call keeps the credit of messages until the buffer may start, so that the client stops sending.

    Args:
      size: the announced size of the buffer in bytes.

    Raises:
      StatusError: the size is negative; the request that needs the buffer has the same error.
    """

    def __init__(
        self,
        writer: CallWriter,
        stream: StreamId,
        session: ProxySession,
        handle: int,
        size: int,
        messages: Messages,
    ) -> None:
        super().__init__(writer, stream)
        self.size = size
        self._buffers = session.host_buffers
        self._handle = handle
        self._messages = messages
        # None until the buffer starts, and if it is discarded.
        self._buffer: IncomingBuffer | None = None
        self._is_discarded = False
        self._has_ended = False
        self._waiting: list[Buffer] = []
        # Held while another thread starts the buffer, after the lock of `_buffers`.
        self._lock = threading.Lock()
        if size < 0:
            error = StatusError(StatusCode.INVALID_ARGUMENT, f"a host buffer of {size} bytes is not possible")
            self._buffers.fail(handle, error)
            raise error
        self._buffers.announce(handle, self)

    def start(self) -> bool:
        with self._lock:
            try:
                self._buffer = IncomingBuffer(self.size)
            except StatusError:
                return False
            try:
                for data in self._take_waiting():
                    self._add(data)
                if self._has_ended:
                    self._finish()
            except Exception as error:
                status = status_of(error)
                self.fail(status)
                self._is_discarded = True
                self.writer.finish(self.stream, status.code, status.message)
        return True

    def discard(self) -> None:
        with self._lock:
            self._is_discarded = True
            for data in self._take_waiting():
                self._add(data)
            if self._has_ended:
                self._finish()

    def receive(self, data: Buffer) -> None:
        with self._lock:
            if self._buffer is None and not self._is_discarded:
                self._waiting.append(data)
                return
        self._add(data)

    def end(self) -> None:
        with self._lock:
            if self._buffer is None and not self._is_discarded:
                self._has_ended = True
                return
        self._finish()

    def fail(self, error: StatusError) -> None:
        # Without that, a request would wait forever for a buffer that does not arrive.
        if not self._is_discarded:
            self._buffers.withdraw(self._handle, self.size)
            self._buffers.fail(self._handle, error)

    def _take_waiting(self) -> list[Buffer]:
        waiting, self._waiting = self._waiting, []
        return waiting

    def _add(self, data: Buffer) -> None:
        try:
            if self._buffer is not None:
                content = data_of(data)
                if content is None:
                    kind = "xla.ifrt.proxy.GrpcHostBufferStoreRequest"
                    content = self._messages.parse(kind, data).data
                self._buffer.add(content)
        finally:
            self.writer.return_credit(self.stream, len(data))

    def _finish(self) -> None:
        if self._buffer is not None:
            self._buffers.store(self._handle, self._buffer.finish(), is_reserved=True)
        reply = self._messages["xla.ifrt.proxy.GrpcHostBufferStoreResponse"]()
        self.writer.send_last(self.stream, reply.SerializeToString())


class SessionCall(ServiceCall):
    """Stream of a new session: its queue of requests, and its threads.

    Args:
      registry: the sessions of the server.
    """

    def __init__(self, writer: CallWriter, stream: StreamId, registry: SessionRegistry) -> None:
        super().__init__(writer, stream)
        self._registry = registry
        self._requests: Requests = queue.SimpleQueue()
        self._waiting = WaitingThreads(_WAITING_THREADS, _MAX_WAITING)
        # Only the dispatching thread may change a session: a thread that loses an island sends it a signal.
        wake = functools.partial(self._requests.put, Signal.FREE_LOST_ARRAYS)
        send = functools.partial(writer.send, stream)
        self._session = registry.start(send, self._waiting.run, wake, self._flush)
        subject = f"session {self._session.number}: waiting for the client to read replies"
        self._watch = functools.partial(registry.stalls.watching, subject, WAIT_LIMIT_S)
        # Replies that are not sent, and the bytes and number of requests whose credit is not returned.
        self._replies: list[bytes] = []
        self._size = self._count = 0
        start_thread(self._dispatch, "proxy dispatches")

    def receive(self, data: Buffer) -> None:
        # The dispatching thread returns the credit.
        self._requests.put(data)

    def end(self) -> None:
        self._requests.put(Signal.END_SESSION)
        self._session.interrupt()
        self._waiting.close()

    def fail(self, error: StatusError) -> None:
        self.end()

    def _dispatch(self) -> None:
        session, requests = self._session, self._requests
        try:
            while (item := requests.get()) is not Signal.END_SESSION:
                data = None if isinstance(item, Signal) else item
                # Requests that have arrived meanwhile are handled before the write, which costs more.
                while data is not None:
                    reply = session.dispatch(data)
                    self._size += len(data)
                    self._count += 1
                    if reply is not None:
                        self._replies.append(reply)
                    data = _next(requests) if self._count < _MAX_REPLIES_AT_ONCE else None
                # `_next` may have consumed the signal for it. Called before the reply, which may wait for the
                # client.
                session.free_lost_arrays()
                self._flush()
            self.writer.finish(self.stream)
        except ValueError as error:
            _LOG.warning("session %d: %s", session.number, error)
            self.writer.finish(self.stream, StatusCode.INVALID_ARGUMENT, str(error))
        finally:
            self._waiting.close()
            self._registry.end(session)

    def _flush(self) -> None:
        """Sends the replies to the requests that were handled, and returns their credit."""
        replies, size, count = self._replies, self._size, self._count
        self._replies, self._size, self._count = [], 0, 0
        self.writer.reply(self.stream, replies, size, count, self._watch)


def _next(requests: Requests) -> Buffer | None:
    """Returns the next request; None if there is none, or for a signal. The end is put back to the queue."""
    try:
        item = requests.get_nowait()
    except queue.Empty:
        return None
    if item is Signal.END_SESSION:
        requests.put(item)
    return None if isinstance(item, Signal) else item
