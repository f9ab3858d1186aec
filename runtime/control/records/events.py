"""What a shell tells the core of a cluster: plain data, so that a history can be kept and told again."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple


class GangKey(NamedTuple):
    """Tells the workers of an island from those that were there before.

    Attributes:
      island: the number of the island.
      start: how often its workers were started before.
    """

    island: int
    start: int


@dataclasses.dataclass(frozen=True, slots=True)
class LeaveRequested:
    """The process of a host was asked to end, and says so."""

    gang: GangKey
    host: int


@dataclasses.dataclass(frozen=True, slots=True)
class HostLost:
    """A host is gone, or of no use any more.

    Attributes:
      gang: the workers of which it is one.
      host: its number.
      why: how that was seen.
      is_cut: whether its process may be well, and it is the network that does not reach it.
    """

    gang: GangKey
    host: int
    why: str
    is_cut: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class GangDrained:
    """An island that is to end has nothing left that anybody waits for or holds, or has had its time.

    The core says so itself.

    Attributes:
      gang: the workers of the island.
      unfinished: what it was not done with, as the end of a sentence; nothing when there is nothing.
    """

    gang: GangKey
    unfinished: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class ExitOverdue:
    """Processes that were told to end have not; the core says so itself."""

    gang: GangKey


@dataclasses.dataclass(frozen=True, slots=True)
class GangTerminated:
    """The processes of lost workers have ended, and others know of it: the answer to `TerminateGang`."""

    gang: GangKey


@dataclasses.dataclass(frozen=True, slots=True)
class GangStarted:
    """The workers of an island run again: an answer to `RestartGang`."""

    gang: GangKey


@dataclasses.dataclass(frozen=True, slots=True)
class GangStartFailed:
    """The workers of an island were not started again: the other answer to `RestartGang`.

    Attributes:
      gang: the gang whose place they were to take.
      why: why not.
      is_final: whether it is of no use to try again.
    """

    gang: GangKey
    why: str
    is_final: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class RestartDue:
    """It is time to try again to start the workers of an island; the core says so itself."""

    gang: GangKey


@dataclasses.dataclass(frozen=True, slots=True)
class GangClosed:
    """This process lets go of the workers of an island; `how` completes the sentence `host 0 ...`."""

    gang: GangKey
    how: str


GangEvent = (
    LeaveRequested
    | HostLost
    | GangDrained
    | ExitOverdue
    | GangTerminated
    | GangStarted
    | GangStartFailed
    | RestartDue
    | GangClosed
)
"""What changes the state of a gang."""


@dataclasses.dataclass(frozen=True, slots=True)
class PeerUnreachable:
    """A host says that it does not reach another one.

    Attributes:
      by: the workers of which it is one.
      by_host: its number.
      gang: the workers of which the other is one.
      host: the other host.
      why: how that was seen.
    """

    by: GangKey
    by_host: int
    gang: GangKey
    host: int
    why: str


@dataclasses.dataclass(frozen=True, slots=True)
class PeerReached:
    """A host says that it reaches another one again; see `PeerUnreachable`."""

    by: GangKey
    by_host: int
    gang: GangKey
    host: int


@dataclasses.dataclass(frozen=True, slots=True)
class InputMissed:
    """A host of an island of several goes on with a step without something that another one was to send.

    It is said before the host is done with the step. What is made of nothing goes to all that depends on it:
    none of that is what it should be, but every host does what the others expect of it.

    Attributes:
      gang: the workers of which it is one.
      host: its number.
      run: that of the step.
      why: why it did not come.
    """

    gang: GangKey
    host: int
    run: int
    why: str


@dataclasses.dataclass(frozen=True, slots=True)
class ReplyReceived:
    """A host has answered a request, or a piece of the answer has come.

    Attributes:
      host: the host.
      request: the number of the request.
      value: what it says, or a `Failure`.
      is_last: whether no other piece follows.
    """

    host: int
    request: int
    value: Any
    is_last: bool = True


@dataclasses.dataclass(frozen=True, slots=True)
class Tick:
    """Some time has gone by: at least every tenth of a second there is one."""


@dataclasses.dataclass(frozen=True, slots=True)
class HostDisconnected:
    """Report that a host has closed its connections; how its process exited is reported later.

    Attributes:
      gang: the workers of which it is one.
      host: its number.
    """

    gang: GangKey
    host: int


Event = GangEvent | HostDisconnected | PeerUnreachable | PeerReached | InputMissed | ReplyReceived | Tick
