"""Round trip times to hosts, and whether steps wait for them."""

from __future__ import annotations

import collections

_SAMPLES = 4
_PENDING = 64

_SHARE = 0.5
"""Least ratio of the round trip to a step's time in flight at which steps wait for the network."""


class HostRoundTrip:
    """Round trip to one host, measured with the pings of its heartbeat.

    The shortest of the last few counts, since a busy process replies late.
    """

    def __init__(self) -> None:
        self._sent: dict[int, float] = {}
        self._last: collections.deque[float] = collections.deque(maxlen=_SAMPLES)

    def note_ping(self, number: int, now: float) -> None:
        """Notes that a ping was sent."""
        if len(self._sent) > _PENDING:
            self._sent.clear()
        self._sent[number] = now

    def note_pong(self, number: int, now: float) -> None:
        """Notes that the reply to a ping was received."""
        sent = self._sent.pop(number, None)
        if sent is not None:
            self.add(now - sent)

    def add(self, seconds: float) -> None:
        """Notes the time of a round trip."""
        self._last.append(seconds)

    @property
    def seconds(self) -> float | None:
        """Time of a round trip; None as long as none was measured."""
        return min(self._last, default=None)


class WindowWaits:
    """Times in flight of the steps whose completion made room in the window for further steps.

    Where they are hardly longer than the round trip to a host, steps wait for the network: hosts were done
    long before the controller received their messages, and more steps in flight would hide that.
    """

    def __init__(self) -> None:
        self._last: collections.deque[float] = collections.deque(maxlen=_SAMPLES)

    def add(self, seconds: float) -> None:
        """Notes that the window waited for a step that was issued so many seconds ago."""
        self._last.append(seconds)

    def is_network(self, round_trip: float | None) -> bool:
        """Returns whether recent steps waited for the round trip."""
        if round_trip is None or not self._last:
            return False
        typical = sorted(self._last)[len(self._last) // 2]
        return round_trip > _SHARE * typical
