"""Core of training that goes on by itself: when state is copied, and what is restored after a loss.

Steps run (`StepsRunning`) until an island of theirs is lost. Then the core waits for it
(`WaitingForIslands`), unless the others may go on without, has the last committed version restored
(`RestoringState`), and steps run again from there. Where an island leaves, or is back as another replica,
nothing is lost: steps are held at a boundary until the version of that boundary is committed (`StepsHeld`),
so that none is run twice; the first version is committed in the same way before the first step. An island
that leaves is released when others have all that it has; one that is lost before is lost like any other.
`RunAbandoned` and `RunOver` are final.

All state is here and in `VersionTable`. `handle` takes what was seen and the time, and returns what is to be
done, in this order; nothing here waits, sends or reads a clock. Events that come too late, such as the
completion of a copy that was dropped, change nothing.
"""

from __future__ import annotations

import dataclasses
import logging
import math
from collections.abc import Collection, Mapping, Sequence

from pathways.runtime.control.effects import Log
from pathways.runtime.resilience.effects import (
    AbandonRun,
    CommitVersion,
    HoldSteps,
    KeepVersions,
    MakeCopies,
    PrepareReplicas,
    ReleaseIsland,
    ResilienceEffect,
    RestoreState,
    ResumeSteps,
    SaveToDisk,
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
from pathways.runtime.resilience.phases import (
    Phase,
    RestoringState,
    RunAbandoned,
    RunOver,
    StepsHeld,
    StepsRunning,
    WaitingForIslands,
)
from pathways.runtime.resilience.placement import place_buddy_copies, place_own_copies, plan_loads
from pathways.runtime.resilience.records import (
    BlockCopy,
    BlockLoad,
    RecoveryPolicy,
    ReplicaTopology,
    StoredVersion,
    VersionKey,
)
from pathways.runtime.resilience.versions import StateVersion, VersionTable

RETRY_SECONDS = 1.0
"""Seconds from a copy, or a restore of whole copies, that failed to the next try."""

_MAX_NAMED = 4
"""Maximum number of blocks that a message names."""


class ResilienceCore:
    """Decides when state is copied, and what is restored after a loss.

    Args:
      topology: hosts and replicas.
      policy: when state is copied, and what may go on without which islands.
      stored: the versions that an earlier controller has left in the memory of hosts.

    Attributes:
      attempt: how often steps were resumed; events of earlier attempts change nothing.
      table: the versions in the memory of hosts.
      present: the islands that have workers.
      losses: how many losses were survived.
      committed_at: when the last version was committed; None before that.
    """

    def __init__(
        self,
        topology: ReplicaTopology,
        policy: RecoveryPolicy,
        stored: Mapping[VersionKey, StoredVersion] | None = None,
        disk_steps: Collection[int] = (),
    ) -> None:
        self.phase: Phase = WaitingForIslands(0.0)
        self.attempt = 0
        self.replicas = tuple(range(len(topology.replicas)))
        self.table = VersionTable()
        self.present = frozenset(place.island for place in topology.hosts.values())
        self.losses = 0
        self.committed_at: float | None = None
        self._topology = topology
        self._policy = policy
        self._disk_steps = {*disk_steps}
        # Why the last save to disk has failed; None after one that has not.
        self._disk_problem: str | None = None
        self._absent_since: dict[int, float] = {}
        self._dead: set[int] = set()
        self._leaving: set[int] = set()
        self._prepared: tuple[int, ...] | None = None
        self._metrics_read = 0
        self._issued = 0
        self._last_step = 0
        self._last_time = 0.0
        self._commits_since_save = 0
        self._was_protected = False
        self._copy_again_at = math.inf
        # The losses that the next recovery is for.
        self._causes: list[str] = []
        # What could not be copied or saved: a loss that is noticed later explains it, and is logged before.
        self._delayed_logs: list[Log] = []
        self._log_at = math.inf
        for key, found in (stored or {}).items():
            # Of versions that are dropped, too: no new one may have the name of one that hosts still have.
            self.attempt = max(self.attempt, key.attempt)
            if found.is_committed:
                version = StateVersion(key, found.blocks, found.replicas)
                version.copies = dict(found.blocks)
                version.is_committed = True
                # The memory of hosts does not say what was on which device.
                version.holdings = topology.holdings(found.replicas, key)
                # Not only the blocks that were found: one that no host has any more must count as missing.
                version.blocks = frozenset().union(*version.holdings.values())
                self.table.versions[key] = version

    @property
    def hosts(self) -> tuple[int, ...]:
        """The hosts that have workers."""
        return self._topology.hosts_of(self.present)

    @property
    def disk_step(self) -> int | None:
        """The step of the last version on disk; None where there is none."""
        return max(self._disk_steps, default=None)

    @property
    def is_protected(self) -> bool:
        """Whether steps run, and the loss of any one island with its memory leaves the last version whole."""
        version = self.table.committed
        return (
            isinstance(self.phase, StepsRunning)
            and version is not None
            and version.is_doubled(self.hosts, self._topology.hosts)
        )

    def start(self, now: float) -> list[ResilienceEffect]:
        """Begins: goes on from the later of memory and disk, or with the state that the caller has."""
        self._last_time = now
        effects: list[ResilienceEffect] = [*self._drop_broken(), self._kept()]
        if self.table.committed is None and self.disk_step is None:
            return [*effects, HoldSteps(), *self._hold_first()]
        # What happened before was no loss of this run.
        return [*effects, HoldSteps(), *self._go_on(now)]

    def _drop_broken(self) -> list[ResilienceEffect]:
        """Drops versions of an earlier controller that have blocks which no host has."""
        broken = {
            key: missing
            for key, version in self.table.versions.items()
            if (missing := _missing(version, self.hosts))
        }
        for key in broken:
            del self.table.versions[key]
        whole = self.table.committed
        # Of what is older than the version that is used, hosts that were lost may have left a part.
        return [
            Log(logging.WARNING, f"{key} in memory is not used: no host has {missing}")
            for key, missing in broken.items()
            if whole is None or key > whole.key
        ]

    def handle(self, event: ResilienceEvent, now: float) -> list[ResilienceEffect]:
        """Takes note of what was seen, and returns what is to be done, in this order."""
        if isinstance(self.phase, RunAbandoned | RunOver):
            return []
        effects = self._handle(event, now)
        if not effects and isinstance(event, BoundaryReached | MetricsRead | RecoveryTick):
            # The many events of steps: no copy is made or lost.
            return effects
        return [*effects, *self._report_protection()]

    def _report_protection(self) -> list[ResilienceEffect]:
        if not isinstance(self.phase, StepsRunning) or self._was_protected == self.is_protected:
            return []
        self._was_protected = self.is_protected
        if self._was_protected:
            return [Log(logging.INFO, "the state has copies on two islands")]
        return [Log(logging.WARNING, "the state is not protected until it has copies on two islands again")]

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
                self._metrics_read = max(self._metrics_read, count)
                return self._commit(now)
            case IslandsUsed(islands):
                # No replica is left out: the shell knows the islands of replicas.
                assert len(self._topology.replicas) == 1
                self._topology = dataclasses.replace(self._topology, replicas=(islands,))
                return self._go_on(now) if isinstance(self.phase, WaitingForIslands) else []
            case WorkersLost():
                return self._lose_workers(event, now)
            case MemoryLost(host):
                return self._lose_memory((host,), now)
            case WorkersReturned():
                return self._return(event, now)
            case WorkersLeaving(island):
                # Steps are held at the next boundary or tick: this may come in the middle of a step.
                if island in self.present:
                    self._leaving.add(island)
                return []
            case StateInvalidated(why):
                if not isinstance(self.phase, StepsRunning | StepsHeld):
                    # A version is restored in any case.
                    return []
                self._causes.append(why)
                return [HoldSteps(), *self._recover(now)]
            case IslandAbandoned(island):
                self._dead.add(island)
                return self._remove(island, now)
            case HostRestored():
                return self._finish_restore(event, now)
            case RestoreFailed():
                return self._fail_restore(event, now)
            case DiskSaveCompleted(key):
                self._disk_steps.add(key.step)
                self._disk_problem = None
                return self._end_save(key, now)
            case DiskSaveFailed(key, why):
                self._disk_problem = why
                self._log_later(f"{key} was not saved to disk: {why}; the next one is tried", now)
                return self._end_save(key, now)
            case ReplicasPrepared(replicas):
                self._prepared = replicas
                return []
            case RecoveryTick():
                logs = self._take_delayed_logs() if now >= self._log_at else []
                if isinstance(self.phase, WaitingForIslands):
                    return [*logs, *self._go_on(now)]
                is_due = now >= self._copy_again_at
                return [*logs, *(self._protect() if is_due else self._hold_for_leaving(now))]
            case RunEnded(keeps):
                self.phase = RunOver()
                last = self.table.committed
                self.table.drop_pending()
                self.table.drop_after(last.key if keeps and last is not None else None)
                return [*self._take_delayed_logs(), self._kept()]

    # Versions.

    def _reach_boundary(self, boundary: BoundaryReached, now: float) -> list[ResilienceEffect]:
        if boundary.attempt != self.attempt or not isinstance(self.phase, StepsRunning):
            return []
        self._issued = boundary.step
        key = VersionKey(boundary.step, self.attempt)
        if held := self._hold_for_leaving(now):
            return held
        # After a copy that failed, the next one may, too.
        if self._grows() and self.table.has_room() and self._copy_again_at == math.inf:
            return self._hold(key, now)
        if not self._is_due(key, now):
            return []
        self._last_step, self._last_time = boundary.step, now
        return [TakeSnapshot(key)]

    def _hold_for_leaving(self, now: float) -> list[ResilienceEffect]:
        """Holds the steps at the present boundary if an island leaves; nothing where that has to wait."""
        # After a copy that failed, the next one may, too.
        if not self._leaving or not isinstance(self.phase, StepsRunning) or self._copy_again_at < math.inf:
            return []
        # The state of this boundary has a version if that was restored, too.
        versions = self.table.versions.values()
        present = max((v.key for v in versions if v.key.step == self._issued), default=None)
        if present is not None:
            version = self.table.versions[present]
            # Of one that is lost in part, the next boundary has another one.
            is_lost = version.is_committed and version.missing_at(self.hosts)
            return [] if is_lost else self._hold(present, now)
        if self._issued == self._last_step:
            # It had one that was dropped, and that must not begin again.
            return []
        # An island that leaves has little time: the version of this boundary gets the place of a pending one,
        # and of one that is still being saved to disk, instead of waiting for them.
        self.table.drop_pending()
        self.table.saving = None
        self.table.drop_old()
        return [self._kept(), *self._hold(VersionKey(self._issued, self.attempt), now)]

    def _hold(self, key: VersionKey, now: float) -> list[ResilienceEffect]:
        """Holds the steps until a version is committed, after which islands change."""
        self.phase = StepsHeld(key, is_first=False)
        version = self.table.versions.get(key)
        if version is None:
            self._last_step, self._last_time = key.step, now
            return [HoldSteps(), TakeSnapshot(key)]
        if version.is_committed:
            return [HoldSteps(), *self._end_hold(now)]
        # The copies of a pending version may be on islands that leave.
        return [HoldSteps(), *self._copy(version)]

    def _hold_first(self) -> list[ResilienceEffect]:
        """Has the state copied that the run begins with."""
        # With a key of its own: answers about a first version that was dropped must not count for this one.
        self.attempt += 1
        key = VersionKey(0, self.attempt)
        self.phase = StepsHeld(key, is_first=True)
        return [TakeSnapshot(key)]

    def _is_due(self, key: VersionKey, now: float) -> bool:
        if not self.table.has_room() or key in self.table.versions:
            return False
        committed, step = self.table.committed, key.step
        # Where the last version is lost in part, nothing but the next one helps.
        if committed is None or committed.missing_at(self.hosts):
            return True
        if step == self._last_step:
            return False
        if self._policy.every_steps is not None:
            return step - self._last_step >= self._policy.every_steps
        return now - self._last_time >= (self._policy.every_seconds or 0.0)

    def _start_copies(self, started: SnapshotStarted, now: float) -> list[ResilienceEffect]:
        if started.key.attempt != self.attempt or self.table.pending is not None:
            return []
        version = StateVersion(started.key, started.holdings, self.replicas)
        self.table.versions[started.key] = version
        own = place_own_copies(started.holdings, self._topology.hosts)
        copies = self.table.new_copies({(host, host): blocks for host, blocks in own.items()})
        version.pending = {copy.number: copy for copy in copies}
        if not copies:
            # All of the state is where the shell is.
            return self._commit(now)
        return [MakeCopies(started.key, (*copies, *self._add_buddies(version)))]

    def _copy(self, version: StateVersion) -> list[ResilienceEffect]:
        """Has the copies made that a version lacks."""
        copies = self._add_buddies(version)
        return [MakeCopies(version.key, copies)] if copies else []

    def _add_buddies(self, version: StateVersion) -> tuple[BlockCopy, ...]:
        """Returns the copies that a version lacks, which are pending from now on."""
        hosts = self.hosts
        leaving = self._topology.hosts_of(frozenset(self._leaving))
        transfers = place_buddy_copies(version.planned_at(hosts), hosts, self._topology.hosts, leaving)
        copies = self.table.new_copies(transfers)
        version.pending.update((copy.number, copy) for copy in copies)
        return copies

    def _protect(self) -> list[ResilienceEffect]:
        """Has copies made again that were lost, of all versions."""
        self._copy_again_at = math.inf
        return [effect for version in self.table.versions.values() for effect in self._copy(version)]

    def _commit(self, now: float) -> list[ResilienceEffect]:
        """Commits the version that is not, if it is complete, and nothing before it has to be run again."""
        # A restore skips the steps before its version: metrics of them that were not read would be lost.
        version = self.table.pending
        if version is None:
            return self._end_hold(now) if self._is_hold_committed() else []
        if version.pending or self._metrics_read < version.key.step:
            return []
        version.is_committed = True
        effects: list[ResilienceEffect] = [CommitVersion(version.key, self.hosts)]
        if self.table.drop_old():
            effects.append(self._kept())
        self.committed_at = now
        self._commits_since_save += 1
        effects += self._save(version)
        return [*effects, *self._end_hold(now)] if self._is_hold_committed() else effects

    def _is_hold_committed(self) -> bool:
        """Returns whether steps are held for a version that is committed."""
        if not isinstance(self.phase, StepsHeld):
            return False
        version = self.table.versions.get(self.phase.key)
        return version is not None and version.is_committed

    def _end_hold(self, now: float) -> list[ResilienceEffect]:
        """Goes on from the version that steps were held for, once islands that leave may be released."""
        assert isinstance(self.phase, StepsHeld)
        key = self.phase.key
        if self.phase.is_first:
            self.phase = StepsRunning()
            resume = ResumeSteps(self.attempt, key.step, self.replicas)
            return [resume, *self._hold_for_leaving(now)]
        effects: list[ResilienceEffect] = []
        if self._leaving:
            version = self.table.versions[key]
            # Copies that it lacks where no other island stays are not made.
            if (copies := self._copy(version)) or version.pending:
                return copies
            if version.missing_at(self.hosts):
                # Its memory was lost meanwhile; the next boundary has another version.
                self.phase = StepsRunning()
                return [ResumeSteps(self.attempt, key.step, self.replicas)]
            effects += self._release(key, now)
        if self._topology.islands(self.replicas) <= self.present and not self._grows():
            # What was to join is lost again, or no step runs on what has left.
            self.phase = StepsRunning()
            return [*effects, ResumeSteps(self.attempt, key.step, self.replicas), *self._protect()]
        return [*effects, *self._go_on(now)]

    def _release(self, key: VersionKey, now: float) -> list[ResilienceEffect]:
        """Releases the islands that leave, once a version has all their blocks."""
        leaving = sorted(self._leaving)
        self._leaving.clear()
        self.present -= {*leaving}
        self._absent_since.update(dict.fromkeys(leaving, now))
        for version in self.table.versions.values():
            version.cancel_copies(self._topology.hosts_of(frozenset(leaving)))
        names, verb = ", ".join(f"island{island}" for island in leaving), "leave" if leaving[1:] else "leaves"
        text = f"{names} {verb}; {key} was saved at its boundary, 0 steps are run again"
        return [Log(logging.WARNING, text), *map(ReleaseIsland, leaving)]

    def _fail_copy(self, failed: CopyFailed, now: float) -> list[ResilienceEffect]:
        version = self.table.of_copy(failed.number)
        if version is None:
            return []
        is_orphan = failed.number in version.orphans
        copy = version.end_copy(failed.number)
        if isinstance(self.phase, WaitingForIslands):
            return self._go_on(now)
        # The loss of a host explains the failure, so that another copy needs no pause.
        if is_orphan:
            return self._protect()
        text = f"host {copy.source} cannot copy {version.key} to host {copy.target}: {failed.why}"
        self._copy_again_at = now + RETRY_SECONDS
        if version.is_committed:
            self._log_later(text, now)
            return []
        self.table.drop_pending()
        effects: list[ResilienceEffect] = [self._kept()]
        if isinstance(self.phase, StepsHeld):
            if self.phase.is_first:
                return [*effects, *self._abandon(f"the state cannot be protected: {text}")]
            step = self.phase.key.step
            self.phase = StepsRunning()
            effects.append(ResumeSteps(self.attempt, step, self.replicas))
        self._log_later(f"{text}; it is tried again at a later step", now)
        return effects

    def _log_later(self, text: str, now: float) -> None:
        """Logs a warning once a loss is noticed, or there was time for that."""
        self._delayed_logs.append(Log(logging.WARNING, text))
        self._log_at = min(self._log_at, now + RETRY_SECONDS)

    def _take_delayed_logs(self) -> list[ResilienceEffect]:
        logs, self._delayed_logs, self._log_at = self._delayed_logs, [], math.inf
        return [*logs]

    def _save(self, version: StateVersion) -> list[ResilienceEffect]:
        every = self._policy.disk_every
        if every is None or self.table.saving is not None or version.key.step == self.disk_step:
            return []
        if self._commits_since_save >= every:
            self._commits_since_save = 0
        elif self._disk_steps:
            # Without one on disk, a loss of all memory would end the run.
            return []
        self.table.saving = version.key
        return [SaveToDisk(version.key)]

    def _end_save(self, key: VersionKey, now: float) -> list[ResilienceEffect]:
        if self.table.saving == key:
            self.table.saving = None
        effects: list[ResilienceEffect] = [self._kept()] if self.table.drop_old() else []
        return [*effects, *self._go_on(now)] if isinstance(self.phase, WaitingForIslands) else effects

    def _kept(self) -> KeepVersions:
        return KeepVersions(self.hosts, tuple(sorted(self.table.versions)))

    # Losses.

    def _lose_workers(self, lost: WorkersLost, now: float) -> list[ResilienceEffect]:
        self.losses += lost.island in self.present
        self._causes.append(f"island{lost.island} is lost ({lost.why})")
        effects = self._remove(lost.island, now)
        logs = self._take_delayed_logs()
        if any(isinstance(effect, RestoreState) for effect in effects):
            return [*effects, *logs]
        if isinstance(self.phase, WaitingForIslands):
            return [Log(logging.WARNING, f"{self._causes[-1]}; steps wait"), *logs, *effects]
        return [Log(logging.WARNING, self._causes.pop()), *logs, *effects]

    def _remove(self, island: int, now: float) -> list[ResilienceEffect]:
        """Notes that an island has no workers; begins a recovery where steps need them."""
        if island not in self.present:
            return self._go_on(now) if isinstance(self.phase, WaitingForIslands) else []
        self.present -= {island}
        self._leaving.discard(island)
        self._drop_prepared(island)
        self._absent_since[island] = now
        hosts = self._topology.hosts_of(frozenset((island,)))
        for version in self.table.versions.values():
            version.cancel_copies(hosts)
        if isinstance(self.phase, WaitingForIslands):
            return self._go_on(now)
        used = self._topology.islands(self.replicas)
        if isinstance(self.phase, RestoringState):
            restore = self.phase.restore
            used = self._topology.islands(restore.replicas)
            # Islands on which no replica runs are needed, too, while others read copies from them.
            used |= {self._topology.hosts[load.source].island for load in restore.loads}
            # As are those whose answers are awaited, though it is known by now that no step uses them.
            used |= {self._topology.hosts[host].island for host in self.phase.pending}
        if island not in used:
            # What it was to keep for others, another one keeps. The pending version may be complete without
            # the copies that became orphans.
            return [*self._protect(), *self._commit(now)]
        return [HoldSteps(), *self._recover(now)]

    def _drop_prepared(self, island: int) -> None:
        """Notes that what was loaded on an island is lost."""
        if self._prepared is not None and island in self._topology.islands(self._prepared):
            self._prepared = None

    def _lose_memory(self, hosts: Sequence[int], now: float) -> list[ResilienceEffect]:
        effects: list[ResilienceEffect] = []
        pending = self.table.pending
        if pending is not None and pending.involves(hosts):
            # Its state is given to the next step already, and cannot be copied again.
            self.table.drop_pending()
            effects.append(self._kept())
        for version in self.table.versions.values():
            version.lose_copies(hosts)
            version.cancel_copies(hosts)
        # No version is pending while state is restored or islands are awaited, so `effects` is empty there.
        match self.phase:
            case RestoringState(restore) if any(load.source in hosts for load in restore.loads):
                return self._recover(now)
            case WaitingForIslands():
                return self._go_on(now)
            case StepsHeld(key, is_first) if key not in self.table.versions:
                # No step was issued, and the state can be copied again. Otherwise the next boundary holds
                # steps again, for the reason that is still there.
                if is_first:
                    return [*effects, *self._hold_first()]
                self.phase = StepsRunning()
                return [*effects, ResumeSteps(self.attempt, key.step, self.replicas)]
            case _:
                return [*effects, *self._protect(), *self._commit(now)]

    def _return(self, returned: WorkersReturned, now: float) -> list[ResilienceEffect]:
        island = returned.island
        for host in self._topology.hosts_of(frozenset((island,))):
            for key, version in self.table.versions.items():
                known = version.copies.get(host, frozenset())
                copies = None if returned.copies is None else returned.copies.get(host, {})
                version.set_copies(host, known if copies is None else copies.get(key, frozenset()))
        self.present |= {island}
        self._leaving.discard(island)
        self._absent_since.pop(island, None)
        self._dead.discard(island)
        effects: list[ResilienceEffect] = [self._kept()]
        if isinstance(self.phase, WaitingForIslands):
            return [*effects, *self._go_on(now)]
        larger = self._choose(now)
        if larger is not None and len(larger) > len(self.replicas):
            effects.append(PrepareReplicas(larger))
        return [*effects, *self._protect()]

    def _recover(self, now: float, retry_at: float = 0.0) -> list[ResilienceEffect]:
        """Drops what is not committed, and goes on from what is."""
        self.table.drop_pending()
        self.phase = WaitingForIslands(retry_at)
        return self._go_on(now)

    def _go_on(self, now: float) -> list[ResilienceEffect]:
        """Has a version restored, or waits for islands, or gives up."""
        if isinstance(self.phase, WaitingForIslands) and now < self.phase.retry_at:
            return []
        # The phase is another one at a boundary at which replicas change, see `_end_hold`.
        retry_at = self.phase.retry_at if isinstance(self.phase, WaitingForIslands) else 0.0
        self.phase = WaitingForIslands(retry_at)
        # Counts what absent hosts have, too: waiting for the newest version repeats fewer steps than an older
        # one that is whole now.
        version = self._newest_whole(self._hosts_that_return())
        if version is None and self._may_be_whole():
            # A host will say whether it has it, or is lost.
            return []
        if version is None and self.disk_step is None:
            # The first version may be on its way to disk.
            return [] if self.table.saving is not None else self._abandon(self._nowhere())
        replicas = self._choose(now)
        if replicas is None:
            if self._is_hopeless():
                dead = ", ".join(f"island{island}" for island in sorted(self._dead))
                return self._abandon(f"{dead} will not return, and no smaller number of replicas is allowed")
            return []
        if self.disk_step is not None and (version is None or version.key.step < self.disk_step):
            return self._restore(None, self.disk_step, replicas)
        assert version is not None
        if version.missing_at(self.hosts):
            # Hosts that have it will return.
            return []
        return self._restore(version, version.key.step, replicas)

    def _restore(
        self, version: StateVersion | None, step: int, replicas: tuple[int, ...]
    ) -> list[ResilienceEffect]:
        self.attempt += 1
        again = max(0, self._issued - step)
        self.table.drop_pending()
        # Versions after the restored one are of steps that run again.
        self.table.drop_after(None if version is None else version.key)
        self.table.drop_old()
        # Nothing before it is run again, by whichever controller it was run.
        self._metrics_read = max(self._metrics_read, step)
        loads: tuple[BlockLoad, ...] = ()
        if version is not None:
            same = version.replicas == replicas
            needs = version.holdings if same else self._topology.holdings(replicas, version.key)
            planned = plan_loads(needs, version.copies_at(self.hosts), self._topology.hosts)
            assert planned is not None, "a version that is whole has all blocks"
            loads = tuple(BlockLoad(host, source, blocks) for (source, host), blocks in planned.items())
        hosts = self._topology.hosts_of(self._topology.islands(replicas))
        key = None if version is None else version.key
        restore = RestoreState(self.attempt, step, key, replicas, hosts, loads)
        self.phase = RestoringState(restore, frozenset(hosts))
        where = "disk" if version is None else "memory"
        count = "a step is" if again == 1 else f"{again} steps are"
        causes = "".join(f"{cause}; " for cause in self._causes)
        self._causes.clear()
        text = f"{causes}resuming from version {step} in {where}, {count} run again"
        every = len(self._topology.replicas)
        if every > 1:
            text += f", with {len(replicas)} of {every} replicas"
        return [Log(logging.WARNING if causes else logging.INFO, text), self._kept(), restore]

    def _finish_restore(self, restored: HostRestored, now: float) -> list[ResilienceEffect]:
        phase = self.phase
        if not isinstance(phase, RestoringState) or restored.attempt != self.attempt:
            return []
        pending = phase.pending - {restored.host}
        if pending:
            self.phase = RestoringState(phase.restore, pending)
            return []
        restore = phase.restore
        self.phase = StepsRunning()
        self.replicas = restore.replicas
        self._issued = self._last_step = restore.step
        self._last_time = now
        self._prepared = None
        effects: list[ResilienceEffect] = [ResumeSteps(self.attempt, restore.step, self.replicas)]
        larger = self._choose(now)
        if larger is not None and len(larger) > len(self.replicas):
            effects.append(PrepareReplicas(larger))
        return [*effects, *self._protect(), *self._hold_for_leaving(now)]

    def _fail_restore(self, failed: RestoreFailed, now: float) -> list[ResilienceEffect]:
        phase = self.phase
        if not isinstance(phase, RestoringState) or failed.attempt != self.attempt:
            return []
        step = phase.restore.step
        if failed.source is None:
            self._disk_steps.discard(step)
            text = f"version {step} on disk cannot be read: {failed.why}"
            if not self._disk_steps and self._newest_whole(self._hosts_that_return()) is None:
                return self._abandon(text)
            return [Log(logging.WARNING, f"{text}; the one before it is used"), *self._recover(now)]
        text = f"host {failed.host} cannot restore version {step} of host {failed.source}: {failed.why}"
        if failed.is_corrupt:
            assert phase.restore.key is not None
            self.table.versions[phase.restore.key].lose_copies((failed.source,))
        # Without the corrupt copy the next plan differs; the same plan would only fail again at once.
        retry_at = 0.0 if failed.is_corrupt else now + RETRY_SECONDS
        return [Log(logging.WARNING, text), *self._recover(now, retry_at)]

    def _choose(self, now: float) -> tuple[int, ...] | None:
        """Returns the replicas that may run now; None while islands are waited for."""
        islands = self._topology.replicas
        able = [number for number, own in enumerate(islands) if own <= self.present]
        if len(able) == len(islands):
            return tuple(able)
        missing = frozenset().union(*islands) - self.present
        if not all(self._is_overdue(island, now) for island in missing):
            return None
        count = max((count for count in self._policy.counts if count <= len(able)), default=None)
        return None if count is None else tuple(able[:count])

    def _is_overdue(self, island: int, now: float) -> bool:
        return island in self._dead or now - self._absent_since[island] >= self._policy.patience

    def _is_hopeless(self) -> bool:
        able = [own for own in self._topology.replicas if not own & self._dead]
        return len(able) < self._policy.counts[0]

    def _grows(self) -> bool:
        """Returns whether more replicas than run may run now, and their step is loaded."""
        prepared = self._prepared
        return (
            prepared is not None
            and len(prepared) > len(self.replicas)
            and self._topology.islands(prepared) <= self.present - self._leaving
        )

    def _hosts_that_return(self) -> tuple[int, ...]:
        """Returns the hosts that have workers, or will have."""
        return self._topology.hosts_of(
            frozenset(place.island for place in self._topology.hosts.values()) - self._dead
        )

    def _newest_whole(self, hosts: Sequence[int]) -> StateVersion | None:
        whole = [
            version
            for version in self.table.versions.values()
            if version.is_committed and not version.missing_at(hosts)
        ]
        return max(whole, key=lambda version: version.key, default=None)

    def _may_be_whole(self) -> bool:
        """Returns whether a copy that was being made may be the last one of some blocks."""
        hosts = self._hosts_that_return()
        return any(
            copy.target in hosts
            for version in self.table.versions.values()
            for copy in (*version.pending.values(), *version.orphans.values())
        )

    def _abandon(self, why: str) -> list[ResilienceEffect]:
        self.phase = RunAbandoned(why)
        return [AbandonRun(why)]

    def _nowhere(self) -> str:
        """Returns the error of a state that is lost in part."""
        version = self.table.committed
        text, advice = "the state was lost before its first copies were complete", "run again, or "
        if version is not None:
            missing = _missing(version, self._hosts_that_return())
            text, advice = f"of {version.key}, no host has {missing} any more", ""
        if self._policy.disk_every is None:
            more = "" if advice else " when so many islands are lost at once"
            return f"{text}; {advice}pass disk= to resume from a folder{more}"
        why = "" if self._disk_problem is None else f" ({self._disk_problem})"
        return f"{text}, and none of its versions is on disk{why}; run again"


def _missing(version: StateVersion, hosts: Sequence[int]) -> str:
    """Returns the names of blocks that none of some hosts has."""
    missing = sorted(version.missing_at(hosts))
    more = f" and {len(missing) - _MAX_NAMED} more" if len(missing) > _MAX_NAMED else ""
    return ", ".join(missing[:_MAX_NAMED]) + more
