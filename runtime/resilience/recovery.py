"""Plan of a recovery: the version to restore, and the replicas that run then."""

from __future__ import annotations

import dataclasses

from pathways.runtime.resilience.disk_saves import DiskSaves
from pathways.runtime.resilience.islands import TrainingIslands
from pathways.runtime.resilience.versions import StateVersion, VersionTable


@dataclasses.dataclass(frozen=True)
class Recovery:
    """Version to restore and replicas to run.

    Attributes:
      version: the version in the memory of hosts; None for one on disk.
      step: the step of the version.
    """

    version: StateVersion | None
    step: int
    replicas: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Unrecoverable:
    """Loss that the run cannot recover from, with the reason."""

    why: str


def plan_recovery(
    table: VersionTable, islands: TrainingIslands, disk: DiskSaves, now: float
) -> Recovery | Unrecoverable | None:
    """Returns the version that a run resumes from; None while it waits for islands or copies."""
    # Blocks of absent hosts count, too: waiting for the newest version repeats fewer steps than restoring
    # an older version that is complete now.
    hosts = islands.hosts_that_return()
    version = table.newest_whole(hosts)
    if version is None and table.may_be_whole(hosts):
        # The host will report the copy, or is lost.
        return None
    if version is None and disk.last is None:
        # The first save to disk may be in flight.
        return None if table.saving is not None else Unrecoverable(disk.why_unrecoverable(table, hosts))
    replicas = islands.choose_replicas(now)
    if replicas is None:
        reason = islands.why_hopeless()
        return None if reason is None else Unrecoverable(reason)
    if disk.last is not None and (version is None or version.key.step < disk.last):
        return Recovery(None, disk.last, replicas)
    assert version is not None
    # Absent hosts with the missing blocks will return.
    return None if version.missing_at(islands.hosts) else Recovery(version, version.key.step, replicas)
