"""Sockets on which the processes of a cluster listen, and connections to them."""

from __future__ import annotations

import contextlib
import os
import socket
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from pathways.runtime.hosts.launch.launcher_records import Endpoints
from pathways.runtime.hosts.protocol.wire import keep_alive
from pathways.runtime.resources.ports import listen_alone

Address = str | tuple[str, int]
"""Path of a socket, or address and port."""

_BACKLOG = 64
_CONNECT_SECONDS = 2.0
"""Timeout of a TCP connect: short, so that a retry succeeds soon after the network has healed."""

_PREFIX = "pathways-"
_OLD_SECONDS = 600.0


@contextlib.contextmanager
def controller_socket(endpoints: Endpoints) -> Iterator[tuple[socket.socket, Address]]:
    """Yields a socket on which the controller listens while workers start, and its address for workers."""
    if endpoints.bind is not None:
        with server_socket(endpoints.bind, endpoints.ports) as server:
            yield server, (endpoints.advertise or endpoints.bind, server.getsockname()[1])
        return
    remove_left(Path("/tmp"))
    # A socket in a folder that only the user may enter is faster than a port, and safer. It is in /tmp
    # because paths of sockets are limited to some 100 bytes, and TMPDIR may be a long path.
    with (
        tempfile.TemporaryDirectory(prefix=_PREFIX, dir="/tmp") as folder,
        socket.socket(socket.AF_UNIX) as server,
    ):
        server.bind(f"{folder}/controller")
        server.listen(_BACKLOG)
        yield server, f"{folder}/controller"


def remove_left(place: Path) -> None:
    """Removes the folders of controllers that were killed while workers started.

    Args:
      place: where the folders are.
    """
    for path in place.glob(f"{_PREFIX}*/controller"):
        # The folder may belong to another user, or be removed by another process in the meantime.
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as sock:
            # A new socket may not listen yet.
            if time.time() - path.stat().st_mtime > _OLD_SECONDS and path.stat().st_uid == os.getuid():
                try:
                    sock.connect(str(path))
                except ConnectionRefusedError:
                    path.unlink()
                    path.parent.rmdir()


def connect_to(address: Address, heartbeat: float) -> socket.socket:
    """Connects to the controller.

    Args:
      address: where it listens.
      heartbeat: seconds after which the connection fails if the machine does not answer any more. A stopped
        process does not count: its machine answers for it.

    Raises:
      OSError: nothing listens there, or the machine does not answer.
    """
    if isinstance(address, str):
        sock = socket.socket(socket.AF_UNIX)
        try:
            sock.connect(address)
        except BaseException:
            sock.close()
            raise
        return sock
    sock = socket.create_connection(address, timeout=_CONNECT_SECONDS)
    sock.settimeout(None)
    # A worker that is cut off exits before the controller starts its replacement.
    keep_alive(sock, 0.9 * heartbeat)
    return sock


def own_address(sock: socket.socket) -> str:
    """Returns the address of this machine on the network of a connection; loopback for a local socket."""
    return "127.0.0.1" if sock.family == socket.AF_UNIX else sock.getsockname()[0]


def server_socket(address: str, ports: tuple[int, int] | None) -> socket.socket:
    """Returns a socket that listens on an address, on one of some ports that no other server uses.

    Raises:
      OSError: all ports are taken.
    """
    return listen_alone(address, ports, lambda port: socket.create_server((address, port)))
