"""Shell around the core in `runtime.resilience`: carries out its effects and passes events to it."""

from __future__ import annotations

import logging
import time

from pathways.compiler.data.checkpoint import OtherTreeError
from pathways.compiler.resilience.disk import DiskVersions
from pathways.compiler.resilience.last_save import CommittedVersion
from pathways.compiler.resilience.layouts.step_replicas import StepReplicas
from pathways.compiler.resilience.recovery_spans import RecoverySpans
from pathways.compiler.resilience.settings import shortened
from pathways.compiler.resilience.source import RewindableSource
from pathways.compiler.resilience.step_metrics import StepMetrics
from pathways.compiler.resilience.store import SnapshotStore
from pathways.compiler.resilience.training import Training
from pathways.runtime.control.effects import Log
from pathways.runtime.control.records.errors import HostError, lost
from pathways.runtime.hosts.protocol.interrupts import uninterrupted
from pathways.runtime.resilience.core import ResilienceCore
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
    DiskSaveFailed,
    HostRestored,
    MetricsRead,
    RecoveryTick,
    ResilienceEvent,
    RestoreFailed,
    RunEnded,
    SnapshotStarted,
)
from pathways.runtime.resilience.phases import WaitingForIslands
from pathways.runtime.resilience.records import VersionKey

TICK_SECONDS = 0.2

log = logging.getLogger("pathways")


