"""What the controller and those who join it say to each other: they start workers where they are."""

from __future__ import annotations

import msgspec

from pathways.runtime.hosts.protocol.frames import decoded
from pathways.runtime.hosts.protocol.messages import Handshake, Message

JOIN = "join"
"""The connection of one who joins; the host of its `Purpose` is the number that it asks for."""

ANY_HOST = -1


class StartWorker(Message, frozen=True):
    """Starts a worker; `config` is a `WorkerConfig` without the secret, which both sides know."""

    config: str


class KillWorker(Message, frozen=True):
    """Ends the worker at once."""


class Dismissed(Message, frozen=True):
    """No worker is wanted any more; `error` says why, where something is wrong."""

    error: str | None


class WorkerStarted(Message, frozen=True):
    """The worker runs in a process with this number; None where it does not, and why."""

    pid: int | None
    error: str = ""


class WorkerEnded(Message, frozen=True):
    """The worker has ended: how, and what it wrote to standard error last."""

    how: str
    lines: tuple[str, ...]


ToJoined = Handshake | StartWorker | KillWorker | Dismissed
FromJoined = Handshake | WorkerStarted | WorkerEnded

_to_joined: msgspec.msgpack.Decoder[ToJoined] = msgspec.msgpack.Decoder(ToJoined)
_from_joined: msgspec.msgpack.Decoder[FromJoined] = msgspec.msgpack.Decoder(FromJoined)


def decode_for_joined(body: bytes | bytearray) -> ToJoined:
    """Reads a message to one who has joined.

    Raises:
      MessageError: it is none.
    """
    return decoded(_to_joined, body)


def decode_from_joined(body: bytes | bytearray) -> FromJoined:
    """Reads a message of one who has joined.

    Raises:
      MessageError: it is none.
    """
    return decoded(_from_joined, body)
