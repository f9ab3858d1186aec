"""Sessions of a server by id."""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Callable

from pathways.runtime.proxy.devices import ServedDevices
from pathways.runtime.proxy.serving.transfer_folder import TransferFolder
from pathways.runtime.proxy.sessions.session import ProxySession, Send
from pathways.runtime.proxy.sessions.state import Run
from pathways.runtime.proxy.stalls import StallMonitor
from pathways.runtime.proxy.wire.statuses import StatusCode, StatusError

_LOG = logging.getLogger("pathways.proxy")


class SessionRegistry:
    """Registry of the active sessions, and the objects that they share. Safe for use by several threads.

    Attributes:
      served: the devices.
      stalls: reports long activities of sessions.
      transfer_folder: the files in which clients send large host buffers.
    """

    def __init__(self, served: ServedDevices) -> None:
        self.served = served
        self.stalls = StallMonitor(_LOG.warning)
        self.transfer_folder = TransferFolder(served.folders)
        self._lock = threading.Lock()
        self._sessions: dict[int, ProxySession] = {}
        self._numbers = itertools.count(1)

    @property
    def sessions(self) -> tuple[ProxySession, ...]:
        """The active sessions."""
        with self._lock:
            return tuple(self._sessions.values())

    def start(
        self, send: Send, wait: Run, wake: Callable[[], None], flush: Callable[[], None]
    ) -> ProxySession:
        """Registers a new session, with the arguments of `ProxySession`."""
        with self._lock:
            number = next(self._numbers)
            session = ProxySession(number, self.served, send, wait, self.stalls.watching, wake, flush)
            self._sessions[session.number] = session
        _LOG.info("session %d started", session.number)
        return session

    def end(self, session: ProxySession) -> None:
        """Ends a session and frees all its values."""
        counts = session.counts
        session.close()
        with self._lock:
            self._sessions.pop(session.number, None)
        _LOG.info("session %d ended: freed %d arrays, %d programs", session.number, *counts[:2])

    def session(self, number: int) -> ProxySession:
        """Returns a session by its id.

        Raises:
          StatusError: no active session has this id.
        """
        with self._lock:
            if number not in self._sessions:
                raise StatusError(StatusCode.INVALID_ARGUMENT, f"no session has the id {number}")
            return self._sessions[number]

    def lose_island(self, index: int, reason: str, *, returns: bool = True) -> None:
        """Treats an island as lost; see `ProxyServer.lose_island`."""
        with self._lock:
            # States first: a session that is not in the list yet starts with the new ones.
            self.served.island_states = self.served.island_states.lose(index, reason, returns=returns)
            sessions = tuple(self._sessions.values())
        for session in sessions:
            session.handle_loss()

    def return_island(self, index: int) -> None:
        """Returns an island that was lost; see `ProxyServer.return_island`."""
        with self._lock:
            self.served.island_states = self.served.island_states.restore(index)
