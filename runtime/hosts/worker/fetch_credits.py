"""How much of what was fetched may be sent: a service takes it as its client does."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

from pathways.runtime.hosts.protocol.messages import Credit, Fetch


class FetchCredit:
    """The bytes of one fetch that may be sent; of any fetch, all of them where there is no bound."""

    def __init__(self) -> None:
        self._left: int | None = 0
        self._changed = threading.Condition()

    def add(self, count: int | None) -> None:
        """So many more may be sent; None for all that there are, a negative number for none any more."""
        with self._changed:
            if count is None:
                self._left = None
            elif self._left is not None and self._left >= 0:
                # Nobody who has given up wants more, and the fetch may begin after that.
                self._left = -1 if count < 0 else self._left + count
            self._changed.notify_all()

    def take(self, most: int) -> int:
        """Waits until some may be sent; how many, 0 when none will be."""
        with self._changed:
            self._changed.wait_for(lambda: self._left != 0)
            if self._left is None:
                return most
            taken = max(0, min(most, self._left))
            self._left -= taken
            return taken


class FetchCredits:
    """That of all fetches that are under way. A credit may come before the fetch that it is for."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._credits: dict[int, FetchCredit] = {}

    @contextlib.contextmanager
    def of(self, fetch: Fetch) -> Iterator[FetchCredit]:
        """That of a fetch, while it is sent."""
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
        """More may be sent of a fetch."""
        with self._lock:
            credit = self._credits.setdefault(message.request, FetchCredit())
        credit.add(message.bytes)
