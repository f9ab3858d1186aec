"""Phases of training that goes on by itself."""

from __future__ import annotations

import dataclasses

from pathways.runtime.resilience.effects import RestoreState
from pathways.runtime.resilience.records import VersionKey


@dataclasses.dataclass(frozen=True, slots=True)
class StepsRunning:
    """Steps are issued."""


@dataclasses.dataclass(frozen=True, slots=True)
class StepsHeld:
    """No step is issued until the version of this boundary is committed.

    Attributes:
      key: the version.
      is_first: whether it is the state that the run begins with, which need not be restored.
    """

    key: VersionKey
    is_first: bool


@dataclasses.dataclass(frozen=True, slots=True)
class WaitingForIslands:
    """Islands are lost, and steps wait for them.

    Attributes:
      retry_at: the time before which nothing is restored.
    """

    retry_at: float


@dataclasses.dataclass(frozen=True, slots=True)
class RestoringState:
    """Hosts restore a version.

    Attributes:
      restore: what they were sent.
      pending: the hosts that have not answered.
    """

    restore: RestoreState
    pending: frozenset[int]


@dataclasses.dataclass(frozen=True, slots=True)
class RunAbandoned:
    """Final phase of a run that cannot be restored.

    Attributes:
      why: the error.
    """

    why: str


@dataclasses.dataclass(frozen=True, slots=True)
class RunOver:
    """Final phase of a run that was ended."""


Phase = StepsRunning | StepsHeld | WaitingForIslands | RestoringState | RunAbandoned | RunOver
