"""Ports on which exactly one server of a machine listens.

The servers of JAX and gRPC set SO_REUSEPORT: two servers of one user can start on the same port without an
error, and the kernel gives each connection to either. So processes claim a port before they start such a
server, and count the sockets that listen there afterwards.
"""

from __future__ import annotations

import contextlib
import random
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

_random = random.SystemRandom()
"""A generator that leaves the user's `random` sequence alone, and shares no state with forked processes."""

_MAX_ATTEMPTS = 32
"""Number of ports, chosen by the system, that are tried."""

_LISTENS = "0A"
"""State of a listening socket in `/proc/net/tcp`."""


@contextlib.contextmanager
def claimed(address: str, port: int) -> Iterator[None]:
    """Claims a port on which no socket listens, while the context is entered.

    Raises:
      OSError: another process has claimed it, or listens there.
    """
    # The UDP port of the same number is the lock: the kernel gives it to one process in a network namespace,
    # of any user, and frees it when that process exits.
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as lock:
        lock.bind((address, port))
        # A socket without SO_REUSEPORT fails to bind if any other listens there, with or without the option.
        socket.create_server((address, port)).close()
        yield


@contextlib.contextmanager
def claimed_port(address: str, ports: tuple[int, int] | None) -> Iterator[int]:
    """Claims any free port, as `claimed` does.

    Args:
      address: the address for the server.
      ports: the first and the last port to choose from; None for any.

    Raises:
      OSError: all of them are in use.
    """
    with contextlib.ExitStack() as stack:
        for port in _candidates(address, ports):
            try:
                stack.enter_context(claimed(address, port))
            except OSError:
                continue
            yield port
            return
        raise _none_free(address, ports)


def listen_alone[Server](
    address: str, ports: tuple[int, int] | None, start: Callable[[int], Server]
) -> Server:
    """Starts a server on a port that no other server listens on.

    Args:
      address: the address for the server.
      ports: the first and the last port to choose from; None for any.
      start: starts the server on a port, or raises OSError. A server must stop when nothing refers to it.

    Raises:
      OSError: all of them are in use.
    """
    for port in _candidates(address, ports):
        with contextlib.suppress(OSError), claimed(address, port):
            server = start(port)
            if not is_shared(address, port):
                return server
            # A process that does not claim its ports listens there too. Stop, and try another port.
            del server
    raise _none_free(address, ports)


def is_shared(address: str, port: int) -> bool:
    """Returns whether more than one socket listens on a port; False on systems without `/proc`.

    Args:
      address: an IPv4 address. Sockets that listen on all addresses do not count: the kernel prefers sockets
        of the address itself.
    """
    inodes: set[str] = set()
    number = int.from_bytes(socket.inet_aton(socket.gethostbyname(address)), sys.byteorder)
    mapped = int.from_bytes(b"\0\0\xff\xff", sys.byteorder)
    for name, prefix in (("tcp", ""), ("tcp6", f"{0:016X}{mapped:08X}")):
        local = f"{prefix}{number:08X}:{port:04X}"
        with contextlib.suppress(OSError), Path("/proc/net", name).open() as file:
            for row in map(str.split, file):
                if row[1] == local and row[3] == _LISTENS:
                    # Counted by inode: a table that changes while it is read may show a row twice.
                    inodes.add(row[9])
    return len(inodes) > 1


def _candidates(address: str, ports: tuple[int, int] | None) -> Iterator[int]:
    if ports is not None:
        first, last = ports
        yield from _random.sample(range(first, last + 1), last + 1 - first)
        return
    for _ in range(_MAX_ATTEMPTS):
        with socket.create_server((address, 0)) as sock:
            port = int(sock.getsockname()[1])
        yield port


def _none_free(address: str, ports: tuple[int, int] | None) -> OSError:
    subject = "no port" if ports is None else f"no port from {ports[0]} to {ports[1]}"
    return OSError(f"{subject} is free on {address}")
