"""Writer of the bytes of a connection to its socket, whose client may not read."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable

from pathways.runtime.proxy.wire.events import Buffer
from pathways.runtime.proxy.wire.grpc_connection import GrpcConnection
from pathways.runtime.resources.threads import start_thread

_WRITE_BYTES = 512 << 10
_MAX_BUFFERS = 512
"""Maximum of buffers in one system call: Linux accepts 1,024."""


class SocketWriter:
    """Writer of the socket of a connection. All methods must be called with the connection's lock held.

    A thread with bytes to send writes as many as the socket accepts at once. If some are left, a writing
    thread continues, which waits for the client without the lock, so that no other thread has to wait.

    Args:
      client: the socket.
      grpc: the connection.
    """

    def __init__(self, client: socket.socket, grpc: GrpcConnection, lock: threading.Lock) -> None:
        self._socket = client
        self._grpc = grpc
        self._drained = threading.Condition(lock)
        self._blocked = threading.Condition(lock)
        self._left: list[Buffer] = []
        self._has_thread = False
        self._is_closed = False

    def flush(self) -> None:
        """Writes all bytes to send, now or in the writing thread."""
        if self._left or self._is_closed:
            return  # The writing thread also sends all that follows, in order.
        while buffers := self._grpc.buffers_to_send(_WRITE_BYTES):
            self._left = self._write(buffers, socket.MSG_DONTWAIT)
            if self._left:
                self._start_thread()
                return
        self._drained.notify_all()

    def wait_for(self, condition: Callable[[], bool]) -> None:
        """Waits until a condition that writes can change holds, or until the connection has ended."""
        self._drained.wait_for(lambda: self._is_closed or condition())

    def close(self) -> None:
        """Drops all bytes that are not written, and wakes all waiting threads."""
        self._is_closed = True
        self._left = []
        self._drained.notify_all()
        self._blocked.notify_all()

    def _start_thread(self) -> None:
        self._blocked.notify()
        if not self._has_thread:
            self._has_thread = True
            start_thread(self._run, "proxy writes")

    def _run(self) -> None:
        with self._blocked:
            while True:
                self._blocked.wait_for(lambda: self._left or self._is_closed)
                while self._left:
                    buffers = self._left
                    # Other threads see that buffers are left, and only add messages to the connection.
                    self._blocked.release()
                    try:
                        left = self._write(buffers, 0)
                    finally:
                        self._blocked.acquire()
                    self._left = [] if self._is_closed else left or self._grpc.buffers_to_send(_WRITE_BYTES)
                    self._drained.notify_all()
                if self._is_closed:
                    return

    def _write(self, buffers: list[Buffer], flags: int) -> list[Buffer]:
        """Writes some of the buffers; returns the rest."""
        try:
            sent = self._socket.sendmsg(buffers[:_MAX_BUFFERS], [], flags | socket.MSG_NOSIGNAL)
        except BlockingIOError:
            return buffers
        except OSError:
            # The reading thread then sees the end, and closes the connection.
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)
            self._is_closed = True
            return []
        for number, buffer in enumerate(buffers):
            if sent < len(buffer):
                return [memoryview(buffer)[sent:], *buffers[number + 1 :]]
            sent -= len(buffer)
        return []
