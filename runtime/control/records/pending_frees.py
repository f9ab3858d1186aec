"""What is no longer held of what hosts have.

Finalizers say so, which may run anywhere and at any time, also while their thread holds a lock: all that they
do is to append to a queue. What is in the queues is told to hosts later, along with steps or by a thread.

Ctrl-C interrupts a finalizer in Python before its first line, and the rest of it never runs. A weak reference
calls a function of Python's own, which nothing interrupts.
"""

from __future__ import annotations

import collections
import contextlib
import weakref


class _Holder[T](weakref.ref[object]):
    """A reference to what holds a thing."""

    __slots__ = ("thing",)
    thing: T


class PendingFrees[T]:
    """Things that are no longer held, until they are taken note of."""

    def __init__(self) -> None:
        self._queue: collections.deque[T | _Holder[T]] = collections.deque()
        # The references themselves, which have to live as long as what they refer to.
        self._held: dict[T, _Holder[T]] = {}

    def add(self, thing: T) -> None:
        """Notes that something is no longer held."""
        self._queue.append(thing)

    def add_after(self, holder: object, thing: T) -> None:
        """Notes that something is no longer held once its only holder is collected, unless it was before."""
        reference: _Holder[T] = _Holder(holder, self._queue.append)
        reference.thing = thing
        self._held[thing] = reference

    def take(self) -> tuple[T, ...]:
        """All that is no longer held, once."""
        if not self._queue:
            return ()
        taken: list[T] = []
        # Another thread may take some at the same time.
        with contextlib.suppress(IndexError):
            while self._queue:
                entry = self._queue.popleft()
                if not isinstance(entry, _Holder):
                    self._held.pop(entry, None)
                    taken.append(entry)
                elif self._held.pop(entry.thing, None) is not None:
                    taken.append(entry.thing)
        return tuple(taken)
