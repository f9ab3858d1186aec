"""Effects of the core of a cluster, which its shell carries out in the returned order."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from pathways.runtime.control.held_failures import HeldFailure
from pathways.runtime.control.records.errors import Failure
from pathways.runtime.control.records.events import GangKey


class Effect:
    """Base class of effects."""

    __slots__ = ()


@dataclasses.dataclass(frozen=True, slots=True)
class Log(Effect):
    """Log line for the user; `level` is one of `logging`."""

    level: int
    text: str


@dataclasses.dataclass(frozen=True, slots=True)
class PingGang(Effect):
    """Ping to the hosts of a gang; any message of theirs is a reply."""

    gang: GangKey
    number: int


@dataclasses.dataclass(frozen=True, slots=True)
class RequestReports(Effect):
    """Requests for the state of hosts; `request` is the number that their replies carry."""

    request: int
    hosts: tuple[int, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class RequestExit(Effect):
    """Permission to the processes of a gang to exit."""

    gang: GangKey


@dataclasses.dataclass(frozen=True, slots=True)
class Disconnect(Effect):
    """End of the connections to a gang that is lost or closed; all waiting threads check again."""

    gang: GangKey


@dataclasses.dataclass(frozen=True, slots=True)
class WakeWaiters(Effect):
    """Wake-up of all waiting threads: some steps are errors though their hosts are not done."""


@dataclasses.dataclass(frozen=True, slots=True)
class StepFailed(Effect):
    """Wake-up of the threads that wait for a step, and notice to its client: the step failed on a host."""

    failure: HeldFailure


@dataclasses.dataclass(frozen=True, slots=True)
class TerminateGang(Effect):
    """Termination of the processes of a gang, and notice to all other hosts; answered by `GangTerminated`.

    Attributes:
      cancelled: by host, the programs and numbers of the steps that it shares with the gang, for which it may
        keep values for the gang.
    """

    gang: GangKey
    cancelled: Mapping[int, tuple[tuple[int, int], ...]]


@dataclasses.dataclass(frozen=True, slots=True)
class RestartGang(Effect):
    """Start of workers instead of a terminated gang; answered by `GangStarted` or `GangStartFailed`.

    Attributes:
      seconds: how long they may take until they connect.
    """

    gang: GangKey
    seconds: float


@dataclasses.dataclass(frozen=True, slots=True)
class AttachGang(Effect):
    """Attachment of new workers: from now on this gang is the one of its island, which may be new, too."""

    gang: GangKey


@dataclasses.dataclass(frozen=True, slots=True)
class GangDraining(Effect):
    """Notice to all clients: workers will leave, and accept steps until clients have moved to others."""

    gang: GangKey
    why: Failure


@dataclasses.dataclass(frozen=True, slots=True)
class GangLeaving(Effect):
    """Notice to all clients: workers accept nothing new any more."""

    gang: GangKey
    why: Failure


@dataclasses.dataclass(frozen=True, slots=True)
class GangLost(Effect):
    """Notice to all clients: workers are lost.

    Attributes:
      is_dead: whether no other workers replace them.
      is_out: whether other workers replace them only if a user requests it.
    """

    gang: GangKey
    why: Failure
    is_dead: bool
    is_out: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class GangReturned(Effect):
    """Notice to all clients that new workers have replaced the earlier workers of their island."""

    gang: GangKey


@dataclasses.dataclass(frozen=True, slots=True)
class GangJoined(Effect):
    """Notice to all clients: these workers are an island that has joined the cluster.

    Attributes:
      hosts: their numbers.
    """

    gang: GangKey
    hosts: tuple[int, ...]


ClientEffect = GangDraining | GangLeaving | GangLost | GangReturned | GangJoined
"""Notices to clients about islands, which their own cores handle, too."""
