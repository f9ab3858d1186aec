"""Compiled code in a folder of the user's, so that another process need not compile it again.

Executables are native code, and a file with one flipped bit may kill the process that loads it or make it
compute something else. So only files that belong to the user and that nobody else can write are trusted, and
only with a checksum that is right; anything else counts as missing.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import stat
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

_MAGIC = b"pathways"
_SUFFIX = ".code"
_UNFINISHED = ".tmp"
_ABANDONED_AFTER_SECONDS = 3600.0
_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_DEFAULT_LIMIT = "1G"

_said: set[str] = set()


class CodeStore:
    """Compiled code by key, in files of one folder.

    Any number of processes may use the folder at once: a file appears whole or not at all, and one that is
    being read may be deleted.

    Args:
      folder: made when it does not exist; its files are the store's alone.
      limit: the bytes that it may hold. When there are more, those used longest ago are deleted.
    """

    def __init__(self, folder: Path, limit: int) -> None:
        self.folder = folder
        self.limit = limit

    def read(self, key: str) -> bytes | None:
        """The code that was written under a key, None when there is none that can be trusted."""
        try:
            with open(self._path(key), "rb", opener=_open_no_link) as file:
                if not _belongs_to_user(os.fstat(file.fileno())):
                    return None
                content = file.read()
                code = content[len(_MAGIC) + hashlib.sha256().digest_size :]
                if content != _header(key, code) + code:
                    return None
                os.utime(file.fileno())
                return code
        except OSError:
            return None

    def write(self, key: str, code: bytes) -> None:
        """Keeps code under a key; says so once and goes on when the folder cannot be written."""
        if len(code) > self.limit:
            return
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not _belongs_to_user(self.folder.stat()):
                self._say("it must be yours, and nobody else may write to it")
                return
            self._replace(key, _header(key, code) + code)
        except OSError as error:
            self._say(error.strerror or str(error))

    def discard(self, key: str) -> None:
        """Forgets what is under a key."""
        _delete(self._path(key))

    def trim(self) -> None:
        """Deletes what was used longest ago until the limit is kept."""
        files = sorted(self._files(), key=lambda file: file[1].st_mtime_ns)
        excess = sum(status.st_size for _, status in files) - self.limit
        for path, status in files:
            if excess <= 0:
                return
            _delete(path)
            excess -= status.st_size

    def _path(self, key: str) -> Path:
        return self.folder / f"{key}{_SUFFIX}"

    def _files(self) -> Iterator[tuple[Path, os.stat_result]]:
        """All files of the store, with those that a killed process left unfinished."""
        try:
            paths = [path for path in self.folder.iterdir() if path.suffix in (_SUFFIX, _UNFINISHED)]
        except OSError:
            return
        abandoned = time.time() - _ABANDONED_AFTER_SECONDS
        for path in paths:
            try:
                status = path.lstat()
            except OSError:
                continue  # Another process was faster.
            if path.suffix == _SUFFIX or status.st_mtime < abandoned:
                yield path, status

    def _replace(self, key: str, content: bytes) -> None:
        descriptor, temporary = tempfile.mkstemp(_UNFINISHED, dir=self.folder)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
            Path(temporary).replace(self._path(key))
        except BaseException:
            _delete(Path(temporary))
            raise

    def _say(self, reason: str) -> None:
        message = f"compiled code is not kept in {self.folder}: {reason} (PW_CACHE_DIR= turns this off)"
        if message not in _said:
            _said.add(message)
            print(f"pathways: {message}", file=sys.stderr)


def from_environment(environment: Mapping[str, str] = os.environ) -> CodeStore | None:
    """The store that the environment asks for; None when it is turned off.

    `PW_CACHE_DIR` is the folder, by default `pathways` in the user's cache folder; empty turns the store
    off. `PW_CACHE_LIMIT` is its size in bytes, such as `500M`, by default `1G`.

    Raises:
      ValueError: `PW_CACHE_LIMIT` is not a size.
    """
    limit = _size(environment.get("PW_CACHE_LIMIT") or _DEFAULT_LIMIT)
    folder = environment.get("PW_CACHE_DIR")
    if folder == "" or "--xla_dump_to" in environment.get("XLA_FLAGS", ""):  # A dump shows what is compiled.
        return None
    root = Path(folder).absolute() if folder is not None else _user_cache(environment)
    return CodeStore(root / "executables", limit) if root is not None else None


def _user_cache(environment: Mapping[str, str]) -> Path | None:
    configured = Path(environment.get("XDG_CACHE_HOME", ""))
    if configured.is_absolute():
        return configured / "pathways"
    try:
        return Path.home() / ".cache" / "pathways"
    except RuntimeError:  # The user has no home.
        return None


def _size(text: str) -> int:
    parts = re.fullmatch(r"(\d+)([KMGT]?)B?", text.strip(), re.ASCII | re.IGNORECASE)
    if parts is None:
        raise ValueError(f"PW_CACHE_LIMIT must be a size such as 500M or 2G, got '{text}'")
    return int(parts[1]) * _UNITS[parts[2].upper()]


def _header(key: str, code: bytes) -> bytes:
    """What stands before the code; it holds the key, so that a file under another name is refused."""
    return _MAGIC + hashlib.sha256(key.encode() + code).digest()


def _open_no_link(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW)


def _belongs_to_user(status: os.stat_result) -> bool:
    return status.st_uid == os.geteuid() and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def _delete(path: Path) -> None:
    # Another process may be faster, or the folder may have become read-only.
    with contextlib.suppress(OSError):
        path.unlink()
