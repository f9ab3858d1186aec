"""Training that goes on by itself when islands of devices are lost."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import logging
import os
import time
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any

import jax
import numpy as np

from pathways.compiler.data.checkpoint import OtherTreeError
from pathways.compiler.data.prefetch import Prefetched
from pathways.compiler.program import Program
from pathways.compiler.resilience.disk import DiskVersions
from pathways.compiler.resilience.host_store import HostStore
from pathways.compiler.resilience.local_store import LocalSnapshotStore
from pathways.compiler.resilience.recovery_spans import RecoverySpans
from pathways.compiler.resilience.run_folder import RunFolder
from pathways.compiler.resilience.settings import (
    Step,
    checked_count,
    checked_feeds,
    checked_folder,
    checked_interval,
    executables_of,
    shortened,
    shown,
)
from pathways.compiler.resilience.source import RewindableSource
from pathways.compiler.resilience.step_metrics import StepMetrics
from pathways.compiler.resilience.step_replicas import StepReplicas
from pathways.compiler.resilience.store import SnapshotStore
from pathways.compiler.stages import Bound
from pathways.runtime.clusters.connect import controller
from pathways.runtime.control.effects import Log
from pathways.runtime.control.records.errors import HostError, lost
from pathways.runtime.hosts.client.array import Array
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
    BoundaryReached,
    DiskSaveFailed,
    HostRestored,
    MetricsRead,
    RecoveryTick,
    ResilienceEvent,
    RestoreFailed,
    RunEnded,
    SnapshotStarted,
    StateInvalidated,
)
from pathways.runtime.resilience.phases import WaitingForIslands
from pathways.runtime.resilience.records import RecoveryPolicy, VersionKey
from pathways.runtime.resources.status import TrainingStatus, open_runs
from pathways.runtime.xla.tracebacks import boundary

STEPS_AHEAD = 2
"""Number of steps that are issued ahead of the one whose metrics are read."""

_TICK_SECONDS = 0.2

TrainStep = Callable[[Any, Any], tuple[Any, Any]]

log = logging.getLogger("pathways")


class ResilientRun:
    """A run of training; made by `resilient`, and used as a context manager.

    Attributes:
      step: how many steps were issued.
    """

    def __init__(
        self,
        train_step: TrainStep,
        state: Any,
        source: RewindableSource,
        store: SnapshotStore,
        policy: RecoveryPolicy,
        disk: DiskVersions | None,
        minimum: tuple[Step, int] | None = None,
    ) -> None:
        self.step = 0
        self._train_step = train_step
        self._is_function = not isinstance(train_step, Bound | Program)
        self._state = state
        self._source = source
        self._store = store
        self._policy = policy
        self._disk = disk
        self._folder = None if disk is None else RunFolder(disk.folder)
        # The program whose replicas may be fewer, and the smallest number of them.
        self._minimum = minimum
        self._replicas: StepReplicas | None = None
        if minimum is not None and (executables := executables_of(minimum[0])):
            self._replicas = StepReplicas(executables, minimum[1])
        self._core: ResilienceCore | None = None
        self._is_open = False
        self._is_held = True
        self._metrics = StepMetrics(store)
        self._has_ended = False
        # The error of a step or its batch, until the metrics of the steps before were given.
        self._failure: Exception | None = None
        # Whether a step was begun and not issued, and the state as it was then, see `_begin_step`.
        self._is_begun = False
        self._before: tuple[list[Any], Any] | None = None
        # Why the state cannot be used, or metrics of it; None while they can.
        self._problem: str | None = None
        self._abandoned: str | None = None
        # What is to be read from disk, and the version that was.
        self._disk_restore: RestoreState | None = None
        self._restored: str | None = None
        self._disk_error: Exception | None = None
        self._last_tick = 0.0
        self._spans = RecoverySpans()

    @boundary
    def __enter__(self) -> ResilientRun:
        """Begins: goes on from the later of the versions in memory and on disk, where there is one.

        Raises:
          TypeError: the source cannot be rewound.
          ValueError: no number of replicas meets `minimum`, or the folder has a run with another state.
          RuntimeError: another process has the folder.
          HostError: the state cannot be protected.
        """
        if self._core is not None:
            raise RuntimeError("pw.resilient: a run begins once; call pw.resilient again")
        run = None if self._folder is None else self._folder.open()
        try:
            self._source.open()
            self._store.open(self._state, run)
            self._source.positions |= self._store.positions
            disk_steps: list[int] = []
            if self._disk is not None:
                self._source.check_saved()
                self._disk.check(self._state)
                disk_steps = self._disk.steps()
            self._is_open = True
            self._prepare_replicas()
            self._core = ResilienceCore(self._store.topology, self._policy, self._store.stored, disk_steps)
            self._apply(self._core.start(time.monotonic()))
            self._settle()
            if self.step or self._restored is not None:
                self._source.rewind_to_earlier_run(
                    self.step, self._restored or f"version {self.step} in memory"
                )
        except BaseException:
            self._close(keeps=bool(self._store.stored))
            raise
        # A run that continues begins after steps whose metrics an earlier run has read.
        self._metrics.read_steps = self.step
        open_runs.append(self)
        return self

    def _prepare_replicas(self) -> None:
        """Loads the step for fewer replicas, if there may be fewer."""
        if self._minimum is None:
            return
        step, minimum = self._minimum
        if self._replicas is None:
            self._replicas = StepReplicas(self._compiled(step), minimum)
        self._replicas.run_on(self._replicas.all)
        self._store.set_replicas(self._replicas)
        self._replicas.check = self._store.check
        self._policy = dataclasses.replace(self._policy, counts=self._replicas.counts)
        self._replicas.load_new(frozenset().union(*self._replicas.islands))

    def _compiled(self, step: Step) -> tuple[Any, ...]:
        """Compiles a step that was not called yet for the state and the first batch."""
        try:
            # The first step reads it again.
            batch, _ = self._source.read(0)
        except StopIteration:
            raise ValueError(
                "pw.resilient: the source has no batch to compile the step for, which minimum= needs"
            ) from None
        if step is self._train_step and isinstance(step, Program):
            return (step.loaded(self._state, batch),)
        # What it calls is known by calling it, on a copy that it may donate; its results are dropped.
        self._train_step(jax.tree.map(_copied, self._state), batch)
        executables = executables_of(step)
        if not executables:
            raise TypeError("pw.resilient: train_step does not call the program that feeds= names")
        return executables

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # What is in memory stays until it is on disk.
        keeps = True
        try:
            if error is None:
                self._finish()
                keeps = False
            else:
                with contextlib.suppress(Exception):
                    note, keeps = self._save_committed()
                    error.add_note(note)
        finally:
            self._close(keeps=keeps)

    def steps(self, count: int) -> Iterator[tuple[int, Any]]:
        """Runs steps until `count` are done in all, and yields the number and the metrics of each.

        Each number is given once, in order, whatever is lost. Steps are issued ahead of the body of the
        loop. It ends early when the source does. After an error or Ctrl-C another call of it continues with
        the batch of the step that failed.

        Args:
          count: how many steps there are in all, those before a version on disk included.

        Raises:
          HostLostError: a part of the state is left nowhere; says which.
          Exception: what `train_step` or the source raised, once the steps before were given.
        """
        checked_count("steps", count, least=0)
        self._core_of_open_run()
        while self._metrics.given < count:
            self._mend_state()
            self._drain()
            self._tick()
            # Issuing comes first: devices compute while the body of the loop runs.
            if self._may_issue(count):
                self._issue()
            elif self._metrics.ready and not (self._is_held and self._metrics.in_flight):
                # While steps are held their metrics come first: a version of the state waits for them.
                first = self._metrics.ready[0]
                # Not `popleft`: Ctrl-C is raised at the end of calls, and would drop them.
                del self._metrics.ready[0]
                yield first
            elif self._metrics.in_flight:
                self._read()
            elif self._failure is not None:
                self._raise_failure()
            elif self._has_ended and not self._is_held:
                # While steps are held, a restore may still rewind the source.
                return
            else:
                self._store.wait(_TICK_SECONDS)

    @property
    def state(self) -> Any:
        """The state after all steps that were issued, `run.step`: after the loop that is the last one."""
        if self._is_open:
            self._settle()
        return self._state

    @property
    def protected(self) -> bool:
        """Whether the loss of any one island, with its memory, leaves the last version whole."""
        return self._core is not None and self._is_open and self._core.is_protected

    def status(self) -> TrainingStatus:
        """Returns the last version, where its copies are, and what was survived."""
        core = self._core_of_open_run()
        version, committed_at = core.table.committed, core.versions.committed_at
        islands: dict[str, int] = {}
        places = self._store.topology.hosts
        for host, count in self._store.sizes().items():
            name = f"island{places[host].island}"
            islands[name] = islands.get(name, 0) + count
        return TrainingStatus(
            step=self.step,
            version=None if version is None else version.key.step,
            age=None if committed_at is None else time.monotonic() - committed_at,
            islands=islands,
            disk=core.versions.disk.last,
            losses=core.losses,
            replicas=None if self._replicas is None else len(core.replicas),
            protected=core.is_protected,
        )

    @boundary
    def lose(self, island: str, *, memory: bool = False, returns: bool = True) -> None:
        """Loses an island on purpose, for tests of one's own loop; may be called by any thread.

        Args:
          island: its name, such as "island1".
          memory: whether the copies in its memory are lost, too, as when its machine is.
          returns: whether it returns by itself; else it stays away until `return_island`.

        Raises:
          ValueError: there is no such island.
        """
        number = self._number_of(island)
        arrays = [*jax.tree.leaves(self._state), *self._metrics.arrays]
        self._store.lose(number, memory=memory, arrays=arrays, returns=returns)

    @boundary
    def return_island(self, island: str) -> None:
        """Returns an island that `lose(..., returns=False)` has lost; may be called by any thread.

        Raises:
          ValueError: there is no such island.
        """
        self._store.return_island(self._number_of(island))

    def _number_of(self, island: str) -> int:
        """Returns the number of an island."""
        self._core_of_open_run()
        islands = {f"island{place.island}": place.island for place in self._store.topology.hosts.values()}
        if island not in islands:
            raise ValueError(f"pw.resilient: there is no island {shown(island)}, only {', '.join(islands)}")
        return islands[island]

    def _may_issue(self, count: int) -> bool:
        return (
            not self._is_held
            and not self._has_ended
            and self._failure is None
            and self.step < count
            and self._metrics.in_flight + len(self._metrics.ready) <= STEPS_AHEAD
        )

    def _issue(self) -> None:
        """Issues a step. One that fails because an island is lost is issued again later."""
        core = self._core_of_open_run()
        try:
            try:
                batch, position = self._source.read(self.step)
            except StopIteration:
                self._has_ended = True
                return
            self._begin_step()
            state, metrics = _checked_result(self._train_step(self._state, batch))
            leaves, tree = self._metrics.detach(metrics, state)
        except Exception as error:
            if not self._is_of_loss(error):
                self._failure = error
            return
        # After any error up to here the next try starts with the same batch, see `_mend_state`.
        with uninterrupted():
            self._state, self._is_begun, self._before = state, False, None
            self._metrics.add(self.step, leaves, tree)
            self._source.use(self.step, position)
            self.step += 1
            self._handle(BoundaryReached(core.attempt, self.step))
        if self._replicas is not None:
            # Other programs of the step are compiled by its first call.
            self._replicas.load_new(core.islands.present)

    def _begin_step(self) -> None:
        """Notes that a step is tried with the present state."""
        if self._is_function:
            # It may change containers of the state in place before it raises.
            self._before = jax.tree.flatten(self._state)
        self._is_begun = True

    def _mend_state(self) -> None:
        """Makes the state that before a step that failed; has a version restored where that is impossible."""
        if not self._is_begun and self._problem is None:
            return
        with uninterrupted():
            if self._before is not None:
                leaves, tree = self._before
                self._state = tree.unflatten(leaves)
            if self._is_begun and any(map(self._may_have_changed, jax.tree.leaves(self._state))):
                self._problem = f"step {self.step} failed after it had taken over the state"
            self._is_begun, self._before = False, None
            # The metrics of the steps before are given first, and an error of the step.
            if self._problem is not None and self._failure is None:
                problem, self._problem = self._problem, None
                self._handle(StateInvalidated(problem))

    def _may_have_changed(self, leaf: Any) -> bool:
        """Returns whether a step that failed has donated a leaf of the state, or may have written to it."""
        if isinstance(leaf, jax.Array | Array):
            return leaf.is_deleted()
        return self._is_function and isinstance(leaf, np.ndarray)

    def _read(self) -> None:
        """Reads the metrics of the first step in flight, unless they are lost."""
        try:
            count = self._metrics.read()
        except Exception as error:
            if self._is_of_loss(error):
                return
            number = self._metrics.next_step
            if self._metrics.find_donated():
                # From now on they are detached, see `StepMetrics.detach`.
                self._problem = f"metrics of step {number} share memory that a later step has taken over"
            else:
                # The state comes from the computation that has failed.
                self._problem, self._failure = f"step {number} failed", error
            self._metrics.drop_unread()
            return
        with uninterrupted():
            self._handle(MetricsRead(count))
            self._spans.read(count)

    def _raise_failure(self) -> None:
        """Raises the error of a step or its batch, if there is one."""
        if self._failure is not None:
            error, self._failure = self._failure, None
            raise error

    def _is_of_loss(self, error: Exception) -> bool:
        """Returns whether steps in flight were lost, which is why one fails."""
        return self._drain() or (self._store.awaits_loss(error) and self._drain())

    def _core_of_open_run(self) -> ResilienceCore:
        if self._core is None or not self._is_open:
            raise RuntimeError("pw.resilient: use it as `with pw.resilient(...) as run:`, and inside of that")
        return self._core

    def _drain(self) -> bool:
        """Handles all events; returns whether steps in flight were lost.

        Raises:
          HostLostError: the run cannot go on.
        """
        core = self._core_of_open_run()
        before = core.attempt, core.losses
        # Ctrl-C would drop events.
        with uninterrupted():
            while events := [
                *(self._disk.poll() if self._disk is not None else ()),
                *(self._replicas.poll() if self._replicas is not None else ()),
                *self._store.poll(),
            ]:
                for event in events:
                    self._handle(event)
        if self._disk_restore is not None:
            # Not by the effect: Ctrl-C may interrupt it, after which it is tried again.
            self._restore_from_disk(self._disk_restore)
        return (core.attempt, core.losses) != before

    def _settle(self) -> None:
        """Waits until steps may be issued, and runs those again whose metrics were read before a loss."""
        self._mend_state()
        if self._problem is not None:
            self._raise_failure()
        self._drain()
        while self._is_held or (self.step < self._metrics.read_steps and not self._has_ended):
            if not self._is_held and self._metrics.in_flight <= STEPS_AHEAD:
                self._issue()
            elif self._metrics.in_flight:
                # A version of these steps may be what is waited for.
                self._read()
            else:
                self._store.wait(_TICK_SECONDS)
            self._raise_failure()
            self._mend_state()
            self._tick()
            self._drain()

    def _tick(self) -> None:
        now = time.monotonic()
        # A state that may be consumed is not copied.
        if now - self._last_tick >= _TICK_SECONDS and self._problem is None:
            self._last_tick = now
            with uninterrupted():
                self._handle(RecoveryTick())

    def _handle(self, event: ResilienceEvent) -> None:
        """Handles an event. Ctrl-C must not come between the core and its effects."""
        self._apply(self._core_of_open_run().handle(event, time.monotonic()))

    def _apply(self, effects: list[ResilienceEffect]) -> None:
        for effect in effects:
            self._apply_one(effect)

    def _apply_one(self, effect: ResilienceEffect) -> None:
        self._spans.apply(effect, self.step)
        match effect:
            case Log(level, text):
                log.log(level, "pw.resilient: %s", shortened(text))
            case TakeSnapshot(key):
                self._handle(SnapshotStarted(key, self._store.take(key, self._state)))
            case MakeCopies(key, copies):
                self._store.make_copies(key, copies)
            case CommitVersion(key):
                self._store.commit(key, self._source.positions[key.step])
            case KeepVersions(hosts, keys):
                self._store.keep(hosts, keys)
                self._source.drop_before(min((key.step for key in keys), default=0))
            case HoldSteps():
                self._is_held = True
                self._drop_state_if_lost()
            case RestoreState():
                self._restore(effect)
            case ResumeSteps():
                self._is_held = False
                if self._replicas is not None:
                    self._replicas.load_ahead(self._core_of_open_run().islands.present)
            case SaveToDisk(key):
                self._save_to_disk(key)
            case PrepareReplicas(replicas):
                assert self._replicas is not None
                self._replicas.prepare(replicas)
            case ReleaseIsland(island):
                # Before: an island that leaves is back when nothing of it is held any more.
                self._drop_state_if_lost()
                self._store.release(island)
            case AbandonRun(why):
                self._abandoned = shortened(why)
                if self._core_of_open_run().losses == 0 and self._disk_error is not None:
                    raise ValueError(
                        f"pw.resilient: {self._abandoned}; pass another folder as disk= to start anew"
                    ) from self._disk_error
                raise lost(f"pw.resilient: {self._abandoned}").error()

    def _restore(self, restore: RestoreState) -> None:
        self._is_held = True
        # Before the restore: devices may not have room for two states.
        self._drop_state()
        if self._replicas is not None:
            try:
                # Before, since to load a program waits for islands that are lost.
                self._store.check(self._store.topology.islands(restore.replicas))
                self._replicas.run_on(restore.replicas)
            except HostError as error:
                # Another island is lost, too, which an event says: then there is another order to restore.
                log.warning("pw.resilient: %s", error)
                return
        self._disk_restore = restore if restore.key is None else None
        if restore.key is not None:
            self._state = self._store.restore(restore)
        self.step = restore.step
        self._has_ended = False

    def _drop_state_if_lost(self) -> None:
        """Drops the state if a version of it is restored later."""
        if isinstance(self._core_of_open_run().phase, WaitingForIslands):
            self._drop_state()

    def _drop_state(self) -> None:
        self._metrics.drop_unread()
        # A step that failed is run again with those before it.
        self._failure, self._is_begun, self._before, self._problem = None, False, None, None
        self._state = None
        self._source.close()

    def _save_to_disk(self, key: VersionKey) -> None:
        assert self._disk is not None
        try:
            version = self._store.version(key)
        except (HostError, KeyError) as error:
            # An island is lost, which an event says, now or later.
            self._handle(DiskSaveFailed(key, str(error.args[0])))
            return
        self._disk.begin(key, version, self._source.positions[key.step])

    def _restore_from_disk(self, restore: RestoreState) -> None:
        """Reads a version from disk, and reports what became of it."""
        assert self._disk is not None
        where = f"{self._disk.folder}/{restore.step}"
        events: list[ResilienceEvent]
        try:
            runs_all = self._replicas is None or restore.replicas == self._replicas.all
            state, position = self._disk.restore(restore.step, self._source.position_of, places=runs_all)
        except Exception as error:
            if isinstance(error, OtherTreeError) and self._core_of_open_run().losses == 0:
                # The folder is another one than the user thinks.
                raise
            if isinstance(error, HostError) and self._store.awaits_loss(error):
                # An event names the lost islands, and another order to restore follows it.
                return
            self._disk_error = error
            why = f"{where}: {type(error).__name__}: {shortened(str(error))}"
            events = [RestoreFailed(restore.attempt, restore.hosts[0], None, why)]
        else:
            self._state, self._restored = state, where
            self._source.positions[restore.step] = position
            events = [HostRestored(restore.attempt, host) for host in restore.hosts]
        with uninterrupted():
            self._disk_restore = None
            for event in events:
                self._handle(event)

    def _finish(self) -> None:
        """Waits for the last state, and saves it to disk, so that the same call has nothing left to do."""
        if self._core is None or self._abandoned is not None:
            return
        while True:
            self._settle()
            try:
                # A loss up to this point is still recovered from: the next iteration runs the steps again.
                jax.block_until_ready(self._state)
                self._save_last()
                return
            except Exception as error:
                if not self._is_of_loss(error):
                    raise

    def _save_last(self) -> None:
        if self._disk is None:
            return
        self._disk.wait()
        latest = self._disk.latest()
        if latest is not None and self.step <= latest:
            return
        try:
            self._disk.save(self.step, self._state, self._source.positions[self.step])
        except Exception as error:
            error.add_note(self._unsaved())
            raise

    def _unsaved(self) -> str:
        """Returns where the last state is, which could not be saved to disk."""
        text = f"pw.resilient: the state after step {self.step} is in memory, as run.state of this process"
        committed = None if self._core is None else self._core.table.committed
        if committed is None or not self._store.outlives:
            return text
        return f"{text}; {committed.key} is in memory of the hosts: the same call resumes from it"

    def _save_committed(self) -> tuple[str, bool]:
        """Saves the last committed version to disk.

        Returns:
          What to tell the user, and whether the version is in memory alone, where it is to stay.
        """
        stopped = f"pw.resilient: stopped after step {self._metrics.given}"
        if self._disk is None:
            return f"{stopped}; without disk= nothing of the run is kept", False
        committed = None if self._core is None or self._abandoned else self._core.table.committed
        step = -1 if committed is None else committed.key.step
        latest = -1
        try:
            self._disk.wait()
            latest = max(self._disk.steps(), default=-1)
            if committed is not None and step > latest:
                self._disk.save(step, self._store.version(committed.key), self._source.positions[step])
                latest = step
        except Exception as error:
            why = shortened(f"{type(error).__name__}: {error}".partition("\n")[0])
            if step >= 0 and self._store.outlives:
                return f"{stopped}; version {step} is in memory: the same call resumes from it ({why})", True
            # Such as an island that is lost, or has left, and is not back.
            stopped += f"; saving has failed ({why})"
        if latest < 0:
            return f"{stopped}, before a version was saved", False
        return f"{stopped}; version {latest} is in {self._disk.folder}: the same call resumes from it", False

    def _close(self, *, keeps: bool) -> None:
        try:
            self._close_parts(keeps)
        finally:
            if self._folder is not None:
                self._folder.close(keeps=keeps)

    def _close_parts(self, keeps: bool) -> None:
        if self in open_runs:
            open_runs.remove(self)
        self._source.close()
        if self._core is not None and self._abandoned is None:
            self._apply(self._core.handle(RunEnded(keeps), time.monotonic()))
        self._is_open = False
        self._spans.close()
        if self._replicas is not None:
            self._replicas.close()
        self._metrics.drop_unread()
        self._store.close(keeps=keeps)


def _checked_result(result: Any) -> tuple[Any, Any]:
    """Returns the state and the metrics that a step has returned.

    Raises:
      TypeError: it has returned something else.
    """
    if not isinstance(result, tuple) or len(result) != 2:
        raise TypeError(
            "pw.resilient: train_step must return a pair of the new state and metrics, got "
            f"{type(result).__name__}"
        )
    return result


def _copied(leaf: Any) -> Any:
    return copy.copy(leaf) if isinstance(leaf, jax.Array | Array) else leaf


@boundary
def resilient(
    train_step: Bound | Program[..., Any] | TrainStep,
    state: Any,
    source: Any,
    *,
    feeds: tuple[Bound | Program[..., Any], str] | None = None,
    every: int | str = 10,
    disk: str | os.PathLike[str] | None = None,
    disk_every: int = 10,
    disk_keep: int = 2,
    minimum: int | None = None,
    patience: float = 0.0,
    rows: int | None = None,
    shards: int | None = None,
) -> ResilientRun:
    """Runs training steps, and goes on by itself when islands are lost.

    Copies of the state are kept in memory, each on two islands, and the source is rewound with the state, so
    that losses, metrics and the state are those of a run in which nothing was lost, bit for bit.

    Args:
      train_step: a function from a state and a batch to a new state and metrics: a program, or what calls
        several. It may be called again for a step, so it changes nothing else. What it reads besides its
        arguments must not change.
      state: the state that the run begins with, a tree of arrays; `train_step` may donate it.
      source: what `pw.prefetch` accepts, and can be rewound: iterables whose iterators have `get_state` and
        `set_state`, as those of Grain; sequences; or `pw.on_hosts(...)`.
      feeds: the program that reads the batches, and the name of its argument. Left out when `train_step` is
        a program: its second argument.
      every: the steps from one version of the state to the next, or a time such as "10s".
      disk: a folder for this run alone, in which versions are saved as checkpoints. A run that begins with
        such a folder goes on from the last version in it, or from a later one in the memory of hosts.
      disk_every: how many versions are made for each that is saved to disk.
      disk_keep: the number of versions that stay there.
      minimum: the smallest number of replicas that may go on while islands are lost.
      patience: the seconds that a lost island may take to return before others go on without it.
      rows: of a source on hosts, see `pw.prefetch`.
      shards: of a source on hosts, see `pw.prefetch`.

    Returns:
      The run, a context manager: `run.steps(count)` runs the steps, `run.state` is the state,
      `run.protected` says whether any one island may be lost, and `run.lose("island1")` loses one.

    Raises:
      TypeError: `feeds` is missing or no program, or an argument has a wrong type.
      ValueError: a number out of range, a `minimum` that no number of replicas meets, or a `step` without
        such an argument.

    Example:
      ```python
      with pw.resilient(step, state, batches, every=10, disk="run1") as run:
          for n, metrics in run.steps(1000):
              print(n, metrics["loss"])
      state = run.state
      ```
    """
    program, argument = checked_feeds(train_step, feeds)
    interval = checked_interval(every)
    checked_count("disk_every", disk_every)
    checked_count("disk_keep", disk_keep)
    disk = checked_folder(disk)
    if isinstance(patience, bool) or not isinstance(patience, int | float) or not patience >= 0:
        raise ValueError(f"pw.resilient: patience={shown(patience)}: expected a number of seconds")
    if isinstance(source, Prefetched):
        raise TypeError("pw.resilient: source is read ahead already; pass what was given to pw.prefetch")
    if minimum is not None:
        checked_count("minimum", minimum)
    if not jax.tree.leaves(state):
        raise ValueError("pw.resilient: the state has no leaves")
    hosts = controller()
    if hosts is not None and isinstance(program, Bound):
        raise TypeError(
            "pw.resilient: a compiled program is bound to workers, which may be lost; pass the program "
            "itself, which is compiled again for new workers"
        )
    # Now: the caller may change its arrays after this call.
    state = jax.tree.map(lambda leaf: np.array(leaf) if isinstance(leaf, np.ndarray) else leaf, state)
    store = LocalSnapshotStore() if hosts is None else HostStore(hosts)
    policy = RecoveryPolicy(
        interval.steps,
        interval.seconds,
        patience=float(patience),
        disk_every=None if disk is None else disk_every,
    )
    batches = RewindableSource(source, program, argument, rows=rows, shards=shards)
    disk_versions = None if disk is None else DiskVersions(disk, state, disk_keep)
    least = None if minimum is None else (program, minimum)
    return ResilientRun(train_step, state, batches, store, policy, disk_versions, least)
