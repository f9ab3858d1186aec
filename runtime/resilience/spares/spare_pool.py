"""Pool of spare workers: children of this process that wait for their configuration."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import override

from pathways.runtime.control.records.errors import HostStartError
from pathways.runtime.hosts.launch.child_launcher import Child, worker_environment
from pathways.runtime.hosts.launch.exit_monitor import kill_all
from pathways.runtime.hosts.launch.launcher import SpareWorkers
from pathways.runtime.hosts.protocol.join_messages import WorkerConfig
from pathways.runtime.resilience.spares.spare_core import (
    KillSpare,
    LogSpares,
    PoolClosed,
    SpareCore,
    SpareEffect,
    SpareEvent,
    SpareFailed,
    SpareReady,
    SpareTick,
    SpareUnfit,
    StartBegan,
    StartEnded,
    StartSpare,
)
from pathways.runtime.resources.status import SpareStatus
from pathways.runtime.resources.threads import start_thread

_TICK_SECONDS = 0.25
_CLOSE_SECONDS = 10.0
_EXIT_SECONDS = 2.0
"""Time for the exit of a process after a kill or the end of its output."""

log = logging.getLogger("pathways")


@dataclasses.dataclass(frozen=True)
class SpawnEnvironment:
    """Settings that a process inherits from its parent; a spare must have the settings of a new worker."""

    python: str
    folder: str | None
    environment: dict[str, str]

    @classmethod
    def current(cls) -> SpawnEnvironment:
        """Returns the settings of a worker that starts now."""
        folder = None
        # The working directory may have been removed.
        with contextlib.suppress(FileNotFoundError):
            folder = str(Path.cwd())
        return cls(sys.executable, folder, worker_environment())

    def difference(self, now: SpawnEnvironment) -> str | None:
        """Returns the difference from a worker that starts now, as text; None without one."""
        if self.python != now.python:
            return f"it runs {self.python}, a worker would now run {now.python}"
        if self.folder != now.folder:
            return f"its working directory is {self.folder}, that of this process is now {now.folder}"
        names = sorted(
            name
            for name in self.environment.keys() | now.environment.keys()
            if self.environment.get(name) != now.environment.get(name)
        )
        return f"{', '.join(names)} changed in the environment since it started" if names else None


class SparePool(SpareWorkers):
    """Pool of spare workers, which replaces spares that were used or have exited.

    Args:
      count: the target number of spares; with 0 the pool does nothing.
      start: a function that starts a spare; for tests.
    """

    def __init__(self, count: int, start: Callable[[], Child] = lambda: Child(None)) -> None:
        self._start = start
        self._core = SpareCore(count)
        # Held while a spare starts, so that each spare of the core has its process.
        self._changed = threading.Condition()
        self._effects: list[SpareEffect] = []
        self._children: dict[int, tuple[Child, SpawnEnvironment]] = {}
        self._is_closed = False
        self._thread = start_thread(self._run, "spares") if count else None

    @override
    def status(self) -> SpareStatus | None:
        # Outside of the lock, which a fork of this process might find locked forever.
        core = self._core
        return SpareStatus(core.ready, core.count, core.problem) if core.count else None

    @override
    @contextlib.contextmanager
    def no_refill(self) -> Iterator[None]:
        self._notify(StartBegan())
        try:
            yield
        finally:
            self._notify(StartEnded())

    @override
    def take(self, config: WorkerConfig) -> Child | None:
        now = SpawnEnvironment.current()
        with self._changed:
            while (number := self._core.take()) is not None:
                child, before = self._children[number]
                exit_status = child.exit_status(0)
                difference = (
                    before.difference(now) if exit_status is None else f"it has exited ({exit_status})"
                )
                if difference is not None:
                    self._notify(SpareUnfit(number, difference))
                    continue
                del self._children[number]
                child.configure(config)
                log.info("%s: a spare worker takes its place, process %d", config, child.pid)
                return child
        return None

    @override
    def close(self) -> None:
        self._notify(PoolClosed())
        if self._thread is not None:
            self._thread.join(_CLOSE_SECONDS)

    def _notify(self, event: SpareEvent) -> None:
        with self._changed:
            self._is_closed |= isinstance(event, PoolClosed)
            self._effects += self._core.handle(event, time.monotonic())
            self._changed.notify()

    def _run(self) -> None:
        is_closed = False
        while not is_closed:
            with self._changed:
                if not self._effects:
                    self._changed.wait(_TICK_SECONDS)
                self._notify(SpareTick())
                effects, self._effects = self._effects, []
                is_closed = self._is_closed
                for effect in effects:
                    if isinstance(effect, StartSpare):
                        self._start_one(effect.number)
                numbers = [effect.number for effect in effects if isinstance(effect, KillSpare)]
                # The spare may have exited meanwhile.
                killed = [self._children.pop(number)[0] for number in numbers if number in self._children]
            kill_all(killed, _EXIT_SECONDS)
            for effect in effects:
                if isinstance(effect, LogSpares):
                    log.log(effect.level, "%s", effect.text)

    def _start_one(self, number: int) -> None:
        # First, so that a change during the start counts as a difference.
        before = SpawnEnvironment.current()
        try:
            child = self._start()
        except HostStartError as error:
            self._notify(SpareFailed(number, str(error)))
            return
        self._children[number] = child, before
        start_thread(functools.partial(self._watch, number, child), "spare")

    def _watch(self, number: int, child: Child) -> None:
        """Reports that a spare is ready, and its exit; ends when it is used or killed."""
        assert child.output is not None
        with child.output as output:
            if output.readline():
                self._notify(SpareReady(number))
            output.read()
        with self._changed:
            if number not in self._children:
                return
            del self._children[number]
            exit_status = child.exit_status(_EXIT_SECONDS) or "it closed its output"
            self._notify(SpareFailed(number, f"a spare worker exited ({exit_status})"))
