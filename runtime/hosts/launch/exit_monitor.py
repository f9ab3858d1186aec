"""Which workers have ended, while others wait for them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping

from pathways.runtime.hosts.launch.launcher import WorkerProcess
from pathways.runtime.resources.threads import start_thread

_AT_ONCE = 32
"""How many workers are asked at the same time: with Ray each question is a round trip."""

_PAUSE_SECONDS = 0.2


class ExitMonitor:
    """Asks workers again and again whether they have ended, in threads of its own, until it is closed.

    So whoever waits for workers looks at what is known, which takes no time, however often that is and
    however long an answer takes.

    Args:
      processes: the workers, by their numbers; there may be more of them later.
    """

    def __init__(self, processes: Mapping[int, WorkerProcess]) -> None:
        self._processes = processes
        self._ended: set[int] = set()
        self._closed = threading.Event()
        start_thread(self._ask, "endings")

    def close(self) -> None:
        """Asks no more."""
        self._closed.set()

    def first(self) -> int | None:
        """The first of all workers that are known to have ended; None where none is."""
        return min(self._ended, default=None)

    def _ask(self) -> None:
        while not self._closed.wait(_PAUSE_SECONDS):
            _for_all(self._ask_one, self._processes.items())

    def _ask_one(self, one: tuple[int, WorkerProcess]) -> None:
        host, process = one
        if not self._closed.is_set() and process.ending(0) is not None:
            self._ended.add(host)


def end_all(processes: Iterable[WorkerProcess], seconds: float, *, grace: float | None = None) -> None:
    """Kills workers, many at the same time.

    Args:
      processes: the workers.
      seconds: how long to wait for the end of each that was killed.
      grace: how long each may take to end by itself before that; None for no time.
    """

    def end(process: WorkerProcess) -> None:
        if grace is None or process.ending(grace) is None:
            process.kill()
            process.ending(seconds)

    _for_all(end, processes)


def _for_all[Item](work: Callable[[Item], None], items: Iterable[Item]) -> None:
    """Does something with many items at the same time. An executor would not when the interpreter ends."""
    left = [*items]

    def do() -> None:
        while True:
            # One step: no two threads get the same.
            try:
                item = left.pop()
            except IndexError:
                return
            work(item)

    threads = [start_thread(do, "endings") for _ in range(min(_AT_ONCE, len(left)))]
    for thread in threads:
        thread.join()
