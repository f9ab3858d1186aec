"""Events of the core of resilience: what its shell has seen."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from pathways.runtime.resilience.records import Blocks, Holdings, VersionKey


@dataclasses.dataclass(frozen=True, slots=True)
class BoundaryReached:
    """All steps before this one were issued, and the state is not given to the next one yet.

    Attributes:
      attempt: the attempt of `ResumeSteps`.
      step: how many steps were issued.
    """

    attempt: int
    step: int


@dataclasses.dataclass(frozen=True, slots=True)
class SnapshotStarted:
    """The state of `TakeSnapshot` is at hand; `holdings` says which host has what of it."""

    key: VersionKey
    holdings: Holdings


@dataclasses.dataclass(frozen=True, slots=True)
class CopyCompleted:
    """A copy of `MakeCopies` is complete, and stays when the workers of its host are lost.

    Each copy that is not dropped is answered, unless the workers of its target are lost, which report what
    they have when they return.
    """

    number: int


@dataclasses.dataclass(frozen=True, slots=True)
class CopyFailed:
    """A copy of `MakeCopies` cannot be made."""

    number: int
    why: str


@dataclasses.dataclass(frozen=True, slots=True)
class MetricsRead:
    """The metrics of the first `count` steps were read, and need never be computed again."""

    count: int


@dataclasses.dataclass(frozen=True, slots=True)
class IslandsUsed:
    """Steps need these islands and no others, of a program without replicas; until this, all are needed.

    Comes before the loss of an island that it leaves out. An island that is added may be absent: steps that
    need it wait for it, and lose nothing.
    """

    islands: frozenset[int]


@dataclasses.dataclass(frozen=True, slots=True)
class WorkersLost:
    """The workers of an island are lost with the arrays of their devices; the memory of its hosts stays."""

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
      copies: the blocks of versions that its hosts have in their memory; None where that is as it was known.
    """

    island: int
    copies: Mapping[int, Mapping[VersionKey, Blocks]] | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class WorkersLeaving:
    """The workers of an island got a request to end; until `ReleaseIsland` they go on, for a limited time."""

    island: int


@dataclasses.dataclass(frozen=True, slots=True)
class IslandAbandoned:
    """An island will have no workers again."""

    island: int


@dataclasses.dataclass(frozen=True, slots=True)
class HostRestored:
    """A host has all that it was to restore."""

    attempt: int
    host: int


@dataclasses.dataclass(frozen=True, slots=True)
class RestoreFailed:
    """A host cannot restore what it was to.

    Attributes:
      attempt: the attempt of `RestoreState`.
      source: the host whose copy it was; None for a version on disk.
      why: what is wrong.
      is_corrupt: whether the copy cannot be read by any host.
    """

    attempt: int
    host: int
    source: int | None
    why: str
    is_corrupt: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class StateInvalidated:
    """The state, or metrics of it, cannot be used any more, although no island is lost.

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
    """Passage of time; sent a few times a second."""


@dataclasses.dataclass(frozen=True, slots=True)
class RunEnded:
    """No more steps follow; `keeps` says whether the last version is to stay in memory."""

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
