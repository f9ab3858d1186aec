"""The loop that reads all: who does not read what it is sent is looked at until it does, or is forgotten."""

from __future__ import annotations

import socket
from collections.abc import Callable

from pathways.runtime.hosts.cluster.answers import Answers
from pathways.runtime.hosts.service.dispatch_loop import DispatchLoop


class Party:
    """A worker that does not read."""

    def __init__(self) -> None:
        self.steps = self
        self._socket, self._other = socket.socketpair()
        self.flushed = 0

    def fileno(self) -> int:
        return self._socket.fileno()

    def keep_sending(self, wake: Callable[[], None]) -> None:
        self.say_full = wake

    def flush(self) -> None:
        self.flushed += 1

    def has_kept(self) -> bool:
        return True

    def close(self) -> None:
        self._socket.close()
        self._other.close()


def test_dispatch_loop_lets_threads_release_a_slow_reader():
    """The loop goes on for all others, also when it looks between the two halves of that."""
    loop = DispatchLoop(lambda party: None)
    first, second = Party(), Party()
    for party in (first, second):
        loop.add(party)
        party.say_full()
    loop.look(0)
    Answers.forget(loop, first)
    loop.look(0)
    assert (first.flushed, second.flushed) == (1, 2)
    # It hears of it late, too.
    first.say_full()
    loop.forget(first)
    loop.look(0)
    assert (first.flushed, second.flushed) == (1, 3)
    assert [*loop._full.values()] == [second]
    for party in (loop, first, second):
        party.close()
