"""Events of the core of a cluster: plain data, so that a history can be recorded and replayed."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple


class GangKey(NamedTuple):
    """Key of the workers of an island, which differs from the keys of the workers before them.

    Attributes:
      start: how often its workers were started before.
    """

    island: int
    start: int

    def host_name(self, host: int) -> str:
        """Returns the name of a host in messages."""
        return f"host {host} (island{self.island})"


@dataclasses.dataclass(frozen=True, slots=True)
class LeaveRequested:
    """Report that the process of a host received a signal to exit."""

    gang: GangKey
    host: int


@dataclasses.dataclass(frozen=True, slots=True)
class HostLost:
    """Loss of a host, or end of its use.

    Attributes:
      gang: the workers of its island.
      host: its number.
      why: the evidence.
      is_cut: whether its process may be well, and only the network does not reach it.
      is_crash: whether its process has crashed by itself, see `launcher.is_crash`.
      is_charged: whether a program is charged with it: its island was well.
    """

    gang: GangKey
    host: int
    why: str
    is_cut: bool = False
    is_crash: bool = False
    is_charged: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class DrainRequested:
    """Request that an island is left: it accepts steps until its clients have moved to others.

    Attributes:
      gang: the workers of the island.
      why: the reason, as the end of a sentence.
      seconds: the time after which it leaves, whatever is there.
      stays_out: whether it has no workers afterwards, until `ReturnRequested`.
      movers: the numbers of the clients that have something there.
      host: the host that received a signal to exit; None if none did.
    """

    gang: GangKey
    why: str
    seconds: float
    stays_out: bool
    movers: frozenset[int] = frozenset()
    host: int | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class ReturnRequested:
    """Request that an island that stays out has workers again."""

    gang: GangKey


@dataclasses.dataclass(frozen=True, slots=True)
class GangDrained:
    """Notice that a draining island has no step or array that a client needs, or that its time is over.

    The core creates it itself.

    Attributes:
      gang: the workers of the island.
      unfinished: the end of a sentence about its unfinished steps and arrays; empty without any.
    """

    gang: GangKey
    unfinished: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class ExitOverdue:
    """Notice that processes that were to exit have not; the core creates it itself."""

    gang: GangKey


@dataclasses.dataclass(frozen=True, slots=True)
class GangTerminated:
    """Notice that lost workers' processes have exited, and others know of it; answers `TerminateGang`."""

    gang: GangKey


@dataclasses.dataclass(frozen=True, slots=True)
class GangStarted:
    """Notice that the workers of an island run again; answers `RestartGang`."""

    gang: GangKey


@dataclasses.dataclass(frozen=True, slots=True)
class GangStartFailed:
    """Notice that the workers of an island could not be restarted; answers `RestartGang`.

    Attributes:
      gang: the gang that they were to replace.
      why: the reason.
      is_final: whether a retry is of no use.
    """

    gang: GangKey
    why: str
    is_final: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class RestartDue:
    """Notice that it is time to retry the restart of an island; the core creates it itself."""

    gang: GangKey


@dataclasses.dataclass(frozen=True, slots=True)
class GangClosed:
    """Notice that this process closes the workers of an island.

    Attributes:
      ending: the end of the sentence `host 0 ...`.
    """

    gang: GangKey
    ending: str


GangEvent = (
    LeaveRequested
    | DrainRequested
    | ReturnRequested
    | HostLost
    | GangDrained
    | ExitOverdue
    | GangTerminated
    | GangStarted
    | GangStartFailed
    | RestartDue
    | GangClosed
)
"""Events that change the state of a gang."""


@dataclasses.dataclass(frozen=True, slots=True)
class PeerUnreachable:
    """Report of a host that it does not reach another one.

    Attributes:
      by: the workers of its island.
      by_host: its number.
      gang: the workers of the other host's island.
      why: the evidence.
    """

    by: GangKey
    by_host: int
    gang: GangKey
    host: int
    why: str


@dataclasses.dataclass(frozen=True, slots=True)
class PeerReached:
    """Report of a host that it reaches another one again; see `PeerUnreachable`."""

    by: GangKey
    by_host: int
    gang: GangKey
    host: int


@dataclasses.dataclass(frozen=True, slots=True)
class InputMissed:
    """Notice that a host of a multi-host island continues a step without a value from another host.

    It precedes the host's `done`. Results that depend on the missing value are wrong, but every host runs the
    launches that the others expect of it.

    Attributes:
      gang: the workers of its island.
      host: its number.
      run: the number of the step.
    """

    gang: GangKey
    host: int
    run: int
    why: str


@dataclasses.dataclass(frozen=True, slots=True)
class ReplyReceived:
    """Reply of a host to a request, or a piece of one.

    Attributes:
      value: the reply, or a `Failure`.
      is_last: whether no other piece follows.
    """

    host: int
    request: int
    value: Any
    is_last: bool = True


@dataclasses.dataclass(frozen=True, slots=True)
class Tick:
    """Passage of time: there is one at least every tenth of a second."""


@dataclasses.dataclass(frozen=True, slots=True)
class LeaveDelayed:
    """Request of the client that an island continues after the signal to leave until `LeaveAllowed`.

    It continues for its grace period at most. Each request is ended by one `LeaveAllowed`.
    """

    gang: GangKey


@dataclasses.dataclass(frozen=True, slots=True)
class LeaveAllowed:
    """End of a request to delay the leaving of an island."""

    gang: GangKey


@dataclasses.dataclass(frozen=True, slots=True)
class HostDisconnected:
    """Report that a host has closed its connections; how its process exited is reported later.

    Attributes:
      gang: the workers of its island.
      host: its number.
    """

    gang: GangKey
    host: int


Event = (
    GangEvent
    | LeaveDelayed
    | LeaveAllowed
    | HostDisconnected
    | PeerUnreachable
    | PeerReached
    | InputMissed
    | ReplyReceived
    | Tick
)
