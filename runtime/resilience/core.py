"""State machine of training that recovers from losses: decides when to copy state and what to restore.

Steps run (`StepsRunning`) until one of their islands is lost. The core then waits for the island
(`WaitingForIslands`), unless fewer replicas may run without it, restores the last committed version
(`RestoringState`), and steps resume from there. When an island leaves or joins, nothing is lost: steps are
held at a boundary until the version of that boundary is committed (`StepsHeld`), so that no step runs twice.
The first version is committed in the same way, before the first step. A leaving island is released when other
islands have all its blocks. `RunAbandoned` and `RunOver` are final.

All state is in the core and in `VersionManager`, `TrainingIslands` and `LossLogs`, which it owns. `handle`
takes an event and the time, and returns effects, in order; it does not wait, send or read a clock. Late
events, such as the completion of a dropped copy, change nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping

from pathways.runtime.control.effects import Log
from pathways.runtime.resilience.effects import (
    AbandonRun,
    HoldSteps,
    MakeCopies,
    ResilienceEffect,
    RestoreState,
    ResumeSteps,
    TakeSnapshot,
)
from pathways.runtime.resilience.events import (
    BoundaryReached,
    CopyCompleted,
    CopyFailed,
    DiskSaveCompleted,
    DiskSaveFailed,
    HostRestored,
    IslandAbandoned,
    IslandsUsed,
    MemoryLost,
    MetricsRead,
    RecoveryTick,
    ReplicasPrepared,
    ResilienceEvent,
    RestoreFailed,
    RunEnded,
    SnapshotStarted,
    StateInvalidated,
    WorkersLeaving,
    WorkersLost,
    WorkersReturned,
)
from pathways.runtime.resilience.islands import TrainingIslands
from pathways.runtime.resilience.loss_logs import LossLogs
from pathways.runtime.resilience.phases import (
    Phase,
    RestoringState,
    RunAbandoned,
    RunOver,
    StepsHeld,
    StepsRunning,
    WaitingForIslands,
)
from pathways.runtime.resilience.records import RecoveryRules, ReplicaTopology, StoredVersion, VersionKey
from pathways.runtime.resilience.recovery import Recovery, Unrecoverable, plan_recovery
from pathways.runtime.resilience.version_manager import VersionManager
from pathways.runtime.resilience.versions import StateVersion

RETRY_SECONDS = 1.0
"""Seconds from a failed copy, or a failed restore of complete copies, to the next attempt."""


class ResilienceCore:
    """Decides when state is copied, and which version is restored after a loss.

    Args:
      topology: hosts and replicas.
      rules: rules for copies of the state, and for running with fewer replicas.
      stored: the versions that an earlier controller left in the memory of hosts.

    Attributes:
      attempt: the number of times that steps were resumed; events of earlier attempts change nothing.
      table: the versions in the memory of hosts.
      islands: the islands and the state of their workers.
      versions: the manager of the versions in memory and on disk.
      losses: the number of losses so far.
    """

    def __init__(
        self,
        topology: ReplicaTopology,
        rules: RecoveryRules,
        stored: Mapping[VersionKey, StoredVersion] | None = None,
        disk_steps: Collection[int] = (),
    ) -> None:
        self.phase: Phase = WaitingForIslands(0.0)
        self.attempt = 0
        self.replicas = tuple(range(len(topology.replicas)))
        self.islands = TrainingIslands(topology, rules)
        self.versions = VersionManager(rules, self.islands, disk_steps)
        self.table = self.versions.table
        self.losses = 0
        self._logs = LossLogs()
        self._issued = 0
        for key, version in (stored or {}).items():
            # Dropped versions count, too: hosts may still have them, so their names stay taken.
            self.attempt = max(self.attempt, key.attempt)
            if version.is_committed:
                # Records in the memory of hosts do not name devices, so the topology has the placements.
                self.table.add_stored(key, version, topology.holdings(version.replicas, key))

    @property
    def is_protected(self) -> bool:
        """Whether steps run, and the last version survives the loss of any one island with its memory."""
        return isinstance(self.phase, StepsRunning) and self.versions.is_protected()

    def start(self, now: float) -> list[ResilienceEffect]:
        """Starts the run from the latest version in memory or on disk, otherwise from the caller's state."""
        self.versions.set_last(0, now)
        effects: list[ResilienceEffect] = [*self.table.drop_broken(self.islands.hosts), self.versions.keep()]
        if self.table.committed is None and self.versions.disk.last is None:
            return [*effects, HoldSteps(), *self._hold_first()]
        # Losses before the start do not belong to this run.
        return [*effects, HoldSteps(), *self._go_on(now)]

    def handle(self, event: ResilienceEvent, now: float) -> list[ResilienceEffect]:
        """Handles an event; returns the effects, in order."""
        if isinstance(self.phase, RunAbandoned | RunOver):
            return []
        effects = self._handle(event, now)
        if not effects and isinstance(event, BoundaryReached | MetricsRead | RecoveryTick):
            # The most frequent events; they change no copies.
            return effects
        is_running = isinstance(self.phase, StepsRunning)
        return [*effects, *self.versions.report_protection()] if is_running else effects

    def _handle(self, event: ResilienceEvent, now: float) -> list[ResilienceEffect]:
        match event:
            case BoundaryReached():
                return self._reach_boundary(event, now)
            case SnapshotStarted():
                return self._start_copies(event, now)
            case CopyCompleted(number):
                version = self.table.of_copy(number)
                if version is None:
                    return []
                version.complete(number)
                return self._go_on(now) if isinstance(self.phase, WaitingForIslands) else self._commit(now)
            case CopyFailed():
                return self._fail_copy(event, now)
            case MetricsRead(count):
                self.versions.metrics_read = max(self.versions.metrics_read, count)
                return self._commit(now)
            case IslandsUsed(islands):
                self.islands.use(islands)
                return self._go_on(now) if isinstance(self.phase, WaitingForIslands) else []
            case WorkersLost():
                return self._lose_workers(event, now)
            case MemoryLost(host):
                return self._lose_memory(host, now)
            case WorkersReturned():
                return self._return(event, now)
            case WorkersLeaving(island):
                # A step may be in progress, so steps are held at the next boundary or tick.
                self.islands.leave(island)
                return []
            case StateInvalidated(why):
                if not isinstance(self.phase, StepsRunning | StepsHeld):
                    # Any recovery restores a version.
                    return []
                self._logs.causes.append(why)
                return [HoldSteps(), *self._recover(now)]
            case IslandAbandoned(island):
                self.islands.abandon(island)
                return self._remove(island, now)
            case HostRestored():
                return self._finish_restore(event, now)
            case RestoreFailed():
                return self._fail_restore(event, now)
            case DiskSaveCompleted(key):
                self.versions.disk.complete(key.step)
                return self._end_save(key, now)
            case DiskSaveFailed(key, why):
                self.versions.disk.fail(why)
                self._logs.delay(f"{key} was not saved to disk: {why}; the next one is tried", now)
                return self._end_save(key, now)
            case ReplicasPrepared(replicas):
                self.islands.set_prepared(replicas)
                return []
            case RecoveryTick():
                logs = self._logs.take_delayed(now)
                if isinstance(self.phase, WaitingForIslands):
                    return [*logs, *self._go_on(now)]
                is_due = now >= self.versions.copy_again_at
                return [*logs, *(self.versions.protect() if is_due else self._hold_for_leaving(now))]
            case RunEnded(keeps):
                self.phase = RunOver()
                self.versions.end(keeps=keeps)
                return [*self._logs.take_delayed(), self.versions.keep()]

    # Versions.

    def _reach_boundary(self, boundary: BoundaryReached, now: float) -> list[ResilienceEffect]:
        if boundary.attempt != self.attempt or not isinstance(self.phase, StepsRunning):
            return []
        self._issued = boundary.step
        key = VersionKey(boundary.step, self.attempt)
        if held := self._hold_for_leaving(now):
            return held
        # A copy failed, and the next one may fail like it.
        can_hold = self.table.has_room() and not self.versions.is_paused()
        if can_hold and self.islands.grows(self.replicas):
            return self._hold(key, now)
        if not self.versions.is_due(key, now):
            return []
        self.versions.set_last(boundary.step, now)
        return [TakeSnapshot(key)]

    def _hold_for_leaving(self, now: float) -> list[ResilienceEffect]:
        """Holds the steps at the present boundary if an island leaves, unless that has to wait."""
        # A copy failed, and the next one may fail like it.
        if not (self.islands.leaving and isinstance(self.phase, StepsRunning)) or self.versions.is_paused():
            return []
        # A restored state has a version at this boundary already.
        if (version := self.table.last_of_step(self._issued)) is not None:
            # If its blocks are lost or its arrays have moved since, the next boundary starts another version.
            used = self.islands.topology.hosts_of(self.islands.topology.islands(self.replicas))
            has_moved = not {*version.holdings} <= {*used}
            is_lost = has_moved or (version.is_committed and version.missing_at(self.islands.hosts))
            return [] if is_lost else self._hold(version.key, now)
        if self._issued == self.versions.last_step:
            # A version of this boundary was dropped, and must not start again.
            return []
        # A leaving island has little time: the version of this boundary replaces a pending version,
        # and a version whose save to disk is in flight, instead of waiting for them.
        self.table.drop_pending()
        self.table.saving = None
        self.table.drop_old()
        return [self.versions.keep(), *self._hold(VersionKey(self._issued, self.attempt), now)]

    def _hold(self, key: VersionKey, now: float) -> list[ResilienceEffect]:
        """Holds the steps until a version is committed; islands change after that."""
        self.phase = StepsHeld(key, is_first=False)
        version = self.table.versions.get(key)
        if version is None:
            self.versions.set_last(key.step, now)
            return [HoldSteps(), TakeSnapshot(key)]
        if version.is_committed:
            return [HoldSteps(), *self._end_hold(now)]
        # The copies of a pending version may be on leaving islands.
        return [HoldSteps(), *self.versions.copy(version)]

    def _hold_first(self) -> list[ResilienceEffect]:
        """Holds the steps until the first state is copied."""
        # A new key: replies about a dropped first version must not count for this one.
        self.attempt += 1
        key = VersionKey(0, self.attempt)
        self.phase = StepsHeld(key, is_first=True)
        return [TakeSnapshot(key)]

    def _start_copies(self, started: SnapshotStarted, now: float) -> list[ResilienceEffect]:
        if started.key.attempt != self.attempt or self.table.pending is not None:
            return []
        copies = self.table.start(started.key, started.holdings, self.replicas, self.islands)
        # Without copies, the shell itself has the whole state.
        return [MakeCopies(started.key, copies)] if copies else self._commit(now)

    def _commit(self, now: float) -> list[ResilienceEffect]:
        """Commits the pending version if it is complete, and ends a hold that waits for it."""
        effects = self.versions.commit(now)
        is_over = self.table.pending is None and self._is_hold_committed()
        return [*effects, *self._end_hold(now)] if is_over else effects

    def _is_hold_committed(self) -> bool:
        """Returns whether steps are held for a version that is now committed."""
        held = self.table.versions.get(self.phase.key) if isinstance(self.phase, StepsHeld) else None
        return held is not None and held.is_committed

    def _end_hold(self, now: float) -> list[ResilienceEffect]:
        """Resumes from the version of the hold, once leaving islands may be released."""
        assert isinstance(self.phase, StepsHeld)
        key = self.phase.key
        if self.phase.is_first:
            return [self._resume(key.step), *self._hold_for_leaving(now)]
        effects: list[ResilienceEffect] = []
        if self.islands.leaving:
            version = self.table.versions[key]
            # Copies that no other island could take are not made.
            if (copies := self.versions.copy(version)) or version.pending:
                return copies
            if version.missing_at(self.islands.hosts):
                # Its memory was lost meanwhile; the next boundary starts another version.
                return [self._resume(key.step)]
            effects += self.versions.release_leaving(key, now)
        used = self.islands.topology.islands(self.replicas)
        if used <= self.islands.present and not self.islands.grows(self.replicas):
            # The joining replica was lost again, or no step uses the island that left.
            return [*effects, self._resume(key.step), *self.versions.protect()]
        return [*effects, *self._go_on(now)]

    def _fail_copy(self, failed: CopyFailed, now: float) -> list[ResilienceEffect]:
        version = self.table.of_copy(failed.number)
        if version is None:
            return []
        is_orphan = failed.number in version.orphans
        copy = version.end_copy(failed.number)
        if isinstance(self.phase, WaitingForIslands):
            return self._go_on(now)
        # The loss of the host is the cause, so the next copy needs no pause.
        if is_orphan:
            return self.versions.protect()
        text = f"host {copy.source} cannot copy {version.key} to host {copy.target}: {failed.why}"
        self.versions.copy_again_at = now + RETRY_SECONDS
        if version.is_committed:
            self._logs.delay(text, now)
            return []
        self.table.drop_pending()
        effects: list[ResilienceEffect] = [self.versions.keep()]
        if isinstance(self.phase, StepsHeld):
            if self.phase.is_first:
                return [*effects, *self._abandon(f"the state cannot be protected: {text}")]
            effects.append(self._resume(self.phase.key.step))
        self._logs.delay(f"{text}; it is tried again at a later step", now)
        return effects

    def _end_save(self, key: VersionKey, now: float) -> list[ResilienceEffect]:
        effects = self.versions.end_save(key)
        return [*effects, *self._go_on(now)] if isinstance(self.phase, WaitingForIslands) else effects

    # Losses.

    def _lose_workers(self, lost: WorkersLost, now: float) -> list[ResilienceEffect]:
        self.losses += lost.island in self.islands.present
        self._logs.causes.append(f"island{lost.island} is lost ({lost.why})")
        effects = self._remove(lost.island, now)
        logs = self._logs.take_delayed()
        if any(isinstance(effect, RestoreState) for effect in effects):
            return [*effects, *logs]
        if isinstance(self.phase, WaitingForIslands):
            return [Log(logging.WARNING, f"{self._logs.causes[-1]}; steps wait"), *logs, *effects]
        return [Log(logging.WARNING, self._logs.causes.pop()), *logs, *effects]

    def _remove(self, island: int, now: float) -> list[ResilienceEffect]:
        """Notes the loss of an island's workers; starts a recovery if steps need them."""
        if island not in self.islands.present:
            return self._go_on(now) if isinstance(self.phase, WaitingForIslands) else []
        self.table.cancel_copies(self.islands.lose(island, now))
        if isinstance(self.phase, WaitingForIslands):
            return self._go_on(now)
        used = self.islands.topology.islands(self.replicas)
        if isinstance(self.phase, RestoringState):
            used = self.phase.islands(self.islands.topology)
        if island not in used:
            # Reassigns its copies to another island. The pending version may be complete without the copies
            # that became orphans.
            return [*self.versions.protect(), *self._commit(now)]
        return [HoldSteps(), *self._recover(now)]

    def _lose_memory(self, host: int, now: float) -> list[ResilienceEffect]:
        effects = self.versions.lose_memory(host)
        # No version is pending in a restore or a wait for islands, so `effects` is empty there.
        match self.phase:
            case RestoringState(restore) if any(load.source == host for load in restore.loads):
                return self._recover(now)
            case WaitingForIslands():
                return self._go_on(now)
            case StepsHeld(key, is_first) if key not in self.table.versions:
                # Before the first step the state can be copied again. Otherwise the next boundary holds steps
                # again, for the same reason.
                if is_first:
                    return [*effects, *self._hold_first()]
                return [*effects, self._resume(key.step)]
            case _:
                return [*effects, *self.versions.protect(), *self._commit(now)]

    def _return(self, returned: WorkersReturned, now: float) -> list[ResilienceEffect]:
        self.versions.return_memory(
            self.islands.topology.hosts_of(frozenset((returned.island,))), returned.copies
        )
        self.islands.add(returned.island)
        effects: list[ResilienceEffect] = [self.versions.keep()]
        if isinstance(self.phase, WaitingForIslands):
            return [*effects, *self._go_on(now)]
        return [*effects, *self.islands.prepare_larger(self.replicas, now), *self.versions.protect()]

    def _recover(self, now: float, retry_at: float = 0.0) -> list[ResilienceEffect]:
        """Discards uncommitted versions and resumes from the last committed one."""
        self.table.drop_pending()
        self.phase = WaitingForIslands(retry_at)
        return self._go_on(now)

    def _go_on(self, now: float) -> list[ResilienceEffect]:
        """Restores a version, waits for islands, or gives up."""
        if isinstance(self.phase, WaitingForIslands) and now < self.phase.retry_at:
            return []
        # At a boundary where replicas change, the phase is `StepsHeld`, see `_end_hold`.
        retry_at = self.phase.retry_at if isinstance(self.phase, WaitingForIslands) else 0.0
        self.phase = WaitingForIslands(retry_at)
        match plan_recovery(self.table, self.islands, self.versions.disk, now):
            case Unrecoverable(why):
                return self._abandon(why)
            case Recovery(version, step, replicas):
                return self._restore(version, step, replicas)
        return []

    def _restore(
        self, version: StateVersion | None, step: int, replicas: tuple[int, ...]
    ) -> list[ResilienceEffect]:
        self.attempt += 1
        again = max(0, self._issued - step)
        self.versions.go_back(None if version is None else version.key, step)
        topology, key = self.islands.topology, None if version is None else version.key
        loads = () if version is None else version.plan_restore(replicas, self.islands.hosts, topology)
        hosts = topology.hosts_of(topology.islands(replicas))
        restore = RestoreState(self.attempt, step, key, replicas, hosts, loads)
        self.phase = RestoringState(restore, frozenset(hosts))
        every = len(topology.replicas)
        named = f", with {len(replicas)} of {every} replicas" if every > 1 else ""
        log = self._logs.report_restore(step, "disk" if version is None else "memory", again, named)
        return [log, self.versions.keep(), restore]

    def _finish_restore(self, restored: HostRestored, now: float) -> list[ResilienceEffect]:
        phase = self.phase
        if not isinstance(phase, RestoringState) or restored.attempt != self.attempt:
            return []
        pending = phase.pending - {restored.host}
        if pending:
            self.phase = RestoringState(phase.restore, pending)
            return []
        restore = phase.restore
        self.replicas = restore.replicas
        self._issued = restore.step
        self.versions.set_last(restore.step, now)
        self.islands.set_prepared(None)
        resume = self._resume(restore.step)
        return [
            resume,
            *self.islands.prepare_larger(self.replicas, now),
            *self.versions.protect(),
            *self._hold_for_leaving(now),
        ]

    def _fail_restore(self, failed: RestoreFailed, now: float) -> list[ResilienceEffect]:
        phase = self.phase
        if not isinstance(phase, RestoringState) or failed.attempt != self.attempt:
            return []
        step = phase.restore.step
        if failed.source is None:
            self.versions.disk.steps.discard(step)
            text = f"version {step} on disk cannot be read: {failed.why}"
            hosts = self.islands.hosts_that_return()
            if not self.versions.disk.steps and self.table.newest_whole(hosts) is None:
                return self._abandon(text)
            return [Log(logging.WARNING, f"{text}; the one before it is used"), *self._recover(now)]
        text = f"host {failed.host} cannot restore version {step} of host {failed.source}: {failed.why}"
        if failed.is_corrupt:
            assert phase.restore.key is not None
            self.table.versions[phase.restore.key].lose_copies((failed.source,))
        # Without the corrupt copy the next plan differs. Otherwise the same plan would fail again at once.
        retry_at = 0.0 if failed.is_corrupt else now + RETRY_SECONDS
        return [Log(logging.WARNING, text), *self._recover(now, retry_at)]

    def _resume(self, step: int) -> ResumeSteps:
        """Resumes steps after a step."""
        self.phase = StepsRunning()
        return ResumeSteps(self.attempt, step, self.replicas)

    def _abandon(self, reason: str) -> list[ResilienceEffect]:
        self.phase = RunAbandoned(reason)
        return [AbandonRun(reason)]
