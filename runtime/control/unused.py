"""What is no longer held of what hosts have.

Finalizers say so, which may run anywhere and at any time, also while their thread holds a lock: all that they
do is to append to a queue. What is in the queues is told to hosts later, along with steps or by a thread.
"""

from __future__ import annotations

import collections
import contextlib


class Unused[T]:
    """Things that are no longer held, until they are taken note of."""

    def __init__(self) -> None:
        self._queue: collections.deque[T] = collections.deque()

    def add(self, thing: T) -> None:
        """Notes that something is no longer held."""
        self._queue.append(thing)

    def take(self) -> tuple[T, ...]:
        """All that is no longer held, once."""
        if not self._queue:
            return ()
        taken = []
        # Another thread may take some at the same time.
        with contextlib.suppress(IndexError):
            while self._queue:
                taken.append(self._queue.popleft())
        return tuple(taken)
