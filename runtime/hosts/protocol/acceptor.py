"""A socket that others connect to, each of whom has to prove first who it is."""

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
"""How long the other side may take in all to prove itself."""

HANDSHAKE_BYTES = 4096
"""How long a message may be before it has."""

_SHUT = (errno.EINVAL, errno.EBADF)
"""What accepting a connection says of a socket that was shut down or closed."""

_PAUSE = 0.1
"""Seconds until the next one is accepted when one could not be."""

_REFUSED = "refused a connection from %s: %s"

_MOST = 64
_MOST_OF_ONE = 32

log = logging.getLogger("pathways")


class NotAuthenticatedError(ConnectionEnded):
    """The other side has ended the connection when it had our proof: it has another secret."""


Decode = Callable[[bytearray], Any]
"""Reads a message."""

Greeted = Callable[[Connection[Any], ServerHandshake], None]
"""Takes a connection whose other side has proved who it is."""


class Acceptor:
    """Greets whoever connects to a socket, each in a thread: one that says nothing holds up no other.

    Args:
      server: the socket; who shuts it down closes the door.
      secret: what all processes of the cluster know.
      admits: what connections may be for.
      decode: reads what the other sides send.
      greeted: takes those that are proved, in a thread of its own for each; others are closed.
      expected: how many connections may be greeted at the same time for good reasons.
    """

    def __init__(
        self,
        server: socket.socket,
        secret: bytes,
        admits: Callable[[Purpose], bool],
        decode: Decode,
        greeted: Greeted,
        expected: int = 0,
    ) -> None:
        self._server = server
        self._secret = secret
        self._admits = admits
        self._decode = decode
        self._greeted = greeted
        self._lobby: PendingConnections[socket.socket] = PendingConnections(
            _MOST + expected, _MOST_OF_ONE + expected
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
                # Too many files are open, or whoever called is gone already; see accept(2).
                self._warn("", "cannot accept a connection, and tries again: %s", error.strerror)
                time.sleep(_PAUSE)
                continue
            where = address[0] if isinstance(address, tuple) else "this machine"
            with self._lock:
                leaving = self._lobby.enter(sock, where)
            for other in leaving:
                # Its thread closes it.
                with contextlib.suppress(OSError):
                    other.shutdown(socket.SHUT_RDWR)
            try:
                start_thread(functools.partial(self._greet, sock, where), "greet")
            except RuntimeError as error:
                # Whoever is sent away tries again.
                self._leave(sock)
                sock.close()
                self._warn(where, _REFUSED, where, error)

    def _greet(self, sock: socket.socket, where: str) -> None:
        keeper = ServerHandshake(self._secret, self._admits, secrets.token_bytes(NONCE_BYTES))
        connection: Connection[Any] = Connection(sock, self._decode)
        try:
            keep(connection, keeper)
        except (MessageError, ConnectionEnded) as error:
            connection.close()
            self._leave(sock)
            self._warn(where, _REFUSED, where, error)
            return
        self._leave(sock)
        self._greeted(connection, keeper)

    def _leave(self, sock: socket.socket) -> None:
        with self._lock:
            self._lobby.leave(sock)

    def _warn(self, where: str, text: str, *words: object) -> None:
        with self._lock:
            if self._lobby.may_warn(where, time.monotonic()):
                log.warning(text, *words)


def keep(connection: Connection[Any], keeper: ServerHandshake) -> None:
    """The side of the handshake that was called.

    Raises:
      MessageError: the other side does not know the secret, or says something else.
      ConnectionEnded: it went away, or took too long.
    """
    connection.bound(HANDSHAKE_SECONDS, HANDSHAKE_BYTES)
    answer = None
    while not isinstance(answer, Welcome):
        answer = keeper.on_message(connection.receive())
        connection.send(answer)
    connection.unbound()


def call(
    sock: socket.socket,
    secret: bytes,
    purpose: Purpose,
    decode: Decode,
    seconds: float = HANDSHAKE_SECONDS,
) -> Connection[Any]:
    """The side of the handshake that opens a connection, on a socket that is connected.

    Args:
      sock: the socket.
      secret: what all processes of the cluster know.
      purpose: what the connection is for.
      decode: reads what the other side sends.
      seconds: how long the other side may take in all.

    Raises:
      MessageError: the other side does not know the secret, or says something else.
      NotAuthenticatedError: it went away when it had our proof.
      ConnectionEnded: it went away before, or took too long.
    """
    connection: Connection[Any] = Connection(sock, decode)
    connection.bound(seconds, HANDSHAKE_BYTES)
    opener = ClientHandshake(secret, purpose, secrets.token_bytes(NONCE_BYTES))
    has_proved = False
    try:
        connection.send(opener.first)
        while (answer := opener.on_message(connection.receive())) is not None:
            connection.send(answer)
            has_proved = True
    except BaseException as error:
        connection.close()
        if has_proved and isinstance(error, ConnectionEnded):
            raise NotAuthenticatedError(str(error)) from None
        raise
    connection.unbound()
    return connection
