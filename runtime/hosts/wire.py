"""A connection between controller and worker: frames over a socket, and the proof of who is there."""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import secrets
import socket
import threading
from collections.abc import Callable

from pathways.runtime.hosts.interrupts import uninterrupted
from pathways.runtime.hosts.messages import (
    HEADER_BYTES,
    PROTOCOL,
    Challenge,
    Hello,
    Message,
    MessageError,
    Welcome,
    body_length,
    decode_for_controller,
    decode_for_worker,
    encode,
)

HANDSHAKE_SECONDS = 30.0
"""How long the other side may take to prove itself."""


class ConnectionEnded(ConnectionError):
    """The other side is gone."""


class Connection[Received]:
    """Sends and receives whole messages; any thread may send, one receives.

    Args:
      sock: a connected socket.
      decode: reads what the other side sends.
    """

    def __init__(self, sock: socket.socket, decode: Callable[[bytes], Received]) -> None:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket = sock
        self._decode = decode
        self._sending = threading.Lock()

    def send(self, *messages: Message) -> None:
        """Sends messages, one behind the other.

        Raises:
          ConnectionEnded: the other side is gone.
        """
        frames = b"".join(map(encode, messages))
        with uninterrupted():
            self.send_frames(frames)

    def send_frames(self, frames: bytes) -> None:
        """Sends messages that are encoded already; see `send`. Ctrl-C may come in between."""
        with self._sending:
            try:
                self._socket.sendall(frames)
            except OSError as error:
                raise ConnectionEnded(f"the connection has ended: {error}") from None

    def receive(self) -> Received:
        """Waits for the next message.

        Raises:
          ConnectionEnded: the other side is gone.
          MessageError: it sent something that is no message.
        """
        header = self._read(HEADER_BYTES)
        return self._decode(bytes(self._read(body_length(bytes(header)))))

    def _read(self, count: int) -> bytearray:
        data = bytearray(count)
        view = memoryview(data)
        while view:
            try:
                got = self._socket.recv_into(view)
            except OSError as error:
                raise ConnectionEnded(f"the connection has ended: {error}") from None
            if not got:
                raise ConnectionEnded("the connection has ended")
            view = view[got:]
        return data

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


def _proof(secret: bytes, who: bytes, nonce: bytes) -> bytes:
    return hmac.new(secret, who + nonce, hashlib.sha256).digest()


def greet_worker(sock: socket.socket, secret: bytes) -> tuple[Connection[object], Hello]:
    """The controller's side of the handshake.

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
