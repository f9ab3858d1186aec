"""Arrays of hosts that are no longer held, until hosts are notified.

Finalizers report them, which may run anywhere and at any time, even while their thread holds a lock: all that
they do is append to a queue. Hosts are notified later, along with steps or by a thread.

Ctrl-C interrupts a finalizer in Python before its first line, and the rest of it never runs. A weak reference
calls a function that is built into Python, which nothing interrupts.
"""

from __future__ import annotations

import collections
import contextlib
import weakref


class _Holder[T](weakref.ref[object]):
    """Reference to the holder of a thing."""

    __slots__ = ("thing",)
    thing: T


class PendingFrees[T]:
    """Things that are no longer held, until they are consumed."""

    def __init__(self) -> None:
        self._queue: collections.deque[T | _Holder[T]] = collections.deque()
        # The references themselves, which must live as long as their holders.
        self._held: dict[T, _Holder[T]] = {}

    def add(self, thing: T) -> None:
        """Notes that a thing is no longer held."""
        self._queue.append(thing)

    def add_after(self, holder: object, thing: T) -> None:
        """Notes that a thing is no longer held once its only holder is collected, unless it was before."""
        reference: _Holder[T] = _Holder(holder, self._queue.append)
        reference.thing = thing
        self._held[thing] = reference

    def holders(self) -> list[tuple[object, T]]:
        """Returns the holders that are alive, each with its thing."""
        # A copy, in one step of the interpreter: other threads add holders.
        held = list(self._held.values())
        return [(holder, each.thing) for each in held if (holder := each()) is not None]

    def take_all(self) -> tuple[T, ...]:
        """Returns all things that are no longer held, once."""
        if not self._queue:
            return ()
        things: list[T] = []
        # Another thread may pop an entry at the same time.
        with contextlib.suppress(IndexError):
            while self._queue:
                entry = self._queue.popleft()
                if not isinstance(entry, _Holder):
                    self._held.pop(entry, None)
                    things.append(entry)
                elif self._held.pop(entry.thing, None) is not None:
                    things.append(entry.thing)
        return tuple(things)
