"""Folders in which a server may read and write files at paths that its clients send."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class PermittedFolders:
    """Folders that clients may name, and all folders below them.

    A path is resolved first, and its folders are then opened one after the other without following links, so
    that a link which another process creates in the meantime is an error.

    Args:
      advice: the remedy in the error for any other path.

    Raises:
      ValueError: one of them is no folder.
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
          OSError: the path does not exist, or is no folder.
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
    """Checks that a name in a folder is no link.

    Raises:
      PermissionError: it is one.
    """
    with contextlib.suppress(FileNotFoundError):
        if stat.S_ISLNK(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
            raise PermissionError(f"the server follows no link: {name[:1000]!r}")


def refuse_links_below(folder: int) -> None:
    """Checks that a folder and all folders below it contain no link.

    Raises:
      PermissionError: one of them does.
    """
    for _, folders, files, number in os.fwalk(dir_fd=folder):
        for name in (*folders, *files):
            refuse_link(number, name)
