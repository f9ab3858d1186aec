"""Writes what a connection has to send to its socket, beside a client that may not read."""

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
"""Limit of buffers of one system call: Linux accepts 1,024."""


class SocketWriter:
    """Writes to the socket of a connection. All methods are called with the connection's lock held.

    A thread that has something to send writes as much as the socket accepts at once. When it accepts no more,
    a writing thread goes on, which waits for the client without the lock, so that no other thread has to.

    Args:
      client: the socket.
      grpc: the connection.
      lock: its lock.
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
        """Writes what there is to send, now or from another thread."""
        if self._left or self._is_closed:
            return  # The writing thread sends all that follows, in order.
        while buffers := self._grpc.buffers_to_send(_WRITE_BYTES):
            self._left = self._write(buffers, socket.MSG_DONTWAIT)
            if self._left:
                self._start_thread()
                return
        self._drained.notify_all()

    def wait_for(self, condition: Callable[[], bool]) -> None:
        """Waits until a condition of what was sent holds, or until the connection has ended."""
        self._drained.wait_for(lambda: self._is_closed or condition())

    def close(self) -> None:
        """Drops what is not written, and ends all waits."""
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
                    # Others see that something is left, and add to what the connection has to send.
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
            # The thread that reads notices the end, and closes the connection for all.
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)
            self._is_closed = True
            return []
        for number, buffer in enumerate(buffers):
            if sent < len(buffer):
                return [memoryview(buffer)[sent:], *buffers[number + 1 :]]
            sent -= len(buffer)
        return []
