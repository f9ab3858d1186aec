"""An array that is coming from a worker."""

from __future__ import annotations

from collections.abc import Sequence

from pathways.runtime.hosts.protocol.reassembly import Reassembly


class Fetched:
    """Shards that are coming.

    Args:
      sizes: their bytes.

    Attributes:
      shards: what has come of them.
      reassembly: where it goes.
    """

    def __init__(self, sizes: Sequence[int]) -> None:
        self.shards = [bytearray(size) for size in sizes]
        self.reassembly = Reassembly([memoryview(shard) for shard in self.shards])
