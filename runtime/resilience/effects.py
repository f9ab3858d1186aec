"""Effects of the core of resilience: what its shell is to do, in the order in which the core returns them."""

from __future__ import annotations

import dataclasses

from pathways.runtime.control.effects import Log
from pathways.runtime.resilience.records import BlockCopy, BlockLoad, VersionKey


@dataclasses.dataclass(frozen=True, slots=True)
class TakeSnapshot:
    """Order to keep the state of this boundary until it is copied; answered by `SnapshotStarted` at once."""

    key: VersionKey


@dataclasses.dataclass(frozen=True, slots=True)
class MakeCopies:
    """Order to copy a version to the memory of hosts; each is answered by `CopyCompleted` or `CopyFailed`.

    Attributes:
      key: the version.
      copies: the copies. One to the memory of its own host is of the state on its devices, as of
        `TakeSnapshot`; one to another host is of the source's memory, once that is complete.
    """

    key: VersionKey
    copies: tuple[BlockCopy, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class CommitVersion:
    """Order to record on hosts that a version is committed."""

    key: VersionKey
    hosts: tuple[int, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class KeepVersions:
    """Order to free the memory of all other versions on some hosts, and to cancel their copies."""

    hosts: tuple[int, ...]
    keys: tuple[VersionKey, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class HoldSteps:
    """Order to issue no step until `ResumeSteps`; metrics of the steps in flight are still read."""


@dataclasses.dataclass(frozen=True, slots=True)
class RestoreState:
    """Order to drop the state and the steps in flight, rewind the source, and restore a version.

    Answered by `HostRestored` of each host, or `RestoreFailed`.

    Attributes:
      attempt: a number that no earlier one has; answers carry it.
      step: the step before which the state was.
      key: the version in memory; None for that of this step on disk, where each host reads what it needs.
      replicas: the replicas that run from now on.
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
    """Order to issue steps from this one on."""

    attempt: int
    step: int
    replicas: tuple[int, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class PrepareReplicas:
    """Order to load the step for these replicas beside the running one; answered by `ReplicasPrepared`."""

    replicas: tuple[int, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class ReleaseIsland:
    """Order to free all arrays of an island that leaves, and to let its workers end: nothing needs them.

    It counts as lost from here on, and `WorkersReturned` says when it has new workers.
    """

    island: int


@dataclasses.dataclass(frozen=True, slots=True)
class SaveToDisk:
    """Order to save a committed version from the memory of hosts.

    Answered by `DiskSaveCompleted` or `DiskSaveFailed`.
    """

    key: VersionKey


@dataclasses.dataclass(frozen=True, slots=True)
class AbandonRun:
    """Error for the user: nothing can be restored."""

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
