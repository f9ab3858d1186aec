"""Reports arrays of this process that are not computed, long after they were asked for.

Nothing is counted while programs run: a thread looks now and then at what JAX has alive.
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

LOOKS = 6
"""How often it looks within the time after which it reports."""

log = logging.getLogger("pathways")


class LocalStalls:
    """Looks for arrays that are not computed.

    Args:
      report: seconds after which an array is reported, and again whenever they have doubled.
      awaited: says which arrays of other processes this one waits for.
    """

    def __init__(self, report: float, awaited: Callable[[], Iterable[str]] = tuple) -> None:
        self._report = report
        self._awaited = awaited
        self._next = report
        self._seen: dict[int, tuple[weakref.ref[Any], float]] = {}

    def look(self) -> None:
        """Looks once, and reports."""
        now = time.monotonic()
        pending = {id(array): array for array in _pending()}
        self._seen = {
            key: seen
            for key, seen in self._seen.items()
            # An array that is gone may have left its place to another one.
            if key in pending and seen[0]() is pending[key]
        }
        for key, array in pending.items():
            self._seen.setdefault(key, (weakref.ref(array), now))
        oldest = min((began for _, began in self._seen.values()), default=now)
        if now - oldest < self._report:
            self._next = self._report
        elif now - oldest >= self._next:
            self._next = 2 * (now - oldest)
            late = [pending[key] for key, (_, began) in self._seen.items() if now - began >= self._report]
            log.warning("%s", described(late, now - oldest, self._awaited()))


def described(arrays: Sequence[Any], seconds: float, awaited: Iterable[str] = ()) -> str:
    """Report of arrays: their devices, what they may wait for, and where threads are in programs."""
    lines = [f"{len(arrays)} arrays have not been computed for {seconds:.0f} seconds"]
    by_devices: dict[tuple[Any, ...], list[Any]] = {}
    for array in arrays:
        devices = sorted(array.sharding.device_set, key=lambda device: device.id)
        by_devices.setdefault(tuple(devices), []).append(array)
    for on, there in by_devices.items():
        shown = ", ".join(array.aval.str_short() for array in there[:3])
        more = ", ..." if there[3:] else ""
        lines.append(f"  on {' '.join(map(str, on))}: {len(there)}, {shown}{more}")
    lines += [f"  {line}" for line in (*awaited, *_in_programs())]
    return "\n".join(lines)


def _pending() -> list[Any]:
    return [array for array in live_arrays() if not array.is_deleted() and not _is_ready(array)]


def _is_ready(array: Any) -> bool:
    try:
        return bool(array.is_ready())
    except RuntimeError:
        # Donated in between.
        return True


def _in_programs() -> Iterator[str]:
    """Which line of a program's function each thread is in, if it is in one."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    for ident, frame in sys._current_frames().items():
        for inner, line in traceback.walk_stack(frame):
            name = inner.f_code.co_filename
            if name.startswith(SOURCE_NAME):
                text = linecache.getline(name, line).strip()
                yield f"thread {names.get(ident, ident)} issues {name.strip('<>')}: {text}"
                break


class _Watch:
    """The thread that looks, of which there is one.

    Attributes:
      awaited: see `LocalStalls`.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._looking = threading.Lock()
        self.awaited: Callable[[], Iterable[str]] = tuple
        self._report: float | None = 60.0
        self._changed = threading.Event()
        self._is_started = False

    def set(self, report: float | None) -> None:
        """Says after how many seconds to report; None for never."""
        self._report = report
        self._changed.set()

    def start(self) -> None:
        """Starts to look, unless another thread does."""
        with self._lock:
            if not self._is_started:
                self._is_started = True
                start_thread(self._look, "stalls")
                atexit.register(self._finish, os.getpid())

    def _finish(self, process: int) -> None:
        """Waits for a look: before Python 3.14 a thread that is in jaxlib at the end aborts the process."""
        # A forked one has no such thread, and nobody who would end its look.
        if os.getpid() == process:
            self._looking.acquire()

    def _look(self) -> None:
        while True:
            self._changed.clear()
            report = self._report
            if report is None:
                self._changed.wait()
                continue
            stalls = LocalStalls(report, self.awaited)
            while not self._changed.wait(report / LOOKS):
                with self._looking:
                    stalls.look()


watch = _Watch()
"""That of this process."""
