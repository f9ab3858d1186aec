"""Greets a port of a cluster many times, each time a little wrong: `mutated_greetings.py ADDRESS COUNT`."""

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

AT_ONCE = 16
"""Greetings that are under way at the same time; they are bounded for each address."""


def greeting(chance: random.Random) -> bytes:
    """Some messages of a handshake, with some bytes changed, left out or doubled."""
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
    """See above."""
    where, count = address(sys.argv[1]), int(sys.argv[2])
    chance = random.Random(0)
    welcomed = 0
    under_way: list[socket.socket] = []
    for n in range(count):
        sock = socket.create_connection(where, timeout=10)
        with contextlib.suppress(OSError):
            sock.sendall(greeting(chance))
            sock.shutdown(socket.SHUT_WR)
        under_way.append(sock)
        while len(under_way) > (AT_ONCE if n < count - 1 else 0):
            heard = b""
            with contextlib.suppress(OSError), under_way.pop(0) as oldest:
                while data := oldest.recv(4096):
                    heard += data
            welcomed += b"Welcome" in heard
    print(f"{count} greetings, {welcomed} welcomed")


if __name__ == "__main__":
    main()
