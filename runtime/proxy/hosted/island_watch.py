"""Watch over the islands of a session, on which clients have arrays."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from pathways.runtime.control.records.errors import ServiceLostError
from pathways.runtime.hosts.client.host_session import HostSession
from pathways.runtime.hosts.cluster.host import HostGang
from pathways.runtime.resources.threads import start_thread

_CHECK_SECONDS = 0.1
"""Time between checks. A thread that waits in the session would handle each message of a worker."""


class IslandWatch:
    """Watch that calls functions when islands are lost and when they return, from a separate thread.

    Args:
      session: the session.
      islands: the numbers of its islands.
      lose: called with the position in `islands` of one that is lost, the reason, and whether it returns by
        itself.
      restore: called with the position of an island that has new workers.
    """

    def __init__(
        self,
        session: HostSession,
        islands: Sequence[int],
        lose: Callable[[int, str, bool], None],
        restore: Callable[[int], None],
    ) -> None:
        self._session = session
        self._islands = tuple(islands)
        self._lose = lose
        self._restore = restore
        # The workers of each island that clients know of; None while it is lost for them.
        self._workers: list[HostGang | None] = [session.pool.gangs[number] for number in islands]
        self._closed = threading.Event()
        self._thread = start_thread(self._watch, "proxy islands")

    def close(self) -> None:
        """Ends the watch."""
        self._closed.set()
        self._thread.join()

    def _current(self) -> list[HostGang | None]:
        gangs = [self._session.pool.gangs[number] for number in self._islands]
        return [None if gang.is_lost() else gang for gang in gangs]

    def _watch(self) -> None:
        while not self._closed.wait(_CHECK_SECONDS) and not self._session.is_closed:
            current = self._current()
            for position, (before, now) in enumerate(zip(self._workers, current, strict=True)):
                if before is not None and before is not now:
                    failure = before.life.failure
                    # No island returns: later requests of clients fail with that error.
                    if failure is not None and failure.kind is ServiceLostError:
                        return
                    why = before.name if failure is None else failure.text
                    self._lose(position, why, not before.life.is_out)
                if now is not None and before is not now:
                    self._restore(position)
            self._workers = current
