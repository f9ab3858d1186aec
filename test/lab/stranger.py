"""Peer on the network of a cluster that does not know its secret and tries to become one of its hosts.

  stranger.py HOST EPOCH CONTROLLER DATA PROBE FIRST LAST

Ends a host with garbage at JAX's port DATA. Then calls the controller, on any port from FIRST to LAST, as the
replacement of that host, and relays each challenge to the probe port PROBE of another host. Prints
`challenged` for each challenge that it has relayed, and `welcomed` when it is accepted as a host.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import time
from collections.abc import Iterator

from pathways.runtime.hosts.protocol.frames import decode_for_worker
from pathways.runtime.hosts.protocol.messages import (
    PEER,
    Challenge,
    MessageError,
    Open,
    Proof,
    Purpose,
    Welcome,
    versions,
)
from pathways.runtime.hosts.protocol.wire import Connection, ConnectionEnded

SECONDS = 6.0


def address(text: str) -> tuple[str, int]:
    """Returns host and port."""
    host, _, port = text.rpartition(":")
    return host, int(port)


def codes(probe: tuple[str, int], host: int, epoch: int, to: str, nonce: bytes) -> Iterator[bytes]:
    """Yields everything like a proof that a probe port sends in reply to the nonce of another peer."""
    for channel, peer in ((PEER, to), ("steps", "controller")):
        openings = (Open(Purpose(channel, "worker", host, epoch, peer), nonce), Challenge(nonce))
        for first in openings:
            sock = socket.create_connection(probe, timeout=2)
            connection = Connection(sock, decode_for_worker)
            with contextlib.suppress(ConnectionEnded, MessageError, OSError):
                connection.send(first)
                connection.set_timeout(0.5)
                answer = connection.receive()
                yield getattr(answer, "code", None) or getattr(answer, "nonce", b"")
            connection.close()


def call(controller: tuple[str, int], probe: tuple[str, int], host: int, epoch: int) -> None:
    """Tries once to become a host."""
    sock = socket.create_connection(controller, timeout=2)
    # The message types are those that a worker receives.
    connection = Connection(sock, decode_for_worker)
    with contextlib.suppress(ConnectionEnded, MessageError, OSError):
        connection.send(Open(Purpose("steps", "worker", host, epoch, "controller"), os.urandom(32)))
        connection.set_timeout(2)
        challenge = connection.receive()
        if isinstance(challenge, Challenge):
            print("challenged", flush=True)
            for code in codes(probe, host, epoch, f"host {1 - host}", challenge.nonce):
                connection.send(Proof(code, versions()))
                if isinstance(connection.receive(), Welcome):
                    print("welcomed", flush=True)
    connection.close()


def main() -> None:
    """Ends the host, then tries for a while to take its place."""
    host, epoch, first, last = (int(sys.argv[n]) for n in (1, 2, 6, 7))
    controller, data, probe = sys.argv[3], address(sys.argv[4]), address(sys.argv[5])
    with contextlib.suppress(OSError), socket.create_connection(data, timeout=2) as sock:
        sock.sendall(bytes(4096))
        # The garbage is read before the connection is closed.
        time.sleep(0.5)
    until = time.monotonic() + SECONDS
    while time.monotonic() < until:
        for port in range(first, last + 1):
            with contextlib.suppress(OSError):
                call((controller, port), probe, host, epoch)


if __name__ == "__main__":
    main()
