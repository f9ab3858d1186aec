"""Reports of sessions that compile or wait for their clients for long."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
import time
from collections.abc import Callable, Iterator

from pathways.runtime.resources.threads import start_thread

COMPILE_LIMIT_S = 30.0
WAIT_LIMIT_S = 10.0
_CHECK_INTERVAL_S = 2.0


@dataclasses.dataclass(eq=False)
class _Activity:
    subject: str
    start: float
    limit_s: float
    is_reported: bool = False


class StallMonitor:
    """Monitor of activities. Each is reported once when it exceeds its limit, and then when it ends.

    Args:
      report: writes a line to the log.
      clock: returns the time in seconds.
    """

    def __init__(self, report: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._report = report
        self._clock = clock
        self._activities: set[_Activity] = set()
        self._lock = threading.Lock()
        self._closed = threading.Event()

    @contextlib.contextmanager
    def watching(self, subject: str, limit_s: float) -> Iterator[None]:
        """Monitors an activity while the context is entered.

        Args:
          subject: the activity, as in `session 3: compiling program 'jit_f'`.
          limit_s: the seconds after which it is reported.
        """
        activity = _Activity(subject, self._clock(), limit_s)
        with self._lock:
            self._activities.add(activity)
        try:
            yield
        finally:
            with self._lock:
                self._activities.discard(activity)
            if activity.is_reported:
                self._report(f"{subject}: ended after {self._clock() - activity.start:.0f} s")

    def check(self) -> None:
        """Reports activities that have exceeded their limits."""
        now = self._clock()
        with self._lock:
            long = [
                activity
                for activity in self._activities
                if not activity.is_reported and now - activity.start > activity.limit_s
            ]
            for activity in long:
                activity.is_reported = True
        for activity in long:
            self._report(f"{activity.subject}: not ended after {now - activity.start:.0f} s")

    def start(self) -> None:
        """Starts a thread that checks at intervals."""
        start_thread(self._run, "proxy reports stalls")

    def close(self) -> None:
        """Stops the thread."""
        self._closed.set()

    def _run(self) -> None:
        while not self._closed.wait(_CHECK_INTERVAL_S):
            self.check()
