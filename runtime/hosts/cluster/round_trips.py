"""How long a message to a host and its answer take, and whether steps wait for that."""

from __future__ import annotations

import collections

_KEPT = 4
_PENDING = 64

_SHARE = 0.5
"""The part of a step's time under way, at least, that a round trip is where steps wait for it."""


class HostRoundTrip:
    """That of one host, measured by the questions whether it lives.

    The least of the last few counts: threads of a busy process answer late.
    """

    def __init__(self) -> None:
        self._sent: dict[int, float] = {}
        self._last: collections.deque[float] = collections.deque(maxlen=_KEPT)

    def note_ping(self, number: int, now: float) -> None:
        """Notes that a question was sent."""
        if len(self._sent) > _PENDING:
            self._sent.clear()
        self._sent[number] = now

    def note_pong(self, number: int, now: float) -> None:
        """Notes that the answer to a question has come."""
        sent = self._sent.pop(number, None)
        if sent is not None:
            self.add(now - sent)

    def add(self, seconds: float) -> None:
        """Notes how long a question and its answer took."""
        self._last.append(seconds)

    @property
    def seconds(self) -> float | None:
        """What it takes; None as long as nothing is known."""
        return min(self._last, default=None)


class WindowWaits:
    """The times under way of the steps whose end made room for others.

    They wait for the network where that is hardly longer than the round trip to a host: hosts were done long
    before the controller heard of it, and more steps at once would hide that.
    """

    def __init__(self) -> None:
        self._last: collections.deque[float] = collections.deque(maxlen=_KEPT)

    def add(self, seconds: float) -> None:
        """Notes that a step was waited for that was issued so many seconds ago."""
        self._last.append(seconds)

    def is_network(self, round_trip: float | None) -> bool:
        """Whether it is the round trip that steps have waited for of late."""
        if round_trip is None or not self._last:
            return False
        typical = sorted(self._last)[len(self._last) // 2]
        return round_trip > _SHARE * typical
