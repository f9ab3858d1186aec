"""Workers that tests share, which have to be free of arrays after a test: of its errors and threads, too."""

from __future__ import annotations

import threading
import time

import pytest
import worker_pool as pools
from on_hosts import X

import pathways as pw

pytestmark = pytest.mark.hosts


def array_on_host():
    pw.connect(islands=[pw.Island()])
    slice = pw.make_virtual_device_set().add_slice((1,), ("x",), island="island0")
    # Until the step is done the host may not know the array.
    return pw.jit(lambda x: x + 1, devices=slice)(X).block_until_ready()


def test_worker_pool_waits_for_a_thread_that_holds_garbage(worker_pool):
    """The first collection finds nothing: the thread ends after it."""

    def leave_garbage():
        garbage = [array_on_host()]
        garbage.append(garbage)
        threading.Thread(target=lambda _: time.sleep(1), args=(garbage,)).start()

    with worker_pool.lend("own", lambda: False):
        leave_garbage()


def test_worker_pool_names_what_a_test_has_left(worker_pool, monkeypatch):
    monkeypatch.setattr(pools, "_CLEAN_TIMEOUT_S", 0.1)
    left = []
    with (
        pytest.raises(AssertionError, match=r"left on workers by the test: 1 arrays of \d+ bytes on host 0"),
        worker_pool.lend("own", lambda: False),
    ):
        left.append(array_on_host())
