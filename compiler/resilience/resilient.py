"""Loop of `pw.resilient`: training that recovers from lost islands.

`recovery_runner.py` carries out the recoveries.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import os
import time
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any

import jax
import numpy as np

from pathways.compiler.data.prefetch import Prefetched
from pathways.compiler.program import Program
from pathways.compiler.resilience.disk import DiskVersions
from pathways.compiler.resilience.host_store import HostStore
from pathways.compiler.resilience.last_save import CommittedVersion, save_committed, where_unsaved
from pathways.compiler.resilience.layouts.step_replicas import StepReplicas
from pathways.compiler.resilience.local_store import LocalSnapshotStore
from pathways.compiler.resilience.recovery_runner import TICK_SECONDS, RecoveryRunner
from pathways.compiler.resilience.run_folder import RunFolder
from pathways.compiler.resilience.settings import (
    Step,
    checked_count,
    checked_feeds,
    checked_folder,
    checked_interval,
    executables_of,
    shown,
)
from pathways.compiler.resilience.source import RewindableSource
from pathways.compiler.resilience.step_metrics import StepMetrics
from pathways.compiler.resilience.store import SnapshotStore
from pathways.compiler.resilience.training import Training
from pathways.compiler.stages import Bound
from pathways.dialect.spelling import renamed_keywords
from pathways.runtime.clusters.connect import controller
from pathways.runtime.hosts.client.array import Array
from pathways.runtime.hosts.protocol.interrupts import uninterrupted
from pathways.runtime.local.proxied_load import check_not_proxied
from pathways.runtime.resilience.core import ResilienceCore
from pathways.runtime.resilience.events import (
    BoundaryReached,
    StateInvalidated,
)
from pathways.runtime.resilience.records import RecoveryRules
from pathways.runtime.resources.status import TrainingStatus, open_runs
from pathways.runtime.xla.tracebacks import boundary

STEPS_AHEAD = 2
"""Number of steps that are issued ahead of the one whose metrics are read."""

TrainStep = Callable[[Any, Any], tuple[Any, Any]]


class ResilientRun:
    """A run of training; made by `resilient`, and used as a context manager."""

    def __init__(
        self,
        train_step: TrainStep,
        state: Any,
        source: RewindableSource,
        store: SnapshotStore,
        rules: RecoveryRules,
        disk: DiskVersions | None,
        fewer_replicas: tuple[Step, int] | None = None,
    ) -> None:
        self._train_step = train_step
        self._training = Training(state, is_function=not isinstance(train_step, Bound | Program))
        self._source = source
        self._store = store
        self._rules = rules
        self._disk = disk
        self._folder = None if disk is None else RunFolder(disk.folder)
        # The program that may run on fewer replicas, and the smallest number of them.
        self._fewer_replicas = fewer_replicas
        self._replicas: StepReplicas | None = None
        if fewer_replicas is not None and (executables := executables_of(fewer_replicas[0])):
            self._replicas = StepReplicas(executables, fewer_replicas[1])
        self._recovery: RecoveryRunner | None = None
        self._is_open = False
        self._metrics = StepMetrics(store)

    @boundary
    def __enter__(self) -> ResilientRun:
        """Starts the run from the latest version in memory or on disk, otherwise from the first state.

        Raises:
          TypeError: the source cannot be rewound.
          ValueError: no number of replicas meets `min_replicas`, or the folder is of a run of another state.
          RuntimeError: another process has the folder.
          HostError: a host was lost, or has too little memory.
        """
        if self._recovery is not None:
            raise RuntimeError("pw.resilient: a run begins once; call pw.resilient again")
        run = None if self._folder is None else self._folder.open()
        try:
            self._source.open()
            self._store.open(self._training.value, run)
            self._source.positions |= self._store.positions
            disk_steps: list[int] = []
            if self._disk is not None:
                self._source.check_saved()
                self._disk.check(self._training.value)
                disk_steps = self._disk.steps()
            self._is_open = True
            self._prepare_replicas()
            core = ResilienceCore(self._store.topology, self._rules, self._store.stored, disk_steps)
            self._recovery = RecoveryRunner(
                core, self._training, self._metrics, self._source, self._store, self._disk, self._replicas
            )
            self._recovery.start()
            self._settle()
            if self.step or self._recovery.restored is not None:
                version = self._recovery.restored or f"version {self.step} in memory"
                self._source.rewind_to_earlier_run(self.step, version)
        except BaseException:
            self._close(keeps=bool(self._store.stored))
            raise
        # An earlier run has read the metrics of the steps before.
        self._metrics.read_steps = self.step
        open_runs.append(self)
        return self

    def _prepare_replicas(self) -> None:
        """Loads the step for fewer replicas, if fewer may run."""
        if self._fewer_replicas is None:
            return
        step, min_replicas = self._fewer_replicas
        if self._replicas is None:
            self._replicas = StepReplicas(self._compiled(step), min_replicas)
        self._replicas.run_on(self._replicas.all)
        self._store.set_replicas(self._replicas)
        self._replicas.check = self._store.check
        self._rules = dataclasses.replace(self._rules, counts=self._replicas.counts)
        self._replicas.load_new(frozenset().union(*self._replicas.islands))

    def _compiled(self, step: Step) -> tuple[Any, ...]:
        """Returns the executables of a step; compiles it for the state and the first batch if necessary."""
        try:
            # The first step reads this batch again.
            batch, _ = self._source.read(0)
        except StopIteration:
            raise ValueError(
                "pw.resilient: the source has no batch to compile the step for, which min_replicas= needs"
            ) from None
        if step is self._train_step and isinstance(step, Program):
            return (step.loaded(self._training.value, batch),)
        # Call it once on a copy of the state to find its programs; discard the results.
        self._train_step(jax.tree.map(_copied, self._training.value), batch)
        executables = executables_of(step)
        if not executables:
            raise TypeError("pw.resilient: train_step does not call the program that feeds= names")
        return executables

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Versions in memory stay until the last one is on disk.
        keeps = True
        try:
            if error is None:
                self._finish()
                keeps = False
            else:
                with contextlib.suppress(Exception):
                    note, keeps = save_committed(self._metrics.given_steps, self._disk, self._committed())
                    error.add_note(note)
        finally:
            self._close(keeps=keeps)

    def steps(self, count: int) -> Iterator[tuple[int, Any]]:
        """Runs steps up to number `count`, and yields the number and the metrics of each.

        Yields each number once, in order, whatever is lost. Steps are issued ahead of the body of the loop.
        The loop ends early with the source. After an error or Ctrl-C, another call continues with the batch
        of the step that failed.

        Args:
          count: the number of steps in all, including the steps of earlier runs with the same folder.

        Raises:
          HostLostError: no copy of a part of the state remains; the message names the part.
          Exception: `train_step` or the source raised it; earlier steps are yielded first.
        """
        checked_count("steps", count, least=0)
        recovery = self._opened()
        while self._metrics.given_steps < count:
            self._mend_state()
            recovery.drain()
            recovery.tick()
            # Issue first, so that devices compute while the body of the loop runs.
            if self._may_issue(count):
                self._issue()
            elif self._metrics.ready and not (self._training.is_held and self._metrics.in_flight):
                # While steps are held, read metrics first: a version of the state waits for them.
                first = self._metrics.ready[0]
                # Not `popleft`: Ctrl-C is raised when a call returns, and would lose the metrics.
                del self._metrics.ready[0]
                yield first
            elif self._metrics.in_flight:
                self._read()
            elif self._training.failure is not None:
                self._training.raise_failure()
            elif self._training.has_ended and not self._training.is_held:
                # While steps are held, a restore may still rewind the source.
                return
            else:
                self._store.wait(TICK_SECONDS)

    @property
    def step(self) -> int:
        """Number of issued steps."""
        return self._training.step

    @property
    def state(self) -> Any:
        """The state after all issued steps; after the loop, the state after the last step."""
        if self._is_open:
            self._settle()
        return self._training.value

    @property
    def protected(self) -> bool:
        """Whether the last version survives the loss of any one island with its memory."""
        return self._recovery is not None and self._is_open and self._recovery.core.is_protected

    def status(self) -> TrainingStatus:
        """Returns the last version, the places of its copies, and the losses so far."""
        core = self._opened().core
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
        """Simulates the loss of an island, for tests of a training loop; may be called by any thread.

        Args:
          island: its name, such as "island1".
          memory: whether the copies in its memory are lost, too, as with its machine.
          returns: whether it returns by itself; otherwise it stays away until `return_island`.

        Raises:
          ValueError: no island has this name.
        """
        number = self._number_of(island)
        arrays = [*jax.tree.leaves(self._training.value), *self._metrics.arrays]
        self._store.lose(number, memory=memory, arrays=arrays, returns=returns)

    @boundary
    def return_island(self, island: str) -> None:
        """Returns an island after `lose(..., returns=False)`; may be called by any thread.

        Raises:
          ValueError: no island has this name.
        """
        self._store.return_island(self._number_of(island))

    def _number_of(self, island: str) -> int:
        """Returns the number of an island."""
        self._opened()
        islands = {f"island{place.island}": place.island for place in self._store.topology.hosts.values()}
        if island not in islands:
            raise ValueError(f"pw.resilient: there is no island {shown(island)}, only {', '.join(islands)}")
        return islands[island]

    def _may_issue(self, count: int) -> bool:
        return (
            not self._training.is_held
            and not self._training.has_ended
            and self._training.failure is None
            and self.step < count
            and self._metrics.in_flight + len(self._metrics.ready) <= STEPS_AHEAD
        )

    def _issue(self) -> None:
        """Issues a step. A step that fails because of a lost island is issued again after the recovery."""
        recovery = self._opened()
        try:
            try:
                batch, position = self._source.read(self.step)
            except StopIteration:
                self._training.has_ended = True
                return
            self._training.begin()
            state, metrics = _checked_result(self._train_step(self._training.value, batch))
            leaves, tree = self._metrics.detach(metrics, state)
        except Exception as error:
            if not recovery.is_of_loss(error):
                self._training.failure = error
            return
        # After an error up to here, the next attempt starts with the same batch, see `_mend_state`.
        with uninterrupted():
            self._training.end(state)
            self._metrics.add(self.step, leaves, tree)
            self._source.use(self.step, position)
            self._training.step += 1
            recovery.handle(BoundaryReached(recovery.core.attempt, self.step))
        if self._replicas is not None:
            # Other programs of the step are compiled by its first call.
            self._replicas.load_new(recovery.core.islands.present)

    def _mend_state(self) -> None:
        """Sets the state back to before a failed step; requests a restore where the step has changed it."""
        if not self._training.is_begun and self._training.problem is None:
            return
        with uninterrupted():
            self._training.mend()
            # Metrics of earlier steps come first, then the error of the step.
            if self._training.failure is None and (problem := self._training.take_problem()) is not None:
                self._opened().handle(StateInvalidated(problem))

    def _read(self) -> None:
        """Reads the metrics of the first step in flight, unless they are lost."""
        try:
            count = self._metrics.read()
        except Exception as error:
            if self._opened().is_of_loss(error):
                return
            number = self._metrics.next_step
            if self._metrics.find_donated():
                # Metrics are detached from now on, see `StepMetrics.detach`.
                self._training.problem = (
                    f"metrics of step {number} share memory that a later step has taken over"
                )
            else:
                # The computation that failed also produces the state.
                self._training.problem, self._training.failure = f"step {number} failed", error
            self._metrics.drop_unread()
            return
        self._opened().note_read(count)

    def _opened(self) -> RecoveryRunner:
        if self._recovery is None or not self._is_open:
            raise RuntimeError("pw.resilient: use it as `with pw.resilient(...) as run:`, and inside of that")
        return self._recovery

    def _settle(self) -> None:
        """Waits until steps may be issued, and reruns steps whose metrics were read before a loss."""
        recovery = self._opened()
        self._mend_state()
        if self._training.problem is not None:
            self._training.raise_failure()
        recovery.drain()
        while self._training.is_held or (
            self.step < self._metrics.read_steps and not self._training.has_ended
        ):
            if not self._training.is_held and self._metrics.in_flight <= STEPS_AHEAD:
                self._issue()
            elif self._metrics.in_flight:
                # The wait may be for a version of these steps.
                self._read()
            else:
                self._store.wait(TICK_SECONDS)
            self._training.raise_failure()
            self._mend_state()
            recovery.tick()
            recovery.drain()

    def _finish(self) -> None:
        """Waits for the last state and saves it to disk, so that the same call resumes after it."""
        if self._recovery is None or self._recovery.abandoned is not None:
            return
        while True:
            self._settle()
            try:
                # After a loss up to this point, the next iteration runs the steps again.
                jax.block_until_ready(self._training.value)
                self._save_last()
                return
            except Exception as error:
                if not self._recovery.is_of_loss(error):
                    raise

    def _save_last(self) -> None:
        """Saves the last state to disk, unless it was saved."""
        if self._disk is None:
            return
        self._disk.wait()
        latest = self._disk.latest()
        if latest is not None and self.step <= latest:
            return
        try:
            self._disk.save(self.step, self._training.value, self._source.positions[self.step])
        except Exception as error:
            error.add_note(where_unsaved(self.step, self._committed()))
            raise

    def _committed(self) -> CommittedVersion | None:
        return None if self._recovery is None else self._recovery.committed()

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
        if self._recovery is not None:
            self._recovery.close(keeps=keeps)
        self._is_open = False
        if self._replicas is not None:
            self._replicas.close()
        self._metrics.drop_unread()
        self._store.close(keeps=keeps)


def _checked_result(result: Any) -> tuple[Any, Any]:
    """Returns the state and the metrics from the result of a step.

    Raises:
      TypeError: the result is not such a pair.
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
@renamed_keywords(disk="directory", disk_keep="max_to_keep", minimum="min_replicas")
def resilient(
    train_step: Bound | Program[..., Any] | TrainStep,
    state: Any,
    source: Any,
    *,
    feeds: tuple[Bound | Program[..., Any], str] | None = None,
    every: int | str = 10,
    directory: str | os.PathLike[str] | None = None,
    disk_every: int = 10,
    max_to_keep: int = 2,
    min_replicas: int | None = None,
    patience: float = 0.0,
    rows: int | None = None,
    shards: int | None = None,
) -> ResilientRun:
    """Runs training steps, and recovers by itself when islands are lost.

    Copies of the state are kept in memory, each on two islands, and the source is rewound with the state, so
    that metrics and the state equal a run without losses of islands, bit for bit.

    Args:
      train_step: a function from a state and a batch to a new state and metrics: a program, or a function
        that calls several. It may be called again for a step, so it has no other effects, and reads no other
        values that change.
      state: the first state, a tree of arrays; `train_step` may donate it.
      source: a source for `pw.prefetch` that can be rewound: an iterable whose iterators have `get_state` and
        `set_state`, as in Grain; a sequence; or `pw.on_hosts(...)`.
      feeds: the program that reads the batches, and the name of its argument; by default the second argument
        of `train_step`, if it is a program.
      every: the number of steps from one version of the state to the next, or a time such as "10s".
      directory: a folder for this run alone, in which versions are saved as checkpoints. A run that begins
        with such a folder resumes from the last version in it, or from a later one in the memory of hosts.
      disk_every: how many versions are made for each that is saved to disk.
      max_to_keep: the number of versions that stay there.
      min_replicas: the smallest number of replicas that may run while islands are lost.
      patience: the seconds that a lost island may take to return before fewer replicas run without it.
      rows: of a source on hosts, see `pw.prefetch`.
      shards: of a source on hosts, see `pw.prefetch`.

    Returns:
      The run, a context manager: `run.steps(count)` runs the steps, `run.state` is the state,
      `run.protected` tells whether any one island may be lost, and `run.lose("island1")` loses one.

    Raises:
      TypeError: `feeds` is missing or not a program, or an argument has a wrong type.
      ValueError: a number out of range, a `min_replicas` that no number of replicas meets, or a `step`
        without such an argument.

    Example:
      ```python
      with pw.resilient(step, state, batches, every=10, directory="run1") as run:
          for n, metrics in run.steps(1000):
              print(n, metrics["loss"])
      state = run.state
      ```
    """
    program, argument = checked_feeds(train_step, feeds)
    interval = checked_interval(every)
    checked_count("disk_every", disk_every)
    checked_count("max_to_keep", max_to_keep)
    directory = checked_folder(directory)
    if isinstance(patience, bool) or not isinstance(patience, int | float) or not patience >= 0:
        raise ValueError(f"pw.resilient: patience={shown(patience)}: expected a number of seconds")
    if isinstance(source, Prefetched):
        raise TypeError("pw.resilient: source is read ahead already; pass what was given to pw.prefetch")
    if min_replicas is not None:
        checked_count("min_replicas", min_replicas)
    if not jax.tree.leaves(state):
        raise ValueError("pw.resilient: the state has no leaves")
    hosts = controller()
    if hosts is None:
        check_not_proxied("pw.resilient: the state is kept")
    elif isinstance(program, Bound):
        raise TypeError(
            "pw.resilient: a compiled program is bound to workers, which may be lost; pass the program "
            "itself, which is compiled again for new workers"
        )
    # Copied now, since the caller may change its arrays after this call.
    state = jax.tree.map(lambda leaf: np.array(leaf) if isinstance(leaf, np.ndarray) else leaf, state)
    store = LocalSnapshotStore() if hosts is None else HostStore(hosts)
    rules = RecoveryRules(
        interval.steps,
        interval.seconds,
        patience=float(patience),
        disk_every=None if directory is None else disk_every,
    )
    batches = RewindableSource(source, program, argument, rows=rows, shards=shards)
    disk_versions = None if directory is None else DiskVersions(directory, state, max_to_keep)
    fewer_replicas = None if min_replicas is None else (program, min_replicas)
    return ResilientRun(train_step, state, batches, store, rules, disk_versions, fewer_replicas)
