"""Islands that end because somebody has asked a worker of theirs to, with SIGTERM.

That is no loss: what was accepted is done first, and what there is can be read for some time.
"""

from __future__ import annotations

import contextlib
import logging
import signal
import time
from collections.abc import Callable
from typing import Protocol

from pathways.runtime.hosts.host import Gang, HostProcess
from pathways.runtime.hosts.issued import IssuedSteps
from pathways.runtime.hosts.messages import Leave
from pathways.runtime.hosts.stalls import Reports
from pathways.runtime.hosts.wire import ConnectionEnded
from pathways.runtime.resources.threads import start_thread

_PAUSE = 0.05
"""Seconds from one look at an island that leaves to the next."""
_END_SECONDS = 2.0
"""How long a process may take to end that was told to."""
_MARGIN = 5.0
"""For how many seconds more than the controller should need a worker waits for it."""

log = logging.getLogger("pathways")


class Lose(Protocol):
    """Ends a worker, and says why and how it ends."""

    def __call__(self, host: HostProcess, why: str, how: str) -> None: ...


class Leaves:
    """The controller's side.

    Args:
      issued: the steps that are not done.
      reports: asks workers what they have.
      poll: reads what workers have said of steps.
      lose: ends a worker.
      grace: seconds that an island may take from the first word to its end.
    """

    def __init__(
        self,
        issued: IssuedSteps,
        reports: Reports,
        poll: Callable[[], None],
        lose: Lose,
        grace: float,
    ) -> None:
        self._issued = issued
        self._reports = reports
        self._poll = poll
        self._lose = lose
        self._grace = grace

    def begin(self, host: HostProcess) -> None:
        """Lets the island of a worker leave that says that it was asked to end; returns when it has."""
        gang = host.gang
        why = "its process was asked to end (SIGTERM)"
        if not self._issued.leave(gang, f"{host} leaves: {why}; its island takes nothing more"):
            return
        log.warning("%s; what it has can be read for up to %.0f seconds", gang.leaving, self._grace)
        deadline = time.monotonic() + self._grace
        self._wait(gang, lambda: not self._issued.of(gang), deadline)
        self._wait(gang, lambda: self._holds_nothing(gang), deadline)
        unfinished = self._issued.of(gang)
        if unfinished:
            why += f", and was not done with {unfinished[0]} after {self._grace:.0f} seconds"
        gang.may_end = True
        for other in gang.hosts:
            with contextlib.suppress(ConnectionEnded):
                other.watch.send(Leave())
        for other in gang.hosts:
            other.process.ending(_END_SECONDS)
        self._lose(host, why, "has left")

    def _wait(self, gang: Gang, is_so: Callable[[], bool], deadline: float) -> None:
        """Waits until something is so, the time is over, or the island is lost."""
        while gang.error is None and time.monotonic() < deadline:
            self._poll()
            if is_so():
                return
            time.sleep(_PAUSE)

    def _holds_nothing(self, gang: Gang) -> bool:
        reports = self._reports.ask([host.index for host in gang.hosts])
        return len(reports) == len(gang.hosts) and not any(report.arrays for report in reports.values())


class Farewell:
    """The worker's side: waits for SIGTERM, which the process has to have blocked since it started.

    Args:
      grace: seconds that its island may take to end.
      end: ends the process, with an exit code.

    Attributes:
      ask: tells the controller; None while there is nothing to lose yet.
    """

    def __init__(self, grace: float, end: Callable[[int], None]) -> None:
        self._grace = grace
        self._end = end
        self.ask: Callable[[], None] | None = None
        start_thread(self._wait, "farewell")

    def _wait(self) -> None:
        signal.sigwait({signal.SIGTERM})
        if self.ask is None:
            self._end(128 + signal.SIGTERM)
            return
        self.ask()
        start_thread(self._end_late, "farewell ends")
        # Who asks again does not want to wait.
        signal.sigwait({signal.SIGTERM})
        self._end(0)

    def _end_late(self) -> None:
        """Ends the process when the controller does not, which may be stopped."""
        time.sleep(self._grace + _MARGIN)
        self._end(0)
