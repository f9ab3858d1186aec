"""Workers that tests share: they stay from one test to the next, but without its state."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import gc
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from attached import ServiceInThreads

import pathways as pw
from pathways.runtime.clusters import connect
from pathways.runtime.hosts.client.host_session import HostSession
from pathways.runtime.hosts.launch.settings import Settings
from pathways.runtime.local import devices, recording

START = connect.start_session
"""Original function that starts workers of this process."""
_CLEAN_TIMEOUT_S = 10.0
"""Time in which workers have to free the state of a test: a step may be in flight."""
_COLLECTION_SECONDS = 0.5
"""Time between collections of garbage while workers have state."""


@dataclasses.dataclass
class _Workers:
    """Workers of this process, or a service that has some."""

    owner: HostSession | ServiceInThreads
    pids: list[int] = dataclasses.field(default_factory=list)

    def connect(self) -> HostSession:
        """Returns their controller, or a new client of the service."""
        controller = self.owner.attach() if isinstance(self.owner, ServiceInThreads) else self.owner
        self.pids = self.pids or _pids(controller)
        return controller

    def are_intact(self, controller: HostSession) -> bool:
        """Returns whether they are the workers that were started, and can be used."""
        return controller.is_usable() and controller.is_whole() and _pids(controller) == self.pids


class WorkerPool:
    """Pool of workers by their settings, for tests that kill none.

    Args:
      make_folder: creates a folder for the socket of a service.
      max_idle: the limit of idle clusters; the one that was unused for longest is closed first.
    """

    def __init__(self, make_folder: Callable[[], Path], max_idle: int = 3) -> None:
        self._make_folder = make_folder
        self._max_idle = max_idle
        self._workers: dict[tuple[str, Settings], _Workers] = {}
        self._connected: dict[tuple[str, Settings], HostSession] = {}

    @contextlib.contextmanager
    def lend(self, kind: str, may_leave: Callable[[], bool]) -> Iterator[None]:
        """Makes `connect` use workers of the pool, which have to be free of arrays and steps after the block.

        Args:
          kind: `own`, or `attached` for those of a service.
          may_leave: whether the test may leave arrays, like the traceback of a failed one: its workers are
            terminated.

        Raises:
          AssertionError: arrays or steps are left.
        """
        pw.disconnect()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(connect, "start_session", functools.partial(self._start, kind))
            patch.setattr(connect, "_close", self._disconnect)
            try:
                yield
                if devices.process_cluster.bound_slices():
                    for slice in devices.process_cluster.manager().holders():
                        pw.release(slice)
                # Before the check: this drops arrays kept for the next call of a program.
                devices.process_cluster.disconnect()
                left = {} if may_leave() else self._left()
            finally:
                pw.disconnect()
                is_dirty = may_leave()
                for key, controller in [*self._connected.items()]:
                    workers = self._workers[key]
                    if is_dirty or not workers.are_intact(controller):
                        self._end(key)
                    elif isinstance(workers.owner, ServiceInThreads):
                        controller.close()
                self._connected.clear()
        for key in left:
            self._end(key)
        assert not left, "left on workers by the test: " + "; ".join(left.values())

    def close(self) -> None:
        """Terminates all workers."""
        for key in [*self._workers]:
            self._end(key)

    def _start(self, kind: str, settings: Settings) -> HostSession:
        key = kind, settings
        if key in self._connected and self._connected[key].is_usable():
            for traces in self._connected[key].pool.observers:
                recording.register(traces)
            return self._connected[key]
        workers = self._workers.pop(key, None)
        controller = None if workers is None else workers.connect()
        if workers is not None and controller is not None and not workers.are_intact(controller):
            _close(workers, controller)
            workers = None
        if workers is None:
            idle = [other for other in self._workers if other not in self._connected]
            for other in idle[: max(0, len(self._workers) + 1 - self._max_idle)]:
                self._end(other)
            workers = _Workers(
                START(settings) if kind == "own" else ServiceInThreads(settings, self._make_folder())
            )
            controller = workers.connect()
        assert controller is not None
        for traces in controller.pool.observers:
            recording.register(traces)
        # Appended last: the first is the one that was unused for longest.
        self._workers[key] = workers
        self._connected[key] = controller
        return controller

    def _disconnect(self) -> None:
        """Replaces `connect._close`: the workers stay, and no trace is written for them."""
        controller = connect._controller
        if controller is not None:
            for wait in connect.before_end:
                wait()
            for traces in controller.pool.observers:
                recording._traceable.discard(traces)
                traces.observe(None)
            connect._controller = None

    def _left(self) -> dict[tuple[str, Settings], str]:
        """Returns the state left on workers; waits for arrays that are being freed."""
        left: dict[tuple[str, Settings], str] = {}
        until = time.monotonic() + _CLEAN_TIMEOUT_S
        for key, controller in self._connected.items():
            next_collection = 0.0
            while self._workers[key].are_intact(controller) and (text := _text_of_left(controller)):
                now = time.monotonic()
                if now > until:
                    left[key] = text
                    break
                # Again and again: a thread that is about to end may refer to the error of the test, and a
                # collection during one of another thread does nothing.
                if now >= next_collection:
                    gc.collect()
                    next_collection = now + _COLLECTION_SECONDS
                time.sleep(0.02)
        return left

    def _end(self, key: tuple[str, Settings]) -> None:
        _close(self._workers.pop(key), self._connected.pop(key, None))


def _close(workers: _Workers, controller: HostSession | None) -> None:
    if controller is not None:
        controller.close()
    workers.owner.close()


def _pids(controller: HostSession) -> list[int]:
    return [host.process.pid for host in controller.hosts]


def _text_of_left(controller: HostSession) -> str:
    """Returns the arrays and steps of workers as text; empty if there are none."""
    hosts, steps = controller.status()
    found = [
        f"{host.arrays} arrays of {host.bytes} bytes on host {host.host}"
        for host in hosts
        if host.arrays != 0
    ]
    found += [f"step {step.number} of program {step.program} on hosts {step.hosts}" for step in steps]
    return ", ".join(found)
