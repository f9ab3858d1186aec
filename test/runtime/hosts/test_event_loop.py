"""The event loop reads in the thread that waits, or in one of its own, and serves peers that do not read."""

from __future__ import annotations

import functools
import socket
import sys
import threading
import types
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import pytest

from pathways.runtime.hosts.cluster import event_loop
from pathways.runtime.hosts.cluster.event_loop import EventLoop
from pathways.runtime.hosts.protocol.wire import Connection, ConnectionEnded

THREADS = 4


@pytest.fixture
def frequent_switches() -> Iterator[None]:
    """Switches between threads at nearly every instruction."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.fixture
def loop() -> Iterator[EventLoop]:
    loop = EventLoop()
    yield loop
    loop.close()


@pytest.fixture
def served_loop() -> Iterator[EventLoop]:
    """Loop that only this thread runs."""
    loop = EventLoop(is_served=True)
    yield loop
    loop.close()


class FakeConnection:
    """Connection whose peer reads nothing."""

    def __init__(self) -> None:
        self._socket, self.other = socket.socketpair()
        self.unsent = 1
        self.flushed = 0
        self.has_ended = False

    def fileno(self) -> int:
        return self._socket.fileno()

    def buffer_sends(self, notify: Callable[[], None]) -> None:
        self.notify_unsent = notify

    def flush(self) -> None:
        if self.has_ended:
            raise ConnectionEnded("the connection has ended")
        self.flushed += 1

    def has_unsent(self) -> bool:
        return self.unsent > 0

    def close(self) -> None:
        self._socket.close()
        self.other.close()


@pytest.fixture
def connections() -> Iterator[list[FakeConnection]]:
    both = [FakeConnection(), FakeConnection()]
    yield both
    for connection in both:
        connection.close()


def add(loop: EventLoop, connection: FakeConnection, read: Callable[[], None], **flags: bool) -> None:
    loop.add(cast(Connection[Any], connection), read, **flags)


def remove(loop: EventLoop, connection: Any) -> None:
    loop.remove(cast(Connection[Any], connection))


@pytest.mark.usefixtures("frequent_switches")
def test_event_loop_lets_several_threads_forget_a_connection(loop):
    numbered = [types.SimpleNamespace(fileno=lambda number=number: number) for number in range(5000, 7000)]
    for each in numbered:
        loop.add(cast(Connection[Any], each), lambda: None)
    begin = threading.Barrier(THREADS)

    def remove_last() -> None:
        begin.wait()
        for each in numbered[-50:]:
            remove(loop, each)

    with ThreadPoolExecutor(THREADS) as pool:
        for done in [pool.submit(remove_last) for _ in range(THREADS)]:
            done.result()


def test_event_loop_does_not_read_a_forgotten_connection(loop, connections):
    read: list[FakeConnection] = []
    first, second = connections
    for connection in connections:
        add(loop, connection, functools.partial(read.append, connection))
        connection.other.send(b"done")
    remove(loop, first)
    loop.poll()
    assert read == [second]


def test_event_loop_is_run_by_the_thread_that_waits(loop, connections):
    readers: list[int] = []
    first, _ = connections
    add(loop, first, lambda: readers.append(threading.get_ident()))
    first.other.send(b"done")
    loop.wait(lambda: bool(readers))
    assert set(readers) == {threading.get_ident()}


def test_event_loop_wakes_the_thread_that_runs_it(loop, monkeypatch):
    """A change by another thread ends a wait at once, though nothing is read."""
    monkeypatch.setattr(event_loop, "_POLL_TIMEOUT_S", 1000.0)
    is_done = threading.Event()
    waiting = threading.Thread(target=loop.wait, args=(is_done.is_set,))
    waiting.start()
    is_done.set()
    loop.wake()
    waiting.join()


def test_event_loop_that_is_served_is_run_by_its_thread_alone(served_loop, connections):
    """Waits of other threads end when that thread has read a message, or run what was posted."""
    first, _ = connections
    read: list[int] = []
    add(served_loop, first, lambda: read.append(threading.get_ident()))
    first.other.send(b"done")
    served_loop.poll()
    assert not read
    posted: list[int] = []
    waiting = threading.Thread(target=served_loop.wait, args=(lambda: bool(posted),))
    waiting.start()
    served_loop.post(lambda: posted.append(threading.get_ident()))
    served_loop.run_once(10)
    waiting.join(60)
    assert not waiting.is_alive()
    assert set(read) | set(posted) == {threading.get_ident()}


def test_event_loop_sends_what_is_buffered_until_it_is_accepted(served_loop, connections):
    """The loop serves other connections meanwhile, and ignores a late notification of a removed one."""
    first, second = connections
    for connection in connections:
        add(served_loop, connection, lambda: None, buffers=True)
        connection.notify_unsent()
    served_loop.run_once(0)
    remove(served_loop, first)
    first.notify_unsent()
    served_loop.run_once(0)
    # Once after the notification, and whenever the system has room.
    assert (first.flushed, second.flushed) == (2, 3)
    second.unsent = 0
    served_loop.run_once(0)
    served_loop.run_once(0)
    assert second.flushed == 4


def test_event_loop_does_not_read_who_does_not_read(served_loop, connections):
    """A client that does not read is not read itself; a worker is."""
    read: list[FakeConnection] = []
    for connection, pauses in zip(connections, (True, False), strict=True):
        add(served_loop, connection, functools.partial(read.append, connection), buffers=True, pauses=pauses)
        connection.notify_unsent()
        connection.other.send(b"work")
    served_loop.run_once(0)
    assert read == connections[1:]
    connections[0].unsent = 0
    served_loop.run_once(0)
    served_loop.run_once(0)
    assert connections[0] in read


def test_event_loop_reads_why_sending_has_failed(served_loop, connections):
    read: list[FakeConnection] = []
    first, _ = connections
    add(served_loop, first, functools.partial(read.append, first), buffers=True, pauses=True)
    first.has_ended = True
    first.notify_unsent()
    served_loop.run_once(0)
    assert read == [first]
