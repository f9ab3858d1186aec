"""Recovery of a run after a loss: which version is restored, for which replicas."""

from __future__ import annotations

import dataclasses

from pathways.runtime.resilience.disk_saves import DiskSaves
from pathways.runtime.resilience.islands import TrainingIslands
from pathways.runtime.resilience.versions import StateVersion, VersionTable


@dataclasses.dataclass(frozen=True)
class Recovery:
    """Version to restore, and the replicas that run then.

    Attributes:
      version: the version in the memory of hosts; None for one on disk.
      step: the step of the version.
    """

    version: StateVersion | None
    step: int
    replicas: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Unrecoverable:
    """Loss from which the run cannot be restored, and why."""

    why: str


def plan_recovery(
    table: VersionTable, islands: TrainingIslands, disk: DiskSaves, now: float
) -> Recovery | Unrecoverable | None:
    """Returns from which version a run resumes; None while islands or copies are waited for."""
    # Counts what absent hosts have, too: waiting for the newest version repeats fewer steps than an older
    # one that is whole now.
    hosts = islands.hosts_that_return()
    version = table.newest_whole(hosts)
    if version is None and table.may_be_whole(hosts):
        # A host will say whether it has it, or is lost.
        return None
    if version is None and disk.last is None:
        # The first version may be on its way to disk.
        return None if table.saving is not None else Unrecoverable(disk.why_unrecoverable(table, hosts))
    replicas = islands.choose_replicas(now)
    if replicas is None:
        why = islands.why_hopeless()
        return None if why is None else Unrecoverable(why)
    if disk.last is not None and (version is None or version.key.step < disk.last):
        return Recovery(None, disk.last, replicas)
    assert version is not None
    # Hosts that have it will return.
    return None if version.missing_at(islands.hosts) else Recovery(version, version.key.step, replicas)
