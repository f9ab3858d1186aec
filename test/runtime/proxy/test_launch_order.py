"""Order of executions of several sessions on the same devices."""

from __future__ import annotations

import concurrent.futures
import threading
import time
from collections.abc import Sequence
from typing import Any

import jax
import pytest

from pathways.runtime.proxy.arrays.local_engine import LocalEngine
from pathways.runtime.proxy.loading.local_backend import LocalXlaProgram
from pathways.runtime.proxy.worker.xla_facts import XlaFacts

DEVICES = jax.devices("cpu")


NO_FACTS = XlaFacts(None, None, (), (), (), (), None, 0)
"""Facts about a program without operands and results."""


class IssueRecorder:
    """Executable that counts the threads that issue executions at the same time.

    Args:
      expected: the number of threads after which it stops waiting for more.
    """

    def __init__(self, expected: int) -> None:
        self.most = 0
        self._now = 0
        self._expected = expected
        self._changed = threading.Condition()

    def execute_sharded(self, operands: list[jax.Array]) -> IssueRecorder:
        with self._changed:
            self._now += 1
            self.most = max(self.most, self._now)
            self._changed.notify_all()
            self._changed.wait_for(lambda: self.most >= self._expected, 30)
        time.sleep(0.001)
        with self._changed:
            self._now -= 1
        return self

    def consume_with_handlers(self, makers: Sequence[Any]) -> list[jax.Array]:
        return []


@pytest.mark.parametrize(
    ("first", "second", "at_once"),
    [
        pytest.param(DEVICES[:4], DEVICES[:4], 1, id="the same devices"),
        pytest.param(DEVICES[:4], DEVICES[5:1:-1], 1, id="some of the same"),
        pytest.param(DEVICES[:1], DEVICES[:1], 2, id="one device"),
        pytest.param(DEVICES[:4], DEVICES[:1], 2, id="one of several"),
    ],
)
def test_only_one_execution_over_several_devices_is_issued_at_a_time(
    first: list[jax.Device], second: list[jax.Device], at_once: int
) -> None:
    recorder = IssueRecorder(at_once)
    programs = [
        LocalXlaProgram(recorder, tuple(on), (), (), "main", NO_FACTS, LocalEngine())
        for on in (first, second)
    ]

    def execute(program: LocalXlaProgram) -> None:
        for _ in range(20):
            program.execute([])

    with concurrent.futures.ThreadPoolExecutor() as pool:
        list(pool.map(execute, programs))
    assert recorder.most == at_once
