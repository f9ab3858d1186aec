"""Spans of recoveries in traces."""

from __future__ import annotations

import time

from pathways.runtime.local.recording import RecordedSpan, record_span
from pathways.runtime.resilience.effects import HoldSteps, ResilienceEffect, RestoreState, ResumeSteps

_TRACK, _ROW = "pw.resilient", "recoveries"


class RecoverySpans:
    """Spans of the phases of a recovery, one after the other, until lost steps have run again."""

    def __init__(self) -> None:
        # The last step that was issued before a restore, up to which steps run again.
        self._issued = 0
        self._end = 0
        self._name: str | None = None
        self._start = 0

    def apply(self, effect: ResilienceEffect, step: int) -> None:
        """Notes an effect before it is carried out.

        Args:
          step: how many steps were issued.
        """
        match effect:
            case HoldSteps():
                self._begin("steps held")
            case RestoreState():
                # A loss may interrupt an earlier recovery, whose steps have not all run again.
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
        """Notes that the metrics of the first `step` steps were read."""
        if 0 < self._end <= step:
            self._begin(None)
            self._end = 0

    def close(self) -> None:
        """Ends the current span."""
        self._begin(None)

    def _begin(self, name: str | None) -> None:
        """Ends the current span; starts one unless `name` is None."""
        now = time.monotonic_ns()
        if self._name is not None:
            record_span(RecordedSpan(_TRACK, _ROW, self._name, self._start, now))
        self._name, self._start = name, now
