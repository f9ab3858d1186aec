"""Limit on the open files and sockets of this process."""

from __future__ import annotations

import resource
from pathlib import Path

from pathways.runtime.control.records.errors import HostStartError

_OF_HOST = 6
"""Descriptors of each host: three connections, and the pipes of a child."""

_RESERVE = 64
"""Descriptors for everything else that this process may open."""


def reserve_descriptors(hosts: int) -> None:
    """Raises the soft limit on open files (`ulimit -n`) as far as more hosts need; never the hard limit.

    Raises:
      HostStartError: the hard limit is too low.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = _open() + _RESERVE + _OF_HOST * hosts
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise HostStartError(
            f"{hosts} hosts need up to {needed} open files in this process, but the limit is {hard}: raise "
            "the hard limit (ulimit -Hn)"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


def _open() -> int:
    folder = Path("/proc/self/fd")
    return len([*folder.iterdir()]) if folder.exists() else _RESERVE
