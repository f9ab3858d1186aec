"""Bytes of arrays that are coming over a connection, in pieces."""

from __future__ import annotations

from collections.abc import Sequence

from pathways.runtime.hosts.protocol.messages import Chunk, MessageError


class Reassembly:
    """The shards of an array whose bytes are coming.

    Args:
      shards: the memory of each, as bytes.
    """

    def __init__(self, shards: Sequence[memoryview]) -> None:
        self._shards = shards
        self._missing = sum(map(len, shards))

    def place(self, chunk: Chunk, size: int) -> memoryview:
        """Where the bytes after a message go.

        Raises:
          MessageError: they are not of this array.
        """
        if not 0 <= chunk.shard < len(self._shards) or chunk.size != size:
            raise MessageError(f"array {chunk.number} has no shard {chunk.shard}")
        shard = self._shards[chunk.shard]
        if chunk.offset < 0 or chunk.offset + size > len(shard):
            raise MessageError(f"array {chunk.number} is smaller than what comes of it")
        return shard[chunk.offset : chunk.offset + size]

    def take(self, chunk: Chunk) -> None:
        """Notes that bytes are in their place."""
        self._missing -= chunk.size

    def is_complete(self) -> bool:
        """Whether all of it is there."""
        return self._missing <= 0
