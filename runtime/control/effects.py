"""What the core of a cluster wants to be done, in the order in which it says so."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from pathways.runtime.control.held_failures import HeldFailure
from pathways.runtime.control.records.errors import Failure
from pathways.runtime.control.records.events import GangKey
from pathways.runtime.control.sharing.scheduler_events import SchedulerEffect


@dataclasses.dataclass(frozen=True, slots=True)
class Log:
    """Tells the user; `level` is one of `logging`."""

    level: int
    text: str


@dataclasses.dataclass(frozen=True, slots=True)
class PingGang:
    """Asks the hosts of a gang whether they live; any word of theirs is an answer."""

    gang: GangKey
    number: int


@dataclasses.dataclass(frozen=True, slots=True)
class RequestReports:
    """Asks hosts what they are at; `request` is the number that their answers carry."""

    request: int
    hosts: tuple[int, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class RequestExit:
    """Tells the hosts of a gang that their processes may end."""

    gang: GangKey


@dataclasses.dataclass(frozen=True, slots=True)
class Disconnect:
    """Ends the connections to a gang, and has all who wait look again: it is lost, or closed."""

    gang: GangKey


@dataclasses.dataclass(frozen=True, slots=True)
class WakeWaiters:
    """Has all look again who wait for steps: some are errors though their hosts are not done."""


@dataclasses.dataclass(frozen=True, slots=True)
class StepFailed:
    """Wakes all who wait for a step, and notifies its client: it failed on a host."""

    failure: HeldFailure


@dataclasses.dataclass(frozen=True, slots=True)
class TerminateGang:
    """Ends the processes of a gang, and tells all others that it is lost; answered by `GangTerminated`.

    Attributes:
      gang: the gang.
      cancelled: for each host the programs and numbers of the steps that it shares with the gang, and of
        which it may keep something for it.
    """

    gang: GangKey
    cancelled: Mapping[int, tuple[tuple[int, int], ...]]


@dataclasses.dataclass(frozen=True, slots=True)
class RestartGang:
    """Starts workers in the place of a gang that is buried; answered by `GangStarted` or `GangStartFailed`.

    Attributes:
      gang: the gang.
      seconds: how long they may take until they are heard of.
    """

    gang: GangKey
    seconds: float


@dataclasses.dataclass(frozen=True, slots=True)
class AttachGang:
    """From now on this gang is that of its island."""

    gang: GangKey


@dataclasses.dataclass(frozen=True, slots=True)
class GangLeaving:
    """Tells all clients: workers take nothing new any more."""

    gang: GangKey
    why: Failure


@dataclasses.dataclass(frozen=True, slots=True)
class GangLost:
    """Tells all clients: workers are gone; `is_dead` says whether none take their place."""

    gang: GangKey
    why: Failure
    is_dead: bool


@dataclasses.dataclass(frozen=True, slots=True)
class GangReturned:
    """Tells all clients: these workers have taken the place of those of their island."""

    gang: GangKey


ClientEffect = GangLeaving | GangLost | GangReturned
"""What clients are told of islands, and their own cores with it."""

Effect = (
    Log
    | PingGang
    | RequestReports
    | RequestExit
    | Disconnect
    | WakeWaiters
    | StepFailed
    | TerminateGang
    | RestartGang
    | AttachGang
    | ClientEffect
    | SchedulerEffect
)
