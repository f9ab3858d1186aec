"""Folders opened without following links: private folders of this user, and folders that clients may name."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
CREATE_FILE = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
"""Flags of `os.open` for a file that does not exist yet."""


class NotPrivateError(OSError):
    """Error for a folder that is a link or that other users may use; its text is a predicate: `is a link`."""


def exposure(status: os.stat_result, forbidden: int = 0o077) -> str | None:
    """Returns why other users have access, such as `belongs to user 0`; None for a private file or folder.

    Args:
      status: the status of a file or folder.
      forbidden: the bits that its mode must not have.
    """
    if status.st_uid != os.geteuid():
        return f"belongs to user {status.st_uid}"
    mode = stat.S_IMODE(status.st_mode)
    return f"is open to others (mode {mode:04o})" if mode & forbidden else None


def open_private_folder(
    path: Path | str, within: int | None = None, *, create: bool = True, forbidden: int = 0o077
) -> int:
    """Opens a folder; returns its file descriptor.

    Args:
      path: the folder; relative to `within` a single name.
      within: the file descriptor of the folder that contains it; None for a path.
      create: whether to create a missing folder.
      forbidden: see `exposure`.

    Raises:
      NotPrivateError: it is a link, or other users have access.
      OSError: it cannot be opened, or is missing.
    """
    try:
        if create:
            with contextlib.suppress(FileExistsError):
                os.mkdir(path, 0o700, dir_fd=within)
        folder = os.open(path, _DIRECTORY, dir_fd=within)
    except OSError:
        if is_link(path, within):
            raise NotPrivateError("is a link") from None
        raise
    if (problem := exposure(os.fstat(folder), forbidden)) is not None:
        os.close(folder)
        raise NotPrivateError(problem)
    return folder


def is_link(path: Path | str, within: int | None = None) -> bool:
    """Returns whether a path is a symbolic link."""
    with contextlib.suppress(OSError):
        return stat.S_ISLNK(os.stat(path, dir_fd=within, follow_symlinks=False).st_mode)
    return False


@contextlib.contextmanager
def _entries(folder: int) -> Iterator[Iterator[os.DirEntry[str]]]:
    # Anew: descriptors of one open folder share the position in it, and another thread may be reading it.
    descriptor = os.open(".", _DIRECTORY, dir_fd=folder)
    try:
        with os.scandir(descriptor) as entries:
            yield entries
    finally:
        os.close(descriptor)


def names_in(folder: int) -> list[str]:
    """Returns the names in a folder, sorted."""
    with _entries(folder) as entries:
        return sorted(entry.name for entry in entries)


def files_below(folder: int) -> list[os.stat_result]:
    """Returns the status of the files in a folder, and in the folders below it; follows no links."""
    files: list[os.stat_result] = []
    with _entries(folder) as entries:
        for entry in entries:
            # Another thread may remove it.
            with contextlib.suppress(FileNotFoundError):
                if not entry.is_dir(follow_symlinks=False):
                    files.append(os.stat(entry.name, dir_fd=folder, follow_symlinks=False))
                    continue
                below = os.open(entry.name, _DIRECTORY, dir_fd=folder)
                try:
                    files += files_below(below)
                finally:
                    os.close(below)
    return files


def read_file(folder: int, name: str) -> bytes | None:
    """Returns the content of a small file; None if there is none."""
    try:
        file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    except FileNotFoundError:
        return None
    with os.fdopen(file, "rb") as opened:
        return opened.read()


def replace_file(name: str | os.PathLike[str], content: bytes, within: int | None = None) -> None:
    """Writes a file that only this user may read, all or nothing.

    Args:
      within: the file descriptor of its folder; None for a path.
    """
    temporary = f"{os.fspath(name)}.{secrets.token_hex(8)}.tmp"
    file = os.open(temporary, CREATE_FILE, 0o600, dir_fd=within)
    try:
        with os.fdopen(file, "wb") as opened:
            opened.write(content)
        os.replace(temporary, name, src_dir_fd=within, dst_dir_fd=within)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary, dir_fd=within)
        raise


def remove_files(folder: int, name: str) -> None:
    """Removes a file, or a folder of files; ignores missing ones."""
    with contextlib.suppress(FileNotFoundError):
        try:
            below = os.open(name, _DIRECTORY, dir_fd=folder)
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


class PermittedFolders:
    """Folders that clients may name, and all folders below them.

    A path is resolved first, and its folders are then opened one after the other without following links, so
    that a link which another process creates in the meantime is an error.

    Args:
      advice: the remedy in the error for any other path.

    Raises:
      ValueError: one of them is not a folder.
    """

    def __init__(self, folders: Sequence[str | os.PathLike[str]] = (), advice: str = "") -> None:
        self._advice = f"; {advice}" if advice else ""
        for folder in folders:
            if not Path(folder).is_dir():
                raise ValueError(f"no folder '{os.fspath(folder)}'")
        self._roots = tuple(Path(folder).resolve() for folder in folders)

    def check(self, path: str) -> tuple[Path, PurePosixPath]:
        """Returns the folder that a path is in, and the rest of the path, both without links.

        Raises:
          PermissionError: the path is in none of the folders.
        """
        named = Path(path)
        if named.is_absolute() and ".." not in named.parts and "\0" not in path:
            resolved = Path(os.path.realpath(named))
            for root in self._roots:
                if resolved.is_relative_to(root):
                    return root, PurePosixPath(resolved.relative_to(root))
        raise PermissionError(
            f"path {path[:1000]!r} is not in a folder that the server may use{self._advice}"
        )

    @contextlib.contextmanager
    def open(self, path: str, create: bool = False) -> Iterator[int]:
        """Opens a folder; yields its file descriptor.

        Args:
          path: the folder.
          create: whether to create the folders that are missing.

        Raises:
          PermissionError: the path is in none of the permitted folders, or a link was put in its place.
          OSError: the path does not exist, or is not a folder.
        """
        root, relative = self.check(path)
        folder = descend(os.open(root, _DIRECTORY), relative.parts, create)
        try:
            yield folder
        finally:
            os.close(folder)


def descend(folder: int, names: Sequence[str], create: bool = False) -> int:
    """Opens a folder below another one without following links; closes the other one.

    Args:
      folder: the file descriptor of the upper folder.
      names: the names of the folders below it, outermost first.
      create: whether to create the folders that are missing.

    Raises:
      PermissionError: one of the names is a link.
      OSError: a folder does not exist.
    """
    for name in names:
        try:
            below = _open(folder, name, create)
        finally:
            os.close(folder)
        folder = below
    return folder


def _open(folder: int, name: str, create: bool) -> int:
    if create:
        with contextlib.suppress(FileExistsError):
            os.mkdir(name, dir_fd=folder)
    try:
        return os.open(name, _DIRECTORY, dir_fd=folder)
    except OSError:
        refuse_link(folder, name)
        raise


def refuse_link(folder: int, name: str) -> None:
    """Checks that a name in a folder is not a link.

    Raises:
      PermissionError: it is one.
    """
    if is_link(name, folder):
        raise PermissionError(f"the server follows no link: {name[:1000]!r}")


def refuse_links_below(folder: int) -> None:
    """Checks that a folder and all folders below it contain no link.

    Raises:
      PermissionError: one of them does.
    """
    for _, folders, files, number in os.fwalk(dir_fd=folder):
        for name in (*folders, *files):
            refuse_link(number, name)
