"""Admission of clients: who may connect, under which number, and with which connections."""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Callable
from typing import Any

from pathways.runtime.hosts.cluster.worker_pool import WorkerPool
from pathways.runtime.hosts.launch.settings import Settings
from pathways.runtime.hosts.protocol.messages import CHANNELS, versions
from pathways.runtime.hosts.protocol.wire import Connection, ConnectionEnded
from pathways.runtime.resources.threads import start_thread
from pathways.runtime.service.protocol import service_messages
from pathways.runtime.service.protocol.service_messages import AdmissionDenied, Admitted
from pathways.runtime.service.protocol.tokens import ServiceHandshake
from pathways.runtime.service.served.island_views import island_facts
from pathways.runtime.service.served.served_client import ServedClient
from pathways.runtime.service.sharing.rules import RuleBook

CONNECT_SECONDS = 10.0
"""Seconds within which a client has to open all its connections."""


class Admission:
    """Connected clients of a service; any thread may call its methods.

    Args:
      book: the rules of clients.
      join: is called with a client that has opened all its connections.
      disconnect: is called with a client to disconnect, and the reason; it calls `remove` in time.

    Attributes:
      clients: the admitted clients by their numbers, until they are removed.
    """

    def __init__(
        self,
        settings: Settings,
        book: RuleBook,
        pool: WorkerPool,
        join: Callable[[ServedClient], None],
        disconnect: Callable[[ServedClient, str], None],
    ) -> None:
        self.clients: dict[int, ServedClient] = {}
        self._options = settings.options
        self._book = book
        self._pool = pool
        self._join = join
        self._disconnect = disconnect
        self._numbers = itertools.count(1)
        self._is_closed = False
        self._lock = threading.Lock()

    def accept(self, connection: Connection[Any], handshake: ServiceHandshake) -> None:
        """Accepts a connection of an authenticated client; the first one requests admission."""
        purpose = handshake.purpose
        assert purpose is not None
        connection.read_with(service_messages.decode_for_service)
        connection.keep_alive(self._options.heartbeat)
        if purpose.channel == "watch":
            self._admit(connection, handshake, purpose.name)
            return
        with self._lock:
            # The epoch of a client is the number that `Admitted` gave it.
            client = self.clients.get(purpose.epoch)
            is_expected = (
                client is not None
                and client.name == purpose.name
                and client.has_client_token == (handshake.token_of is not None)
                and not client.disconnected.is_set()
                and purpose.channel not in client.connections
            )
            if client is None or not is_expected:
                connection.close()
                return
            client.connections[purpose.channel] = connection
            is_complete = len(client.connections) == len(CHANNELS)
        if is_complete:
            self._join(client)

    def _admit(self, connection: Connection[Any], handshake: ServiceHandshake, name: str) -> None:
        """Admits a client, or sends it the reason why not."""
        self._wait_for_disconnect(name)
        why = None
        if handshake.versions != versions():
            theirs, ours = ", ".join(handshake.versions), ", ".join(versions())
            why = f"it runs pathways, jaxlib and Python {theirs}, but the service {ours}"
        with self._lock:
            if why is None and self._connected(name) is not None:
                why = f"a client called {name!r} already exists; choose another name with client="
            if why is None and self._is_closed:
                why = "it is shutting down"
            if why is None:
                why = self._why_full(name)
            # With the lock: a token that is revoked later disconnects the client, which is found then.
            if why is None and handshake.is_revoked():
                why = "its token was revoked"
            if why is None:
                facts = tuple(map(island_facts, self._pool.gangs))
                starts = tuple(island.start for island in facts)
                has_client_token = handshake.token_of is not None
                client = ServedClient(next(self._numbers), name, connection, starts, has_client_token)
                self.clients[client.number] = client
        # If the client is disconnected already, `check_connected` removes it.
        with contextlib.suppress(ConnectionEnded):
            if why is not None:
                connection.send(AdmissionDenied(why))
                connection.close()
                return
            options = self._options
            connection.send(
                Admitted(client.number, facts, options.heartbeat, options.stall_report, options.step_deadline)
            )

        def check_connected() -> None:
            client.disconnected.wait(CONNECT_SECONDS)
            with self._lock:
                is_complete = len(client.connections) == len(CHANNELS)
            if not is_complete:
                self._disconnect(client, f"it did not open all connections within {CONNECT_SECONDS:.0f} s")

        start_thread(check_connected, "admit")

    def _why_full(self, name: str) -> str | None:
        """Returns why a client of a name is one too many; the caller holds the lock."""
        limit = self._book.rules.max_clients
        if limit is None or self._book.is_named(name):
            return None
        connected = [client for client in self.clients.values() if not client.disconnected.is_set()]
        if sum(not self._book.is_named(client.name) for client in connected) < limit:
            return None
        return f"the cluster accepts {limit} clients that its file does not name (max_clients), and has them"

    def find(self, name: str) -> ServedClient | None:
        """Returns the connected client of a name, if any."""
        with self._lock:
            return self._connected(name)

    def _connected(self, name: str) -> ServedClient | None:
        """Returns the connected client of a name, if any; the caller holds the lock."""
        connected = [client for client in self.clients.values() if not client.disconnected.is_set()]
        return next((client for client in connected if client.name == name), None)

    def _wait_for_disconnect(self, name: str) -> None:
        """Waits until a client with a closed connection is removed, since it may connect again at once."""
        client = self.find(name)
        if client is not None and client.connections["watch"].has_ended():
            self._disconnect(client, "the connection has ended")
            client.disconnected.wait(CONNECT_SECONDS)

    def numbers(self) -> tuple[int, ...]:
        """Returns the numbers of the connected clients."""
        with self._lock:
            return tuple(self.clients)

    def remove(self, client: ServedClient) -> None:
        """Removes a client that has disconnected."""
        with self._lock:
            self.clients.pop(client.number, None)

    def close(self) -> None:
        """Denies admission from now on."""
        with self._lock:
            self._is_closed = True
