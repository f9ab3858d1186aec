"""Connections whose other side has not proved yet who it is."""

from __future__ import annotations

from collections.abc import Hashable

WARNING_SECONDS = 60.0
"""How long an address that was warned of is not warned of again."""

_MOST_WARNED = 1024


class PendingConnections[Pending: Hashable]:
    """Whom a server has let in and not yet greeted.

    When there are too many, those go that came first: who knows the secret has proved it within
    milliseconds, and is nearly always greeted by then. One that is sent away all the same tries again.

    Args:
      most: how many there may be.
      most_of_one: how many there may be of one address.
    """

    def __init__(self, most: int, most_of_one: int) -> None:
        self._most = most
        self._most_of_one = most_of_one
        # In the order in which they came.
        self._guests: dict[Pending, str] = {}
        self._warned: dict[str, float] = {}

    def enter(self, guest: Pending, address: str) -> list[Pending]:
        """Lets somebody in; those who have to go for it.

        Args:
          guest: who comes.
          address: where from.
        """
        self._guests[guest] = address
        leaving: list[Pending] = []
        same = [other for other, of in self._guests.items() if of == address]
        if len(same) > self._most_of_one:
            leaving = same[: len(same) - self._most_of_one]
        elif len(self._guests) > self._most:
            leaving = [next(iter(self._guests))]
        for other in leaving:
            del self._guests[other]
        return leaving

    def leave(self, guest: Pending) -> None:
        """Somebody has proved himself, or is gone."""
        self._guests.pop(guest, None)

    def may_warn(self, address: str, now: float) -> bool:
        """Whether to warn of an address, which is done once in a minute."""
        if now - self._warned.get(address, float("-inf")) < WARNING_SECONDS:
            return False
        # Those that were warned of first are forgotten first.
        self._warned.pop(address, None)
        self._warned[address] = now
        if len(self._warned) > _MOST_WARNED:
            del self._warned[next(iter(self._warned))]
        return True

    def __len__(self) -> int:
        return len(self._guests)
