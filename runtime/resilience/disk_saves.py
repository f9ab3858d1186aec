"""Versions on disk: chooses the committed versions that are saved, and knows which can be read."""

from __future__ import annotations

from collections.abc import Collection

from pathways.runtime.resilience.versions import StateVersion, VersionTable


class DiskSaves:
    """Versions on disk; chooses the committed version that is saved next.

    Args:
      every: the number of committed versions per saved version; None without a disk.

    Attributes:
      steps: the steps of the versions on disk.
    """

    def __init__(self, every: int | None, steps: Collection[int]) -> None:
        self.steps = {*steps}
        self._every = every
        self._commits_since_save = 0
        # The error of the last save; None if it succeeded.
        self._problem: str | None = None

    @property
    def last(self) -> int | None:
        """The step of the last version on disk; None where there is none."""
        return max(self.steps, default=None)

    def is_due(self, version: StateVersion, table: VersionTable) -> bool:
        """Counts a committed version, and returns whether to save it."""
        self._commits_since_save += 1
        if self._every is None or table.saving is not None or version.key.step == self.last:
            return False
        if self._commits_since_save >= self._every:
            self._commits_since_save = 0
        elif self.steps:
            # Without a version on disk, a loss of all memory would end the run.
            return False
        return True

    def complete(self, step: int) -> None:
        """Notes that a version was saved."""
        self.steps.add(step)
        self._problem = None

    def fail(self, reason: str) -> None:
        """Notes that a save failed."""
        self._problem = reason

    def why_unrecoverable(self, table: VersionTable, hosts: Collection[int]) -> str:
        """Returns the error message for a state with lost blocks and no version on disk.

        Args:
          hosts: the hosts whose memory counts.
        """
        version = table.committed
        text, advice = "the state was lost before its first copies were complete", "run again, or "
        if version is not None:
            text, advice = f"of {version.key}, no host has {version.name_missing(hosts)} any more", ""
        if self._every is None:
            more = "" if advice else " when so many islands are lost at once"
            return f"{text}; {advice}pass directory= to resume from a folder{more}"
        reason = "" if self._problem is None else f" ({self._problem})"
        return f"{text}, and none of its versions is on disk{reason}; run again"
