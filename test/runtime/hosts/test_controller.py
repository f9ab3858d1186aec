"""What several threads of the controller do at the same time."""

from __future__ import annotations

import collections
from types import SimpleNamespace

from pathways.runtime.hosts.controller import Controller


class Contended(collections.deque[int]):
    """Of what it says that it holds, another thread has taken one when that is taken."""

    def __len__(self) -> int:
        return super().__len__() + 1


def test_steps_and_the_thread_that_frees_may_take_unused_arrays_at_the_same_time():
    controller = SimpleNamespace(_unused=[Contended([5, 6, 7])])
    assert Controller._take_unused(controller, 0) == (5, 6, 7)  # type: ignore[arg-type]
    assert Controller._take_unused(controller, 0) == ()  # type: ignore[arg-type]
