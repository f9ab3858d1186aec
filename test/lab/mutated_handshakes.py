"""Client that sends many mutated handshakes to a port of a cluster: `mutated_handshakes.py ADDRESS COUNT`."""

from __future__ import annotations

import contextlib
import os
import random
import socket
import sys

from stranger import address

from pathways.runtime.hosts.protocol.frames import encode
from pathways.runtime.hosts.protocol.messages import (
    PEER,
    Challenge,
    Message,
    Open,
    Proof,
    Purpose,
    Welcome,
    versions,
)

MAX_IN_FLIGHT = 16
"""Handshakes in flight at the same time; the cluster limits them for each address."""


def mutated_handshake(chance: random.Random) -> bytes:
    """Returns some messages of a handshake, with some bytes changed, left out or doubled."""
    purpose = Purpose(PEER, "worker", chance.randrange(4), chance.randrange(3), f"host {chance.randrange(3)}")
    messages: list[Message] = [
        Open(purpose, os.urandom(32)),
        Challenge(os.urandom(32)),
        Proof(os.urandom(32), versions()),
        Welcome(os.urandom(32)),
    ]
    data = bytearray(b"".join(encode(chance.choice(messages)) for _ in range(chance.randint(1, 3))))
    for _ in range(chance.randrange(8)):
        at = chance.randrange(len(data))
        match chance.randrange(3):
            case 0:
                data[at] = chance.randrange(256)
            case 1:
                del data[at : at + chance.randint(1, 8)]
            case 2:
                data[at:at] = data[at : at + chance.randint(1, 8)]
        if not data:
            return b""
    return bytes(data)


def main() -> None:
    """Sends the handshakes, and prints how many of them were welcomed."""
    where, count = address(sys.argv[1]), int(sys.argv[2])
    chance = random.Random(0)
    welcomed = 0
    in_flight: list[socket.socket] = []
    for n in range(count):
        sock = socket.create_connection(where, timeout=10)
        with contextlib.suppress(OSError):
            sock.sendall(mutated_handshake(chance))
            sock.shutdown(socket.SHUT_WR)
        in_flight.append(sock)
        while len(in_flight) > (MAX_IN_FLIGHT if n < count - 1 else 0):
            received = b""
            with contextlib.suppress(OSError), in_flight.pop(0) as oldest:
                while data := oldest.recv(4096):
                    received += data
            welcomed += b"Welcome" in received
    print(f"{count} handshakes, {welcomed} welcomed")


if __name__ == "__main__":
    main()
