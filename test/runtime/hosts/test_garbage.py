"""What nobody holds is told to hosts once, whoever does so."""

from __future__ import annotations

import collections

from pathways.runtime.hosts.garbage import Garbage


class Contended(collections.deque[int]):
    """Of what it says that it holds, another thread has taken one when that is taken."""

    def __len__(self) -> int:
        return super().__len__() + 1


def test_arrays_are_taken_once_and_by_their_hosts():
    garbage = Garbage(2)
    for host, number in ((0, 5), (1, 5), (0, 6)):
        garbage.add_array(host, number)
    assert garbage.take_arrays(0) == (5, 6)
    assert garbage.take_arrays(0) == ()
    assert garbage.take_arrays(1) == (5,)


def test_steps_and_the_thread_that_frees_may_take_at_the_same_time():
    garbage = Garbage(1)
    garbage._arrays[0] = Contended([5, 6, 7])
    assert garbage.take_arrays(0) == (5, 6, 7)
    assert garbage.take_arrays(0) == ()
