"""Connections whose peers have not proved their identity yet."""

from __future__ import annotations

from collections.abc import Hashable

WARNING_SECONDS = 60.0
"""Seconds for which an address is not warned of again."""

_MAX_WARNED = 1024


class PendingConnections[Pending: Hashable]:
    """Accepted connections of a server that are not authenticated yet.

    When there are too many, the oldest are closed: a peer that knows the secret proves it within
    milliseconds, and is nearly always authenticated by then. If it is closed all the same, it retries.

    Args:
      limit: the maximum of pending connections.
      limit_of_one: the maximum of pending connections from one address.
    """

    def __init__(self, limit: int, limit_of_one: int) -> None:
        self._limit = limit
        self._limit_of_one = limit_of_one
        # In the order in which they came.
        self._pending: dict[Pending, str] = {}
        self._warned: dict[str, float] = {}

    def add(self, connection: Pending, address: str) -> list[Pending]:
        """Adds a connection; returns those to close for it."""
        self._pending[connection] = address
        leaving: list[Pending] = []
        same = [other for other, of in self._pending.items() if of == address]
        if len(same) > self._limit_of_one:
            leaving = same[: len(same) - self._limit_of_one]
        elif len(self._pending) > self._limit:
            leaving = [next(iter(self._pending))]
        for other in leaving:
            del self._pending[other]
        return leaving

    def remove(self, connection: Pending) -> None:
        """Removes a connection that is authenticated or closed."""
        self._pending.pop(connection, None)

    def should_warn(self, address: str, now: float) -> bool:
        """Returns whether to warn of an address, at most once a minute."""
        if now - self._warned.get(address, float("-inf")) < WARNING_SECONDS:
            return False
        # The addresses that were warned of first are dropped first.
        self._warned.pop(address, None)
        self._warned[address] = now
        if len(self._warned) > _MAX_WARNED:
            del self._warned[next(iter(self._warned))]
        return True

    def __len__(self) -> int:
        return len(self._pending)
