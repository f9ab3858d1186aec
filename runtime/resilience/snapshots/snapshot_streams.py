"""Streams of snapshot blocks between workers, over authenticated connections.

A worker that needs blocks connects to a worker with copies, and reads a file of blocks.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import threading
import time
from collections.abc import Callable, Collection, Iterator
from typing import Any

from pathways.runtime.hosts.protocol.frames import CHUNK
from pathways.runtime.hosts.protocol.messages import MessageError
from pathways.runtime.hosts.protocol.wire import Connection, ConnectionEnded
from pathways.runtime.hosts.worker.probes import Probes
from pathways.runtime.resilience.records import VersionKey
from pathways.runtime.resilience.snapshots.block_file import SnapshotError
from pathways.runtime.resilience.snapshots.messages import (
    SNAPSHOTS,
    BlocksChunk,
    BlocksFound,
    BlocksRefused,
    RequestBlocks,
    decode_for_source,
    decode_from_source,
)

_CHUNKS_A_SECOND = 16
"""Min number of chunks per second at a limited rate, which streams share, so that readers do not time out."""

OpenBlocks = Callable[[str, VersionKey, Collection[str]], int]
"""Function that returns a file descriptor with blocks of a version of a run; raises `SnapshotError`."""


class StreamError(OSError):
    """Error of blocks from another host.

    Args:
      text: the message.
      is_corrupt: whether the other host cannot read the blocks itself.
    """

    def __init__(self, text: str, *, is_corrupt: bool = False) -> None:
        super().__init__(text)
        self.is_corrupt = is_corrupt


class SnapshotStreams:
    """Streams of a worker to and from other workers.

    Args:
      probes: its connections to other workers.
      heartbeat: timeout of each send and receive, in seconds.
      open_blocks: a function that opens the blocks in a request.
      rate: limit on the bytes per second of all streams together; None for no limit.
    """

    def __init__(self, probes: Probes, heartbeat: float, open_blocks: OpenBlocks, rate: float | None) -> None:
        self._probes = probes
        self._heartbeat = heartbeat
        self._open_blocks = open_blocks
        self._rate = rate
        self._pacing = threading.Lock()
        # When the next byte may be sent.
        self._due = 0.0
        probes.serve(SNAPSHOTS, self._serve)

    @contextlib.contextmanager
    def read(
        self, host: int, address: str, run: str, key: VersionKey, blocks: Collection[str]
    ) -> Iterator[tuple[int, Iterator[memoryview]]]:
        """Requests blocks of another host; yields the size of their file, and its content in pieces.

        Args:
          host: the number of the other host.
          address: the address of its `Probes`.
          key: the version.

        Raises:
          StreamError: the other host does not have the blocks, or does not reply.
        """
        try:
            connection = self._probes.connect(host, address, SNAPSHOTS, decode_from_source)
        except (OSError, OverflowError, MessageError) as error:
            raise StreamError(f"host {host} does not send them: {error}") from None
        try:
            with contextlib.closing(connection):
                connection.set_timeout(self._heartbeat)
                connection.send(RequestBlocks(run, key.step, key.attempt, tuple(blocks)))
                reply = connection.receive()
                if isinstance(reply, BlocksRefused):
                    raise StreamError(reply.why, is_corrupt=reply.is_corrupt)
                if not isinstance(reply, BlocksFound):
                    raise _unexpected(reply)
                yield reply.count, _chunks(connection, reply.count)
        except (ConnectionError, TimeoutError, MessageError) as error:
            raise StreamError(f"host {host} does not send them: {error}") from None

    def _serve(self, connection: Connection[Any]) -> None:
        """Serves the requests of another worker until it disconnects."""
        connection.read_with(decode_for_source)
        with contextlib.suppress(ConnectionEnded, MessageError), contextlib.closing(connection):
            connection.set_timeout(self._heartbeat)
            while True:
                request = connection.receive()
                if not isinstance(request, RequestBlocks):
                    raise _unexpected(request)
                key = VersionKey(request.step, request.attempt)
                try:
                    file = self._open_blocks(request.run, key, request.blocks)
                except SnapshotError as error:
                    connection.send(BlocksRefused(str(error), is_corrupt=True))
                    continue
                try:
                    self._send(connection, file)
                finally:
                    os.close(file)

    def _send(self, connection: Connection[Any], file: int) -> None:
        size, rate = os.fstat(file).st_size, self._rate
        connection.send(BlocksFound(size))
        limit = CHUNK if rate is None else max(1, min(CHUNK, int(rate / _CHUNKS_A_SECOND)))
        # Sent without a copy, since complete files never change.
        content = memoryview(mmap.mmap(file, size, prot=mmap.PROT_READ))
        for sent in range(0, size, limit):
            chunk = content[sent : sent + limit]
            connection.send_with(BlocksChunk(), chunk)
            if rate is not None:
                self._wait_after(len(chunk) / rate)

    def _wait_after(self, seconds: float) -> None:
        """Waits until a stream may send its next chunk, which takes some seconds at the limited rate."""
        with self._pacing:
            self._due = max(self._due, time.monotonic()) + seconds
            due = self._due
        time.sleep(max(0.0, due - time.monotonic()))


def _chunks(connection: Connection[Any], count: int) -> Iterator[memoryview]:
    """Yields the bytes of a file as they arrive; each chunk overwrites the memory of the previous one."""
    buffer = bytearray(CHUNK)
    sizes: list[int] = []

    def place(message: object, size: int) -> memoryview:
        sizes.append(size)
        return memoryview(buffer)[:size]

    connection.place = place
    while count:
        message = connection.receive()
        if not isinstance(message, BlocksChunk) or not sizes:
            raise _unexpected(message)
        size = sizes.pop()
        count -= size
        yield memoryview(buffer)[:size]


def _unexpected(message: object) -> MessageError:
    return MessageError(f"unexpected {type(message).__name__} in a stream of snapshots")
