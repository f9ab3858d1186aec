"""Account of the memory that arrays and programs hold, and its limit."""

from __future__ import annotations

import collections
import threading
from collections.abc import Sequence

from pathways.runtime.resources.manager import ResourceError


class Allocation:
    """Bytes of an account, held until `free` or until nothing refers to the allocation.

    Arrays that share a buffer share its allocation.
    """

    __slots__ = ("_freed", "size")

    def __init__(self, size: int, freed: collections.deque[int]) -> None:
        self.size = size
        self._freed = freed

    def free(self) -> None:
        """Returns the bytes to the account; no-op if they were returned before."""
        size, self.size = self.size, 0
        if size:
            self._freed.append(size)

    def __del__(self) -> None:
        self.free()


class MemoryAccount:
    """Account of the bytes that are in use, with a limit.

    Args:
      limit: the limit; None for no limit, and no account.
    """

    def __init__(self, limit: int | None) -> None:
        self.limit = limit
        self._used = 0
        self._lock = threading.Lock()
        # Appended to without the lock: a destructor may run in the thread that holds it.
        self._freed: collections.deque[int] = collections.deque()

    @property
    def used(self) -> int:
        """The number of bytes that are in use."""
        with self._lock:
            return self._settle()

    def reserve(self, sizes: Sequence[int], consumed: Sequence[Allocation] = ()) -> tuple[Allocation, ...]:
        """Allocates bytes; returns one allocation for each size, or none if there is no limit.

        Args:
          consumed: allocations that are freed for it, in one step: no other thread gets their bytes.

        Raises:
          ResourceError: the limit would be exceeded; `consumed` is freed nevertheless.
        """
        if self.limit is None:
            return ()
        with self._lock:
            for allocation in consumed:
                allocation.free()
            self._check(sum(sizes))
            self._used += sum(sizes)
        return tuple(Allocation(size, self._freed) for size in sizes)

    def _check(self, size: int) -> None:
        if self.limit is not None and self._settle() + size > self.limit:
            raise ResourceError(
                f"out of memory: {size} bytes are needed, and {self._used} of the server's {self.limit} are "
                "in use; free arrays, or start the server with a larger --max-memory"
            )

    def _settle(self) -> int:
        while self._freed:
            self._used -= self._freed.popleft()
        return self._used
