"""Search and removal of snapshots of dead processes, which take memory until they are removed."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import os
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from pathways.runtime.resilience.snapshots.host_snapshots import LOCK, OWNER, open_folder
from pathways.runtime.resources.folders import files_below, names_in, read_file, remove_files

_HOST = re.compile(r"host\d+")


@dataclasses.dataclass(frozen=True)
class SnapshotLeftover:
    """Snapshots of a host whose process is dead.

    Attributes:
      host: the name of its folder.
      count: their size in bytes.
      seconds: the time since their last change.
      owner: the name of its last controller, if recorded.
    """

    cluster: str
    host: str
    count: int
    seconds: float
    owner: str = ""


def find_leftovers(folder: str | os.PathLike[str]) -> list[SnapshotLeftover]:
    """Returns the snapshots that no process has locked; a controller may still resume from them.

    Raises:
      SnapshotError: the folder is a link, or other users may enter it.
    """
    leftovers = []
    for cluster, host, lock, opened in _unused(Path(folder)):
        files = files_below(opened)
        owner = (read_file(opened, OWNER) or b"").decode(errors="replace")
        os.close(lock)
        newest = max((status.st_mtime for status in files), default=0.0)
        count = sum(status.st_size for status in files)
        seconds = max(0.0, time.time() - newest)
        leftovers.append(SnapshotLeftover(cluster, host, count, seconds, owner))
    return sorted(leftovers, key=lambda leftover: (leftover.cluster, leftover.host))


def remove_leftovers(
    folder: str | os.PathLike[str],
    seconds: float,
    is_over: Callable[[SnapshotLeftover], bool] = lambda leftover: False,
) -> list[SnapshotLeftover]:
    """Removes useless snapshots that no process has locked, and returns them.

    A process that opens one at the same time keeps it, or finds it empty.

    Args:
      folder: the folder of all snapshots of the user.
      seconds: the age from which unchanged snapshots are useless.
      is_over: a function that returns whether snapshots can never be used again.
    """
    old = {
        (candidate.cluster, candidate.host): candidate
        for candidate in find_leftovers(folder)
        if candidate.seconds >= seconds or is_over(candidate)
    }
    removed = []
    for cluster, host, lock, opened in _unused(Path(folder)):
        # Locked from here on.
        if (leftover := old.get((cluster, host))) is not None:
            above = os.open("..", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=opened)
            # The lock file last: without it, another process could lock the folder while files are removed.
            for name in names_in(opened):
                if name != LOCK:
                    remove_files(opened, name)
            remove_files(above, host)
            os.close(above)
            removed.append(leftover)
        os.close(lock)
    for cluster in {leftover.cluster for leftover in removed}:
        # Other hosts may have snapshots in it.
        with contextlib.suppress(OSError):
            Path(folder, cluster).rmdir()
    return removed


def _unused(folder: Path) -> Iterator[tuple[str, str, int, int]]:
    """Yields the cluster, the name, the lock and the folder of each host without a process."""
    with contextlib.suppress(FileNotFoundError), contextlib.ExitStack() as opened:
        upper = open_folder(folder, create=False)
        opened.callback(os.close, upper)
        for cluster in sorted(names_in(upper)):
            with contextlib.suppress(OSError), contextlib.ExitStack() as inner:
                middle = open_folder(Path(cluster), upper, create=False)
                inner.callback(os.close, middle)
                for host in filter(_HOST.fullmatch, sorted(names_in(middle))):
                    below = open_folder(Path(host), middle, create=False)
                    inner.callback(os.close, below)
                    lock = os.open(LOCK, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=below)
                    try:
                        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    except BlockingIOError:
                        os.close(lock)
                        continue
                    yield cluster, host, lock, below
