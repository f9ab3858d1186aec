"""Events of the core of resilience, which its shell reports."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from pathways.runtime.resilience.records import Blocks, Holdings, VersionKey


@dataclasses.dataclass(frozen=True, slots=True)
class BoundaryReached:
    """All steps before this one were issued, and no later step has the state yet.

    Attributes:
      attempt: the attempt of `ResumeSteps`.
      step: the number of issued steps.
    """

    attempt: int
    step: int


@dataclasses.dataclass(frozen=True, slots=True)
class SnapshotStarted:
    """The snapshot was taken; `holdings` maps each host to its blocks."""

    key: VersionKey
    holdings: Holdings


@dataclasses.dataclass(frozen=True, slots=True)
class CopyCompleted:
    """A copy of `MakeCopies` is complete, and survives the workers of its host.

    Each copy ends with an event, unless it is dropped or the workers of its target are lost; new workers
    report their blocks when they return.
    """

    number: int


@dataclasses.dataclass(frozen=True, slots=True)
class CopyFailed:
    """A copy of `MakeCopies` failed."""

    number: int
    why: str


@dataclasses.dataclass(frozen=True, slots=True)
class MetricsRead:
    """The metrics of the first `count` steps were read, and are never computed again."""

    count: int


@dataclasses.dataclass(frozen=True, slots=True)
class IslandsUsed:
    """Steps of a program without replicas need these islands alone; until this event, they need all.

    It precedes the loss of an island that it leaves out. An added island may be absent: steps wait for it,
    and nothing is lost.
    """

    islands: frozenset[int]


@dataclasses.dataclass(frozen=True, slots=True)
class WorkersLost:
    """The workers of an island and the arrays of their devices are lost; the memory of its hosts stays."""

    island: int
    why: str


@dataclasses.dataclass(frozen=True, slots=True)
class MemoryLost:
    """The copies in the memory of a host are lost."""

    host: int


@dataclasses.dataclass(frozen=True, slots=True)
class WorkersReturned:
    """An island has new workers, which have no arrays.

    Attributes:
      copies: the blocks of versions in the memory of its hosts; None if they have not changed.
    """

    island: int
    copies: Mapping[int, Mapping[VersionKey, Blocks]] | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class WorkersLeaving:
    """The workers of an island have to exit; until `ReleaseIsland` they run on, for a limited time."""

    island: int


@dataclasses.dataclass(frozen=True, slots=True)
class IslandAbandoned:
    """An island gets no workers again."""

    island: int


@dataclasses.dataclass(frozen=True, slots=True)
class HostRestored:
    """A host has restored its blocks."""

    attempt: int
    host: int


@dataclasses.dataclass(frozen=True, slots=True)
class RestoreFailed:
    """A host cannot restore its blocks.

    Attributes:
      attempt: the attempt of `RestoreState`.
      source: the host with the copy; None for a version on disk.
      why: the reason.
      is_corrupt: whether no host can read the copy.
    """

    attempt: int
    host: int
    source: int | None
    why: str
    is_corrupt: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class StateInvalidated:
    """The state or its metrics cannot be used any more, although no island is lost.

    Attributes:
      why: the reason.
    """

    why: str


@dataclasses.dataclass(frozen=True, slots=True)
class DiskSaveCompleted:
    """A version is on disk."""

    key: VersionKey


@dataclasses.dataclass(frozen=True, slots=True)
class DiskSaveFailed:
    """A version could not be saved to disk."""

    key: VersionKey
    why: str


@dataclasses.dataclass(frozen=True, slots=True)
class ReplicasPrepared:
    """The step for these replicas is loaded."""

    replicas: tuple[int, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class RecoveryTick:
    """Time has passed; sent a few times a second."""


@dataclasses.dataclass(frozen=True, slots=True)
class RunEnded:
    """No more steps follow; with `keeps`, the last version stays in memory."""

    keeps: bool


ResilienceEvent = (
    BoundaryReached
    | SnapshotStarted
    | CopyCompleted
    | CopyFailed
    | MetricsRead
    | IslandsUsed
    | WorkersLost
    | MemoryLost
    | WorkersReturned
    | WorkersLeaving
    | StateInvalidated
    | IslandAbandoned
    | HostRestored
    | RestoreFailed
    | DiskSaveCompleted
    | DiskSaveFailed
    | ReplicasPrepared
    | RecoveryTick
    | RunEnded
)
