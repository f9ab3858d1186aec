"""Effects of the core of resilience: what its shell is to do, in the order in which the core returns them."""

from __future__ import annotations

import dataclasses

from pathways.runtime.control.effects import Log
from pathways.runtime.resilience.records import BlockCopy, BlockLoad, VersionKey


@dataclasses.dataclass(frozen=True, slots=True)
class TakeSnapshot:
    """Keeps the state of this boundary until its copies are made; answered by `SnapshotStarted` at once."""

    key: VersionKey


@dataclasses.dataclass(frozen=True, slots=True)
class MakeCopies:
    """Makes copies of a version in the memory of hosts; answered by `CopyCompleted` or `CopyFailed` for each.

    Attributes:
      key: the version.
      copies: the copies. One to the memory of its own host is of the state on its devices, as of
        `TakeSnapshot`; one to another host is of the source's memory, once that is complete.
    """

    key: VersionKey
    copies: tuple[BlockCopy, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class CommitVersion:
    """Records on all hosts that a version is committed."""

    key: VersionKey
    hosts: tuple[int, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class KeepVersions:
    """Has hosts free the memory of all versions but these, and cancel the copies of others."""

    hosts: tuple[int, ...]
    keys: tuple[VersionKey, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class HoldSteps:
    """Issues no step until `ResumeSteps`; metrics of the steps in flight are still read."""


@dataclasses.dataclass(frozen=True, slots=True)
class RestoreState:
    """Drops the state and the steps in flight, rewinds the source, and restores a version.

    Answered by `HostRestored` of each host, or `RestoreFailed`.

    Attributes:
      attempt: a number that no earlier one has; answers carry it.
      step: the step before which the state was.
      key: the version in memory; None for that of this step on disk, of which each host reads what it needs.
      replicas: the replicas that run from now on.
      hosts: the hosts that answer.
      loads: what each reads from where.
    """

    attempt: int
    step: int
    key: VersionKey | None
    replicas: tuple[int, ...]
    hosts: tuple[int, ...]
    loads: tuple[BlockLoad, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class ResumeSteps:
    """Issues steps from this one on."""

    attempt: int
    step: int
    replicas: tuple[int, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class PrepareReplicas:
    """Loads the step for these replicas while others run; answered by `ReplicasPrepared`."""

    replicas: tuple[int, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class ReleaseIsland:
    """Frees all arrays of an island that leaves: it is not needed any more."""

    island: int


@dataclasses.dataclass(frozen=True, slots=True)
class SaveToDisk:
    """Saves a committed version from the memory of hosts.

    Answered by `DiskSaveCompleted` or `DiskSaveFailed`.
    """

    key: VersionKey


@dataclasses.dataclass(frozen=True, slots=True)
class AbandonRun:
    """Raises an error to the user: nothing can be restored."""

    why: str


ResilienceEffect = (
    Log
    | TakeSnapshot
    | MakeCopies
    | CommitVersion
    | KeepVersions
    | HoldSteps
    | RestoreState
    | ResumeSteps
    | PrepareReplicas
    | ReleaseIsland
    | SaveToDisk
    | AbandonRun
)
