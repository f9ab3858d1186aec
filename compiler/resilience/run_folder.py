"""Folder of a run on disk: its lock, for one controller at a time, and the name of the run on hosts."""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import socket
import time
from pathlib import Path
from typing import Any

import msgspec

from pathways.dialect.plain_data import PlainDataError, parse_json, read_record
from pathways.runtime.resilience.snapshots.run_names import kept_run_name

RUN_FILE = "memory.json"
"""Name of the file that names the run; a run without an error removes it at its end."""

_PATIENCE_SECONDS = 2.0
"""Time that the processes of a killed controller may take to exit."""


class _RunFile(msgspec.Struct, frozen=True):
    """Content of the file.

    Attributes:
      run: the name of the run in the memory of hosts.
      controller: the process that has locked the folder, for messages.
    """

    run: str
    controller: str


class RunFolder:
    """Folder of a run on disk.

    Args:
      folder: the folder; on remote storage it is not locked.
    """

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._lock: int | None = None
        self._is_remote = "://" in folder

    def open(self) -> str:
        """Locks the folder until `close`; returns the name of its run in memory, by default a new one.

        Raises:
          RuntimeError: another process has the lock.
          OSError: the folder cannot be used.
        """
        if self._is_remote:
            content = self._read_remote()
        else:
            Path(self._folder).mkdir(parents=True, exist_ok=True)
            self._lock = self._locked()
            content = _parsed(_content(self._lock))
        run = kept_run_name(secrets.token_hex(16)) if content is None else content.run
        self._write(_RunFile(run, f"process {os.getpid()} on {socket.gethostname()}"))
        return run

    def _locked(self) -> int:
        """Opens and locks the file; returns its file descriptor."""
        path = Path(self._folder, RUN_FILE)
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while True:
            file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                # The previous run may just have removed the file.
                if path.exists() and path.stat().st_ino == os.fstat(file).st_ino:
                    return file
            except BlockingIOError:
                content = _parsed(_content(file))
                if time.monotonic() > deadline:
                    os.close(file)
                    by = "another run" if content is None else content.controller
                    raise RuntimeError(
                        f"pw.resilient: {self._folder} is in use by {by}; wait until that has ended, or pass "
                        "another folder as directory="
                    ) from None
                time.sleep(0.05)
            except OSError:
                # The file system has no locks.
                return file
            os.close(file)

    def close(self, *, keeps: bool) -> None:
        """Unlocks the folder; with `keeps`, the next run with it resumes from memory."""
        if self._is_remote and not keeps:
            self._remote().unlink(missing_ok=True)
        if self._lock is None:
            return
        if not keeps:
            with contextlib.suppress(FileNotFoundError):
                Path(self._folder, RUN_FILE).unlink()
        os.close(self._lock)
        self._lock = None

    def _write(self, content: _RunFile) -> None:
        data = msgspec.json.encode(content)
        if self._lock is None:
            self._remote().parent.mkdir(parents=True, exist_ok=True)
            self._remote().write_text(data.decode())
            return
        os.pwrite(self._lock, data, 0)
        os.ftruncate(self._lock, len(data))

    def _read_remote(self) -> _RunFile | None:
        path = self._remote()
        return _parsed(path.read_text().encode()) if path.exists() else None

    def _remote(self) -> Any:
        # A requirement of Orbax, which reads such storage.
        from etils import epath

        return epath.Path(self._folder) / RUN_FILE


def _content(file: int) -> bytes:
    return os.pread(file, 1 << 16, 0)


def _parsed(data: bytes) -> _RunFile | None:
    """Returns the content of the file; None if its process was killed before writing it."""
    try:
        return read_record(parse_json(data), _RunFile)
    except PlainDataError:
        return None
