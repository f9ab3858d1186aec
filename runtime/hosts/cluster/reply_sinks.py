"""Sinks of the answers that workers give to requests."""

from __future__ import annotations

import abc
from collections.abc import Sequence

from pathways.runtime.hosts.cluster.host import WorkerHandle
from pathways.runtime.hosts.protocol.messages import Chunk, Described, Failed, Report
from pathways.runtime.hosts.protocol.reassembly import Reassembly

Answer = Chunk | Failed | Described | Report


class ReplySink(abc.ABC):
    """Takes the answer of a worker to a request, whole or in pieces.

    Attributes:
      accepts_all: whether it takes all kinds of answers, as one that passes them on; else it takes bytes of
        arrays alone, and the core is told the others.
    """

    accepts_all = True

    @abc.abstractmethod
    def place(self, chunk: Chunk, size: int) -> memoryview:
        """Returns where so many bytes of an array go that come after a message."""

    @abc.abstractmethod
    def accept(self, host: WorkerHandle, answer: Answer) -> bool:
        """Takes an answer, or a piece of it; returns whether nothing more of it comes."""


class FetchSink(ReplySink):
    """Shards that are coming.

    Args:
      sizes: their bytes.

    Attributes:
      shards: what has come of them.
    """

    accepts_all = False

    def __init__(self, sizes: Sequence[int]) -> None:
        self.shards = [bytearray(size) for size in sizes]
        self._reassembly = Reassembly([memoryview(shard) for shard in self.shards])

    def place(self, chunk: Chunk, size: int) -> memoryview:
        """See `ReplySink.place`."""
        return self._reassembly.place(chunk, size)

    def accept(self, host: WorkerHandle, answer: Answer) -> bool:
        """See `ReplySink.accept`."""
        assert isinstance(answer, Chunk)
        self._reassembly.add(answer)
        return self._reassembly.is_complete()