class RecoveryRunner:
    """Runner of the effects of the core of resilience.

    Args:
      core: the core.
      training: the state and the last issued step, which a restore resets.
      metrics: the metrics of steps, which a restore drops.
      replicas: the replicas of the step; None if fewer can never run.

    Attributes:
      core: see above.
      abandoned: the reason why the run cannot continue; None while it can.
      restored: the step of the last version that was restored from disk; None without one.
    """

    def __init__(
        self,
        core: ResilienceCore,
        training: Training,
        metrics: StepMetrics,
        source: RewindableSource,
        store: SnapshotStore,
        disk: DiskVersions | None,
        replicas: StepReplicas | None,
    ) -> None:
        self.core = core
        self.abandoned: str | None = None
        self.restored: str | None = None
        self._training = training
        self._metrics = metrics
        self._source = source
        self._store = store
        self._disk = disk
        self._replicas = replicas
        # The version to read from disk, and the error of the read.
        self._disk_restore: RestoreState | None = None
        self._disk_error: Exception | None = None
        self._last_tick = 0.0
        self._spans = RecoverySpans()

    def start(self) -> None:
        """Starts the core, which may restore an earlier version."""
        self._apply(self.core.start(time.monotonic()))

    def close(self, *, keeps: bool) -> None:
        """Ends the run; with `keeps`, the versions in memory stay."""
        if self.abandoned is None:
            self._apply(self.core.handle(RunEnded(keeps), time.monotonic()))
        self._spans.close()

    def note_read(self, count: int) -> None:
        """Notes that the metrics of the first `count` steps were read."""
        with uninterrupted():
            self.handle(MetricsRead(count))
            self._spans.read(count)

    def committed(self) -> CommittedVersion | None:
        """Returns the last committed version; None without one."""
        version = None if self.abandoned else self.core.table.committed
        if version is None:
            return None
        return CommittedVersion(version.key, self._source.positions.get(version.key.step), self._store)

    def drain(self) -> bool:
        """Handles all events; returns whether steps in flight were lost.

        Raises:
          HostLostError: the run cannot continue.
        """
        before = self.core.attempt, self.core.losses
        # Ctrl-C would drop events.
        with uninterrupted():
            while events := [
                *(self._disk.poll() if self._disk is not None else ()),
                *(self._replicas.poll() if self._replicas is not None else ()),
                *self._store.poll(),
            ]:
                for event in events:
                    self.handle(event)
        if self._disk_restore is not None:
            # Outside of the effect, so that the save is tried again after Ctrl-C.
            self._restore_from_disk(self._disk_restore)
        return (self.core.attempt, self.core.losses) != before

    def tick(self) -> None:
        """Passes the time to the core."""
        now = time.monotonic()
        # A state that a failed step may have donated is not copied.
        if now - self._last_tick >= TICK_SECONDS and self._training.problem is None:
            self._last_tick = now
            with uninterrupted():
                self.handle(RecoveryTick())

    def handle(self, event: ResilienceEvent) -> None:
        """Handles an event and its effects, without interruption by Ctrl-C."""
        self._apply(self.core.handle(event, time.monotonic()))

    def _apply(self, effects: list[ResilienceEffect]) -> None:
        for effect in effects:
            self._apply_one(effect)

    def _apply_one(self, effect: ResilienceEffect) -> None:
        self._spans.apply(effect, self._training.step)
        match effect:
            case Log(level, text):
                log.log(level, "pw.resilient: %s", shortened(text))
            case TakeSnapshot(key):
                self.handle(SnapshotStarted(key, self._store.take(key, self._training.value)))
            case MakeCopies(key, copies):
                self._store.make_copies(key, copies)
            case CommitVersion(key):
                self._store.commit(key, self._source.positions[key.step])
            case KeepVersions(hosts, keys):
                self._store.keep(hosts, keys)
                self._source.drop_before(min((key.step for key in keys), default=0))
            case HoldSteps():
                self._training.is_held = True
                self._drop_state_if_lost()
            case RestoreState():
                self._restore(effect)
            case ResumeSteps():
                self._training.is_held = False
                if self._replicas is not None:
                    self._replicas.load_ahead(self.core.islands.present)
            case SaveToDisk(key):
                self._save_to_disk(key)
            case PrepareReplicas(replicas):
                assert self._replicas is not None
                self._replicas.prepare(replicas)
            case ReleaseIsland(island):
                # First drop the state: a leaving island returns when none of its arrays are held.
                self._drop_state_if_lost()
                self._store.release(island)
            case AbandonRun(why):
                self.abandoned = shortened(why)
                if self.core.losses == 0 and self._disk_error is not None:
                    raise ValueError(
                        f"pw.resilient: {self.abandoned}; pass another folder as directory= to start anew"
                    ) from self._disk_error
                raise lost(f"pw.resilient: {self.abandoned}").error()

    def _restore(self, restore: RestoreState) -> None:
        self._training.is_held = True
        # First drop the state: devices may not have room for two.
        self._drop_state()
        if self._replicas is not None:
            try:
                # Check first, since loading a program waits for lost islands.
                self._store.check(self._store.topology.islands(restore.replicas))
                self._replicas.run_on(restore.replicas)
            except HostError as error:
                # Another island is lost, too: its event makes the core restore again.
                log.warning("pw.resilient: %s", error)
                return
        self._disk_restore = restore if restore.key is None else None
        if restore.key is not None:
            self._training.value = self._store.restore(restore)
        self._training.step = restore.step
        self._training.has_ended = False

    def _drop_state_if_lost(self) -> None:
        """Drops the state if a version of it is restored later."""
        if isinstance(self.core.phase, WaitingForIslands):
            self._drop_state()

    def _drop_state(self) -> None:
        self._metrics.drop_unread()
        self._training.drop()
        self._source.close()

    def _save_to_disk(self, key: VersionKey) -> None:
        assert self._disk is not None
        try:
            version = self._store.version(key)
        except (HostError, KeyError) as error:
            # An event reports the lost island, now or later.
            self.handle(DiskSaveFailed(key, str(error.args[0])))
            return
        self._disk.begin(key, version, self._source.positions[key.step])

    def _restore_from_disk(self, restore: RestoreState) -> None:
        """Reads a version from disk, and passes the result to the core."""
        assert self._disk is not None
        folder = f"{self._disk.folder}/{restore.step}"
        events: list[ResilienceEvent]
        try:
            runs_all = self._replicas is None or restore.replicas == self._replicas.all
            state, position = self._disk.restore(restore.step, self._source.position_of, places=runs_all)
        except Exception as error:
            if isinstance(error, OtherTreeError) and self.core.losses == 0:
                # The user has named the folder of another run.
                raise
            if isinstance(error, HostError) and self._store.awaits_loss(error):
                # The event of the loss makes the core restore again.
                return
            self._disk_error = error
            reason = f"{folder}: {type(error).__name__}: {shortened(str(error))}"
            events = [RestoreFailed(restore.attempt, restore.hosts[0], None, reason)]
        else:
            self._training.value, self.restored = state, folder
            self._source.positions[restore.step] = position
            events = [HostRestored(restore.attempt, host) for host in restore.hosts]
        with uninterrupted():
            self._disk_restore = None
            for event in events:
                self.handle(event)

    def is_of_loss(self, error: Exception) -> bool:
        """Returns whether an error of a step comes from a loss of steps in flight."""
        return self.drain() or (self._store.awaits_loss(error) and self.drain())
