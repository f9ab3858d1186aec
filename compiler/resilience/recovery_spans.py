"""Recoveries of a run as spans of traces."""

from __future__ import annotations

import time

from pathways.runtime.local.recording import RecordedSpan, record_span
from pathways.runtime.resilience.effects import HoldSteps, ResilienceEffect, RestoreState, ResumeSteps

_TRACK, _ROW = "pw.resilient", "recoveries"


class RecoverySpans:
    """Spans of what the steps of a run wait for: one after the other, until the steps before are made up."""

    def __init__(self) -> None:
        # How many steps were issued before a restore; of those that are run again now, the last one.
        self._issued = 0
        self._end = 0
        self._name: str | None = None
        self._start = 0

    def apply(self, effect: ResilienceEffect, step: int) -> None:
        """Notes an effect, before it is carried out.

        Args:
          step: how many steps were issued.
        """
        match effect:
            case HoldSteps():
                self._begin("steps held")
            case RestoreState():
                # A loss may interrupt an earlier recovery, whose steps are still to be run again.
                self._issued = max(self._issued, self._end, step)
                self._end = 0
                self._begin(f"restore {effect.step}")
            case ResumeSteps():
                again = self._issued - effect.step
                self._begin(None)
                if again > 0:
                    self._begin("a step run again" if again == 1 else f"{again} steps run again")
                    self._end = self._issued
                self._issued = 0

    def read(self, step: int) -> None:
        """Notes that the metrics of all steps before one were read."""
        if 0 < self._end <= step:
            self._begin(None)
            self._end = 0

    def close(self) -> None:
        """Ends the current span."""
        self._begin(None)

    def _begin(self, name: str | None) -> None:
        """Ends the current span, and begins one; none if `name` is None."""
        now = time.monotonic_ns()
        if self._name is not None:
            record_span(RecordedSpan(_TRACK, _ROW, self._name, self._start, now))
        self._name, self._start = name, now
