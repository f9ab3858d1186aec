"""Reassembly of arrays that arrive in chunks."""

from __future__ import annotations

from collections.abc import Sequence

from pathways.runtime.hosts.protocol.messages import Chunk, MessageError


class Reassembly:
    """Shards of an array that arrives in chunks.

    Args:
      shards: the memory of each shard, as bytes.
    """

    def __init__(self, shards: Sequence[memoryview]) -> None:
        self._shards = shards
        self._missing = sum(map(len, shards))

    def place(self, chunk: Chunk, size: int) -> memoryview:
        """Returns the memory for the bytes that follow a message.

        Raises:
          MessageError: they do not belong to this array.
        """
        if not 0 <= chunk.shard < len(self._shards) or chunk.size != size:
            raise MessageError(f"array {chunk.number} has no shard {chunk.shard}")
        shard = self._shards[chunk.shard]
        if chunk.offset < 0 or chunk.offset + size > len(shard):
            raise MessageError(f"a chunk of array {chunk.number} reaches past the end of shard {chunk.shard}")
        return shard[chunk.offset : chunk.offset + size]

    def add(self, chunk: Chunk) -> None:
        """Counts a chunk whose bytes have been received."""
        self._missing -= chunk.size

    def is_complete(self) -> bool:
        """Returns whether all bytes have been received."""
        return self._missing <= 0
