"""Effects of the core of resilience, which its shell carries out in order."""

from __future__ import annotations

import dataclasses

from pathways.runtime.control.effects import Log
from pathways.runtime.resilience.records import BlockCopy, BlockLoad, VersionKey


@dataclasses.dataclass(frozen=True, slots=True)
class TakeSnapshot:
    """Order to hold the state of this boundary until it is copied; `SnapshotStarted` follows at once."""

    key: VersionKey


@dataclasses.dataclass(frozen=True, slots=True)
class MakeCopies:
    """Order to copy a version to the memory of hosts; each copy ends with `CopyCompleted` or `CopyFailed`.

    Attributes:
      key: the version.
      copies: the copies. A copy to the host's own memory reads the state of `TakeSnapshot` on its devices; a
        copy to another host reads the source's memory, once the blocks are there.
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
    """Order to issue no steps until `ResumeSteps`; metrics of the steps in flight are still read."""


@dataclasses.dataclass(frozen=True, slots=True)
class RestoreState:
    """Order to drop the state and the steps in flight, rewind the source, and restore a version.

    Each host replies with `HostRestored` or `RestoreFailed`.

    Attributes:
      attempt: a new number, which replies repeat.
      step: the step that follows the state.
      key: the version in memory; None for the version of this step on disk, which all hosts read.
      replicas: the replicas that run from now on.
      loads: the blocks that each host reads, and their sources.
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
    """Order to load the step for these replicas beside the running one; `ReplicasPrepared` follows."""

    replicas: tuple[int, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class ReleaseIsland:
    """Order to free all arrays of a leaving island, and to let its workers exit.

    The island counts as lost until `WorkersReturned`.
    """

    island: int


@dataclasses.dataclass(frozen=True, slots=True)
class SaveToDisk:
    """Order to save a committed version from the memory of hosts.

    `DiskSaveCompleted` or `DiskSaveFailed` follows.
    """

    key: VersionKey


@dataclasses.dataclass(frozen=True, slots=True)
class AbandonRun:
    """Error for the user: no version can be restored."""

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
