"""Server of JAX programs at a socket."""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Self

import jax

from pathways.dialect.spelling import renamed_keywords
from pathways.runtime.local.devices import check_environment
from pathways.runtime.proxy.devices import FOLDERS_ADVICE, ScheduleIfrt, ServedDevices
from pathways.runtime.proxy.loading.backend import Backend
from pathways.runtime.proxy.loading.call_traces import MakeRecorder
from pathways.runtime.proxy.loading.local_backend import LocalBackend
from pathways.runtime.proxy.serving.client_connection import ClientConnection
from pathways.runtime.proxy.serving.listening_socket import Address, ListeningSocket
from pathways.runtime.proxy.serving.registry import SessionRegistry
from pathways.runtime.proxy.sessions.session import ProxySession
from pathways.runtime.proxy.wire import descriptors
from pathways.runtime.resources.folders import PermittedFolders
from pathways.runtime.resources.threads import start_thread


class ProxyServer:
    """Server of the devices of this process.

    Args:
      endpoint: the address to listen at, as of `ListeningSocket`.
      served: the devices.

    Raises:
      ServerError: another server listens there, or the server cannot listen there, or it is not safe.

    Attributes:
      served: the devices.
      registry: the sessions.
      was_used: whether a client has ever connected.
    """

    def __init__(self, endpoint: Path | Address | None, served: ServedDevices) -> None:
        self.served = served
        self.was_used = False
        self.registry = SessionRegistry(served)
        self._listener = ListeningSocket(endpoint)
        self._lock = threading.Lock()
        self._connections: set[ClientConnection] = set()
        self._is_closed = False
        start_thread(self._accept, "proxy accepts")
        self.registry.stalls.start()
        served.backend.start(self.lose_island, self.return_island)

    @property
    def path(self) -> Path:
        """The UNIX socket of a server that has one."""
        assert self._listener.path is not None
        return self._listener.path

    @property
    def address(self) -> str:
        """The value of `JAX_BACKEND_TARGET` for clients."""
        return self._listener.target

    @property
    def environment(self) -> dict[str, str]:
        """The variables that a program needs in its environment to use the server."""
        return {
            "JAX_PLATFORMS": "proxy",
            "JAX_BACKEND_TARGET": self.address,
            "IFRT_PROXY_USE_INSECURE_GRPC_CREDENTIALS": "true",
        }

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def sessions(self) -> tuple[ProxySession, ...]:
        """The active sessions."""
        return self.registry.sessions

    def close(self) -> None:
        """Ends all sessions, and stops listening."""
        with self._lock:
            self._is_closed = True
            connections = tuple(self._connections)
        self._listener.close()
        for connection in connections:
            connection.close()
        self.served.reader.close()
        self.served.backend.close()
        self.registry.stalls.close()

    def lose_island(self, index: int, reason: str = "", returns: bool = True) -> None:
        """Treats an island as lost: all arrays on it become errors, and so do new ones.

        Args:
          returns: whether it returns by itself.

        Raises:
          ValueError: the island does not exist, or is lost already.
        """
        self.registry.lose_island(index, reason, returns=returns)

    def return_island(self, index: int) -> None:
        """Returns an island that was lost, for new arrays; its earlier ones stay lost.

        Raises:
          ValueError: the island does not exist, or is not lost.
        """
        self.registry.return_island(index)

    def _accept(self) -> None:
        while True:
            try:
                client = self._listener.accept()
            except OSError:
                return
            self.was_used = True
            connection = ClientConnection(self.registry, client)
            with self._lock:
                if self._is_closed:
                    client.close()
                    return
                self._connections.add(connection)
            start_thread(functools.partial(self._read, connection), "proxy reads")

    def _read(self, connection: ClientConnection) -> None:
        try:
            connection.read()
        finally:
            with self._lock:
                self._connections.discard(connection)


@renamed_keywords(slices="islands")
def serve(
    path: str | os.PathLike[str] | None = None,
    devices: Sequence[jax.Device] | None = None,
    islands: int = 1,
    *,
    max_memory: int | None = None,
    files: Sequence[str | os.PathLike[str]] = (),
    insecure_address: Address | None = None,
    schedule_ifrt: ScheduleIfrt | None = None,
    make_recorder: MakeRecorder | None = None,
    backend: Backend | None = None,
) -> ProxyServer:
    """Serves devices of this process to unmodified JAX programs, until the server is closed.

    Args:
      path: a UNIX socket, in a folder that only this user may enter, and which is created if its parent
        exists; by default one in a new folder.
      devices: the devices to serve; by default all devices of JAX.
      islands: the number of equal islands that the devices form; with more than one, devices have a
        `slice_index`, the number of their island.
      max_memory: the maximum of bytes of the arrays and programs of all clients together; beyond that,
        requests fail with the status RESOURCE_EXHAUSTED. None for no limit.
      files: folders below which programs may request the server to write and read arrays; by default none.
      insecure_address: host and port (0 for any) to listen at in place of a UNIX socket. The client in JAX
        cannot authenticate itself, and any client that connects can run code in this process.
      schedule_ifrt: schedules programs of Shardy's MPMD compiler; None rejects them.
      make_recorder: creates the recorders of traces of clients; None rejects these.
      backend: the place of the devices, in place of `devices` and `islands`; the server closes it.

    Returns:
      The server, a context manager that closes it; its `environment` is for the programs.

    Raises:
      ServerError: the server cannot listen there.
      DescriptorError: this release of jaxlib is not supported.
      ValueError: the devices cannot form the islands, both a path and an address are given, one of the
        folders does not exist, or a variable of the environment has no effect any more.
    """
    if path is not None and insecure_address is not None:
        raise ValueError("expected a path or an address to listen at, got both")
    folders = PermittedFolders(files, FOLDERS_ADVICE)
    if backend is None:
        check_environment()
        backend = LocalBackend(jax.devices() if devices is None else devices, islands)
    served = ServedDevices(backend, descriptors.messages(), schedule_ifrt, max_memory, folders, make_recorder)
    endpoint = insecure_address if path is None else Path(path).absolute()
    return ProxyServer(endpoint, served)
