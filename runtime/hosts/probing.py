"""How workers that exchange arrays find out that they cannot reach each other.

A network that is cut between two of them is silent: JAX's transfer server waits for ever, and both still
answer the controller. So they keep a connection of their own, on which they ask each other whether they
live.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import socket
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from pathways.runtime.hosts.messages import PEER, Hello, MessageError, Ping, Pong
from pathways.runtime.hosts.wire import Connection, ConnectionEnded, greet_controller, greet_worker
from pathways.runtime.resources.threads import start_thread

_PAUSE = 0.5
"""The most seconds from one question to the next."""

MakeHello = Callable[[bytes, bytes, str], Hello]
"""Makes the answer to a challenge, of the proof, a nonce, and the name of the connection."""


class Probes:
    """The connections of a worker to those that it exchanges arrays with.

    Args:
      server: the socket to listen on.
      secret: what all workers of the cluster know.
      hello: says who this worker is.
      lost: is called when a peer does not answer, with its number, its address and why; once for each.
      deadline: seconds that a peer may say nothing.
    """

    def __init__(
        self,
        server: socket.socket,
        secret: bytes,
        hello: MakeHello,
        lost: Callable[[int, str, str], None],
        deadline: float,
    ) -> None:
        self._secret = secret
        self._hello = hello
        self._lost = lost
        self._deadline = deadline
        self._known: set[tuple[int, str]] = set()
        self._lock = threading.Lock()
        self._server = server
        host, port = self._server.getsockname()[:2]
        self.address = f"{host}:{port}"
        start_thread(self._accept, "accept peers")

    def watch(self, peers: Mapping[int, str]) -> None:
        """Watches some peers from now on, besides those that are watched already.

        Args:
          peers: the addresses of their `Probes`, by the number of the host.
        """
        with self._lock:
            new = peers.items() - self._known
            self._known.update(new)
        for host, address in new:
            # Each side asks on a connection of its own: what one hears does not tell that the other is heard.
            start_thread(functools.partial(self._ask, host, address), f"ask host {host}")

    def _accept(self) -> None:
        while True:
            sock, _ = self._server.accept()
            start_thread(functools.partial(self._answer, sock), "answer peer")

    def _answer(self, sock: socket.socket) -> None:
        """Answers a peer until it asks no more; it finds out by itself when it hears nothing."""
        with contextlib.suppress(ConnectionEnded, MessageError):
            connection = greet_controller(sock, self._secret, self._be_peer)
            while isinstance(message := connection.receive(), Ping):
                connection.send(Pong(message.number))
        sock.close()

    def _be_peer(self, proof: bytes, nonce: bytes) -> Hello:
        return self._hello(proof, nonce, PEER)

    def _ask(self, host: int, address: str) -> None:
        """Asks a peer whether it lives until it does not answer."""
        name, _, port = address.rpartition(":")
        try:
            with socket.create_connection((name, int(port)), timeout=self._deadline) as sock:
                connection, _ = greet_worker(sock, self._secret, (PEER,))
                self._keep_asking(connection)
        except (OSError, MessageError) as error:
            self._lost(host, address, str(error))

    def _keep_asking(self, connection: Connection[Any]) -> None:
        connection.limit(self._deadline)
        for number in itertools.count():
            connection.send(Ping(number))
            connection.receive()
            time.sleep(min(_PAUSE, self._deadline / 4))
