"""Manager of versions in memory: decides when one is due, where it is copied, and when it is committed."""

from __future__ import annotations

import logging
import math
from collections.abc import Collection, Mapping

from pathways.runtime.control.effects import Log
from pathways.runtime.resilience.disk_saves import DiskSaves
from pathways.runtime.resilience.effects import (
    CommitVersion,
    KeepVersions,
    MakeCopies,
    ReleaseIsland,
    ResilienceEffect,
    SaveToDisk,
)
from pathways.runtime.resilience.islands import TrainingIslands
from pathways.runtime.resilience.records import Blocks, RecoveryRules, VersionKey
from pathways.runtime.resilience.versions import StateVersion, VersionTable


class VersionManager:
    """Manager of the versions in the memory of hosts; the core decides about steps.

    Attributes:
      table: the versions.
      disk: the versions on disk.
      metrics_read: the number of steps whose metrics were read.
      committed_at: the time of the last commit; None before the first.
      last_step: the step of the last version that was started or restored.
      copy_again_at: the time to repeat a failed copy; infinite without one.
    """

    def __init__(self, rules: RecoveryRules, islands: TrainingIslands, disk_steps: Collection[int]) -> None:
        self.table = VersionTable()
        self.disk = DiskSaves(rules.disk_every, disk_steps)
        self.metrics_read = 0
        self.committed_at: float | None = None
        self.last_step = 0
        self.copy_again_at = math.inf
        self._last_time = 0.0
        self._rules = rules
        self._islands = islands
        self._was_protected = False

    def is_protected(self) -> bool:
        """Returns whether the last version survives the loss of any one island with its memory."""
        version = self.table.committed
        return version is not None and version.is_doubled(self._islands.hosts, self._islands.topology.hosts)

    def report_protection(self) -> list[ResilienceEffect]:
        """Returns a log if the state has become protected, or has ceased to be."""
        if self._was_protected == self.is_protected():
            return []
        self._was_protected = not self._was_protected
        if self._was_protected:
            return [Log(logging.INFO, "the state has copies on two islands")]
        return [Log(logging.WARNING, "the state is not protected until it has copies on two islands again")]

    def is_due(self, key: VersionKey, now: float) -> bool:
        """Returns whether a version starts at the boundary of its step."""
        if not self.table.has_room() or key in self.table.versions:
            return False
        committed, step = self.table.committed, key.step
        # If blocks of the last version are lost, only a next version protects the state.
        if committed is None or committed.missing_at(self._islands.hosts):
            return True
        if step == self.last_step:
            return False
        if self._rules.every_steps is not None:
            return step - self.last_step >= self._rules.every_steps
        return now - self._last_time >= (self._rules.every_seconds or 0.0)

    def set_last(self, step: int, now: float) -> None:
        """Sets the step of the last version, from which the distance to the next one counts."""
        self.last_step, self._last_time = step, now

    def is_paused(self) -> bool:
        """Returns whether copies pause after a failure."""
        return self.copy_again_at < math.inf

    def copy(self, version: StateVersion) -> list[ResilienceEffect]:
        """Returns the order to make the missing copies of a version."""
        copies = self.table.add_buddies(version, self._islands)
        return [MakeCopies(version.key, copies)] if copies else []

    def protect(self) -> list[ResilienceEffect]:
        """Returns the orders to replace lost copies of all versions."""
        self.copy_again_at = math.inf
        return [effect for version in self.table.versions.values() for effect in self.copy(version)]

    def commit(self, now: float) -> list[ResilienceEffect]:
        """Commits the pending version, if it is complete and the metrics of all steps before it were read."""
        version = self.table.pending
        # A restore skips the steps before its version, and would lose their unread metrics.
        if version is None or version.pending or self.metrics_read < version.key.step:
            return []
        version.is_committed = True
        effects: list[ResilienceEffect] = [CommitVersion(version.key, self._islands.hosts)]
        if self.table.drop_old():
            effects.append(self.keep())
        self.committed_at = now
        if self.disk.is_due(version, self.table):
            self.table.saving = version.key
            effects.append(SaveToDisk(version.key))
        return effects

    def end_save(self, key: VersionKey) -> list[ResilienceEffect]:
        """Notes the end of a save to disk."""
        if self.table.saving == key:
            self.table.saving = None
        return [self.keep()] if self.table.drop_old() else []

    def lose_memory(self, host: int) -> list[ResilienceEffect]:
        """Notes that the memory of a host is lost."""
        pending = self.table.pending
        # The next step already has the state of a pending version, so it cannot be copied again.
        is_dropped = pending is not None and pending.involves((host,)) and self.table.drop_pending()
        for version in self.table.versions.values():
            version.lose_copies((host,))
            version.cancel_copies((host,))
        return [self.keep()] if is_dropped else []

    def return_memory(
        self, hosts: Collection[int], copies: Mapping[int, Mapping[VersionKey, Blocks]] | None
    ) -> None:
        """Notes the blocks in the memory of returned hosts; None if they have not changed."""
        for host in hosts:
            for key, version in self.table.versions.items():
                before = version.copies.get(host, frozenset())
                blocks = before if copies is None else copies.get(host, {}).get(key, frozenset())
                version.set_copies(host, blocks)

    def release_leaving(self, key: VersionKey, now: float) -> list[ResilienceEffect]:
        """Releases the leaving islands once other islands have all blocks of a version."""
        leaving = self._islands.release_leaving(now)
        self.table.cancel_copies(self._islands.topology.hosts_of(frozenset(leaving)))
        names, verb = ", ".join(f"island{island}" for island in leaving), "leave" if leaving[1:] else "leaves"
        text = f"{names} {verb}; {key} was saved at its boundary, 0 steps are run again"
        return [Log(logging.WARNING, text), *map(ReleaseIsland, leaving)]

    def go_back(self, key: VersionKey | None, step: int) -> None:
        """Drops the versions after the restored one, whose key is None if it is on disk."""
        self.table.drop_pending()
        # Steps after the restored version run again and start new versions.
        self.table.drop_after(key)
        self.table.drop_old()
        # Steps before it never run again, whichever controller ran them.
        self.metrics_read = max(self.metrics_read, step)

    def end(self, *, keeps: bool) -> None:
        """Drops all versions, except the last committed one if the run keeps it."""
        last = self.table.committed
        self.table.drop_pending()
        self.table.drop_after(last.key if keeps and last is not None else None)

    def keep(self) -> KeepVersions:
        """Returns the order to drop all versions outside of the table."""
        return KeepVersions(self._islands.hosts, tuple(sorted(self.table.versions)))
