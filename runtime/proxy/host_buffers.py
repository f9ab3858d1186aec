"""Host buffers: bytes of arrays between client and session, which separate calls carry."""

from __future__ import annotations

import abc
import contextlib
import mmap
import os
import resource
import stat
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

from pathways.runtime.proxy.wire.events import Buffer
from pathways.runtime.proxy.wire.frames import MAX_STREAMS
from pathways.runtime.proxy.wire.statuses import StatusCode, StatusError, status_of

MAX_BUFFERS = 1 << 16
"""Maximum of buffers of a session; a client has a few at a time."""

_NO_MEMORY_TIMEOUT_S = 10.0
"""Time in which the system must have memory for a buffer that a request waits for."""

_RETRY_INTERVAL_S = 0.05

_MIN_MAPPED_BYTES = 64 << 10
_MIN_HUGE_BYTES = 4 << 20

_DATA_TAG = b"\x0a"
"""Field 1, a length and bytes: `data` in both messages that carry chunks of a host buffer."""


def max_bytes() -> int:
    """Returns the maximum of bytes of the host buffers of a session: half of the memory of the machine.

    If the process has a limit of its address space, it is at most half of the rest of it.
    """
    page = os.sysconf("SC_PAGE_SIZE")
    memory = os.sysconf("SC_PHYS_PAGES") * page
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit != resource.RLIM_INFINITY:
        with contextlib.suppress(OSError):  # Only Linux has the file.
            limit -= int(Path("/proc/self/statm").read_text().split()[0]) * page
        memory = min(memory, max(limit, 0))
    return memory // 2


def data_header(size: int) -> bytes:
    """Returns the bytes in front of `size` bytes of data in a serialised `GrpcHostBufferLookupResponse`."""
    header = bytearray(_DATA_TAG)
    while size > 0x7F:
        header.append(size & 0x7F | 0x80)
        size >>= 7
    header.append(size)
    return bytes(header)


def data_of(message: Buffer) -> memoryview | None:
    """Returns the data of a serialised `GrpcHostBufferStoreRequest`; None if it has other fields, too.

    This avoids the copies of protobuf's parser.
    """
    view = memoryview(message)
    size = shift = 0
    # A varint: 7 bits a byte, the lowest first; all bytes but the last have the top bit set.
    for position in range(1, min(len(view), 6)):
        size |= (view[position] & 0x7F) << shift
        shift += 7
        if view[position] < 0x80:
            is_alone = view[:1] == _DATA_TAG and len(view) == position + 1 + size
            return view[position + 1 :] if is_alone else None
    return None


class IncomingBuffer:
    """Host buffer that a client is sending.

    The memory of a large buffer is a mapping of the announced size, whose pages are allocated only as bytes
    arrive. Such memory is aligned, so that XLA can use it for an array without a copy.

    Args:
      size: the size that the client has announced.

    Raises:
      StatusError: the size is negative, or too large for this process.
    """

    def __init__(self, size: int) -> None:
        if size < 0:
            raise StatusError(StatusCode.INVALID_ARGUMENT, f"a host buffer of {size} bytes is not possible")
        self.size = size
        self._received = 0
        self._data: bytearray | mmap.mmap = bytearray()
        if size < _MIN_MAPPED_BYTES:
            return
        try:
            self._data = mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except (OSError, OverflowError, MemoryError):
            raise StatusError(
                StatusCode.RESOURCE_EXHAUSTED, f"no memory for a host buffer of {size} bytes"
            ) from None
        if size >= _MIN_HUGE_BYTES:
            with contextlib.suppress(OSError):  # A kernel without huge pages.
                self._data.madvise(mmap.MADV_HUGEPAGE)

    def add(self, data: Buffer) -> None:
        """Adds the next bytes.

        Raises:
          StatusError: they exceed the size.
        """
        end = self._received + len(data)
        if end > self.size:
            raise StatusError(StatusCode.INVALID_ARGUMENT, f"a host buffer of {self.size} bytes has more")
        self._data[self._received : end] = data
        self._received = end

    def read(self, file: int) -> None:
        """Adds the contents of a file, as far as they fit."""
        if not isinstance(self._data, mmap.mmap):
            self.add(os.read(file, self.size))
            return
        with memoryview(self._data) as view:
            while count := os.readv(file, [view[self._received :]]):
                self._received += count

    def finish(self) -> Buffer:
        """Returns the whole buffer.

        Raises:
          StatusError: some bytes have not arrived.
        """
        if self._received != self.size:
            raise StatusError(
                StatusCode.INVALID_ARGUMENT,
                f"a host buffer of {self.size} bytes ended after {self._received}",
            )
        return memoryview(self._data)


