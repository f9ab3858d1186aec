"""A connection between controller and worker: frames over a socket, and the proof of who is there."""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import secrets
import select
import socket
import threading
from collections.abc import Callable, Sequence

from pathways.runtime.hosts.frames import (
    HEADER_BYTES,
    decode_for_controller,
    decode_for_worker,
    encode,
    lengths,
)
from pathways.runtime.hosts.interrupts import Whole
from pathways.runtime.hosts.listening import keep_alive
from pathways.runtime.hosts.messages import (
    CHANNELS,
    PROTOCOL,
    Challenge,
    Hello,
    Message,
    MessageError,
    Welcome,
)

HANDSHAKE_SECONDS = 10.0
"""How long the other side may take to prove itself."""

_AT_ONCE = 1 << 16
"""Bytes that are read at once where messages are short."""

_LONG = _AT_ONCE // 4
"""The longest message, in bytes, that is sure to be there whole some time."""

type Place[Received] = Callable[[Received, int], memoryview]
"""Gives the memory for the bytes of an array behind a message, of their number."""


class ConnectionEnded(ConnectionError):
    """The other side is gone."""


class Connection[Received]:
    """Sends and receives whole messages; any thread may send, one receives.

    Args:
      sock: a connected socket.
      decode: reads what the other side sends.

    Attributes:
      place: where the bytes of arrays go; without it there may be none.
    """

    def __init__(self, sock: socket.socket, decode: Callable[[bytearray], Received]) -> None:
        if sock.family != socket.AF_UNIX:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket = sock
        self._decode = decode
        self._sending = threading.Lock()
        self._buffer = bytearray(_AT_ONCE)
        self._unread = 0
        self.place: Place[Received] | None = None

    def fileno(self) -> int:
        """The socket, to wait for."""
        return self._socket.fileno()

    def send(self, *messages: Message) -> None:
        """Sends messages, one behind the other.

        Raises:
          ConnectionEnded: the other side is gone.
        """
        self.send_frames(*map(encode, messages))

    def send_with(self, message: Message, data: memoryview) -> None:
        """Sends a message with bytes of an array; see `send`."""
        self.send_frames(encode(message, len(data)), data)

    def send_frames(self, *frames: bytes | memoryview) -> None:
        """Sends messages that are encoded already; see `send`."""
        with self._sending:
            try:
                for frame in frames:
                    self._socket.sendall(frame)
            except OSError as error:
                raise _ended(error) from None

    def receive(self) -> Received:
        """Waits for the next message.

        Raises:
          ConnectionEnded: the other side is gone.
          MessageError: it sent something that is no message.
        """
        header = bytearray(HEADER_BYTES)
        self._fill(memoryview(header))
        length, behind = lengths(header)
        body = bytearray(length)
        self._fill(memoryview(body))
        message = self._decode(body)
        if behind:
            if self.place is None:
                raise MessageError(f"{type(message).__name__} comes with {behind} bytes of an array")
            self._fill(self.place(message, behind))
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
            # More than the system may keep of what nobody has taken: it would never be there whole.
            with Whole():
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
            length, behind = lengths(self._buffer, at)
            if behind:
                raise MessageError(f"a message comes with {behind} bytes of an array")
            if size - body < length:
                break
            at = body + length
            received.append(self._decode(self._buffer[body:at]))
        return received, at

    def _read(self, buffer: bytearray | memoryview, how: int = 0, most: int = 0) -> int:
        try:
            got = self._socket.recv_into(buffer, most, how)
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

    def leave(self) -> None:
        """Forgets the connection, which another process goes on with."""
        self._socket.close()

    def close(self) -> None:
        """Ends the connection; whoever waits on it gets `ConnectionEnded`."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


def _ended(error: OSError) -> ConnectionEnded:
    why = "nothing was heard in time" if isinstance(error, TimeoutError) else str(error)
    return ConnectionEnded(f"the connection has ended: {why}")


def _proof(secret: bytes, who: bytes, nonce: bytes) -> bytes:
    return hmac.new(secret, who + nonce, hashlib.sha256).digest()


def greet_worker(
    sock: socket.socket, secret: bytes, channels: Sequence[str] = CHANNELS
) -> tuple[Connection[object], Hello]:
    """The controller's side of the handshake, or that of a worker that asks another one.

    Args:
      sock: a connected socket.
      secret: what both know.
      channels: which connections there are.

    Returns:
      The connection, and what the worker says of itself.

    Raises:
      MessageError: the other side does not know the secret, or speaks another language.
      ConnectionEnded: it went away, or took too long.
    """
    connection: Connection[object] = Connection(sock, decode_for_controller)
    connection.limit(HANDSHAKE_SECONDS)
    nonce = secrets.token_bytes(32)
    connection.send(Challenge(PROTOCOL, nonce))
    hello = connection.receive()
    if not isinstance(hello, Hello) or not hmac.compare_digest(hello.proof, _proof(secret, b"worker", nonce)):
        connection.close()
        raise MessageError("a stranger tried to connect: it does not know the secret of this cluster")
    if hello.channel not in channels:
        connection.close()
        raise MessageError(f"a worker has no connection {hello.channel!r}")
    connection.send(Welcome(_proof(secret, b"controller", hello.nonce)))
    connection.limit(None)
    return connection, hello


def greet_controller(
    sock: socket.socket, secret: bytes, hello: Callable[[bytes, bytes], Hello]
) -> Connection[object]:
    """The worker's side of the handshake.

    Args:
      sock: a socket that is connected to the controller.
      secret: what both know.
      hello: makes the answer, of the proof and a nonce.

    Raises:
      MessageError: the other side does not know the secret, or speaks another language.
      ConnectionEnded: it went away, or took too long.
    """
    connection: Connection[object] = Connection(sock, decode_for_worker)
    connection.limit(HANDSHAKE_SECONDS)
    challenge = connection.receive()
    if not isinstance(challenge, Challenge):
        raise MessageError("the controller did not begin with a challenge")
    nonce = secrets.token_bytes(32)
    connection.send(hello(_proof(secret, b"worker", challenge.nonce), nonce))
    welcome = connection.receive()
    if not isinstance(welcome, Welcome) or not hmac.compare_digest(
        welcome.proof, _proof(secret, b"controller", nonce)
    ):
        connection.close()
        raise MessageError("the controller does not know the secret of this cluster")
    connection.limit(None)
    return connection
