"""Where processes of a cluster listen, and how the others get there."""

from __future__ import annotations

import contextlib
import os
import socket
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from pathways.runtime.hosts.launch.settings import Endpoints
from pathways.runtime.hosts.protocol.wire import keep_alive
from pathways.runtime.resources.ports import listen_alone

Address = str | tuple[str, int]
"""The path of a socket, or address and port."""

_BACKLOG = 64
_CONNECT_SECONDS = 2.0
"""How long a machine may take to answer; who tries again gets there soon after the network has healed."""

_PREFIX = "pathways-"
_OLD_SECONDS = 600.0


@contextlib.contextmanager
def controller_socket(endpoints: Endpoints) -> Iterator[tuple[socket.socket, Address]]:
    """A socket on which the controller listens, and where workers find it; as long as workers start."""
    if endpoints.bind is not None:
        with server_socket(endpoints.bind, endpoints.ports) as server:
            yield server, (endpoints.advertise or endpoints.bind, server.getsockname()[1])
        return
    remove_left(Path("/tmp"))
    # A folder that only the user may enter: faster than a port, and safer. Paths of sockets are short, and
    # the folder that the user chose for temporary files may be deep.
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
        # Of other users, or removed by another process in between.
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as sock:
            # One that is new may not listen yet.
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
      heartbeat: seconds after which a connection to a machine that does not answer any more has ended. A
        process that is stopped is not meant: its machine answers for it.

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
    # A worker that is cut off is gone before the controller starts another one in its place.
    keep_alive(sock, 0.9 * heartbeat)
    return sock


def own_address(sock: socket.socket) -> str:
    """The address of this machine on the network that a connection goes through; loopback within it."""
    return "127.0.0.1" if sock.family == socket.AF_UNIX else sock.getsockname()[0]


def server_socket(address: str, ports: tuple[int, int] | None) -> socket.socket:
    """A socket that listens on an address, on one of some ports, which no other server has.

    Raises:
      OSError: all of them are taken.
    """
    return listen_alone(address, ports, lambda port: socket.create_server((address, port)))
