"""Connection between two processes of a cluster: frames over a socket."""

from __future__ import annotations

import collections
import contextlib
import select
import socket
import threading
import time
from collections.abc import Callable, Sequence

from pathways.runtime.hosts.protocol.frames import HEADER_BYTES, MAX_MESSAGE_BYTES, encode, lengths
from pathways.runtime.hosts.protocol.interrupts import uninterrupted
from pathways.runtime.hosts.protocol.messages import Message, MessageError

_AT_ONCE = 1 << 16
"""Initial size of the receive buffer, in bytes."""

_LONG = _AT_ONCE // 4
"""Limit in bytes on messages that the system is sure to hold as a whole before they are read."""

MAX_AVAILABLE_MESSAGE = 1 << 25
"""Limit in bytes on a message that is read without waiting for its end, see `Connection.read_available`."""

MAX_SEND_BUFFER = 1 << 26
"""Limit in bytes on the buffer for a peer that does not read."""

type Place[Received] = Callable[[Received, int], memoryview]
"""Function that returns the memory for the array bytes after a message, given their number."""


class ConnectionEnded(ConnectionError):
    """Error of a closed connection: the peer has exited, or cannot be reached."""


class Connection[Received]:
    """Connection that carries messages; any thread may send, one thread receives.

    Args:
      sock: a connected socket.
      decode: decodes messages of the peer.
      peer: the address of the peer, if this side has accepted the connection.

    Attributes:
      peer: see above.
      decode: see above; a server replaces it when the handshake has shown the kind of the peer.
      place: returns the memory for array bytes; if None, messages must not carry any.
    """

    def __init__(self, sock: socket.socket, decode: Callable[[bytearray], Received], peer: str = "") -> None:
        if sock.family != socket.AF_UNIX:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket = sock
        self.decode = decode
        self.peer = peer
        self._sending = threading.Lock()
        self._buffer = bytearray(_AT_ONCE)
        self._unread = 0
        self._max_bytes = MAX_MESSAGE_BYTES
        self._deadline: float | None = None
        # Frames that `flush` is to send, and their total size; None where sending waits.
        self._unsent: collections.deque[bytes | memoryview] | None = None
        self._unsent_bytes = 0
        self._notify: Callable[[], None] = lambda: None
        self.place: Place[Received] | None = None

    def fileno(self) -> int:
        """Returns the file descriptor of the socket, for pollers."""
        return self._socket.fileno()

    def send(self, *messages: Message) -> None:
        """Sends messages, one after the other.

        Raises:
          ConnectionEnded: the connection is closed.
        """
        self.send_frames(*map(encode, messages))

    def send_with(self, message: Message, data: memoryview) -> None:
        """Sends a message with array bytes; see `send`."""
        self.send_frames(encode(message, len(data)), data)

    def send_frames(self, *frames: bytes | memoryview) -> None:
        """Sends encoded messages; see `send`."""
        if self._unsent is not None:
            self._buffer_frames(self._unsent, frames)
            return
        with self._sending:
            try:
                for frame in frames:
                    self._socket.sendall(frame)
            except OSError as error:
                raise _ended(error) from None

    def _buffer_frames(
        self, unsent: collections.deque[bytes | memoryview], frames: Sequence[bytes | memoryview]
    ) -> None:
        with self._sending:
            is_first = not unsent
            for frame in frames:
                self._unsent_bytes += len(frame)
                # The memory of a view may be written again before it is sent.
                unsent.append(frame if isinstance(frame, bytes) else bytes(frame))
            if self._unsent_bytes > MAX_SEND_BUFFER:
                raise ConnectionEnded(f"the peer has not read the last {MAX_SEND_BUFFER} bytes")
        if is_first:
            self._notify()

    def buffer_sends(self, notify: Callable[[], None]) -> None:
        """Buffers messages until `flush`, so that no sender waits and small messages share one call.

        Args:
          notify: is called when the buffer is no longer empty.
        """
        self._unsent, self._notify = collections.deque(), notify

    def has_unsent(self) -> bool:
        """Returns whether bytes are buffered."""
        return bool(self._unsent)

    def flush(self) -> None:
        """Sends as much of the buffer as the system accepts without waiting.

        Raises:
          ConnectionEnded: the connection is closed.
        """
        with self._sending:
            unsent = self._unsent
            while unsent:
                frames = [unsent.popleft()]
                size = len(frames[0])
                # Joined up to a limit: with a slow peer, the whole buffer would be copied again and again.
                while unsent and size < _AT_ONCE:
                    frames.append(unsent.popleft())
                    size += len(frames[-1])
                data = frames[0] if len(frames) == 1 else b"".join(frames)
                sent = 0
                try:
                    sent = self._socket.send(data, socket.MSG_DONTWAIT)
                except BlockingIOError:
                    pass
                except OSError as error:
                    raise _ended(error) from None
                self._unsent_bytes -= sent
                if sent < size:
                    unsent.appendleft(memoryview(data)[sent:])
                    return

    def read_with(self, decode: Callable[[bytearray], Received]) -> None:
        """Replaces the decoder, as after the handshake, which has shown the kind of the peer."""
        self.decode = decode

    def receive(self) -> Received:
        """Waits for the next message.

        Raises:
          ConnectionEnded: the connection is closed.
          MessageError: the bytes are not a message.
        """
        header = bytearray(HEADER_BYTES)
        self._fill(memoryview(header))
        length, trailing = lengths(header, max_bytes=self._max_bytes)
        body = bytearray(length)
        self._fill(memoryview(body))
        message = self.decode(body)
        if trailing:
            if self.place is None:
                raise MessageError(f"unexpected {trailing} array bytes after {type(message).__name__}")
            self._fill(self.place(message, trailing))
        return message

    def receive_available(self) -> list[Received]:
        """Waits for at least one message, and returns all that have arrived.

        For connections without array bytes.

        Raises:
          ConnectionEnded: the connection is closed.
          MessageError: the bytes are not a message.
        """
        while True:
            if self._unread == len(self._buffer):
                self._buffer += bytes(len(self._buffer))
            if self._unread:
                # A view would keep the buffer from growing.
                with memoryview(self._buffer) as buffer:
                    self._unread += self._read(buffer[self._unread :])
            else:
                self._unread = self._read(self._buffer)
            received, end = self._complete_messages(self._unread)
            if received:
                if end < self._unread:
                    self._buffer[: self._unread - end] = self._buffer[end : self._unread]
                self._unread -= end
                return received

    def read_available(self) -> list[Received]:
        """Reads once from a socket that is ready, and returns the messages that are complete then.

        It never waits. For connections without array bytes.

        Raises:
          ConnectionEnded: the connection is closed.
          MessageError: the bytes are not a message, or the message is too long.
        """
        if self._unread == len(self._buffer):
            if self._unread >= MAX_AVAILABLE_MESSAGE:
                raise MessageError(f"a message is longer than {MAX_AVAILABLE_MESSAGE} bytes")
            self._buffer += bytes(len(self._buffer))
        with memoryview(self._buffer) as buffer:
            try:
                self._unread += self._read(buffer[self._unread :], socket.MSG_DONTWAIT)
            except BlockingIOError:
                return []
        received, end = self._complete_messages(self._unread)
        if end < self._unread:
            self._buffer[: self._unread - end] = self._buffer[end : self._unread]
        self._unread -= end
        return received

    def process_available(self, handle: Callable[[Received], None]) -> None:
        """Calls a function for all messages that have arrived as a whole.

        The messages stay in the socket until all of them are handled. So an exception, such as
        KeyboardInterrupt, loses none; `handle` may then see the same message again. It waits for the rest of
        a long message.

        Args:
          handle: handles a message.

        Raises:
          ConnectionEnded: the connection is closed.
          MessageError: the bytes are not a message.
        """
        size = self._read(self._buffer, socket.MSG_PEEK)
        received, end = self._complete_messages(size)
        if not end and size >= HEADER_BYTES and lengths(self._buffer)[0] > _LONG:
            # The receive buffer of the system may be smaller: without reading, the message never gets
            # complete.
            with uninterrupted():
                handle(self.receive())
            return
        for message in received:
            handle(message)
        if end:
            self._read(self._buffer, limit=end)

    def _complete_messages(self, size: int) -> tuple[list[Received], int]:
        """Returns the complete messages at the beginning of the buffer, and the offset of their end."""
        received = []
        at = 0
        while size - at >= HEADER_BYTES:
            body = at + HEADER_BYTES
            length, trailing = lengths(self._buffer, at)
            if trailing:
                raise MessageError(f"unexpected {trailing} array bytes after a message")
            if size - body < length:
                break
            at = body + length
            received.append(self.decode(self._buffer[body:at]))
        return received, at

    def _read(self, buffer: bytearray | memoryview, flags: int = 0, limit: int = 0) -> int:
        if self._deadline is not None:
            # A timeout of zero would mean not to wait at all.
            self.set_timeout(max(1e-3, self._deadline - time.monotonic()))
        try:
            count = self._socket.recv_into(buffer, limit, flags)
        except BlockingIOError:
            raise
        except OSError as error:
            raise _ended(error) from None
        if not count:
            raise ConnectionEnded("the connection has ended")
        return count

    def _fill(self, view: memoryview) -> None:
        while view:
            view = view[self._read(view) :]

    def wait(self, seconds: float) -> bool:
        """Waits until there is something to receive; returns False if nothing has arrived in time."""
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        return bool(poll.poll(seconds * 1e3))

    def has_ended(self) -> bool:
        """Returns whether either side has closed the connection, even if there are bytes to receive."""
        poll = select.poll()
        try:
            poll.register(self._socket, select.POLLRDHUP)
        except ValueError:
            return True
        return bool(poll.poll(0))

    def keep_alive(self, heartbeat: float) -> None:
        """Makes the connection fail when the machine of the peer has not answered for so many seconds."""
        keep_alive(self._socket, heartbeat)

    def set_timeout(self, seconds: float | None) -> None:
        """Sets the timeout of each send and receive; None for no timeout."""
        self._socket.settimeout(seconds)

    def set_deadline(self, seconds: float, max_bytes: int) -> None:
        """Limits the time of everything that follows together, and the length of messages.

        A peer that sends one byte at a time cannot outlive a deadline, as it could a timeout.
        """
        self._deadline = time.monotonic() + seconds
        self._max_bytes = max_bytes
        self.set_timeout(seconds)

    def clear_deadline(self) -> None:
        """Removes the limits of `set_deadline`."""
        self._deadline, self._max_bytes = None, MAX_MESSAGE_BYTES
        self.set_timeout(None)

    def detach(self) -> None:
        """Closes the socket of this process only: another process, which has it, continues to use it."""
        self._socket.close()

    def close(self) -> None:
        """Closes the connection; threads that wait on it get `ConnectionEnded`."""
        if self._unsent is not None:
            # The buffer may hold the reason for closing. Without one, a sender may hold the lock for ever,
            # while the peer does not read: `shutdown` wakes it.
            with contextlib.suppress(OSError):
                self.flush()
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


def keep_alive(sock: socket.socket, heartbeat: float) -> None:
    """Enables TCP keepalive, see `Connection.keep_alive`; a stopped process counts as alive."""
    if sock.family == socket.AF_UNIX:
        return
    interval = max(1, round(heartbeat / 4))
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", interval),
        ("TCP_KEEPINTVL", interval),
        ("TCP_KEEPCNT", 4),
        ("TCP_USER_TIMEOUT", round(heartbeat * 1000)),
    ):
        # Not all systems have all of these options.
        if hasattr(socket, name):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _ended(error: OSError) -> ConnectionEnded:
    why = "no reply in time" if isinstance(error, TimeoutError) else str(error)
    return ConnectionEnded(f"the connection has ended: {why}")
