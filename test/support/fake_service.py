"""Process of a service that starts no workers, for tests of the tools and processes around it.

`FAKE_SERVICE` sets its behaviour: `fails`, `stuck` while it starts, `lingers` once it is closed, or nothing
for a healthy one.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
import time
from typing import Any

from pathways.runtime.control.records.errors import HostStartError
from pathways.runtime.hosts.launch.settings import Island, Settings
from pathways.runtime.hosts.protocol.messages import CHANNELS, Purpose
from pathways.runtime.hosts.protocol.wire import Connection
from pathways.runtime.resources.accounts import AccountRecord, Use
from pathways.runtime.resources.status import ClientStatus, IslandStatus, ServiceStatus, SharedHostStatus
from pathways.runtime.service import daemon
from pathways.runtime.service.protocol.admin import AddRequest, ChangeRequest
from pathways.runtime.service.protocol.tokens import ServiceHandshake
from pathways.runtime.service.sharing.rules import RuleBook, SharingRules


class FakeService:
    """Service that keeps the names of its clients only."""

    def __init__(self, settings: Settings, *, rules: SharingRules) -> None:
        how = os.environ.get("FAKE_SERVICE", "")
        if how == "fails":
            raise HostStartError("host 1 did not start (exit code 3)\n  | it has no JAX")
        if how == "stuck":
            time.sleep(60)
        self._settings = settings
        self._book = RuleBook(rules)
        self._clients: dict[str, tuple[Connection[Any], float]] = {}
        self._since = time.time()
        self._tokens: dict[str, str | None] = {}
        self._closed = threading.Event()

    def admits(self, purpose: Purpose) -> bool:
        return purpose.role == "client" and purpose.channel in CHANNELS and bool(purpose.name)

    def accept(self, connection: Connection[Any], handshake: ServiceHandshake) -> None:
        assert handshake.purpose is not None
        self._clients[handshake.purpose.name] = connection, time.time()
        self._tokens[handshake.purpose.name] = handshake.token_of

    def serve(self) -> None:
        self._closed.wait()

    def status(self) -> ServiceStatus:
        islands = tuple(
            IslandStatus(
                f"island{n}",
                "running",
                (SharedHostStatus(n, os.getpid(), 0, 0, "box", "127.0.0.1", self._since),),
                devices=1,
            )
            for n in range(len(self._settings.islands))
        )
        clients = tuple(
            ClientStatus(
                name,
                self._book.of(name).weight,
                *(0, 0, 0.0, 0, 0),
                address=connection.peer,
                since=since,
            )
            for name, (connection, since) in self._clients.items()
        )
        return ServiceStatus(os.getpid(), islands, clients, None, self._since, time.time())

    def accounts(self) -> tuple[AccountRecord, ...]:
        return tuple(AccountRecord(name, "f", "island0", Use(1.5, 3)) for name in self._clients)

    def take_account_changes(self) -> tuple[AccountRecord, ...]:
        return self.accounts()

    def disconnect_client(self, name: str) -> bool:
        if (client := self._clients.pop(name, None)) is None:
            return False
        client[0].close()
        daemon.log.info("client %r disconnected", name)
        return True

    def revoke(self, name: str) -> None:
        if self._tokens.get(name) is not None:
            self.disconnect_client(name)

    def change_client(self, request: ChangeRequest) -> str | None:
        if request.name not in self._clients:
            return f"there is no client {request.name!r}"
        self._book.change(request)
        return None

    def add_island(self, request: AddRequest, stop: threading.Event) -> str:
        if request.hosts == ("slow",):
            while not stop.wait(0.01) and not self._closed.is_set():
                pass
            daemon.log.info("adding an island was cancelled")
            raise HostStartError("host 2 is closed")
        island = Island(request.hosts, request.devices_per_host, request.cores)
        self._settings = self._settings.with_island(island)
        return f"island{len(self._settings.islands) - 1}"

    def close(self) -> None:
        for name in [*self._clients]:
            self.disconnect_client(name)
        self._closed.set()


if __name__ == "__main__":
    if os.environ.get("FAKE_SERVICE") == "lingers":
        # JAX delays the exit likewise, since its threads have to exit first.
        atexit.register(time.sleep, 1)
    sys.exit(daemon.main(sys.argv[1:], FakeService))
