"""How many files and sockets this process may have open."""

from __future__ import annotations

import resource
from pathlib import Path

from pathways.runtime.control.records.errors import HostStartError

_OF_HOST = 6
"""Descriptors for each host: three connections, and the pipes of a child."""

_OTHERS = 64
"""Descriptors for all else that this process may open."""


def make_room(hosts: int) -> None:
    """Lets this process have as many open files as some more hosts need, where the system allows it.

    It raises the soft limit (`ulimit -n`), never the hard one.

    Raises:
      HostStartError: the hard limit is too low.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = _open() + _OTHERS + _OF_HOST * hosts
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
    return len([*folder.iterdir()]) if folder.exists() else _OTHERS