def open_file(folder: int, name: str, size: int) -> int:
    """Opens a file, and removes it from its folder; returns its file descriptor.

    Args:
      folder: the file descriptor of its folder.
      size: its size in bytes.

    Raises:
      StatusError: it has another size, or is not a plain file.
      OSError: it cannot be opened.
    """
    # Without O_NONBLOCK, a pipe of that name would wait for its writer.
    file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    try:
        status = os.fstat(file)
        if not stat.S_ISREG(status.st_mode) or status.st_size != size:
            raise StatusError(StatusCode.INVALID_ARGUMENT, f"{name!r} is no file of {size} bytes")
        os.unlink(name, dir_fd=folder)
    except BaseException:
        os.close(file)
        raise
    return file


class Arrival(abc.ABC):
    """Buffer that a client has announced. Its bytes need not be read before it starts.

    `HostBuffers` calls the methods with its lock held.

    Attributes:
      size: its size in bytes.
    """

    size: int

    @abc.abstractmethod
    def start(self) -> bool:
        """Allocates the memory of the buffer and reads it; returns False if no memory is free."""

    @abc.abstractmethod
    def discard(self) -> None:
        """Frees the buffer without an error in its call, which would end the client."""


class HostBuffers:
    """Host buffers of a session by handle. Each is stored once, and removed once.

    Buffers beyond the maximum wait until others have become arrays, in the order of their handles, which
    clients count up. The buffer that a request waits for comes first, whatever the maximum, since the
    requests after it do not free any buffer before.

    Args:
      max_bytes: the maximum of their bytes, including buffers that are still arriving.
      watching: returns the context of a wait for a handle, which reports long waits.
    """

    def __init__(
        self,
        max_bytes: int | None = None,
        watching: Callable[[int], AbstractContextManager[object]] = lambda _: contextlib.nullcontext(),
    ) -> None:
        self._max_bytes = max_bytes
        self._watching = watching
        self._buffers: dict[int, Buffer | StatusError] = {}
        self._bytes = 0
        self._arrivals: dict[int, Arrival] = {}
        self._requested: int | None = None
        self._changed = threading.Condition()
        self._is_closed = False

    def __len__(self) -> int:
        return len(self._buffers)

    def announce(self, handle: int, arrival: Arrival) -> None:
        """Starts a buffer, now or when others have become arrays; discards one that cannot fit."""
        with self._changed:
            if self._is_closed:
                arrival.discard()
                return
            if self._max_bytes is not None and arrival.size > self._max_bytes:
                limit = f"a session may have buffers of up to {self._max_bytes}"
                self._reject(handle, arrival, f"a host buffer of {arrival.size} bytes is too large: {limit}")
                return
            self._arrivals[handle] = arrival
            self._start_arrivals()

    def withdraw(self, handle: int, size: int) -> None:
        """Frees the bytes of an announced buffer that will not be stored."""
        with self._changed:
            if self._arrivals.pop(handle, None) is None:
                self._bytes -= size
            self._start_arrivals()

    def _start_arrivals(self) -> None:
        """Starts buffers while they fit. The lock is held."""
        # The requested buffer may be behind others in the client, which has a limited number of calls.
        is_stuck = self._requested is not None and self._requested not in self._arrivals
        for handle in sorted(self._arrivals, key=lambda handle: (handle != self._requested, handle)):
            arrival = self._arrivals.get(handle)
            if arrival is None:  # A failed start has started others.
                continue
            fits = self._max_bytes is None or self._bytes + arrival.size <= self._max_bytes
            goes_first = handle == self._requested or (is_stuck and len(self._arrivals) >= MAX_STREAMS // 2)
            if not (fits or goes_first):
                return
            # Before the start, which may store the buffer.
            self._bytes += arrival.size
            del self._arrivals[handle]
            if not arrival.start():
                self._bytes -= arrival.size
                self._arrivals[handle] = arrival
                return

    def _reject(self, handle: int, arrival: Arrival, message: str) -> None:
        self.fail(handle, StatusError(StatusCode.RESOURCE_EXHAUSTED, message))
        arrival.discard()

    def store(self, handle: int, data: Buffer, *, is_reserved: bool = False) -> None:
        """Stores a buffer under a handle.

        Raises:
          StatusError: the handle is in use, there are too many buffers, or the session has ended.
        """
        self._put(handle, data, 0 if is_reserved else len(data))

    def fail(self, handle: int, error: StatusError) -> None:
        """Stores the error of a buffer that will not arrive, which `take` raises."""
        with contextlib.suppress(StatusError):
            self._put(handle, error, 0)

    def _put(self, handle: int, data: Buffer | StatusError, size: int) -> None:
        with self._changed:
            if self._is_closed:
                raise StatusError(StatusCode.CANCELLED, "the session has ended")
            if handle in self._buffers:
                raise StatusError(StatusCode.ALREADY_EXISTS, f"host buffer {handle} exists already")
            if len(self._buffers) >= MAX_BUFFERS:
                raise StatusError(
                    StatusCode.RESOURCE_EXHAUSTED, f"a session may have {MAX_BUFFERS} host buffers"
                )
            self._buffers[handle] = data
            self._bytes += size
            self._changed.notify_all()

    def take(self, handle: int) -> Buffer:
        """Removes a buffer and returns it; waits until the client has stored it.

        A client sends the buffer in a separate call, before or after the request that needs it.

        Raises:
          StatusError: the buffer will not arrive, or the session has ended.
        """
        with self._changed:
            if handle not in self._buffers and not self._is_closed:
                with self._watching(handle):
                    self._wait_for(handle)
            if self._is_closed:
                raise StatusError(StatusCode.CANCELLED, "the session has ended")
            return self._pop(handle)

    def _wait_for(self, handle: int) -> None:
        deadline = time.monotonic() + _NO_MEMORY_TIMEOUT_S
        self._requested = handle
        while handle not in self._buffers and not self._is_closed:
            self._start_arrivals()
            if handle not in self._arrivals:
                deadline = time.monotonic() + _NO_MEMORY_TIMEOUT_S
                if handle not in self._buffers:
                    self._changed.wait()
            elif time.monotonic() < deadline:
                # Arrays that a computation still uses may be freed soon.
                self._changed.wait(_RETRY_INTERVAL_S)
            else:
                arrival = self._arrivals.pop(handle)
                self._reject(handle, arrival, f"no memory for a host buffer of {arrival.size} bytes")
        self._requested = None

    def find(self, handle: int) -> Buffer:
        """Returns a buffer without removing it.

        Raises:
          StatusError: no buffer has this handle.
        """
        with self._changed:
            data = self._buffers.get(handle)
            if isinstance(data, Buffer):
                return data
            raise data or StatusError(StatusCode.INVALID_ARGUMENT, f"no host buffer has the handle {handle}")

    def delete(self, handle: int) -> None:
        """Frees a buffer.

        Raises:
          StatusError: no buffer has this handle.
        """
        with self._changed:
            if handle not in self._buffers:
                raise StatusError(StatusCode.INVALID_ARGUMENT, f"no host buffer has the handle {handle}")
            self._pop(handle)

    def close(self) -> None:
        """Frees all buffers, and wakes all waiting threads, with an error."""
        with self._changed:
            self._is_closed = True
            self._buffers.clear()
            while self._arrivals:
                self._arrivals.popitem()[1].discard()
            self._changed.notify_all()

    def _pop(self, handle: int) -> Buffer:
        data = self._buffers.pop(handle)
        if not isinstance(data, Buffer):
            raise data
        self._bytes -= len(data)
        self._start_arrivals()
        return data


class FileArrival(Arrival):
    """Buffer in a file that has no name any more.

    The bytes are read, not mapped: a client that truncates a mapped file would crash the process.

    Args:
      size: its size in bytes.
      file: the file descriptor, which this closes.
    """

    def __init__(self, buffers: HostBuffers, handle: int, size: int, file: int) -> None:
        self.size = size
        self._buffers = buffers
        self._handle = handle
        self.file = file

    def start(self) -> bool:
        try:
            buffer = IncomingBuffer(self.size)
        except StatusError:
            return False
        try:
            buffer.read(self.file)
            self._buffers.store(self._handle, buffer.finish(), is_reserved=True)
        except Exception as error:
            self._buffers.withdraw(self._handle, self.size)
            self._buffers.fail(self._handle, status_of(error))
        finally:
            self.discard()
        return True

    def discard(self) -> None:
        os.close(self.file)
