"""Logs of losses: a warning waits for the loss that explains it, and a loss for its recovery."""

from __future__ import annotations

import logging
import math

from pathways.runtime.control.effects import Log
from pathways.runtime.resilience.effects import ResilienceEffect

_DELAY_SECONDS = 1.0
"""Seconds for which a warning waits for the loss that explains it."""


class LossLogs:
    """Logs of losses; decides when each is written.

    Attributes:
      causes: the losses that the next recovery is for.
    """

    def __init__(self) -> None:
        self.causes: list[str] = []
        self._delayed: list[ResilienceEffect] = []
        self._due_at = math.inf

    def delay(self, text: str, now: float) -> None:
        """Delays a warning until the next loss, or for some time."""
        self._delayed.append(Log(logging.WARNING, text))
        self._due_at = min(self._due_at, now + _DELAY_SECONDS)

    def take_delayed(self, now: float = math.inf) -> list[ResilienceEffect]:
        """Returns the delayed logs that are due; all by default."""
        if now < self._due_at:
            return []
        logs, self._delayed, self._due_at = self._delayed, [], math.inf
        return logs

    def report_restore(self, step: int, source: str, again: int, replicas: str) -> Log:
        """Returns the log of a restore with its causes, and clears them.

        Args:
          step: the step of the version.
          source: `disk` or `memory`.
          again: the number of steps that run again.
          replicas: text about the replicas that run.
        """
        count = "a step is" if again == 1 else f"{again} steps are"
        causes = "".join(f"{cause}; " for cause in self.causes)
        self.causes.clear()
        text = f"{causes}resuming from version {step} in {source}, {count} run again{replicas}"
        return Log(logging.WARNING if causes else logging.INFO, text)
