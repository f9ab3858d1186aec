"""Reports of arrays of this process that have been pending for long.

Programs keep no account of their arrays: a thread polls all live arrays of JAX.
"""

from __future__ import annotations

import atexit
import linecache
import logging
import os
import sys
import threading
import time
import traceback
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from pathways.runtime.local.codegen import SOURCE_NAME
from pathways.runtime.local.devices import live_arrays
from pathways.runtime.resources.threads import start_thread

POLLS_PER_REPORT = 6
"""Number of polls within the time after which a pending array is reported."""

log = logging.getLogger("pathways")


class LocalStalls:
    """Detector of arrays that stay pending.

    Args:
      report: the seconds after which an array is reported, and again whenever they have doubled.
      awaited: returns lines about the arrays of other processes that this one waits for.
    """

    def __init__(self, report: float, awaited: Callable[[], Iterable[str]] = tuple) -> None:
        self._report = report
        self._awaited = awaited
        self._next_report = report
        # Pending arrays by id, with the time at which each was seen first.
        self._pending: dict[int, tuple[weakref.ref[Any], float]] = {}

    def poll(self) -> None:
        """Checks all live arrays once, and logs a report if one is due."""
        now = time.monotonic()
        pending = {id(array): array for array in _pending_arrays()}
        self._pending = {
            key: entry
            for key, entry in self._pending.items()
            # A new array may have the id of one that was freed.
            if key in pending and entry[0]() is pending[key]
        }
        for key, array in pending.items():
            self._pending.setdefault(key, (weakref.ref(array), now))
        oldest = min((since for _, since in self._pending.values()), default=now)
        if now - oldest < self._report:
            self._next_report = self._report
        elif now - oldest >= self._next_report:
            self._next_report = 2 * (now - oldest)
            late = [pending[key] for key, (_, since) in self._pending.items() if now - since >= self._report]
            log.warning("%s", describe(late, now - oldest, self._awaited()))


def describe(arrays: Sequence[Any], seconds: float, awaited: Iterable[str] = ()) -> str:
    """Returns a report of arrays: their devices, the possible causes, and the positions of threads."""
    lines = [f"{len(arrays)} arrays have not been computed for {seconds:.0f} seconds"]
    by_devices: dict[tuple[Any, ...], list[Any]] = {}
    for array in arrays:
        devices = sorted(array.sharding.device_set, key=lambda device: device.id)
        by_devices.setdefault(tuple(devices), []).append(array)
    for on, group in by_devices.items():
        shown = ", ".join(array.aval.str_short() for array in group[:3])
        ellipsis = ", ..." if group[3:] else ""
        lines.append(f"  on {' '.join(map(str, on))}: {len(group)}, {shown}{ellipsis}")
    lines += [f"  {line}" for line in (*awaited, *_thread_positions())]
    return "\n".join(lines)


def _pending_arrays() -> list[Any]:
    return [array for array in live_arrays() if not array.is_deleted() and not _is_ready(array)]


def _is_ready(array: Any) -> bool:
    try:
        return bool(array.is_ready())
    except RuntimeError:
        # It was donated in between.
        return True


def _thread_positions() -> Iterator[str]:
    """Yields the current line of each thread that runs the function of a program."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    for ident, frame in sys._current_frames().items():
        for inner, line in traceback.walk_stack(frame):
            name = inner.f_code.co_filename
            if name.startswith(SOURCE_NAME):
                text = linecache.getline(name, line).strip()
                yield f"thread {names.get(ident, ident)} issues {name.strip('<>')}: {text}"
                break


class ArrayStallMonitor:
    """Monitor of a process: a thread that polls for arrays that stay pending.

    Attributes:
      awaited: see `LocalStalls`.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # Held during each poll.
        self._polling = threading.Lock()
        self.awaited: Callable[[], Iterable[str]] = tuple
        self._report: float | None = 60.0
        self._changed = threading.Event()
        self._is_started = False

    def configure(self, report: float | None) -> None:
        """Sets the seconds after which arrays are reported; None for never."""
        self._report = report
        self._changed.set()

    def start(self) -> None:
        """Starts the thread, unless it runs already."""
        with self._lock:
            if not self._is_started:
                self._is_started = True
                start_thread(self._run, "stalls")
                atexit.register(self._finish, os.getpid())

    def _finish(self, process: int) -> None:
        """Waits for a poll: before Python 3.14, a thread that is in jaxlib at exit aborts the process."""
        # In a forked process, which has no such thread, the lock of a poll would never be released.
        if os.getpid() == process:
            self._polling.acquire()

    def _run(self) -> None:
        while True:
            # Cleared before the setting is read, so that no change is missed.
            self._changed.clear()
            report = self._report
            if report is None:
                self._changed.wait()
                continue
            stalls = LocalStalls(report, self.awaited)
            while not self._changed.wait(report / POLLS_PER_REPORT):
                with self._polling:
                    stalls.poll()


monitor = ArrayStallMonitor()
"""The monitor of this process."""
