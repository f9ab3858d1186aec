"""What workers say of steps is read by whoever waits, while others hear of the end of workers."""

from __future__ import annotations

import socket
import sys
import threading
import types
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import pytest

from pathways.runtime.hosts.cluster.answers import Answers
from pathways.runtime.hosts.cluster.host import HostProcess

THREADS = 4


@pytest.fixture
def frequent_switches() -> Iterator[None]:
    """Threads that take turns at nearly every instruction."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def worker(steps: Any) -> HostProcess:
    """What `Answers` needs of a worker: the connection on which it answers."""
    return cast(HostProcess, types.SimpleNamespace(steps=steps))


@pytest.mark.usefixtures("frequent_switches")
def test_answers_let_several_threads_release_a_worker():
    answers = Answers(lambda host: None)
    hosts = [worker(types.SimpleNamespace(fileno=lambda number=number: number)) for number in range(2000)]
    for host in hosts:
        answers.add(host)
    begin = threading.Barrier(THREADS)

    def forget() -> None:
        begin.wait()
        for host in hosts[-50:]:
            answers.forget(host)

    with ThreadPoolExecutor(THREADS) as pool:
        for done in [pool.submit(forget) for _ in range(THREADS)]:
            done.result()


def test_answers_do_not_read_a_released_worker():
    read: list[HostProcess] = []
    answers = Answers(read.append)
    pairs = [socket.socketpair(), socket.socketpair()]
    first, second = (worker(ours) for ours, _ in pairs)
    answers.add(first)
    answers.add(second)
    for _, theirs in pairs:
        theirs.send(b"done")
    answers.forget(first)
    answers.poll()
    assert read == [second]
    for end in (end for pair in pairs for end in pair):
        end.close()
