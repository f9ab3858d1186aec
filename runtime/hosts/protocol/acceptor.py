"""Acceptor of connections, which authenticates each peer before anything else."""

from __future__ import annotations

import contextlib
import errno
import functools
import logging
import secrets
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

from pathways.runtime.control.pending_connections import PendingConnections
from pathways.runtime.hosts.protocol.handshake import NONCE_BYTES, ClientHandshake, ServerHandshake
from pathways.runtime.hosts.protocol.messages import MessageError, Purpose, Welcome
from pathways.runtime.hosts.protocol.wire import Connection, ConnectionEnded
from pathways.runtime.resources.threads import start_thread

HANDSHAKE_SECONDS = 10.0
"""Deadline of a whole handshake, in seconds."""

HANDSHAKE_BYTES = 4096
"""Limit on the length of a message of the handshake."""

_SHUT = (errno.EINVAL, errno.EBADF)
"""Errors of accept(2) on a socket that was shut down or closed."""

_PAUSE = 0.1
"""Seconds to wait after a connection could not be accepted."""

_REFUSED = "refused a connection from %s: %s"

_MAX_PENDING = 64
_MAX_PENDING_OF_ONE = 32

log = logging.getLogger("pathways")


class NotAuthenticatedError(ConnectionEnded):
    """Error of a connection that the server closed after our proof: it has another secret."""


Decode = Callable[[bytearray], Any]
"""Decoder of messages."""


class Acceptor[Handshake: ServerHandshake]:
    """Acceptor of connections, with a thread for each handshake: a silent peer delays no other.

    Args:
      server: the socket; shutting it down stops the acceptor.
      make_handshake: creates the handshake of a connection, from a random nonce.
      decode: decodes messages of the peers.
      on_authenticated: handles authenticated connections, in a thread for each; others are closed.
      expected: number of handshakes that are expected at the same time, in addition to the usual limit.
    """

    def __init__(
        self,
        server: socket.socket,
        make_handshake: Callable[[bytes], Handshake],
        decode: Decode,
        on_authenticated: Callable[[Connection[Any], Handshake], None],
        expected: int = 0,
    ) -> None:
        self._server = server
        self._make_handshake = make_handshake
        self._decode = decode
        self._on_authenticated = on_authenticated
        self._pending: PendingConnections[socket.socket] = PendingConnections(
            _MAX_PENDING + expected, _MAX_PENDING_OF_ONE + expected
        )
        self._lock = threading.Lock()
        start_thread(self._accept, "accept")

    def _accept(self) -> None:
        while True:
            try:
                sock, address = self._server.accept()
            except OSError as error:
                if error.errno in _SHUT:
                    return
                # Too many files are open, or the peer has disconnected already; see accept(2).
                self._warn("", "cannot accept a connection; retrying: %s", error.strerror)
                time.sleep(_PAUSE)
                continue
            peer = address[0] if isinstance(address, tuple) else "this machine"
            with self._lock:
                evicted = self._pending.add(sock, peer)
            for other in evicted:
                # Only shut it down: the thread of its handshake closes it.
                with contextlib.suppress(OSError):
                    other.shutdown(socket.SHUT_RDWR)
            try:
                start_thread(functools.partial(self._authenticate, sock, peer), "authenticate")
            except RuntimeError as error:
                # No thread could be started; peers of this package try again. The log comes first: who
                # sees its connection closed finds the reason there.
                self._remove(sock)
                self._warn(peer, _REFUSED, peer, error)
                sock.close()

    def _authenticate(self, sock: socket.socket, peer: str) -> None:
        handshake = self._make_handshake(secrets.token_bytes(NONCE_BYTES))
        connection: Connection[Any] = Connection(sock, self._decode, peer)
        try:
            authenticate(connection, handshake)
        except (MessageError, ConnectionEnded) as error:
            self._remove(sock)
            self._warn(peer, _REFUSED, peer, error)
            connection.close()
            return
        self._remove(sock)
        self._on_authenticated(connection, handshake)

    def _remove(self, sock: socket.socket) -> None:
        with self._lock:
            self._pending.remove(sock)

    def _warn(self, peer: str, text: str, *args: object) -> None:
        with self._lock:
            if self._pending.should_warn(peer, time.monotonic()):
                log.warning(text, *args)


def authenticate(connection: Connection[Any], handshake: ServerHandshake) -> None:
    """Performs the server side of a handshake.

    Raises:
      MessageError: the peer does not know the secret, or sent an unexpected message.
      ConnectionEnded: the peer disconnected, or took too long.
    """
    connection.set_deadline(HANDSHAKE_SECONDS, HANDSHAKE_BYTES)
    reply = None
    while not isinstance(reply, Welcome):
        reply = handshake.on_message(connection.receive())
        connection.send(reply)
    connection.clear_deadline()


def open_connection(
    sock: socket.socket, secret: bytes, purpose: Purpose, decode: Decode, seconds: float = HANDSHAKE_SECONDS
) -> Connection[Any]:
    """Performs the client side of a handshake; returns the authenticated connection.

    Args:
      sock: a connected socket, which is closed if the handshake fails.
      purpose: the purpose of the connection.
      decode: decodes messages of the server.
      seconds: deadline of the whole handshake.

    Raises:
      MessageError: the server does not know the secret, or sent an unexpected message.
      NotAuthenticatedError: the server disconnected after our proof.
      ConnectionEnded: the server disconnected before, or took too long.
    """
    connection: Connection[Any] = Connection(sock, decode)
    connection.set_deadline(seconds, HANDSHAKE_BYTES)
    handshake = ClientHandshake(secret, purpose, secrets.token_bytes(NONCE_BYTES))
    has_proved = False
    try:
        connection.send(handshake.first)
        while (reply := handshake.on_message(connection.receive())) is not None:
            connection.send(reply)
            has_proved = True
    except BaseException as error:
        connection.close()
        if has_proved and isinstance(error, ConnectionEnded):
            raise NotAuthenticatedError(str(error)) from None
        raise
    connection.clear_deadline()
    return connection
