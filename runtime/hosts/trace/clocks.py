"""The clock of a host, told from round trips of messages.

No two hosts have one clock. What one reads while a message goes to it and back lies between the other's clock
before and after, and halfway unless one of the two ways took longer: the shorter the round trip, the less of
it can be wrong.
"""

from __future__ import annotations

import bisect
import collections
import dataclasses
from collections.abc import Sequence

_DRIFT = 20e-6
"""By how much two clocks may run apart: seconds in a second. A measurement gets worse by as much."""

_KEPT = 16
"""How many measurements are remembered."""

_STEEPEST = 0.5
"""By how much the time of a host may be stretched to be right again, so that it never runs backwards."""


@dataclasses.dataclass(frozen=True)
class RoundTrip:
    """A message to a host and back; nanoseconds.

    Attributes:
      sent: when it was sent, by the clock here.
      read: what the clock of the host said.
      received: when the answer came, by the clock here.
    """

    sent: int
    read: int
    received: int

    @property
    def ahead(self) -> int:
        """By how much the clock of the host is ahead, if both ways took equally long."""
        return self.read - (self.sent + self.received) // 2

    @property
    def error(self) -> float:
        """By how much that may be wrong."""
        return (self.received - self.sent) / 2


class HostClock:
    """Translates the times of a host to those of the clock here.

    The translation is continuous and keeps the order of times, and times that were translated once are never
    translated otherwise, as long as they lie before the last measurement.
    """

    def __init__(self) -> None:
        self._trips: collections.deque[RoundTrip] = collections.deque(maxlen=_KEPT)
        # By how much the host was ahead at times of its own; in between in proportion.
        self._times: list[int] = []
        self._ahead: list[int] = []
        self.error = float("inf")
        """By how much the last measurement may be wrong, in nanoseconds."""

    def measure(self, trips: Sequence[RoundTrip]) -> None:
        """Takes the round trips of one measurement, at least one, in their order."""
        self._trips.append(min(trips, key=lambda trip: trip.error))
        now = trips[-1].read

        def error(trip: RoundTrip) -> float:
            return trip.error + _DRIFT * (now - trip.read)

        best = min(self._trips, key=error)
        self.error = error(best)
        ahead = best.ahead
        if self._times:
            most = int(_STEEPEST * (now - self._times[-1]))
            ahead = min(max(ahead, self._ahead[-1] - most), self._ahead[-1] + most)
        self._times.append(now)
        self._ahead.append(ahead)

    @property
    def is_measured(self) -> bool:
        """Whether there was a measurement, without which nothing can be translated."""
        return bool(self._times)

    def here(self, time: int) -> int:
        """A time of the host by the clock here, in nanoseconds."""
        n = bisect.bisect_right(self._times, time)
        if n == 0 or n == len(self._times):
            return time - self._ahead[max(0, n - 1)]
        before, after = self._times[n - 1], self._times[n]
        change = (self._ahead[n] - self._ahead[n - 1]) * (time - before) // (after - before)
        return time - self._ahead[n - 1] - change
