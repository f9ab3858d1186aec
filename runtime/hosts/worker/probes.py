"""Heartbeats between workers that exchange arrays.

A network partition between two workers is silent: JAX's transfer server waits for ever, and both workers
still answer the controller. So workers ping each other on separate connections.
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

from pathways.runtime.hosts.protocol.acceptor import Acceptor, Decode, open_connection
from pathways.runtime.hosts.protocol.frames import decode_for_controller, decode_for_worker
from pathways.runtime.hosts.protocol.handshake import ServerHandshake
from pathways.runtime.hosts.protocol.messages import PEER, MessageError, Ping, Pong, Purpose
from pathways.runtime.hosts.protocol.wire import Connection, ConnectionEnded
from pathways.runtime.resources.threads import start_thread

_chance = random.SystemRandom()
"""Source of jitter apart from `random`, whose state belongs to the user and is shared by forked processes."""

_PAUSE = 0.5
"""Maximum seconds between two pings."""

_TRY = 2.0
"""Timeout of one attempt to connect to a peer, in seconds."""


class Probes:
    """Heartbeat connections of a worker to the peers that it exchanges arrays with.

    Args:
      server: the socket to listen on.
      host: the number of this worker.
      epoch: how often workers were started before it.
      on_lost: is called when a peer stops answering, with its number, its address and the error.
      on_found: is called when a lost peer answers again, with its number and its address.
      deadline: seconds after which a silent peer is lost.
    """

    def __init__(
        self,
        server: socket.socket,
        secret: bytes,
        host: int,
        epoch: int,
        on_lost: Callable[[int, str, str], None],
        on_found: Callable[[int, str], None],
        deadline: float,
    ) -> None:
        self._secret = secret
        self._host = host
        self._epoch = epoch
        self._on_lost = on_lost
        self._on_found = on_found
        self._deadline = deadline
        self._pause = min(_PAUSE, deadline / 4)
        self._addresses: dict[int, str] = {}
        self._services: dict[str, Callable[[Connection[Any]], None]] = {}
        self._lock = threading.Lock()
        self._server = server
        address, port = server.getsockname()[:2]
        self.address = f"{address}:{port}"
        make_handshake = functools.partial(ServerHandshake, secret, self._admits)
        Acceptor(server, make_handshake, decode_for_worker, self._answer)

    def watch(self, peers: Mapping[int, str]) -> None:
        """Starts to ping peers, unless they are pinged already.

        Args:
          peers: the addresses of their `Probes`, by host number; a new address replaces the host's old one.
        """
        with self._lock:
            new = peers.items() - self._addresses.items()
            self._addresses.update(new)
        for host, address in new:
            # Each side pings on its own connection: a ping from a peer does not show that our messages reach
            # it.
            start_thread(functools.partial(self._probe, host, address), f"probe host {host}")

    def serve(self, channel: str, answer: Callable[[Connection[Any]], None]) -> None:
        """Starts to accept connections of other workers for another channel.

        Args:
          channel: the channel of their `Purpose`.
          answer: handles each connection, in a thread of its own.
        """
        self._services[channel] = answer

    def connect(self, host: int, address: str, channel: str, decode: Decode) -> Connection[Any]:
        """Connects to another worker.

        Args:
          address: the address of its `Probes`.
          channel: the channel, see `serve`.
          decode: decodes its messages.

        Raises:
          OSError: the worker cannot be reached.
          MessageError: the handshake failed: another process listens there.
        """
        name, _, port = address.rpartition(":")
        purpose = Purpose(channel, "worker", self._host, self._epoch, f"host {host}")
        sock = socket.create_connection((name, int(port)), timeout=min(_TRY, self._deadline))
        return open_connection(sock, self._secret, purpose, decode, self._deadline)

    def close(self) -> None:
        """Stops to ping peers and to accept their connections."""
        with self._lock:
            self._addresses.clear()
        with contextlib.suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()

    def _admits(self, purpose: Purpose) -> bool:
        is_served = purpose.channel == PEER or purpose.channel in self._services
        return is_served and (purpose.role, purpose.to) == ("worker", f"host {self._host}")

    def _answer(self, connection: Connection[Any], handshake: ServerHandshake) -> None:
        """Answers the pings of a peer until it disconnects; detecting a failure is up to the peer."""
        if (purpose := handshake.purpose) is not None and purpose.channel in self._services:
            self._services[purpose.channel](connection)
            return
        with contextlib.suppress(ConnectionEnded, MessageError):
            while isinstance(message := connection.receive(), Ping):
                connection.send(Pong(message.number))
        connection.close()

    def _probe(self, host: int, address: str) -> None:
        """Pings a peer until another worker replaces it."""
        is_lost = False
        while self._watches(host, address):
            try:
                with contextlib.closing(self._connect(host, address)) as connection:
                    if is_lost:
                        is_lost = False
                        self._on_found(host, address)
                    self._ping(connection, host, address)
            except (OSError, MessageError) as error:
                if not is_lost:
                    is_lost = True
                    self._on_lost(host, address, str(error))
                time.sleep(self._pause)

    def _watches(self, host: int, address: str) -> bool:
        return self._addresses.get(host) == address

    def _connect(self, host: int, address: str) -> Connection[Any]:
        """Connects to a peer.

        Raises:
          OSError: the peer does not answer in time.
          MessageError: the handshake failed: another process listens there.
        """
        deadline = time.monotonic() + self._deadline
        while True:
            try:
                return self.connect(host, address, PEER, decode_for_controller)
            except (ConnectionEnded, TimeoutError):
                # The peer has too many pending connections, or the network drops packets.
                if time.monotonic() > deadline:
                    raise
                time.sleep(_PAUSE * _chance.random())

    def _ping(self, connection: Connection[Any], host: int, address: str) -> None:
        connection.set_timeout(self._deadline)
        for number in itertools.takewhile(lambda _: self._watches(host, address), itertools.count()):
            connection.send(Ping(number))
            connection.receive()
            time.sleep(self._pause)
