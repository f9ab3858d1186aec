"""Graceful exit of a worker on SIGTERM: the worker notifies the controller, which decides when it exits.

So nothing is lost: accepted steps finish first, and arrays can be fetched until the grace period ends.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable

from pathways.runtime.resources.threads import start_thread

_MARGIN = 5.0
"""Seconds that a worker waits for the controller beyond the grace period."""


class SigtermHandler:
    """Handler of SIGTERM, which the process must have blocked before it started any thread.

    Args:
      grace: seconds that the island may take to finish.
      exit: exits the process, with an exit code.

    Attributes:
      notify: notifies the controller; None while the worker starts, when it exits at once.
    """

    def __init__(self, grace: float, exit: Callable[[int], None]) -> None:
        self._grace = grace
        self._exit = exit
        self.notify: Callable[[], None] | None = None
        start_thread(self._wait, "sigterm")

    def _wait(self) -> None:
        signal.sigwait({signal.SIGTERM})
        if self.notify is None:
            self._exit(128 + signal.SIGTERM)
            return
        self.notify()
        start_thread(self._exit_late, "sigterm exits")
        # A second signal means not to wait for the controller.
        signal.sigwait({signal.SIGTERM})
        self._exit(0)

    def _exit_late(self) -> None:
        """Exits even if the controller does not reply, for its process may be stopped."""
        time.sleep(self._grace + _MARGIN)
        self._exit(0)
