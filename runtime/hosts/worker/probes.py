"""How workers that exchange arrays find out that they cannot reach each other.

A network that is cut between two of them is silent: JAX's transfer server waits for ever, and both still
answer the controller. So they keep a connection of their own, on which they ask each other whether they
live.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import random
import socket
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from pathways.runtime.hosts.protocol.acceptor import Acceptor, call
from pathways.runtime.hosts.protocol.frames import decode_for_controller, decode_for_worker
from pathways.runtime.hosts.protocol.handshake import ServerHandshake
from pathways.runtime.hosts.protocol.messages import PEER, MessageError, Ping, Pong, Purpose
from pathways.runtime.hosts.protocol.wire import Connection, ConnectionEnded
from pathways.runtime.resources.threads import start_thread

_chance = random.SystemRandom()
"""The numbers of the user's `random.seed` are not ours to draw, and forked processes share no state."""

_PAUSE = 0.5
"""The most seconds from one question to the next."""

_TRY = 2.0
"""How long a peer may take to answer at all, until it is tried again."""


class Probes:
    """The connections of a worker to those that it exchanges arrays with.

    Args:
      server: the socket to listen on.
      secret: what all workers of the cluster know.
      host: the number of this worker.
      epoch: how often workers were started before it.
      lost: is called when a peer does not answer, with its number, its address and why.
      found: is called when one that did not answer does again, with its number and its address.
      deadline: seconds that a peer may say nothing.
    """

    def __init__(
        self,
        server: socket.socket,
        secret: bytes,
        host: int,
        epoch: int,
        lost: Callable[[int, str, str], None],
        found: Callable[[int, str], None],
        deadline: float,
    ) -> None:
        self._secret = secret
        self._host = host
        self._epoch = epoch
        self._lost = lost
        self._found = found
        self._deadline = deadline
        self._pause = min(_PAUSE, deadline / 4)
        self._known: dict[int, str] = {}
        self._lock = threading.Lock()
        self._server = server
        address, port = server.getsockname()[:2]
        self.address = f"{address}:{port}"
        Acceptor(server, secret, self._admits, decode_for_worker, self._answer)

    def watch(self, peers: Mapping[int, str]) -> None:
        """Watches some peers from now on, besides those that are watched already.

        Args:
          peers: the addresses of their `Probes`, by the number of the host.
        """
        with self._lock:
            new = peers.items() - self._known.items()
            self._known.update(new)
        for host, address in new:
            # Each side asks on a connection of its own: what one hears does not tell that the other is heard.
            start_thread(functools.partial(self._ask, host, address), f"ask host {host}")

    def close(self) -> None:
        """Watches no one from now on, and answers no one who is new."""
        with self._lock:
            self._known.clear()
        with contextlib.suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()

    def _admits(self, purpose: Purpose) -> bool:
        return (purpose.channel, purpose.role, purpose.to) == (PEER, "worker", f"host {self._host}")

    def _answer(self, connection: Connection[Any], keeper: ServerHandshake) -> None:
        """Answers a peer until it asks no more; it finds out by itself when it hears nothing."""
        with contextlib.suppress(ConnectionEnded, MessageError):
            while isinstance(message := connection.receive(), Ping):
                connection.send(Pong(message.number))
        connection.close()

    def _ask(self, host: int, address: str) -> None:
        """Asks a peer whether it lives until another one takes its place."""
        is_lost = False
        while self._watches(host, address):
            try:
                with contextlib.closing(self._called(host, address)) as connection:
                    if is_lost:
                        is_lost = False
                        self._found(host, address)
                    self._keep_asking(connection, host, address)
            except (OSError, MessageError) as error:
                if not is_lost:
                    is_lost = True
                    self._lost(host, address, str(error))
                time.sleep(self._pause)

    def _watches(self, host: int, address: str) -> bool:
        return self._known.get(host) == address

    def _called(self, host: int, address: str) -> Connection[Any]:
        """A connection to a peer.

        Raises:
          OSError: there is none in time.
          MessageError: it is no peer.
        """
        name, _, port = address.rpartition(":")
        purpose = Purpose(PEER, "worker", self._host, self._epoch, f"host {host}")
        deadline = time.monotonic() + self._deadline
        while True:
            try:
                sock = socket.create_connection((name, int(port)), timeout=min(_TRY, self._deadline))
                return call(sock, self._secret, purpose, decode_for_controller, self._deadline)
            except (ConnectionEnded, TimeoutError):
                # Too many others are at its door, or nothing gets there.
                if time.monotonic() > deadline:
                    raise
                time.sleep(_PAUSE * _chance.random())

    def _keep_asking(self, connection: Connection[Any], host: int, address: str) -> None:
        connection.limit(self._deadline)
        for number in itertools.takewhile(lambda _: self._watches(host, address), itertools.count()):
            connection.send(Ping(number))
            connection.receive()
            time.sleep(self._pause)
