"""Arrays that are no longer held: hosts are notified of each once."""

from __future__ import annotations

import collections
import sys

from pathways.runtime.control.records.pending_frees import PendingFrees


class Contended(collections.deque[int]):
    """Queue from which another thread pops an entry between the check and the pop."""

    def __len__(self) -> int:
        return super().__len__() + 1


def test_pending_frees_are_taken_once():
    unused: PendingFrees[int] = PendingFrees()
    for number in (5, 6):
        unused.add(number)
    assert unused.take_all() == (5, 6)
    assert unused.take_all() == ()


def test_pending_frees_may_be_taken_by_two_threads():
    unused: PendingFrees[int] = PendingFrees()
    unused._queue = Contended([5, 6, 7])
    assert unused.take_all() == (5, 6, 7)
    assert unused.take_all() == ()


class Holder:
    pass


def test_pending_frees_of_holders_are_taken_once():
    unused: PendingFrees[int] = PendingFrees()
    kept, collected, released = Holder(), Holder(), Holder()
    for number, holder in enumerate((kept, collected, released)):
        unused.add_after(holder, number)
    unused.add(2)
    del holder, collected, released
    assert sorted(unused.take_all()) == [1, 2]
    assert unused.take_all() == ()
    del kept
    assert unused.take_all() == (0,)


def test_pending_frees_of_holders_are_noted_without_an_interruptible_line():
    unused: PendingFrees[int] = PendingFrees()
    holder = Holder()
    unused.add_after(holder, 1)

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    sys.settrace(interrupt)
    try:
        del holder
    finally:
        sys.settrace(None)
    assert unused.take_all() == (1,)
