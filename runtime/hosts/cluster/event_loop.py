"""The loop that reads what has an order: what workers, services and clients say on `steps`.

One thread runs it at a time: whoever waits for something that is read, or one that serves. Where nobody
serves, a thread that only reads would have to be woken, and then wake the one that waits: two switches of
threads for each answer, while the thread that issues steps needs the interpreter, too.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import functools
import select
import socket
import threading
from collections.abc import Callable
from typing import Any

from pathways.runtime.hosts.protocol.wire import Connection, ConnectionEnded

_SECONDS = 0.5
"""How long one look takes at most where nothing is read."""


@dataclasses.dataclass(eq=False, slots=True)
class _ReadConnection:
    """A connection that is read.

    Attributes:
      connection: the connection, or the socket by which the loop is woken.
      read: reads what is there, and acts on it.
      pauses: whether nothing is read while the other side does not accept more.
      is_full: whether the other side does not accept more now.
    """

    connection: Any
    read: Callable[[], None]
    pauses: bool
    is_full: bool = False


class EventLoop:
    """Reads connections, in whatever thread waits for what they say.

    Any thread may call it.

    Args:
      is_served: whether one thread alone runs it, by calling `run_once`; others only wait. What is sent on
        connections that buffer it is sent at the next call.
    """

    def __init__(self, *, is_served: bool = False) -> None:
        self._is_served = is_served
        self._readers: dict[int, _ReadConnection] = {}
        self._poll = select.poll()
        self._posted: collections.deque[Callable[[], None]] = collections.deque()
        self._unsent: collections.deque[_ReadConnection] = collections.deque()
        self._thread = 0
        self._create_locks()
        self._waker, self._woken = socket.socketpair()
        self._waker.setblocking(False)
        self._woken.setblocking(False)
        self._readers[self._woken.fileno()] = _ReadConnection(self._woken, self._drain, pauses=False)
        self._poll.register(self._woken.fileno(), select.POLLIN)

    def leave(self) -> None:
        """Forgets all connections in a forked process: the other one goes on with them.

        Its threads, which would release locks, are not here.
        """
        self._create_locks()
        self.close()
        self._readers = {}
        self._poll = select.poll()

    def add(
        self,
        connection: Connection[Any],
        read: Callable[[], None],
        *,
        buffers: bool = False,
        pauses: bool = False,
    ) -> None:
        """Reads a connection from now on.

        Args:
          connection: the connection.
          read: reads what is there, and acts on it; also when sending has failed, which reading explains.
          buffers: whether what is sent is buffered until the next call of `run_once`, so that no sender waits,
            and all messages of one iteration are one call of the system.
          pauses: whether the other side is not read as long as it does not accept what is buffered.
        """
        reader = _ReadConnection(connection, read, pauses)
        if buffers:
            connection.buffer_sends(functools.partial(self._note_unsent, reader))
        with self._changing:
            self._readers[connection.fileno()] = reader
            self._poll.register(connection.fileno(), select.POLLIN)

    def remove(self, connection: Connection[Any]) -> None:
        """Reads a connection no more."""
        # Several threads may hear of its end at the same time, and one that is closed has no number.
        with self._changing:
            for number, reader in [*self._readers.items()]:
                if reader.connection is connection:
                    del self._readers[number]
                    self._poll.unregister(number)

    def post(self, work: Callable[[], None]) -> None:
        """Has something done in the thread that runs the loop."""
        self._posted.append(work)
        self._nudge()

    def wait(self, is_done: Callable[[], bool]) -> None:
        """Waits until something is true that changes only as connections are read, or with `wake`."""
        while not is_done():
            if self._running.acquire(blocking=False):
                try:
                    while not is_done():
                        self.run_once(_SECONDS)
                finally:
                    self._running.release()
                    self._notify()
            else:
                with self._iteration_ended:
                    self._followers += 1
                    # Whoever runs the loop notifies all when it ends, which is after it released the lock.
                    if not is_done() and self._running.locked():
                        self._iteration_ended.wait(_SECONDS)
                    self._followers -= 1

    def poll(self) -> None:
        """Reads what is there, unless another thread does, without waiting."""
        if self._running.acquire(blocking=False):
            try:
                self.run_once(0)
            finally:
                self._running.release()
                self._notify()

    def wake(self) -> None:
        """Lets all who wait look again, and whoever runs the loop."""
        self._notify()
        self._nudge()

    def run_once(self, seconds: float) -> None:
        """Reads what is there, after so many seconds at most, and does what was posted.

        For the thread that runs the loop.
        """
        self._thread = threading.get_ident()
        while self._unsent:
            self._flush(self._unsent.popleft())
        ready = self._poll.poll(0 if self._posted else seconds * 1e3)
        for number, what in ready:
            reader = self._readers.get(number)
            if reader is None:
                # Another thread has just forgotten it.
                continue
            if what & select.POLLOUT:
                self._flush(reader)
            if what & ~select.POLLOUT:
                reader.read()
        # Not those that come meanwhile: others want to be read, too.
        posted = len(self._posted)
        for _ in range(posted):
            self._posted.popleft()()
        if ready or posted:
            self._notify()

    def close(self) -> None:
        """Gives back what it holds; who still waits looks twice a second."""
        self._nudge()
        with self._changing:
            # Its number may be that of another file next.
            if self._readers.pop(self._woken.fileno(), None) is not None:
                self._poll.unregister(self._woken.fileno())
        self._waker.close()
        self._woken.close()

    def _create_locks(self) -> None:
        self._running = threading.Lock()
        if self._is_served:
            # Never released: who waits does not get it.
            self._running.acquire()
        self._changing = threading.Lock()
        self._followers = 0
        self._iteration_ended = threading.Condition()

    def _drain(self) -> None:
        # Nothing is there, or another thread has just closed it.
        with contextlib.suppress(OSError):
            self._woken.recv(4096)

    def _nudge(self) -> None:
        # It is full of nudges, or closed.
        with contextlib.suppress(OSError):
            self._waker.send(b".")

    def _notify(self) -> None:
        if self._followers:
            with self._iteration_ended:
                self._iteration_ended.notify_all()

    def _note_unsent(self, reader: _ReadConnection) -> None:
        self._unsent.append(reader)
        if threading.get_ident() != self._thread:
            self._nudge()

    def _flush(self, reader: _ReadConnection) -> None:
        """Sends what is buffered for a connection; the rest when the other side accepts more."""
        connection = reader.connection
        number = connection.fileno()
        if self._readers.get(number) is not reader:
            # Removed, or closed, in the meantime.
            return
        try:
            connection.flush()
        except ConnectionEnded:
            # Reading tells why.
            reader.read()
            return
        # Whatever is buffered from now on is noted again, or the rest of it is in front.
        if (is_full := connection.has_unsent()) == reader.is_full:
            return
        reader.is_full = is_full
        events = select.POLLIN if not is_full else select.POLLOUT | (0 if reader.pauses else select.POLLIN)
        with self._changing:
            if self._readers.get(number) is reader:
                self._poll.modify(number, events)
