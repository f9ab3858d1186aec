"""Flow control of fetches: a service grants credit to send as its client consumes the bytes."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

from pathways.runtime.hosts.protocol.messages import Credit, Fetch


class FetchCredit:
    """Number of bytes of one fetch that may be sent."""

    def __init__(self) -> None:
        self._left: int | None = 0
        self._changed = threading.Condition()

    def add(self, count: int | None) -> None:
        """Grants more bytes: None for no limit, a negative number to cancel the fetch."""
        with self._changed:
            if count is None:
                self._left = None
            elif self._left is not None and self._left >= 0:
                # A cancellation is final, even one that arrives before the fetch.
                self._left = -1 if count < 0 else self._left + count
            self._changed.notify_all()

    def acquire(self, limit: int) -> int:
        """Waits for credit, and uses up to `limit` bytes of it.

        Returns:
          The number of bytes that may be sent; 0 if the fetch is cancelled.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._left != 0)
            if self._left is None:
                return limit
            granted = max(0, min(limit, self._left))
            self._left -= granted
            return granted


class FetchCredits:
    """Credits of all fetches in flight. A credit may arrive before its fetch."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._credits: dict[int, FetchCredit] = {}

    @contextlib.contextmanager
    def of(self, fetch: Fetch) -> Iterator[FetchCredit]:
        """Yields the credit of a fetch, while its array is sent."""
        if fetch.credit is None or fetch.credit >= fetch.size:
            credit = FetchCredit()
            credit.add(None)
            yield credit
            return
        with self._lock:
            credit = self._credits.setdefault(fetch.request, FetchCredit())
        credit.add(fetch.credit)
        try:
            yield credit
        finally:
            with self._lock:
                self._credits.pop(fetch.request, None)

    def add(self, message: Credit) -> None:
        """Grants credit to a fetch."""
        with self._lock:
            credit = self._credits.setdefault(message.request, FetchCredit())
        credit.add(message.bytes)
