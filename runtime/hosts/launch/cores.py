"""Exclusive cores for workers."""

from __future__ import annotations

import collections
import os
from pathlib import Path


class CoreShares:
    """Assignment of cores to workers, as positions among the cores that a process on the machine may use."""

    def __init__(self) -> None:
        self._assigned: dict[str, dict[int, range]] = collections.defaultdict(dict)

    def assign(self, machine: str, host: int, count: int) -> int:
        """Assigns consecutive cores to a host, instead of its earlier cores; returns the first."""
        assigned = self._assigned[machine]
        assigned.pop(host, None)
        first = 0
        for other in sorted(assigned.values(), key=lambda cores: cores.start):
            if other.start - first >= count:
                break
            first = max(first, other.stop)
        assigned[host] = range(first, first + count)
        return first

    def release_from(self, host: int) -> None:
        """Releases the cores of the hosts from a number on."""
        for assigned in self._assigned.values():
            for other in [other for other in assigned if other >= host]:
                del assigned[other]


def pin(first: int, count: int) -> None:
    """Pins this process to some of the cores that it may use; must be called before JAX starts its threads.

    Args:
      first: the position of the first of them.
      count: number of cores.

    Raises:
      OSError: the process may use too few cores, or the system does not support pinning.
    """
    if not hasattr(os, "sched_setaffinity"):
        raise OSError("cores=: this system cannot pin a process to cores")
    usable = sorted(os.sched_getaffinity(0))
    if len(usable) < first + count:
        raise OSError(
            f"cores={count}: the worker needs {count} cores after {first} of other hosts, but may use only "
            f"{len(usable)} on its machine"
        )
    # Affinity belongs to threads, and imported libraries have started some already.
    for thread in Path("/proc/self/task").iterdir():
        os.sched_setaffinity(int(thread.name), usable[first : first + count])
