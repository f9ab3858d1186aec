"""A connection between two processes of a cluster: frames over a socket."""

from __future__ import annotations

import collections
import contextlib
import select
import socket
import threading
import time
from collections.abc import Callable, Sequence

from pathways.runtime.hosts.protocol.frames import HEADER_BYTES, MOST_BYTES, encode, lengths
from pathways.runtime.hosts.protocol.interrupts import uninterrupted
from pathways.runtime.hosts.protocol.messages import Message, MessageError

_AT_ONCE = 1 << 16
"""Bytes that are read at once where messages are short."""

_LONG = _AT_ONCE // 4
"""The longest message, in bytes, that is sure to be there whole some time."""

LONGEST_TAKEN = 1 << 25
"""The longest message, in bytes, where reading does not wait for the rest of one."""

MAX_SEND_BUFFER = 1 << 26
"""Max. bytes that are buffered for a peer that does not read them."""

type Place[Received] = Callable[[Received, int], memoryview]
"""Gives the memory for the bytes of an array after a message, of their number."""


class ConnectionEnded(ConnectionError):
    """The other side is gone."""


class Connection[Received]:
    """Sends and receives whole messages; any thread may send, one receives.

    Args:
      sock: a connected socket.
      decode: reads what the other side sends.

    Attributes:
      decode: see above; where several sorts of others call, it is chosen anew when one has said who it is.
      place: where the bytes of arrays go; without it there may be none.
    """

    def __init__(self, sock: socket.socket, decode: Callable[[bytearray], Received]) -> None:
        if sock.family != socket.AF_UNIX:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket = sock
        self.decode = decode
        self._sending = threading.Lock()
        self._buffer = bytearray(_AT_ONCE)
        self._unread = 0
        self._most = MOST_BYTES
        self._deadline: float | None = None
        # Frames that are not sent yet, where `flush` sends them, and their bytes.
        self._unsent: collections.deque[bytes | memoryview] | None = None
        self._unsent_bytes = 0
        self._notify: Callable[[], None] = lambda: None
        self.place: Place[Received] | None = None

    def fileno(self) -> int:
        """The socket, to wait for."""
        return self._socket.fileno()

    def send(self, *messages: Message) -> None:
        """Sends messages, one after the other.

        Raises:
          ConnectionEnded: the other side is gone.
        """
        self.send_frames(*map(encode, messages))

    def send_with(self, message: Message, data: memoryview) -> None:
        """Sends a message with bytes of an array; see `send`."""
        self.send_frames(encode(message, len(data)), data)

    def send_frames(self, *frames: bytes | memoryview) -> None:
        """Sends messages that are encoded already; see `send`."""
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
        """Buffers what is sent until `flush`, so that no sender waits and small messages share one call.

        Args:
          notify: is called when there is something to flush that was not before.
        """
        self._unsent, self._notify = collections.deque(), notify

    def has_unsent(self) -> bool:
        """Returns whether something is to be flushed."""
        return bool(self._unsent)

    def flush(self) -> None:
        """Sends as much of the buffer as the system accepts now.

        Raises:
          ConnectionEnded: the other side is disconnected.
        """
        with self._sending:
            unsent = self._unsent
            while unsent:
                frames = [unsent.popleft()]
                size = len(frames[0])
                # Joined only so far: a slow peer would have all of it copied again and again.
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
        """Reads messages in another way from now on, such as those of whoever has proved who it is."""
        self.decode = decode

    def receive(self) -> Received:
        """Waits for the next message.

        Raises:
          ConnectionEnded: the other side is gone.
          MessageError: it sent something that is no message.
        """
        header = bytearray(HEADER_BYTES)
        self._fill(memoryview(header))
        length, trailing = lengths(header, most=self._most)
        body = bytearray(length)
        self._fill(memoryview(body))
        message = self.decode(body)
        if trailing:
            if self.place is None:
                raise MessageError(f"{type(message).__name__} comes with {trailing} bytes of an array")
            self._fill(self.place(message, trailing))
        return message

    def receive_some(self) -> list[Received]:
        """Waits for messages, and returns all that are there.

        For connections without bytes of arrays.

        Raises:
          ConnectionEnded: the other side is gone.
          MessageError: it sent something that is no message.
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
            received, end = self._whole(self._unread)
            if received:
                if end < self._unread:
                    self._buffer[: self._unread - end] = self._buffer[end : self._unread]
                self._unread -= end
                return received

    def take_some(self) -> list[Received]:
        """The messages that are there whole, after one look at a socket that has something, without waiting.

        For connections without bytes of arrays.

        Raises:
          ConnectionEnded: the other side is gone.
          MessageError: it sent something that is no message, or a long one.
        """
        if self._unread == len(self._buffer):
            if self._unread >= LONGEST_TAKEN:
                raise MessageError(f"a message is longer than {LONGEST_TAKEN} bytes")
            self._buffer += bytes(len(self._buffer))
        with memoryview(self._buffer) as buffer:
            try:
                self._unread += self._read(buffer[self._unread :], socket.MSG_DONTWAIT)
            except BlockingIOError:
                return []
        received, end = self._whole(self._unread)
        if end < self._unread:
            self._buffer[: self._unread - end] = self._buffer[end : self._unread]
        self._unread -= end
        return received

    def act_on_some(self, act: Callable[[Received], None]) -> None:
        """Acts on all messages that are there whole.

        They stay there until all is done. So what an exception ends, as that of Ctrl-C, is not lost, and
        `act` may see the same message again. Most of them have to be short: a long one is waited for.

        Args:
          act: acts on a message.

        Raises:
          ConnectionEnded: the other side is gone.
          MessageError: it sent something that is no message.
        """
        size = self._read(self._buffer, socket.MSG_PEEK)
        received, end = self._whole(size)
        if not end and size >= HEADER_BYTES and lengths(self._buffer)[0] > _LONG:
            # More than the system may keep of what has not been taken: it would never be there whole.
            with uninterrupted():
                act(self.receive())
            return
        for message in received:
            act(message)
        if end:
            self._read(self._buffer, most=end)

    def _whole(self, size: int) -> tuple[list[Received], int]:
        """The whole messages at the beginning of the buffer, and where they end."""
        received = []
        at = 0
        while size - at >= HEADER_BYTES:
            body = at + HEADER_BYTES
            length, trailing = lengths(self._buffer, at)
            if trailing:
                raise MessageError(f"a message comes with {trailing} bytes of an array")
            if size - body < length:
                break
            at = body + length
            received.append(self.decode(self._buffer[body:at]))
        return received, at

    def _read(self, buffer: bytearray | memoryview, how: int = 0, most: int = 0) -> int:
        if self._deadline is not None:
            # Not zero, which would mean not to wait at all.
            self.limit(max(1e-3, self._deadline - time.monotonic()))
        try:
            got = self._socket.recv_into(buffer, most, how)
        except BlockingIOError:
            raise
        except OSError as error:
            raise _ended(error) from None
        if not got:
            raise ConnectionEnded("the connection has ended")
        return got

    def _fill(self, view: memoryview) -> None:
        while view:
            view = view[self._read(view) :]

    def wait(self, seconds: float) -> bool:
        """Whether there is something to receive, after so many seconds at most."""
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        return bool(poll.poll(seconds * 1e3))

    def has_ended(self) -> bool:
        """Whether either side has closed it, even if something is still to be received."""
        poll = select.poll()
        try:
            poll.register(self._socket, select.POLLRDHUP)
        except ValueError:
            return True
        return bool(poll.poll(0))

    def keep_alive(self, heartbeat: float) -> None:
        """Ends when the machine of the other side has not answered for so many seconds."""
        keep_alive(self._socket, heartbeat)

    def limit(self, seconds: float | None) -> None:
        """Lets sending and receiving take no longer; None for any time."""
        self._socket.settimeout(seconds)

    def bound(self, seconds: float, most: int) -> None:
        """Lets all that follows take no longer together, and messages be no longer, until `unbound`."""
        self._deadline = time.monotonic() + seconds
        self._most = most
        self.limit(seconds)

    def unbound(self) -> None:
        """Lets everything take its time again."""
        self._deadline, self._most = None, MOST_BYTES
        self.limit(None)

    def leave(self) -> None:
        """Forgets the connection, which another process goes on with."""
        self._socket.close()

    def close(self) -> None:
        """Closes the connection; who waits on it gets `ConnectionEnded`."""
        with contextlib.suppress(OSError):
            # Such as why it is closed.
            self.flush()
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


def keep_alive(sock: socket.socket, heartbeat: float) -> None:
    """Ends a connection over TCP when the machine at its other end has not answered for so many seconds."""
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
        # Other systems have not all of them.
        if hasattr(socket, name):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _ended(error: OSError) -> ConnectionEnded:
    why = "no reply in time" if isinstance(error, TimeoutError) else str(error)
    return ConnectionEnded(f"the connection has ended: {why}")
