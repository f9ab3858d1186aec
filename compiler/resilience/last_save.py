"""Save of the last committed version when a run ends, with a message for the user."""

from __future__ import annotations

import dataclasses
from typing import Any

from pathways.compiler.resilience.disk import DiskVersions
from pathways.compiler.resilience.settings import shortened
from pathways.compiler.resilience.store import SnapshotStore
from pathways.runtime.resilience.records import VersionKey


@dataclasses.dataclass(frozen=True)
class CommittedVersion:
    """The last committed version of a run.

    Attributes:
      position: the position of the source before the step.
      store: the store that has the version in memory.
    """

    key: VersionKey
    position: Any
    store: SnapshotStore


def where_unsaved(step: int, committed: CommittedVersion | None) -> str:
    """Returns a message that locates the last state of a run, which could not be saved to disk."""
    text = f"pw.resilient: the state after step {step} is in memory, as run.state of this process"
    if committed is None or not committed.store.outlives:
        return text
    return f"{text}; {committed.key} is in memory of the hosts: the same call resumes from it"


def save_committed(
    given_steps: int, disk: DiskVersions | None, committed: CommittedVersion | None
) -> tuple[str, bool]:
    """Saves the last committed version to disk when a run ends by an error.

    Args:
      given: how many steps were given to the user.
      disk: the versions on disk; None without a folder.

    Returns:
      A message for the user, and whether memory has the only copy of the version, which must then stay.
    """
    stopped = f"pw.resilient: stopped after step {given_steps}"
    if disk is None:
        return f"{stopped}; without directory= nothing of the run is kept", False
    step = -1 if committed is None else committed.key.step
    latest = -1
    try:
        disk.wait()
        latest = max(disk.steps(), default=-1)
        if committed is not None and step > latest:
            disk.save(step, committed.store.version(committed.key), committed.position)
            latest = step
    except Exception as error:
        reason = shortened(f"{type(error).__name__}: {error}".partition("\n")[0])
        if committed is not None and committed.store.outlives:
            return f"{stopped}; version {step} is in memory: the same call resumes from it ({reason})", True
        # For example, an island was lost or left, and did not return.
        stopped += f"; saving has failed ({reason})"
    if latest < 0:
        return f"{stopped}, before a version was saved", False
    return f"{stopped}; version {latest} is in {disk.folder}: the same call resumes from it", False
