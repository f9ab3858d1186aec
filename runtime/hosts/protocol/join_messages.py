"""Messages between the controller and machines that join it, which start workers."""

from __future__ import annotations

import msgspec

from pathways.runtime.hosts.protocol.frames import decoded
from pathways.runtime.hosts.protocol.messages import Handshake, Message

JOIN = "join"
"""Channel of a machine that joins; the host of its `Purpose` is the number that it requests."""

ANY_HOST = -1


class WorkerConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Configuration of a worker.

    Attributes:
      controller: where the controller listens: the path of a socket, or address and port.
      secret: the secret of the cluster, in hexadecimal digits.
      epoch: how often workers were started before: distinguishes workers of the same number.
      rank: the index of the host in its island.
      size: number of hosts of the island.
      heartbeat: seconds after which a silent peer is lost.
      grace: seconds that its island may take to finish after SIGTERM.
      ports: the first and the last port that it may listen on; None for any.
      cores: number of cores that it has for itself; None for all, shared with other processes.
      first_core: the position of its first core among the cores that it may use; set by the launcher.
      platform: the JAX platform of its devices.
      machine: the name of its machine; None if machines have no names.
      snapshot_folder: see `HostOptions`.
      snapshot_rate: see `HostOptions`.
      owner: the process that has started the cluster, see `snapshots.run_names`.
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
    snapshot_folder: str | None = None
    snapshot_rate: float | None = None
    owner: str = ""

    def __str__(self) -> str:
        return f"host {self.host}" if self.machine is None else f"host {self.host} ({self.machine})"

    def to_json(self) -> str:
        """Returns the configuration as one line of JSON."""
        return msgspec.json.encode(self).decode()

    @classmethod
    def from_json(cls, line: str) -> WorkerConfig:
        """Parses a configuration that `to_json` wrote."""
        return msgspec.json.decode(line, type=cls)


class StartWorker(Message, frozen=True):
    """Command to start a worker; `config` lacks the secret, which both sides know."""

    config: WorkerConfig


class KillWorker(Message, frozen=True):
    """Command to kill the worker at once."""


class Dismissed(Message, frozen=True):
    """Notice that the machine is not needed any more, with an `error` if it was refused."""

    error: str | None


class WorkerStarted(Message, frozen=True):
    """Process id of the started worker; None with an error if it could not be started."""

    pid: int | None
    error: str = ""


class WorkerEnded(Message, frozen=True):
    """Notice of how the worker exited, with its last lines of standard error."""

    status: str
    lines: tuple[str, ...]


ToJoined = Handshake | StartWorker | KillWorker | Dismissed
FromJoined = Handshake | WorkerStarted | WorkerEnded

_to_joined: msgspec.msgpack.Decoder[ToJoined] = msgspec.msgpack.Decoder(ToJoined)
_from_joined: msgspec.msgpack.Decoder[FromJoined] = msgspec.msgpack.Decoder(FromJoined)


def decode_for_joined(body: bytes | bytearray) -> ToJoined:
    """Decodes a message to a joined machine.

    Raises:
      MessageError: the bytes are not such a message.
    """
    return decoded(_to_joined, body)


def decode_from_joined(body: bytes | bytearray) -> FromJoined:
    """Decodes a message of a joined machine.

    Raises:
      MessageError: the bytes are not such a message.
    """
    return decoded(_from_joined, body)
