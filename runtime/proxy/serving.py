"""Server of sessions: sockets and threads around the state machines of connections and sessions.

One thread accepts connections, one reads each of them, one dispatches each session in the order of its
stream, and a few wait for arrays and compile, so that the dispatching thread never waits for a device.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import logging
import os
import queue
import socket
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Self

import jax

from pathways.runtime.proxy.devices import FOLDERS_ADVICE, CompileIfrt, ServedDevices
from pathways.runtime.proxy.host_buffers import IncomingBuffer, data_header, data_of, take_file
from pathways.runtime.proxy.sessions.session import ProxySession
from pathways.runtime.proxy.sessions.state import Run
from pathways.runtime.proxy.stalls import WAIT_LIMIT_S, StallMonitor
from pathways.runtime.proxy.waiting import WaitingThreads
from pathways.runtime.proxy.wire import descriptors
from pathways.runtime.proxy.wire.grpc_connection import (
    Buffer,
    CallCancelled,
    CallStarted,
    ConnectionLost,
    Event,
    GrpcConnection,
    Message,
    MessageReceived,
    RequestsEnded,
    StreamId,
)
from pathways.runtime.proxy.wire.socket_writer import SocketWriter
from pathways.runtime.proxy.wire.statuses import StatusCode, StatusError, status_of
from pathways.runtime.proxy.wire.versions import PROTOCOL, SERIALIZATION
from pathways.runtime.resources.folders import PermittedFolders
from pathways.runtime.resources.listening_socket import Address, ListeningSocket
from pathways.runtime.resources.threads import start_thread

_LOG = logging.getLogger("pathways.proxy")

_SERVICE = "/xla.ifrt.proxy.GrpcIfrtService/"
_SESSION_METADATA = "ifrt-proxy-grpc-ifrt-session-metadata-bin"
_STORE_METADATA = "ifrt-proxy-grpc-host-buffer-store-metadata-bin"
TRANSFER_FOLDER_VARIABLE = "IFRT_PROXY_GRPC_LARGE_TRANSFER_OPTIMIZATION_DIRECTORY"
"""The client in JAX has it, too: the folder in which it writes large host buffers to files."""

_READ_BYTES = 1 << 20
_CHUNK_BYTES = 1 << 20
"""How much of a host buffer one message holds; the client allocates each of them."""

_MAX_PENDING_BYTES = 8 << 20
"""Replies that may wait for a client that does not read, before its session waits for it."""

_WAITING_THREADS = 16
_MAX_WAITING = 1024
"""How many requests of a session may wait for arrays or compilations."""

_MAX_REPLIES_AT_ONCE = 16


Requests = queue.SimpleQueue[Buffer | None]
"""Requests of a session that are not dispatched; None is the end of its stream."""


class ProxyServer:
    """Serves the devices of this process.

    Args:
      where: where to listen, as of `ListeningSocket`.
      served: the devices.

    Raises:
      ServerError: another server listens there, or it is not possible, or not safe.

    Attributes:
      was_used: whether a client has ever connected.
    """

    def __init__(self, where: Path | Address | None, served: ServedDevices) -> None:
        self.served = served
        self.was_used = False
        self._listener = ListeningSocket(where)
        self.stalls = StallMonitor(_LOG.warning)
        self._lock = threading.Lock()
        self._sessions: dict[int, ProxySession] = {}
        self._connections: set[_ClientConnection] = set()
        self._numbers = itertools.count(1)
        self._transferring = 0
        self._is_closed = False
        start_thread(self._accept, "proxy accepts")
        self.stalls.start()

    @property
    def path(self) -> Path:
        """The UNIX socket of a server that has one."""
        assert self._listener.path is not None
        return self._listener.path

    @property
    def address(self) -> str:
        """Value of `JAX_BACKEND_TARGET` for clients."""
        return self._listener.target

    @property
    def environment(self) -> dict[str, str]:
        """The variables that a program needs in its environment to use the server."""
        return {
            "JAX_PLATFORMS": "proxy",
            "JAX_BACKEND_TARGET": self.address,
            "IFRT_PROXY_USE_INSECURE_GRPC_CREDENTIALS": "true",
        }

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def sessions(self) -> tuple[ProxySession, ...]:
        """The sessions that have not ended."""
        with self._lock:
            return tuple(self._sessions.values())

    def close(self) -> None:
        """Ends all sessions, and stops listening."""
        with self._lock:
            self._is_closed = True
            connections = tuple(self._connections)
        self._listener.close()
        for connection in connections:
            connection.close()
        self.stalls.close()

    def lose_slice(self, index: int) -> None:
        """Treats a slice as lost: its arrays have no value any more, nor has anything that is made on it.

        Raises:
          ValueError: there is no such slice, or it is lost already.
        """
        with self._lock:
            self.served.slice_states = self.served.slice_states.lose(index)
            sessions = tuple(self._sessions.values())
        for session in sessions:
            session.fail_pending()

    def return_slice(self, index: int) -> None:
        """Returns a slice that was lost, for new arrays; those that it had stay lost.

        Raises:
          ValueError: there is no such slice, or it is not lost.
        """
        with self._lock:
            self.served.slice_states = self.served.slice_states.restore(index)

    def start_session(self, send: Callable[[bytes], None], wait: Run) -> ProxySession:
        """Registers a new session."""
        with self._lock:
            session = ProxySession(next(self._numbers), self.served, send, wait, self.stalls.watching)
            self._sessions[session.number] = session
        _LOG.info("session %d started", session.number)
        return session

    def end_session(self, session: ProxySession) -> None:
        """Ends a session and frees all that it owns."""
        counts = session.counts
        session.close()
        with self._lock:
            self._sessions.pop(session.number, None)
        _LOG.info("session %d ended: freed %d arrays, %d programs", session.number, *counts[:2])

    def session(self, number: int) -> ProxySession:
        """Returns a session by its id.

        Raises:
          StatusError: there is none.
        """
        with self._lock:
            if number not in self._sessions:
                raise StatusError(StatusCode.INVALID_ARGUMENT, f"no session has the id {number}")
            return self._sessions[number]

    def read_host_buffer(self, metadata: Any) -> None:
        """Stores a host buffer that a client has written to a file, as `GrpcHostBufferStoreMetadata` says.

        Raises:
          StatusError: it cannot be read; the request that needs it has the same error.
        """
        session = self.session(metadata.session_id)
        buffers, size = session.host_buffers, metadata.buffer_size
        try:
            buffers.reserve(max(size, 0))
            try:
                data = self._take_file(session, metadata.handle, size)
                buffers.store(metadata.handle, data, is_reserved=True)
            except Exception:
                buffers.release(max(size, 0))
                raise
        except Exception as error:
            status = status_of(error)
            if isinstance(error, OSError) and error.errno is not None:
                status = StatusError(
                    StatusCode.FAILED_PRECONDITION, f"folder of large transfers: {error.strerror}"
                )
            buffers.fail(metadata.handle, status)
            raise status from None

    def _take_file(self, session: ProxySession, handle: int, size: int) -> Buffer:
        folder = os.environ.get(TRANSFER_FOLDER_VARIABLE)
        if not folder:
            raise StatusError(
                StatusCode.FAILED_PRECONDITION, f"{TRANSFER_FOLDER_VARIABLE} is not set for the server"
            )
        with self._lock:
            if self._transferring not in self._sessions:
                self._transferring = session.number
            owner = self._transferring
        if owner != session.number:
            # Handles, of which clients make the names of files, start at 1 in each of them.
            raise StatusError(
                StatusCode.FAILED_PRECONDITION,
                f"session {owner} uses the folder of {TRANSFER_FOLDER_VARIABLE}; each program needs its own",
            )
        with self.served.folders.open(folder) as number:
            # Clients count in 32 bits here.
            name = int.from_bytes((handle & 0xFFFFFFFF).to_bytes(4, "big"), "big", signed=True)
            return take_file(number, f"lt_{name}", size)

    def _accept(self) -> None:
        while True:
            try:
                client = self._listener.accept()
            except OSError:
                return
            self.was_used = True
            connection = _ClientConnection(self, client)
            with self._lock:
                if self._is_closed:
                    client.close()
                    return
                self._connections.add(connection)
            start_thread(functools.partial(self._read, connection), "proxy reads")

    def _read(self, connection: _ClientConnection) -> None:
        try:
            connection.read()
        finally:
            with self._lock:
                self._connections.discard(connection)


def serve(
    path: str | os.PathLike[str] | None = None,
    devices: Sequence[jax.Device] | None = None,
    slices: int = 1,
    *,
    max_memory: int | None = None,
    files: Sequence[str | os.PathLike[str]] = (),
    insecure_address: Address | None = None,
    compile_ifrt: CompileIfrt | None = None,
) -> ProxyServer:
    """Serves devices of this process to unmodified JAX programs, until the server is closed.

    Args:
      path: a UNIX socket, in a folder that only this user may enter, which is made if its parent exists; by
        default one in a new folder.
      devices: what to serve; by default all devices of JAX.
      slices: how many equal slices the devices form; if several, devices have a `slice_index`.
      max_memory: bytes that arrays and programs of all clients may have together; what would exceed it is an
        error with the status RESOURCE_EXHAUSTED. None for no limit.
      files: folders below which programs may have the server write and read arrays; by default none.
      insecure_address: host and port (0 for any) to listen at in place of a UNIX socket. The client in JAX
        cannot prove who it is, and whoever connects runs code in this process.
      compile_ifrt: compiles programs of Shardy's MPMD compiler; None refuses them.

    Returns:
      the server, a context manager that closes it; its `environment` is that of the programs.

    Raises:
      ServerError: it cannot listen there.
      DescriptorError: this release of jaxlib is not supported.
      ValueError: so many slices are not possible, there is both a path and an address, or one of the
        folders does not exist.
    """
    if path is not None and insecure_address is not None:
        raise ValueError("expected a path or an address to listen at, got both")
    chosen = jax.devices() if devices is None else devices
    folders = PermittedFolders(files, FOLDERS_ADVICE)
    served = ServedDevices(chosen, descriptors.messages(), slices, compile_ifrt, max_memory, folders)
    where = insecure_address if path is None else Path(path).absolute()
    return ProxyServer(where, served)


@dataclasses.dataclass(frozen=True)
class _RunningSession:
    """A session with its requests that are not dispatched, and its threads that wait for arrays."""

    session: ProxySession
    requests: Requests
    waiting: WaitingThreads


@dataclasses.dataclass(frozen=True)
class _RunningStore:
    """A host buffer that a client is sending to a session."""

    session: ProxySession
    handle: int
    buffer: IncomingBuffer


class _ClientConnection:
    """One connection of a client: its calls, each of one method."""

    def __init__(self, server: ProxyServer, client: socket.socket) -> None:
        self._server = server
        self._socket = client
        self._grpc = GrpcConnection()
        self._lock = threading.Lock()
        self._writer = SocketWriter(client, self._grpc, self._lock)
        self._sessions: dict[StreamId, _RunningSession] = {}
        self._stores: dict[StreamId, _RunningStore] = {}
        self._unary: dict[StreamId, str] = {}

    def read(self) -> None:
        """Reads until the connection ends."""
        memory = memoryview(bytearray(_READ_BYTES))
        try:
            with self._lock:
                self._writer.flush()
            while not self._grpc.is_lost:
                data = memory[: self._receive(memory)]
                with self._lock:
                    events = self._grpc.receive(data)
                    self._writer.flush()
                    # Answers to frames of a client that reads none would add up.
                    self._writer.wait_for(lambda: not self._grpc.is_congested)
                for event in events:
                    self._handle(event)
        finally:
            for stream in tuple(self._sessions):
                self._end_session(stream)
            for stream in tuple(self._stores):
                self._fail_store(stream, StatusError(StatusCode.CANCELLED, "the client disconnected"))
            with self._lock:
                self._grpc.is_lost = True
                self._writer.close()
            # Wakes the thread that writes.
            self.close()
            self._socket.close()

    def close(self) -> None:
        """Ends the connection; the reading thread frees what it had."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def _receive(self, memory: memoryview) -> int:
        """Returns how many bytes it has received; none at the end."""
        try:
            return self._socket.recv_into(memory)
        except OSError:
            return 0

    def _send(self, stream: StreamId, *messages: Message) -> None:
        with self._lock:
            if not self._grpc.is_lost:
                self._grpc.send(stream, *messages)
                self._writer.flush()

    def _finish(self, stream: StreamId, code: StatusCode = StatusCode.OK, message: str = "") -> None:
        with self._lock:
            if not self._grpc.is_lost:
                self._grpc.finish(stream, code, message)
                self._writer.flush()

    def _reply(
        self, stream: StreamId, session: ProxySession, replies: Sequence[bytes], handled: int, count: int
    ) -> None:
        """Sends replies to requests; waits while too many are unread and the client is connected."""

        def is_drained() -> bool:
            return self._grpc.pending_bytes(stream) <= _MAX_PENDING_BYTES

        with self._lock:
            if not self._grpc.is_lost:
                self._grpc.send(stream, *replies)
                self._grpc.handled(stream, handled, count)
                self._writer.flush()
            if not is_drained():
                subject = f"session {session.number}: waiting for the client to read replies"
                with self._server.stalls.watching(subject, WAIT_LIMIT_S):
                    self._writer.wait_for(is_drained)

    def _handled(self, stream: StreamId, size: int) -> None:
        with self._lock:
            if not self._grpc.is_lost:
                self._grpc.handled(stream, size)
                self._writer.flush()

    def _handle(self, event: Event) -> None:
        match event:
            case CallStarted():
                self._try(event.stream, lambda: self._start(event))
            case MessageReceived(stream, data) if stream in self._sessions:
                self._sessions[stream].requests.put(data)
            case MessageReceived(stream, data) if stream in self._stores:
                self._try(stream, lambda: self._add_to_store(stream, data))
                self._handled(stream, len(data))
            case MessageReceived(stream, data):
                method = self._unary.pop(stream, "")
                self._handled(stream, len(data))
                self._try(stream, lambda: self._call(stream, method, data))
            case RequestsEnded(stream) if stream in self._sessions:
                self._end_session(stream)
            case RequestsEnded(stream) if stream in self._stores:
                self._try(stream, lambda: self._end_store(stream))
            case CallCancelled(stream):
                self._fail_store(stream, StatusError(StatusCode.CANCELLED, "the client cancelled the call"))
                self._unary.pop(stream, None)
                if stream in self._sessions:
                    self._end_session(stream)
            case ConnectionLost(reason):
                _LOG.debug("connection ended: %s", reason)
            case RequestsEnded():
                pass

    def _try(self, stream: StreamId, work: Callable[[], None]) -> None:
        """Does something for a call; an error ends the call."""
        try:
            work()
        except Exception as error:
            status = status_of(error)
            self._fail_store(stream, status)
            self._finish(stream, status.code, status.message)

    def _start(self, event: CallStarted) -> None:
        method = event.method.removeprefix(_SERVICE)
        messages = self._server.served.messages
        match method:
            case "IfrtSession":
                metadata = messages.parse(
                    "xla.ifrt.proxy.GrpcIfrtSessionMetadata", _header(event, _SESSION_METADATA)
                )
                version = metadata.version
                PROTOCOL.choose(version.protocol_version, version.protocol_version)
                serialization = version.ifrt_serdes_version_number
                SERIALIZATION.choose(serialization, serialization)
                unknown = sorted(metadata.initialization_data.attributes)
                if unknown:
                    raise StatusError(
                        StatusCode.UNIMPLEMENTED,
                        f"initialization data that the server does not know: {unknown}"[:1000],
                    )
                self._start_session(event.stream)
            case "HostBufferStore":
                metadata = messages.parse(
                    "xla.ifrt.proxy.GrpcHostBufferStoreMetadata", _header(event, _STORE_METADATA)
                )
                session = self._server.session(metadata.session_id)
                self._start_store(event.stream, session, metadata.handle, metadata.buffer_size)
            case "GetVersion" | "HostBufferLookup" | "HostBufferDelete" | "HostBufferReadFromDisk":
                self._unary[event.stream] = method
            case _:
                raise StatusError(
                    StatusCode.UNIMPLEMENTED,
                    f"calls of {event.method[:100]!r} are not supported by the server",
                )

    def _start_session(self, stream: StreamId) -> None:
        waiting = WaitingThreads(_WAITING_THREADS, _MAX_WAITING)
        session = self._server.start_session(lambda message: self._send(stream, message), waiting.run)
        running = _RunningSession(session, queue.SimpleQueue(), waiting)
        self._sessions[stream] = running
        start_thread(functools.partial(self._dispatch, stream, running), "proxy dispatches")

    def _end_session(self, stream: StreamId) -> None:
        running = self._sessions.pop(stream)
        running.requests.put(None)
        running.session.interrupt()
        running.waiting.close()

    def _dispatch(self, stream: StreamId, running: _RunningSession) -> None:
        session, requests = running.session, running.requests
        try:
            while (data := requests.get()) is not None:
                replies, size, count = [], 0, 0
                # What has arrived meanwhile is handled at once: a message costs less than a write.
                while data is not None:
                    size += len(data)
                    count += 1
                    reply = session.dispatch(data)
                    if reply is not None:
                        replies.append(reply)
                    data = _next(requests) if count < _MAX_REPLIES_AT_ONCE else None
                self._reply(stream, session, replies, size, count)
            self._finish(stream)
        except ValueError as error:
            _LOG.warning("session %d: %s", session.number, error)
            self._finish(stream, StatusCode.INVALID_ARGUMENT, str(error))
        finally:
            running.waiting.close()
            self._server.end_session(session)

    def _start_store(self, stream: StreamId, session: ProxySession, handle: int, size: int) -> None:
        try:
            buffer = IncomingBuffer(size)
            session.host_buffers.reserve(size)
        except StatusError as error:
            session.host_buffers.fail(handle, error)
            raise
        self._stores[stream] = _RunningStore(session, handle, buffer)

    def _add_to_store(self, stream: StreamId, message: Buffer) -> None:
        data = data_of(message)
        if data is None:
            kind = "xla.ifrt.proxy.GrpcHostBufferStoreRequest"
            data = self._server.served.messages.parse(kind, message).data
        self._stores[stream].buffer.add(data)

    def _end_store(self, stream: StreamId) -> None:
        store = self._stores[stream]
        data = store.buffer.finish()
        store.session.host_buffers.store(store.handle, data, is_reserved=True)
        del self._stores[stream]
        self._send(
            stream,
            self._server.served.messages["xla.ifrt.proxy.GrpcHostBufferStoreResponse"]().SerializeToString(),
        )
        self._finish(stream)

    def _fail_store(self, stream: StreamId, error: StatusError) -> None:
        """Ends a host buffer that does not come, so that no request waits for it."""
        store = self._stores.pop(stream, None)
        if store is not None:
            store.session.host_buffers.release(store.buffer.size)
            store.session.host_buffers.fail(store.handle, error)

    def _call(self, stream: StreamId, method: str, data: Buffer) -> None:
        """Replies to a call of one message."""
        messages = self._server.served.messages
        match method:
            case "GetVersion":
                request = messages.parse("xla.ifrt.proxy.GrpcGetVersionRequest", data)
                first, last = request.min_version, request.max_version
                reply = messages["xla.ifrt.proxy.GrpcGetVersionResponse"]()
                reply.version.protocol_version = PROTOCOL.choose(
                    first.protocol_version, last.protocol_version
                )
                reply.version.ifrt_serdes_version_number = SERIALIZATION.choose(
                    first.ifrt_serdes_version_number, last.ifrt_serdes_version_number
                )
                self._send(stream, reply.SerializeToString())
                self._finish(stream)
            case "HostBufferDelete":
                request = messages.parse("xla.ifrt.proxy.GrpcHostBufferDeleteRequest", data)
                self._server.session(request.session_id).host_buffers.delete(request.handle)
                self._send(
                    stream, messages["xla.ifrt.proxy.GrpcHostBufferDeleteResponse"]().SerializeToString()
                )
                self._finish(stream)
            case "HostBufferReadFromDisk":
                request = messages.parse("xla.ifrt.proxy.GrpcHostBufferReadFromDiskRequest", data)
                self._server.read_host_buffer(request.metadata)
                self._send(
                    stream,
                    messages["xla.ifrt.proxy.GrpcHostBufferReadFromDiskResponse"]().SerializeToString(),
                )
                self._finish(stream)
            case "HostBufferLookup":
                request = messages.parse("xla.ifrt.proxy.GrpcHostBufferLookupRequest", data)
                found = self._server.session(request.session_id).host_buffers.find(request.handle)
                # All is queued at once: the buffer is in memory anyway, and is not copied.
                view = memoryview(found)
                starts = range(0, len(view) or 1, _CHUNK_BYTES)
                chunks = [view[start : start + _CHUNK_BYTES] for start in starts]
                parts: list[Message] = [(data_header(len(chunk)), chunk) for chunk in chunks]
                self._send(stream, *parts)
                self._finish(stream)
            case _:
                raise StatusError(StatusCode.INVALID_ARGUMENT, "unexpected message")


def _next(requests: Requests) -> Buffer | None:
    """The next request if there is one; the end of the stream is left in the queue."""
    try:
        data = requests.get_nowait()
    except queue.Empty:
        return None
    if data is None:
        requests.put(None)
    return data


def _header(event: CallStarted, name: str) -> bytes:
    if name not in event.metadata:
        raise StatusError(StatusCode.INVALID_ARGUMENT, f"the call has no header {name}")
    return event.metadata[name]
