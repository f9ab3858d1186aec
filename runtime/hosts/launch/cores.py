"""Workers that have cores of their machine for themselves."""

from __future__ import annotations

import collections
import os
from pathlib import Path


class CoreShares:
    """Which cores of their machines workers get, as positions among those that a process there may use."""

    def __init__(self) -> None:
        self._taken: dict[str, dict[int, range]] = collections.defaultdict(dict)

    def take(self, machine: str, host: int, count: int) -> int:
        """The first of some consecutive cores that no other host of the machine has; the same again."""
        taken = self._taken[machine]
        taken.pop(host, None)
        first = 0
        for other in sorted(taken.values(), key=lambda cores: cores.start):
            if other.start - first >= count:
                break
            first = max(first, other.stop)
        taken[host] = range(first, first + count)
        return first


def pin(first: int, count: int) -> None:
    """Keeps this process to some of the cores that it may use; before JAX starts its threads.

    Args:
      first: the position of the first of them.
      count: how many.

    Raises:
      OSError: there are not so many, or this system does not know of such a thing.
    """
    if not hasattr(os, "sched_setaffinity"):
        raise OSError("cores=: this system cannot pin a process to cores")
    usable = sorted(os.sched_getaffinity(0))
    if len(usable) < first + count:
        raise OSError(
            f"cores={count}: it is to have {count} cores after {first} of other hosts, but it may use "
            f"{len(usable)} on its machine"
        )
    # Libraries have made threads when they were imported.
    for thread in Path("/proc/self/task").iterdir():
        os.sched_setaffinity(int(thread.name), usable[first : first + count])
