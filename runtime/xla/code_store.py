"""Store of compiled code in a folder of the user, so that another process need not compile it again.

Executables are native code: a file with one flipped bit may kill the process that loads it, or make it
compute something else. So only files with a correct checksum are trusted, and only if they belong to the user
and no other user can write to them; any other file counts as missing.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from pathlib import Path

from pathways.runtime.resources.folders import exposure, open_private_folder, replace_file
from pathways.runtime.resources.paths import path_in_environment

_MAGIC = b"pathways"
_FORBIDDEN_MODE = stat.S_IWGRP | stat.S_IWOTH
"""Mode bits by which other users may write code that this user runs."""

_FILE_NAME = re.compile(r"[0-9a-f]{64}\.code(\.[0-9a-f]{16}\.tmp)?")
"""Pattern of the names of a store's files: a key, with a random suffix while the file is being written."""

_ABANDONED_AFTER_SECONDS = 3600.0
_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_DEFAULT_LIMIT = "1G"

_TRIMMED_FRACTION = 16

_reported: set[str] = set()

_written: dict[Path, int] = {}
"""Bytes that this process has written to each folder since it trimmed the folder."""
_counting = threading.Lock()


class CodeStore:
    """Store of compiled code by key, in the files of one folder.

    Any number of processes may use the folder at once: a file appears complete or not at all, and a file that
    is being read may be deleted.

    Args:
      folder: the folder, which is created if it does not exist. A link is not followed, and other files in
        the folder are left alone.
      limit: the maximum of bytes that it may hold. Beyond that, the least recently used files are deleted: at
        the first write of a process, and then whenever it has written a sixteenth of the limit.
    """

    def __init__(self, folder: Path, limit: int) -> None:
        self.folder = folder
        self.limit = limit

    def read(self, key: str) -> bytes | None:
        """Returns the code that was written under a key; None if there is no trusted file of it."""
        try:
            with self._opened() as folder, open(_name(key), "rb", opener=_reader(folder)) as file:
                if not _is_file_of_user(os.fstat(file.fileno())):
                    return None
                content = file.read()
                code = content[len(_MAGIC) + hashlib.sha256().digest_size :]
                if content != _header(key, code) + code:
                    return None
                # Marks it as recently used, see `trim`.
                os.utime(file.fileno())
                return code
        except OSError:
            return None

    def write(self, key: str, code: bytes) -> None:
        """Writes code under a key. A folder that cannot be written is reported once, and is not an error."""
        if len(code) > self.limit:
            return
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            with self._opened() as folder:
                replace_file(_name(key), _header(key, code) + code, folder)
        except OSError as error:
            self._report(error.strerror or f"it {error}")
            return
        if self._counts_as_due(len(code)):
            self.trim()

    def discard(self, key: str) -> None:
        """Deletes the code under a key."""
        with contextlib.suppress(OSError), self._opened() as folder:
            _delete(_name(key), folder)

    def trim(self) -> None:
        """Deletes the least recently used files until the limit holds."""
        with contextlib.suppress(OSError), self._opened() as folder:
            files = sorted(_files(folder), key=lambda file: file[1].st_mtime_ns)
            excess = sum(status.st_size for _, status in files) - self.limit
            for name, status in files:
                if excess <= 0:
                    return
                _delete(name, folder)
                excess -= status.st_size

    def _counts_as_due(self, size: int) -> bool:
        """Counts bytes that were written, and returns whether to trim: a system call for each file."""
        with _counting:
            written = _written.get(self.folder, self.limit) + size
            is_due = written >= self.limit // _TRIMMED_FRACTION
            _written[self.folder] = 0 if is_due else written
        return is_due

    @contextlib.contextmanager
    def _opened(self) -> Iterator[int]:
        """Opens the folder. Operations on the descriptor stay in it, even if its path is replaced by a link.

        Raises:
          OSError: the folder does not exist, is a link, or other users may write to it.
        """
        folder = open_private_folder(self.folder, create=False, forbidden=_FORBIDDEN_MODE)
        try:
            yield folder
        finally:
            os.close(folder)

    def _report(self, reason: str) -> None:
        message = f"compiled code is not cached in {self.folder}: {reason} (PW_CACHE_DIR= turns this off)"
        if message not in _reported:
            _reported.add(message)
            print(f"pathways: {message}", file=sys.stderr)


def from_environment(environment: MutableMapping[str, str] = os.environ) -> CodeStore | None:
    """Returns the store that the environment configures; None if it is turned off.

    `PW_CACHE_DIR` is the folder, by default `pathways` in the user's cache folder; empty turns the store
    off. `PW_CACHE_LIMIT` is its size in bytes, such as `500M`, by default `1G`.

    Raises:
      ValueError: `PW_CACHE_LIMIT` is not a size.
    """
    limit = _size(environment.get("PW_CACHE_LIMIT") or _DEFAULT_LIMIT)
    folder = path_in_environment("PW_CACHE_DIR", environment)
    if folder == "" or is_dumping(environment):  # A dump shows each compilation.
        return None
    root = Path(folder) if folder is not None else _user_cache(environment)
    return CodeStore(root / "executables", limit) if root is not None else None


def is_dumping(environment: Mapping[str, str] = os.environ) -> bool:
    """Returns whether XLA writes its modules to files, whose names are unique in a process only."""
    return "--xla_dump_to" in environment.get("XLA_FLAGS", "")


def _user_cache(environment: Mapping[str, str]) -> Path | None:
    configured = Path(environment.get("XDG_CACHE_HOME", ""))
    if configured.is_absolute():
        return configured / "pathways"
    try:
        return Path.home() / ".cache" / "pathways"
    except RuntimeError:  # The user has no home.
        return None


def _size(text: str) -> int:
    match = re.fullmatch(r"(\d+)([KMGT]?)B?", text.strip(), re.ASCII | re.IGNORECASE)
    if match is None:
        raise ValueError(f"PW_CACHE_LIMIT must be a size such as 500M or 2G, got '{text}'")
    return int(match[1]) * _UNITS[match[2].upper()]


def _header(key: str, code: bytes) -> bytes:
    """Returns the header of a file. Its checksum covers the key, so that a renamed file is rejected."""
    return _MAGIC + hashlib.sha256(key.encode() + code).digest()


def _name(key: str) -> str:
    return f"{key}.code"


def _reader(folder: int) -> Callable[[str, int], int]:
    """Returns an opener for files of a folder. It follows no link and waits for no writer of a pipe."""
    return lambda name, flags: os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)


def _files(folder: int) -> Iterator[tuple[str, os.stat_result]]:
    """Yields the files of a store in a folder, including unfinished ones that a killed process left."""
    abandoned = time.time() - _ABANDONED_AFTER_SECONDS
    for name in filter(_FILE_NAME.fullmatch, os.listdir(folder)):
        try:
            status = os.stat(name, dir_fd=folder, follow_symlinks=False)
        except OSError:
            continue  # Another process has deleted it.
        is_finished = not name.endswith(".tmp") or status.st_mtime < abandoned
        if is_finished and _is_file_of_user(status):
            yield name, status


def _is_file_of_user(status: os.stat_result) -> bool:
    return stat.S_ISREG(status.st_mode) and exposure(status, _FORBIDDEN_MODE) is None


def _delete(name: str, folder: int) -> None:
    # Another process may have deleted it, or the folder may have become read-only.
    with contextlib.suppress(OSError):
        os.unlink(name, dir_fd=folder)
