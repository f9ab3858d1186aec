"""Numbers of arrays that nobody holds, of which hosts are told once."""

from __future__ import annotations

import collections
import sys

from pathways.runtime.control.records.pending_frees import PendingFrees


class Contended(collections.deque[int]):
    """Of what it says that it holds, another thread has taken one when that is taken."""

    def __len__(self) -> int:
        return super().__len__() + 1


def test_unused_numbers_are_taken_once():
    unused: PendingFrees[int] = PendingFrees()
    for number in (5, 6):
        unused.add(number)
    assert unused.take_all() == (5, 6)
    assert unused.take_all() == ()


def test_unused_numbers_may_be_taken_by_two_threads():
    unused: PendingFrees[int] = PendingFrees()
    unused._queue = Contended([5, 6, 7])
    assert unused.take_all() == (5, 6, 7)
    assert unused.take_all() == ()


class Holder:
    pass


def test_unused_numbers_of_holders_are_taken_once():
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


def test_unused_numbers_of_holders_are_noted_without_a_line_that_can_be_interrupted():
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
