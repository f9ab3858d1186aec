"""Clocks of hosts, estimated from round trips of messages.

No two hosts share a clock. The time that a host reads during a round trip is between the local times before
and after, and halfway if both ways took equally long: the shorter the round trip, the smaller the error.
"""

from __future__ import annotations

import bisect
import collections
import dataclasses
from collections.abc import Sequence

_DRIFT = 20e-6
"""Drift of two clocks, in seconds per second: the error of a measurement grows by as much."""

_MAX_TRIPS = 16
"""Number of measurements that are kept."""

_MAX_SLOPE = 0.5
"""Limit on the change of the offset, in seconds per second: below 1, so that times never run backwards."""


@dataclasses.dataclass(frozen=True)
class RoundTrip:
    """Message to a host and its reply; times in nanoseconds.

    Attributes:
      sent: when the message was sent, by the local clock.
      read: the time by the clock of the host.
      received: when the reply arrived, by the local clock.
    """

    sent: int
    read: int
    received: int

    @property
    def ahead(self) -> int:
        """Offset of the host's clock from the local one, if both ways took equally long."""
        return self.read - (self.sent + self.received) // 2

    @property
    def error(self) -> float:
        """Maximum error of `ahead`."""
        return (self.received - self.sent) / 2


class HostClock:
    """Translation of times of a host to the local clock.

    The translation is continuous and monotonic. A later measurement never changes the translation of a time
    before the last measurement.
    """

    def __init__(self) -> None:
        self._trips: collections.deque[RoundTrip] = collections.deque(maxlen=_MAX_TRIPS)
        # Offsets of the host's clock at times of that clock, with linear interpolation between them.
        self._times: list[int] = []
        self._ahead: list[int] = []
        self.error = float("inf")
        """Maximum error of the last measurement, in nanoseconds."""

    def measure(self, trips: Sequence[RoundTrip]) -> None:
        """Adds a measurement, from at least one round trip, in their order."""
        self._trips.append(min(trips, key=lambda trip: trip.error))
        now = trips[-1].read

        def error(trip: RoundTrip) -> float:
            return trip.error + _DRIFT * (now - trip.read)

        # An older round trip may be better: a short one, whose error has grown by the drift since.
        best = min(self._trips, key=error)
        self.error = error(best)
        ahead = best.ahead
        if self._times:
            limit = int(_MAX_SLOPE * (now - self._times[-1]))
            ahead = min(max(ahead, self._ahead[-1] - limit), self._ahead[-1] + limit)
        self._times.append(now)
        self._ahead.append(ahead)

    @property
    def is_measured(self) -> bool:
        """Whether there is a measurement, without which no time can be translated."""
        return bool(self._times)

    def to_local(self, time: int) -> int:
        """Translates a time of the host to the local clock, in nanoseconds."""
        n = bisect.bisect_right(self._times, time)
        if n == 0 or n == len(self._times):
            return time - self._ahead[max(0, n - 1)]
        before, after = self._times[n - 1], self._times[n]
        change = (self._ahead[n] - self._ahead[n - 1]) * (time - before) // (after - before)
        return time - self._ahead[n - 1] - change
