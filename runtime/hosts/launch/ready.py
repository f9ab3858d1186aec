"""Files that show which workers of this machine are ready: `pw-worker --ready` and `--drain` read them.

A worker with `PW_READY_DIR` in its environment has a file in that folder from when it is ready until it exits
or gets SIGTERM.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import time
from pathlib import Path

FOLDER = "PW_READY_DIR"
"""Environment variable that names the folder."""


class ReadyFile:
    """File of this process, locked while it lives: an unlocked file belongs to a process that has exited.

    Args:
      folder: the folder; None for no file.
      host: the number of the worker.

    Raises:
      OSError: the file cannot be written.
    """

    def __init__(self, folder: str | None, host: int) -> None:
        self._path: Path | None = None
        if folder is None:
            return
        name = f"host{host}-{os.getpid()}"
        Path(folder).mkdir(parents=True, exist_ok=True)
        # Removes the files of workers that have exited.
        ready_workers(Path(folder))
        new = Path(folder, f".{name}")
        # The file stays open, and so locked, as long as the process lives.
        self._file = new.open("w")
        fcntl.flock(self._file, fcntl.LOCK_EX)
        self._file.write(str(os.getpid()))
        self._file.flush()
        # Renamed when it is locked: a reader removes files that are not.
        self._path = new.rename(Path(folder, name))

    def remove(self) -> None:
        """Removes the file: the worker is not ready any more."""
        if self._path is not None:
            self._path.unlink(missing_ok=True)


def ready_workers(folder: Path) -> dict[str, int]:
    """Returns the process ids of the workers that are ready, by the names of their files."""
    workers: dict[str, int] = {}
    for path in sorted(folder.glob("host*-*")):
        # The worker may remove it in the meantime.
        with contextlib.suppress(FileNotFoundError), path.open() as file:
            if _is_locked(file.fileno()):
                workers[path.name] = int(file.read())
            else:
                path.unlink(missing_ok=True)
    return workers


def drain(folder: Path, seconds: float) -> list[str]:
    """Sends SIGTERM to all ready workers; returns the workers that still run after so many seconds."""
    with contextlib.ExitStack() as stack:
        # The open files show who holds the locks, also when the workers have removed them.
        files = {}
        for name, pid in ready_workers(folder).items():
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
