"""Tells platforms whether workers of this machine are ready, and lets them end.

  PW_READY_DIR=/run/pathways            in the environment of workers
  python -m pathways.runtime.hosts.launch.ready /run/pathways [--hosts 1]
  python -m pathways.runtime.hosts.launch.ready /run/pathways --drain 25

A worker has a file in the folder from when it is ready until it ends, or is asked to. The first command fails
when there are fewer of them. The second asks all to end, with SIGTERM, waits until they have, and fails when
one has not after so many seconds.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import os
import signal
import sys
import time
from pathlib import Path

FOLDER = "PW_READY_DIR"
"""The variable of the environment that names the folder."""


class ReadyFile:
    """The file of this process, which it keeps locked: one that is not is of a process that has ended.

    Args:
      folder: where it is; None for nowhere.
      host: the number of the worker.

    Raises:
      OSError: it cannot be written.
    """

    def __init__(self, folder: str | None, host: int) -> None:
        self._path: Path | None = None
        if folder is None:
            return
        name = f"host{host}-{os.getpid()}"
        Path(folder).mkdir(parents=True, exist_ok=True)
        ready(Path(folder))
        new = Path(folder, f".{name}")
        # Kept open as long as the process lives.
        self._file = new.open("w")
        fcntl.flock(self._file, fcntl.LOCK_EX)
        self._file.write(str(os.getpid()))
        self._file.flush()
        # No one sees it before it is locked.
        self._path = new.rename(Path(folder, name))

    def remove(self) -> None:
        """Says that it is ready no more."""
        if self._path is not None:
            self._path.unlink(missing_ok=True)


def ready(folder: Path) -> dict[str, int]:
    """The workers that are ready, by the names of their files, and their processes."""
    found: dict[str, int] = {}
    for path in sorted(folder.glob("host*-*")):
        # It may be removed in between.
        with contextlib.suppress(FileNotFoundError), path.open() as file:
            if _is_locked(file.fileno()):
                found[path.name] = int(file.read())
            else:
                path.unlink(missing_ok=True)
    return found


def drain(folder: Path, seconds: float) -> list[str]:
    """Asks all workers that are ready to end; returns those that have not after so many seconds."""
    with contextlib.ExitStack() as stack:
        files = {}
        for name, pid in ready(folder).items():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                files[name] = stack.enter_context((folder / name).open())
                os.kill(pid, signal.SIGTERM)
        deadline = time.monotonic() + seconds
        while True:
            left = [name for name, file in files.items() if _is_locked(file.fileno())]
            if not left or time.monotonic() > deadline:
                return left
            time.sleep(0.1)


def _is_locked(file: int) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    fcntl.flock(file, fcntl.LOCK_UN)
    return False


def main() -> int:
    """See above."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--hosts", type=int, default=1, help="how many have to be ready (default: 1)")
    parser.add_argument("--drain", type=float, metavar="SECONDS", help="ask all to end, and wait for so long")
    options = parser.parse_args()
    if options.drain is not None:
        left = drain(options.folder, options.drain)
        if left:
            print(f"after {options.drain:.0f} seconds there is still {', '.join(left)}", file=sys.stderr)
        return 1 if left else 0
    found = ready(options.folder)
    print(f"{len(found)} ready: {', '.join(found) or 'none'}")
    return 0 if len(found) >= options.hosts else 1


if __name__ == "__main__":
    sys.exit(main())
