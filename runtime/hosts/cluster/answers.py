"""What workers say of steps, read by whoever waits for it.

A thread that only reads would have to be woken, and then wake the one that waits: two switches of threads for
each answer, while the thread that issues steps needs the interpreter, too.
"""

from __future__ import annotations

import select
import threading
from collections.abc import Callable
from typing import Any, Protocol

from pathways.runtime.hosts.protocol.wire import Connection

_SECONDS = 0.5
"""How long one look takes at most: another thread may end what is waited for, as when a host is lost."""


class Answering(Protocol):
    """Who answers: a worker, or a service in front of workers."""

    steps: Connection[Any]


class Answers:
    """The connections of all workers on which they answer.

    Args:
      read: reads what is there of a worker, and acts on it.
    """

    def __init__(self, read: Callable[[Any], None]) -> None:
        self._read = read
        self._hosts: dict[int, Answering] = {}
        self._poll = select.poll()
        self.forget_threads()

    def add(self, host: Answering) -> None:
        """Looks at a worker from now on."""
        with self._changing:
            self._hosts[host.steps.fileno()] = host
            self._poll.register(host.steps.fileno(), select.POLLIN)

    def forget_threads(self) -> None:
        """Makes locks anew in a forked process, where no thread would release them."""
        self._reading = threading.Lock()
        self._changing = threading.Lock()
        self._followers = 0
        self._turn = threading.Condition()

    def wait(self, is_done: Callable[[], bool]) -> None:
        """Waits until something is true that changes only as answers come, or hosts are lost."""
        while not is_done():
            if self._reading.acquire(blocking=False):
                try:
                    while not is_done():
                        self._look(_SECONDS)
                finally:
                    self._reading.release()
                    self.wake()
            else:
                with self._turn:
                    self._followers += 1
                    # Whoever reads wakes all when it ends, which is after it released the lock.
                    if not is_done() and self._reading.locked():
                        self._turn.wait(_SECONDS)
                    self._followers -= 1

    def poll(self) -> None:
        """Reads what is there, unless another thread does, without waiting."""
        if self._reading.acquire(blocking=False):
            try:
                self._look(0)
            finally:
                self._reading.release()
                self.wake()

    def wake(self) -> None:
        """Lets all who wait look again."""
        if self._followers:
            with self._turn:
                self._turn.notify_all()

    def forget(self, host: Answering) -> None:
        """Looks at a worker no more."""
        # Several threads may hear of its end at the same time.
        with self._changing:
            for number, other in [*self._hosts.items()]:
                if other is host:
                    del self._hosts[number]
                    self._poll.unregister(number)

    def _look(self, seconds: float) -> None:
        ready = self._poll.poll(seconds * 1e3)
        if not ready:
            return
        for number, _ in ready:
            host = self._hosts.get(number)
            if host is not None:
                self._read(host)
        self.wake()
