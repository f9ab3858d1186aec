"""Event loop that reads ordered messages: the `steps` channels of workers, services and clients.

One thread runs it at a time: a thread that waits for a message, or the dispatch thread of a service. In a
client a thread that only reads would have to be woken, and then wake the thread that waits: two context
switches for each reply, while the thread that issues steps needs the interpreter, too.
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
from pathways.runtime.resources.threads import Condition

_POLL_TIMEOUT_S = 0.5
"""Default timeout of one iteration in which nothing is read."""


@dataclasses.dataclass(eq=False, slots=True)
class _ReadConnection:
    """A connection that is read.

    Attributes:
      connection: the connection, or the socket by which the loop is woken.
      read: processes the available messages.
      pauses: whether nothing is read while the peer does not accept more.
      is_full: whether the peer does not accept more now.
    """

    connection: Any
    read: Callable[[], None]
    pauses: bool
    is_full: bool = False


class EventLoop:
    """Event loop over connections, run by a thread that waits for their messages.

    All methods but `run_once` are for any thread.

    Args:
      is_served: whether one thread alone runs it, by calling `run_once`; other threads only wait. That call
        sends the buffered messages of connections.
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
        """Releases all connections in a forked process, since the parent process continues to use them.

        Locks are created anew, since the parent's threads, which hold them, do not exist here.
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
        """Starts to read a connection.

        Args:
          read: processes the available messages; is also called when a send failed, since only reading finds
            the reason.
          buffers: whether messages are buffered until the next call of `run_once`, so that no sender blocks,
            and all messages of one iteration take one system call.
          pauses: whether nothing is read from the peer while it does not accept the buffered messages.
        """
        reader = _ReadConnection(connection, read, pauses)
        if buffers:
            connection.buffer_sends(functools.partial(self._note_unsent, reader))
        with self._changing:
            self._readers[connection.fileno()] = reader
            self._poll.register(connection.fileno(), select.POLLIN)

    def remove(self, connection: Connection[Any]) -> None:
        """Stops reading a connection, if it is read."""
        # By identity: a closed connection has no file descriptor, and several threads may find it closed.
        with self._changing:
            for number, reader in [*self._readers.items()]:
                if reader.connection is connection:
                    del self._readers[number]
                    self._poll.unregister(number)

    def post(self, work: Callable[[], None]) -> None:
        """Queues work for the thread that runs the loop."""
        self._posted.append(work)
        self._nudge()

    def wait(self, is_done: Callable[[], bool], seconds: float = _POLL_TIMEOUT_S) -> None:
        """Waits until a condition holds that changes only as connections are read, or with `wake`.

        Args:
          is_done: the condition, checked by the thread that runs the loop: it must not block.
          seconds: the time after which it is checked again if neither happens.
        """
        while not is_done():
            if self._running.acquire(blocking=False):
                try:
                    while not is_done():
                        self.run_once(seconds)
                finally:
                    self._running.release()
                    self._notify()
            else:
                with self._iteration_ended:
                    self._followers += 1
                    # No notification is missed: the thread that runs the loop releases `_running` before it
                    # notifies.
                    if not is_done() and self._running.locked():
                        self._iteration_ended.wait(seconds)
                    self._followers -= 1

    def poll(self) -> None:
        """Runs one iteration without waiting, unless another thread runs the loop."""
        if self._running.acquire(blocking=False):
            try:
                self.run_once(0)
            finally:
                self._running.release()
                self._notify()

    def wake(self) -> None:
        """Makes all waiting threads check their conditions again."""
        self._notify()
        self._nudge()

    def run_once(self, seconds: float) -> None:
        """Runs one iteration: sends buffered messages, reads available messages, does the posted work.

        For the thread that runs the loop.

        Args:
          seconds: the time to wait for something to read.
        """
        self._thread = threading.get_ident()
        while self._unsent:
            self._flush(self._unsent.popleft())
        ready = self._poll.poll(0 if self._posted else seconds * 1e3)
        for number, events in ready:
            reader = self._readers.get(number)
            if reader is None:
                # Another thread has just removed it.
                continue
            if events & select.POLLOUT:
                self._flush(reader)
            if events & ~select.POLLOUT:
                reader.read()
        # Only work posted before: work that posts more must not keep connections from being read.
        posted = len(self._posted)
        for _ in range(posted):
            self._posted.popleft()()
        if ready or posted:
            self._notify()

    def close(self) -> None:
        """Closes the waker; threads that still wait check their conditions at each timeout."""
        self._nudge()
        with self._changing:
            # Before it is closed: its descriptor may be reused at once.
            if self._readers.pop(self._woken.fileno(), None) is not None:
                self._poll.unregister(self._woken.fileno())
        self._waker.close()
        self._woken.close()

    def _create_locks(self) -> None:
        self._running = threading.Lock()
        if self._is_served:
            # Never released, so that threads in `wait` never run the loop themselves.
            self._running.acquire()
        self._changing = threading.Lock()
        self._followers = 0
        self._iteration_ended = Condition()

    def _drain(self) -> None:
        # The socket is empty, or another thread has just closed it.
        with contextlib.suppress(OSError):
            self._woken.recv(4096)

    def _nudge(self) -> None:
        # The buffer is full, which wakes the loop as well, or the socket is closed.
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
        """Sends the buffered messages of a connection; the rest when the peer accepts more."""
        connection = reader.connection
        number = connection.fileno()
        if self._readers.get(number) is not reader:
            # Removed, or closed, in the meantime.
            return
        try:
            connection.flush()
        except ConnectionEnded:
            # The reader finds the reason.
            reader.read()
            return
        # No race: a message that is buffered from now on either notes the connection again, or follows unsent
        # bytes, for which the loop waits already.
        if (is_full := connection.has_unsent()) == reader.is_full:
            return
        reader.is_full = is_full
        events = select.POLLIN if not is_full else select.POLLOUT | (0 if reader.pauses else select.POLLIN)
        with self._changing:
            if self._readers.get(number) is reader:
                self._poll.modify(number, events)
