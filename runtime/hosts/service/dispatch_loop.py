"""The loop of the dispatch thread, which reads what has an order, and waits for nobody to read."""

from __future__ import annotations

import collections
import functools
import select
import socket
from collections.abc import Callable
from typing import Any

from pathways.runtime.hosts.cluster.answers import Answering, Answers

_SECONDS = 0.5


class DispatchLoop(Answers):
    """Reads what workers and clients say that has an order, in one thread.

    Other threads leave work to it with `post`. What is sent to any of them on `steps` is kept when they do
    not read, and who does not read what he is sent is not read himself.

    Args:
      read: reads what is there of one of them, and acts on it.
    """

    def __init__(self, read: Callable[[Any], None]) -> None:
        super().__init__(read)
        self._posted: collections.deque[Callable[[], None]] = collections.deque()
        self._full: dict[int, Answering] = {}
        self._waker, self._woken = socket.socketpair()
        self._waker.setblocking(False)
        self._woken.setblocking(False)
        self._poll.register(self._woken.fileno(), select.POLLIN)
        self._is_awake = False
        # Who cannot be read, or sent to: what to do with them is the reader's.
        self.on_flush_failed: Callable[[Any, OSError], None] = lambda party, error: None

    def add(self, host: Answering) -> None:
        """See `Answers.add`."""
        host.steps.keep_sending(functools.partial(self._note_full, host))
        super().add(host)

    def forget(self, host: Answering) -> None:
        """See `Answers.forget`."""
        super().forget(host)
        with self._changing:
            for number, other in [*self._full.items()]:
                if other is host:
                    del self._full[number]

    def post(self, work: Callable[[], None]) -> None:
        """Has something done in the thread of the loop; may be called by any thread."""
        self._posted.append(work)
        self._nudge()

    def wait(self, is_done: Callable[[], bool]) -> None:
        """See `Answers.wait`; for other threads than that of the loop."""
        with self._turn:
            self._followers += 1
            while not is_done():
                self._turn.wait(_SECONDS)
            self._followers -= 1

    def poll(self) -> None:
        """The loop reads."""

    def wake(self) -> None:
        """See `Answers.wake`; has the loop look again, too."""
        super().wake()
        self._nudge()

    def look(self, seconds: float) -> None:
        """One turn: reads what is there, after so many seconds at most, and does what was posted."""
        with self._changing:
            for number, party in self._full.items():
                # Another thread may be forgetting it.
                if self._hosts.get(number) is party:
                    also = 0 if _is_client(party) else select.POLLIN
                    self._poll.modify(number, select.POLLOUT | also)
        ready = self._poll.poll(0 if self._posted else seconds * 1e3)
        self._is_awake = True
        for number, what in ready:
            if number == self._woken.fileno():
                self._woken.recv(4096)
                continue
            if (found := self._hosts.get(number)) is None:
                continue
            if what & select.POLLOUT:
                self._flush(number, found)
            if what & ~select.POLLOUT:
                self._read(found)
        # Not those that come meanwhile: others want to be read, too.
        for _ in range(len(self._posted)):
            self._posted.popleft()()
        self._is_awake = False
        super().wake()

    def close(self) -> None:
        """Gives back what it holds."""
        self._waker.close()
        self._woken.close()

    def _nudge(self) -> None:
        try:
            self._waker.send(b".")
        except OSError:
            # It is awake, or gone.
            return

    def _note_full(self, party: Answering) -> None:
        with self._changing:
            for number, other in self._hosts.items():
                if other is party:
                    self._full[number] = party
        self._nudge()

    def _flush(self, number: int, party: Answering) -> None:
        try:
            party.steps.flush()
        except OSError as error:
            self.on_flush_failed(party, error)
            return
        if not party.steps.has_kept():
            with self._changing:
                if self._full.pop(number, None) is not None and number in self._hosts:
                    self._poll.modify(number, select.POLLIN)


def _is_client(party: Any) -> bool:
    return getattr(party, "is_client", False)
