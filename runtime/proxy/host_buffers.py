"""Bytes on their way between a client and arrays: what it stores before, or looks up after, a request."""

from __future__ import annotations

import threading

from pathways.runtime.proxy.statuses import StatusCode, StatusError

Buffer = bytes | bytearray


class HostBuffers:
    """Host buffers of a session by handle. Each is stored once and taken or deleted once."""

    def __init__(self) -> None:
        self._buffers: dict[int, Buffer] = {}
        self._changed = threading.Condition()
        self._is_closed = False

    def __len__(self) -> int:
        return len(self._buffers)

    def store(self, handle: int, data: Buffer) -> None:
        """Keeps a buffer under a handle.

        Raises:
          StatusError: there is one, or the session has ended.
        """
        with self._changed:
            if self._is_closed:
                raise StatusError(StatusCode.CANCELLED, "the session has ended")
            if handle in self._buffers:
                raise StatusError(StatusCode.ALREADY_EXISTS, f"host buffer {handle} exists already")
            self._buffers[handle] = data
            self._changed.notify_all()

    def take(self, handle: int) -> Buffer:
        """Returns a buffer and forgets it; waits until the client has stored it.

        A client sends the buffer in a call of its own, before or after the request that needs it.

        Raises:
          StatusError: the session has ended.
        """
        with self._changed:
            self._changed.wait_for(lambda: handle in self._buffers or self._is_closed)
            if self._is_closed:
                raise StatusError(StatusCode.CANCELLED, "the session has ended")
            return self._buffers.pop(handle)

    def find(self, handle: int) -> Buffer:
        """Returns a buffer, which stays.

        Raises:
          StatusError: there is none.
        """
        with self._changed:
            if handle not in self._buffers:
                raise StatusError(StatusCode.INVALID_ARGUMENT, f"no host buffer has the handle {handle}")
            return self._buffers[handle]

    def delete(self, handle: int) -> None:
        """Frees a buffer.

        Raises:
          StatusError: there is none.
        """
        with self._changed:
            if self._buffers.pop(handle, None) is None:
                raise StatusError(StatusCode.INVALID_ARGUMENT, f"no host buffer has the handle {handle}")

    def close(self) -> None:
        """Frees all buffers, and lets those go that wait for one."""
        with self._changed:
            self._is_closed = True
            self._buffers.clear()
            self._changed.notify_all()
