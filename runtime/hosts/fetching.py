"""Arrays that are coming from workers."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from pathways.runtime.hosts.coming import Coming
from pathways.runtime.hosts.messages import Chunk, Failed, MessageError

Key = tuple[int, int]
"""A host, and the number of an array there."""


class Fetched:
    """Shards that are coming.

    Args:
      sizes: their bytes.

    Attributes:
      shards: what has come of them.
      error: why nothing more comes; None while it may.
      coming: where it goes.
    """

    def __init__(self, sizes: Sequence[int]) -> None:
        self.shards = [bytearray(size) for size in sizes]
        self.error: str | None = None
        self.coming = Coming([memoryview(shard) for shard in self.shards])
        self._ready = threading.Event()
        if self.coming.is_complete():
            self._ready.set()

    def take(self, chunk: Chunk) -> None:
        """Notes that some bytes are in their place."""
        self.coming.take(chunk)
        if self.coming.is_complete():
            self._ready.set()

    def fail(self, error: str) -> None:
        """Ends the waiting."""
        self.error = error
        self._ready.set()

    def wait(self) -> None:
        """Waits until all is there, or nothing more comes."""
        self._ready.wait()


class Fetches:
    """All that is coming from workers."""

    def __init__(self) -> None:
        self.forget_threads()
        self._fetches: dict[Key, Fetched] = {}

    def forget_threads(self) -> None:
        """Makes the lock anew in a forked process, where nobody would release it."""
        self._lock = threading.Lock()

    def begin(self, key: Key, sizes: Sequence[int]) -> tuple[Fetched, bool]:
        """What comes of an array, and whether it has yet to be asked for."""
        fetched = Fetched(sizes)
        with self._lock:
            shared = self._fetches.setdefault(key, fetched)
        return shared, shared is fetched

    def end(self, key: Key, fetched: Fetched) -> None:
        """Forgets what has come, or will not."""
        with self._lock:
            # Another thread may have asked again since.
            if self._fetches.get(key) is fetched:
                del self._fetches[key]

    def place(self, host: int, message: object, size: int) -> memoryview:
        """Where the bytes behind a message of a host go.

        Raises:
          MessageError: they are of no array.
        """
        if not isinstance(message, Chunk):
            raise MessageError(f"{type(message).__name__} comes with {size} bytes of an array")
        fetched = self._fetches.get((host, message.array))
        # Nobody waits for it any more.
        return memoryview(bytearray(size)) if fetched is None else fetched.coming.place(message, size)

    def hear(self, host: int, message: Chunk | Failed) -> None:
        """Notes what a host says of an array."""
        fetched = self._fetches.get((host, message.array))
        if fetched is None:
            return
        if isinstance(message, Chunk):
            fetched.take(message)
        else:
            fetched.fail(message.error)

    def lose(self, host: int, error: str) -> None:
        """Ends the waiting for all that was coming from a host."""
        with self._lock:
            lost = [fetched for (of_host, _), fetched in self._fetches.items() if of_host == host]
        for fetched in lost:
            fetched.fail(error)
