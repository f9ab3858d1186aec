"""Sinks of the replies of workers to requests."""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import override

from pathways.runtime.hosts.cluster.host import WorkerHandle
from pathways.runtime.hosts.protocol.messages import Chunk, Described, Failed, Report
from pathways.runtime.hosts.protocol.reassembly import Reassembly

Reply = Chunk | Failed | Described | Report


class ReplySink(abc.ABC):
    """Sink of the reply of a worker to a request, whole or in chunks.

    Attributes:
      accepts_all: whether it accepts all kinds of replies, as a sink that relays them; otherwise it accepts
        bytes of arrays alone, and the core handles the other replies.
    """

    accepts_all = True

    @abc.abstractmethod
    def place(self, chunk: Chunk, size: int) -> memoryview:
        """Returns the buffer for the `size` bytes of an array that follow a chunk's message."""

    @abc.abstractmethod
    def accept(self, host: WorkerHandle, answer: Reply) -> bool:
        """Accepts a reply, or a chunk of it; returns whether the reply is complete."""


class FetchSink(ReplySink):
    """Sink of the shards of a fetched array.

    Args:
      sizes: the bytes of each shard.
    """

    accepts_all = False

    def __init__(self, sizes: Sequence[int]) -> None:
        self.shards = [bytearray(size) for size in sizes]
        self._reassembly = Reassembly([memoryview(shard) for shard in self.shards])

    @override
    def place(self, chunk: Chunk, size: int) -> memoryview:
        return self._reassembly.place(chunk, size)

    @override
    def accept(self, host: WorkerHandle, answer: Reply) -> bool:
        assert isinstance(answer, Chunk)
        self._reassembly.add(answer)
        return self._reassembly.is_complete()
