"""Monitor of the exits of worker processes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping

from pathways.runtime.hosts.launch.launcher import WorkerProcess
from pathways.runtime.resources.threads import start_thread

_AT_ONCE = 32
"""Number of workers that are polled concurrently: with Ray each poll is a round trip."""

_PAUSE_SECONDS = 0.2


class ExitMonitor:
    """Poller of worker processes, in separate threads, until it is closed.

    So a caller that waits for workers reads a known state without delay, however long one poll takes.

    Args:
      processes: the workers, by their numbers; more may be added later.
    """

    def __init__(self, processes: Mapping[int, WorkerProcess]) -> None:
        self._processes = processes
        self._exited: set[int] = set()
        self._closed = threading.Event()
        start_thread(self._poll, "exits")

    def close(self) -> None:
        """Stops polling."""
        self._closed.set()

    def first(self) -> int | None:
        """Returns the lowest number of a worker that is known to have exited; None if there is none."""
        return min(self._exited, default=None)

    def _poll(self) -> None:
        while not self._closed.wait(_PAUSE_SECONDS):
            _for_all(self._poll_one, self._processes.items())

    def _poll_one(self, item: tuple[int, WorkerProcess]) -> None:
        host, process = item
        if not self._closed.is_set() and process.exit_status(0) is not None:
            self._exited.add(host)


def kill_all(processes: Iterable[WorkerProcess], timeout: float, *, grace: float | None = None) -> None:
    """Kills workers, many concurrently.

    Args:
      processes: the workers.
      timeout: seconds to wait for the exit of each killed worker.
      grace: seconds that each may take to exit by itself before; None to kill it at once.
    """

    def kill(process: WorkerProcess) -> None:
        if grace is None or process.exit_status(grace) is None:
            process.kill()
            process.exit_status(timeout)

    _for_all(kill, processes)


def _for_all[Item](work: Callable[[Item], None], items: Iterable[Item]) -> None:
    """Calls a function for many items concurrently.

    It works while the interpreter exits, too, when an executor accepts no more work.
    """
    left = [*items]

    def run() -> None:
        while True:
            # `pop` is atomic: no two threads get the same item.
            try:
                item = left.pop()
            except IndexError:
                return
            work(item)

    threads = [start_thread(run, "exits") for _ in range(min(_AT_ONCE, len(left)))]
    for thread in threads:
        thread.join()
