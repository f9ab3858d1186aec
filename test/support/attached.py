"""Service in threads of this process; programs of tests are its clients instead of having workers."""

from __future__ import annotations

import contextlib
import functools
import secrets
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import pathways
from pathways.runtime.clusters import connect
from pathways.runtime.clusters.connect import with_extensions
from pathways.runtime.clusters.starter_choice import starter_of
from pathways.runtime.hosts.client.host_session import HostSession
from pathways.runtime.hosts.launch.settings import Settings
from pathways.runtime.hosts.protocol.acceptor import Acceptor
from pathways.runtime.resilience.snapshots.run_names import remove_all_client_runs
from pathways.runtime.service.client.attaching import Attachment, attach_at
from pathways.runtime.service.protocol.service_messages import decode_for_service
from pathways.runtime.service.protocol.tokens import ClientTokens, ServiceHandshake
from pathways.runtime.service.service import Service
from pathways.runtime.service.sharing.rules import SharingRules


class ServiceInThreads:
    """Service in threads.

    Args:
      settings: the settings of its workers.
      folder: the folder of its socket.
      rules: the rules of its clients.
    """

    def __init__(self, settings: Settings, folder: Path, rules: SharingRules | None = None) -> None:
        self.service = Service(settings, starter_of(settings), rules=rules, at_end=remove_all_client_runs)
        # No bytes that are white space at the end of a file.
        self._secret = secrets.token_hex(32).encode()
        self._place = str(folder / f"{secrets.token_hex(4)}.socket")
        self._server = socket.socket(socket.AF_UNIX)
        self._server.bind(self._place)
        self._server.listen(64)
        tokens = ClientTokens(self._secret, folder / "revoked")
        make_handshake = functools.partial(ServiceHandshake, tokens, self.service.admits)
        Acceptor(self._server, make_handshake, decode_for_service, self.service.accept)
        self._thread = threading.Thread(target=self.service.serve, daemon=True)
        self._thread.start()

    def attach(self, client: str = "test") -> HostSession:
        """Returns a new client of it."""
        return with_extensions(attach_at(self._place, self._secret, Attachment("test", client)))

    @contextlib.contextmanager
    def attached(self, client: str, hosts: int) -> Iterator[None]:
        """Makes this process a client in the block: `pw.connect` attaches to the service."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(connect, "start_session", lambda _: self.attach(client))
            pathways.connect(hosts=hosts)
            try:
                yield
            finally:
                pathways.disconnect()

    def write_token(self, path: Path) -> Path:
        """Writes the configuration of its clients to a file."""
        path.write_bytes(self._secret)
        return path

    @property
    def place(self) -> str:
        """The address of its socket."""
        return self._place

    def close(self) -> None:
        """Closes it, and its workers."""
        self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        self.service.close()
        self._thread.join(20)
