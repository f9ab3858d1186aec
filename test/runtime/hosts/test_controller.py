"""What several threads of the controller do at the same time."""

from __future__ import annotations

import collections
import sys
import threading
from types import SimpleNamespace

import pytest

from pathways.runtime.hosts.controller import Controller


@pytest.fixture
def hasty():
    """Threads take turns as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("hasty")
def test_each_unused_array_is_freed_once():
    """Steps take along what nobody holds, while a thread does so where there are no steps."""
    controller = SimpleNamespace(_unused=[collections.deque(range(20_000))])
    taken: list[int] = []

    def take() -> None:
        for _ in range(50):
            taken.extend(Controller._take_unused(controller, 0))  # type: ignore[arg-type]

    threads = [threading.Thread(target=take) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(taken) == list(range(20_000))
