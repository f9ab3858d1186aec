"""Folders that only their user may enter."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path

_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_MODE = 0o700


class SnapshotError(OSError):
    """A snapshot that cannot be written or read; says which, and what to do."""


class SnapshotInUseError(SnapshotError):
    """A folder of snapshots that another process has, which may be about to exit."""


def open_private_folder(path: Path, within: int | None = None, *, create: bool = True) -> int:
    """Opens a folder; returns its file descriptor.

    Args:
      path: the folder; relative to `within` a single name.
      within: the file descriptor of the folder that it is in; None for a path of its own.
      create: whether it is made where it is missing.

    Raises:
      SnapshotError: it is a link, or others may write or enter it.
      FileNotFoundError: it is missing, and not made.
    """
    try:
        if create:
            with contextlib.suppress(FileExistsError):
                os.mkdir(path, _MODE, dir_fd=within)
        folder = os.open(path, _FLAGS, dir_fd=within)
    except FileNotFoundError:
        if not create:
            raise
        raise SnapshotError(f"snapshot folder {path}: {path.parent} does not exist") from None
    except OSError as error:
        if is_link(path, within):
            raise SnapshotError(
                f"snapshot folder {path} is a link; remove it, or choose another one"
            ) from None
        raise SnapshotError(f"snapshot folder {path}: {error.strerror}") from None
    status = os.fstat(folder)
    problem = None
    if status.st_uid != os.geteuid():
        problem = f"belongs to user {status.st_uid}"
    elif stat.S_IMODE(status.st_mode) & 0o077:
        problem = f"has mode {stat.S_IMODE(status.st_mode):04o}, and only its user may enter it (0700)"
    if problem is not None:
        os.close(folder)
        raise SnapshotError(f"snapshot folder {path} {problem}; choose another one")
    return folder


def is_link(path: Path | str, within: int | None = None) -> bool:
    """Returns whether a path is a symbolic link."""
    with contextlib.suppress(OSError):
        return stat.S_ISLNK(os.stat(path, dir_fd=within, follow_symlinks=False).st_mode)
    return False


@contextlib.contextmanager
def _entries(folder: int) -> Iterator[Iterator[os.DirEntry[str]]]:
    # Anew: descriptors of one open folder share the position in it, and another thread may be reading it.
    own = os.open(".", _FLAGS, dir_fd=folder)
    try:
        with os.scandir(own) as entries:
            yield entries
    finally:
        os.close(own)


def names_in(folder: int) -> list[str]:
    """Returns the names in a folder, sorted."""
    with _entries(folder) as entries:
        return sorted(entry.name for entry in entries)


def files_below(folder: int) -> list[os.stat_result]:
    """Returns what is known of the files in a folder, and of those in folders in it; follows no links."""
    found: list[os.stat_result] = []
    with _entries(folder) as entries:
        for entry in entries:
            # Another thread may remove it.
            with contextlib.suppress(FileNotFoundError):
                if not entry.is_dir(follow_symlinks=False):
                    found.append(os.stat(entry.name, dir_fd=folder, follow_symlinks=False))
                    continue
                below = os.open(entry.name, _FLAGS, dir_fd=folder)
                try:
                    found += files_below(below)
                finally:
                    os.close(below)
    return found


def read_file(folder: int, name: str) -> bytes | None:
    """Returns the content of a small file; None if there is none."""
    try:
        file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    except FileNotFoundError:
        return None
    with os.fdopen(file, "rb") as opened:
        return opened.read()


def remove_files(folder: int, name: str) -> None:
    """Removes a file, or a folder of files; what is missing is no error."""
    with contextlib.suppress(FileNotFoundError):
        try:
            below = os.open(name, _FLAGS, dir_fd=folder)
        except NotADirectoryError:
            os.unlink(name, dir_fd=folder)
            return
        try:
            for file in names_in(below):
                remove_files(below, file)
        finally:
            os.close(below)
        try:
            os.rmdir(name, dir_fd=folder)
        except OSError as error:
            # A file that another thread has just begun: that thread, or the next call, removes it.
            if error.errno != errno.ENOTEMPTY:
                raise
