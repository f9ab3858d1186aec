"""Ports that one server of a machine listens on, and no other.

The servers of JAX and gRPC set SO_REUSEPORT: two of one user on one port both start, without a word, and the
kernel gives each connection to either. So processes claim a port before they start such a server on it, and
count who listens there afterwards.
"""

from __future__ import annotations

import contextlib
import random
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

_chance = random.SystemRandom()
"""The numbers of the user's `random.seed` are not ours to draw, and forked processes share no state."""

_ATTEMPTS = 32
"""How many ports of the system's choice are tried."""

_LISTENS = "0A"
"""The state of a socket that listens, in `/proc/net/tcp`."""


@contextlib.contextmanager
def claimed(address: str, port: int) -> Iterator[None]:
    """Claims a port on which nothing listens, until something does.

    Raises:
      OSError: another process has claimed it, or listens there.
    """
    # The UDP port of the same number is the lock. As with TCP ports, the kernel gives it to one process in a
    # network namespace, of whatever user, and frees it when that ends.
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as lock:
        lock.bind((address, port))
        # Without SO_REUSEPORT it fails wherever one listens, with or without it.
        socket.create_server((address, port)).close()
        yield


@contextlib.contextmanager
def claimed_port(address: str, ports: tuple[int, int] | None) -> Iterator[int]:
    """Claims a port, as `claimed` does.

    Args:
      address: where a server is to listen.
      ports: the first and the last port to choose from; None for any.

    Raises:
      OSError: all of them are taken.
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
    """Starts a server on a port that no other one listens on.

    Args:
      address: where it is to listen.
      ports: the first and the last port to choose from; None for any.
      start: starts it on a port, or raises OSError. It stops when nothing refers to it.

    Raises:
      OSError: all of them are taken.
    """
    for port in _candidates(address, ports):
        with contextlib.suppress(OSError), claimed(address, port):
            server = start(port)
            if not is_shared(address, port):
                return server
            # Of a process that claims none: it came in between.
            del server
    raise _none_free(address, ports)


def is_shared(address: str, port: int) -> bool:
    """Returns whether several sockets listen on a port; False where the system does not tell (no `/proc`).

    Args:
      address: an IPv4 address, to which those that listen on all addresses are no rivals.
      port: the port.
    """
    found: set[str] = set()
    number = int.from_bytes(socket.inet_aton(socket.gethostbyname(address)), sys.byteorder)
    mapped = int.from_bytes(b"\0\0\xff\xff", sys.byteorder)
    for name, prefix in (("tcp", ""), ("tcp6", f"{0:016X}{mapped:08X}")):
        local = f"{prefix}{number:08X}:{port:04X}"
        with contextlib.suppress(OSError), Path("/proc/net", name).open() as file:
            for row in map(str.split, file):
                if row[1] == local and row[3] == _LISTENS:
                    # By the inode: a table that changes may show a row twice.
                    found.add(row[9])
    return len(found) > 1


def _candidates(address: str, ports: tuple[int, int] | None) -> Iterator[int]:
    if ports is not None:
        first, last = ports
        yield from _chance.sample(range(first, last + 1), last + 1 - first)
        return
    for _ in range(_ATTEMPTS):
        with socket.create_server((address, 0)) as sock:
            port = int(sock.getsockname()[1])
        yield port


def _none_free(address: str, ports: tuple[int, int] | None) -> OSError:
    which = "no port" if ports is None else f"no port from {ports[0]} to {ports[1]}"
    return OSError(f"{which} is free on {address}")
