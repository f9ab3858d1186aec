"""Counter of the bytes that are alive at once. Needs neither IR nor devices."""

from __future__ import annotations

from collections.abc import Hashable


class LiveBytes[Place: Hashable]:
    """Live bytes at each place, such as a slice or a device, and the most that there ever were.

    Bytes whose life ends when other bytes begin to live must be removed first, or both count at once.

    Attributes:
      now: the bytes alive, by place.
      peak: the most that were alive at once, by place.
    """

    def __init__(self) -> None:
        self.now: dict[Place, int] = {}
        self.peak: dict[Place, int] = {}

    def add(self, place: Place, size: int) -> None:
        """Begins the life of so many bytes."""
        self.now[place] = self.now.get(place, 0) + size
        self.peak[place] = max(self.peak.get(place, 0), self.now[place])

    def remove(self, place: Place, size: int) -> None:
        """Ends the life of so many bytes."""
        self.now[place] -= size
