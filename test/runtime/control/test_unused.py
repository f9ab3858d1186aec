"""Numbers of arrays that nobody holds, of which hosts are told once."""

from __future__ import annotations

import collections

from pathways.runtime.control.unused import Unused


class Contended(collections.deque[int]):
    """Of what it says that it holds, another thread has taken one when that is taken."""

    def __len__(self) -> int:
        return super().__len__() + 1


def test_unused_numbers_are_taken_once():
    unused: Unused[int] = Unused()
    for number in (5, 6):
        unused.add(number)
    assert unused.take() == (5, 6)
    assert unused.take() == ()


def test_unused_numbers_may_be_taken_by_two_threads():
    unused: Unused[int] = Unused()
    unused._queue = Contended([5, 6, 7])
    assert unused.take() == (5, 6, 7)
    assert unused.take() == ()
