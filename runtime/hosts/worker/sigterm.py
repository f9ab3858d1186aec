"""How a worker ends that somebody has asked to, with SIGTERM: when the controller says that it may.

That is no loss: what was accepted is done first, and what there is can be read for some time.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable

from pathways.runtime.resources.threads import start_thread

_MARGIN = 5.0
"""For how many seconds more than the controller should need a worker waits for it."""


class SigtermHandler:
    """Waits for SIGTERM, which the process has to have blocked since it started.

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
        start_thread(self._wait, "sigterm")

    def _wait(self) -> None:
        signal.sigwait({signal.SIGTERM})
        if self.ask is None:
            self._end(128 + signal.SIGTERM)
            return
        self.ask()
        start_thread(self._end_late, "sigterm ends")
        # Who asks again does not want to wait.
        signal.sigwait({signal.SIGTERM})
        self._end(0)

    def _end_late(self) -> None:
        """Ends the process when the controller does not, which may be stopped."""
        time.sleep(self._grace + _MARGIN)
        self._end(0)
