"""Copies of mirrored arrays on slices besides the first, which callers do not see."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Sequence
from typing import Any


class Mirrors:
    """Copies that arrays have on other slices, as long as the arrays live.

    A caller sees a mirrored value as one ordinary array, on the first of its slices. The runtime keeps the
    other copies here, so that passing the array back sends nothing.
    """

    def __init__(self) -> None:
        # Reentrant: while it is held, the garbage collector may free an array, which removes its copies.
        self._lock = threading.RLock()
        self._copies: dict[int, tuple[weakref.ref[Any], tuple[Any, ...]]] = {}

    def add(self, array: Any, copies: Sequence[Any]) -> None:
        """Stores the copies of an array until it is garbage-collected."""
        key = id(array)

        def remove(ref: weakref.ref[Any]) -> None:
            # Another array may have got the id by now.
            with self._lock:
                if key in self._copies and self._copies[key][0] is ref:
                    del self._copies[key]

        with self._lock:
            self._copies[key] = (weakref.ref(array, remove), tuple(copies))

    def find(self, array: Any, shardings: Sequence[Any]) -> tuple[Any, ...] | None:
        """Returns the copies of an array if it has them in exactly these places."""
        entry = self._copies.get(id(array))
        if entry is None or entry[0]() is not array:
            return None
        copies = entry[1]
        if [c.sharding for c in copies] != list(shardings) or any(c.is_deleted() for c in copies):
            return None
        return copies
