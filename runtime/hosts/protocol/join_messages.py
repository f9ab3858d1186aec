"""What the controller and those who join it say to each other: they start workers where they are."""

from __future__ import annotations

import msgspec

from pathways.runtime.hosts.protocol.frames import decoded
from pathways.runtime.hosts.protocol.messages import Handshake, Message

JOIN = "join"
"""The connection of one who joins; the host of its `Purpose` is the number that it asks for."""

ANY_HOST = -1


class WorkerConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Configuration of a worker.

    Attributes:
      controller: where the controller listens: the path of a socket, or address and port.
      secret: what all workers of the cluster know, in hexadecimal digits.
      host: its number.
      epoch: how often workers were started before: tells it from an earlier worker of the same number.
      rank: its place among the hosts of its island.
      size: how many hosts its island has.
      cpu_devices: how many CPU devices it has.
      heartbeat: seconds that another worker may say nothing.
      grace: seconds that its island may take to end when a worker of it was asked to.
      ports: the first and the last port that it may listen on; None for any.
      cores: how many cores it has for itself; None for any, together with others.
      first_core: the position of the first of them among those that it may use; its launcher knows.
      platform: the JAX platform of its devices.
      machine: the name of the machine where it is to run; None where none is named.
    """

    controller: str | tuple[str, int]
    secret: str
    host: int
    epoch: int
    rank: int
    size: int
    cpu_devices: int
    heartbeat: float
    grace: float
    ports: tuple[int, int] | None = None
    cores: int | None = None
    first_core: int = 0
    platform: str = "cpu"
    machine: str | None = None

    def __str__(self) -> str:
        return f"host {self.host}" if self.machine is None else f"host {self.host} ({self.machine})"

    def to_json(self) -> str:
        """One line of JSON."""
        return msgspec.json.encode(self).decode()

    @classmethod
    def from_json(cls, line: str) -> WorkerConfig:
        """The reverse of `to_json`."""
        return msgspec.json.decode(line, type=cls)


class StartWorker(Message, frozen=True):
    """Starts a worker; `config` is without the secret, which both sides know."""

    config: WorkerConfig


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
