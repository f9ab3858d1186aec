"""Versions of the state in the memory of a host: a folder of files in tmpfs.

A file is written under a temporary name and renamed when it is complete. A version is committed when its
folder has a record, from which another controller can resume. Files with temporary names are leftovers of a
process that exited, and the next process removes them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import fcntl
import os
import re
import threading
from collections.abc import Callable, Collection, Container, Iterator, Sequence
from pathlib import Path
from types import TracebackType

from pathways.runtime.resilience.records import VersionKey
from pathways.runtime.resilience.snapshots.block_file import (
    SnapshotError,
    block_names,
    file_bytes,
    read_blocks,
    write_blocks,
)
from pathways.runtime.resilience.snapshots.block_record import StateBlock
from pathways.runtime.resources.folders import (
    CREATE_FILE,
    NotPrivateError,
    exposure,
    files_below,
    is_link,
    names_in,
    open_private_folder,
    read_file,
    remove_files,
    replace_file,
)
from pathways.runtime.resources.tables import size

LOCK = "lock"
"""Name of the file in the folder of a host that its process has locked."""

OWNER = "owner"
"""Name of the file in the folder of a host that names the controller."""

_COMMITTED = "committed"
_VERSION = re.compile(r"(\d+)\.(\d+)")
_BLOCKS = re.compile(r"copy(\d+)\.blocks")
_WRITTEN = ".tmp"


class SnapshotInUseError(SnapshotError):
    """Error of a folder of snapshots that another process has locked, which may be about to exit."""


def default_snapshot_folder() -> Path:
    """Returns the folder of snapshots of the user of this process."""
    return Path(f"/dev/shm/pathways-{os.geteuid()}")


@dataclasses.dataclass(frozen=True)
class StoredCopies:
    """Copies of a version on a host.

    Attributes:
      is_committed: whether the host has a record that the version is committed.
    """

    numbers: frozenset[int]
    is_committed: bool


class HostSnapshots:
    """Versions in the memory of a host, whose folder one process at a time has locked.

    Args:
      folder: the folder of all snapshots of the user (`HostOptions.snapshot_folder`).
      cluster: the name of the cluster, unique among the clusters of the user.

    Raises:
      SnapshotError: the folder is a link, other users may enter it, or another process has locked it.
      ValueError: the name of the cluster is not valid as the name of a folder.
    """

    def __init__(self, folder: str | os.PathLike[str], cluster: str, host: int) -> None:
        if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]*", cluster):
            raise ValueError(f"cluster {cluster!r}: expected letters, digits, '_', '.' and '-'")
        self.path = Path(folder) / cluster / f"host{host}"
        self._host = host
        self._guard = threading.Lock()
        with contextlib.ExitStack() as opened:
            upper = open_folder(Path(folder))
            opened.callback(os.close, upper)
            middle = open_folder(Path(cluster), upper)
            opened.callback(os.close, middle)
            self._folder, self._lock = _open_locked(Path(self.path.name), middle, self.path)
        self._remove_unfinished()

    def __enter__(self) -> HostSnapshots:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Unlocks the folder for another process; the versions stay."""
        with self._guard:
            if self._folder >= 0:
                os.close(self._lock)
                os.close(self._folder)
                self._folder = self._lock = -1

    def write(self, key: VersionKey, copy: int, blocks: Sequence[StateBlock]) -> None:
        """Writes a copy, all or nothing.

        Args:
          key: the version.
          copy: the number of the copy, unique in the version.

        Raises:
          SnapshotError: there is no space.
          TypeError: a block has elements without a fixed size.
        """
        self._write_file(key, copy, file_bytes(blocks), lambda file: write_blocks(file, blocks))

    def receive(self, key: VersionKey, copy: int, count: int, chunks: Iterator[bytes | memoryview]) -> None:
        """Writes a copy that another host sends, all or nothing.

        Args:
          key: the version.
          copy: the number of the copy, unique in the version.
          count: the size of the file.
          chunks: its content, in pieces.

        Raises:
          SnapshotError: there is no space, or the content is incomplete or corrupt.
        """

        def write(file: int) -> None:
            for chunk in chunks:
                left = memoryview(chunk)
                while left:
                    left = left[os.write(file, left) :]
            if _position(file) != count:
                raise SnapshotError(
                    f"{self._named(key, copy)}: {_position(file)} of {count} bytes were received"
                )
            read_blocks(file, self._named(key, copy))

        self._write_file(key, copy, count, write)

    def open_copy(self, key: VersionKey, copy: int) -> int:
        """Returns a file descriptor of a copy, which the caller sends to another host and closes.

        Raises:
          SnapshotError: the copy does not exist.
        """
        with self._open_version(key, copy) as version:
            return self._open_file(version, key, copy)

    def read(self, key: VersionKey, copy: int, names: Collection[str] | None = None) -> dict[str, StateBlock]:
        """Returns blocks of a copy by their names; their data is mapped, and must not be changed.

        Args:
          key: the version.
          copy: the number of the copy, unique in the version.
          names: the blocks to read; all by default.

        Raises:
          SnapshotError: the copy does not exist, or is corrupt.
        """
        file = self.open_copy(key, copy)
        try:
            return read_blocks(file, self._named(key, copy), names)
        finally:
            os.close(file)

    def versions(self) -> dict[VersionKey, StoredCopies]:
        """Returns all versions that have complete copies."""
        copies_of: dict[VersionKey, StoredCopies] = {}
        for name, key in self._version_folders():
            with contextlib.suppress(FileNotFoundError):
                folder = open_folder(Path(name), self._folder, create=False)
                try:
                    files = names_in(folder)
                finally:
                    os.close(folder)
                numbers = frozenset(int(m[1]) for file in files if (m := _BLOCKS.fullmatch(file)))
                if numbers:
                    copies_of[key] = StoredCopies(numbers, _COMMITTED in files)
        return copies_of

    def commit(self, key: VersionKey, record: bytes = b"") -> None:
        """Records that a version is committed.

        Args:
          key: the version.
          record: the record from which another controller can resume.

        Raises:
          SnapshotError: the version does not exist.
        """
        with self._open_version(key, None) as version:
            replace_file(_COMMITTED, record, version)

    def record(self, key: VersionKey) -> bytes:
        """Returns the record of a committed version.

        Raises:
          SnapshotError: the version does not exist, or is not committed.
        """
        with self._open_version(key, None) as version:
            if (record := read_file(version, _COMMITTED)) is None:
                raise SnapshotError(f"{self._named(key, None)} is not committed")
            return record

    def set_owner(self, owner: str) -> None:
        """Notes the name of the controller; see `SnapshotLeftover`."""
        with self._guard:
            replace_file(OWNER, owner.encode(), self._folder)

    def names(self, key: VersionKey, copy: int) -> tuple[str, ...]:
        """Returns the names of the blocks of a copy.

        Raises:
          SnapshotError: the copy does not exist, or its table of blocks is corrupt.
        """
        file = self.open_copy(key, copy)
        try:
            return block_names(file, self._named(key, copy))
        finally:
            os.close(file)

    def keep(self, keys: Container[VersionKey]) -> None:
        """Removes all other versions. Blocks of them that were read stay mapped while they are in use."""
        with self._guard:
            for name, key in self._version_folders():
                if key not in keys:
                    remove_files(self._folder, name)

    def remove(self) -> None:
        """Removes all versions and the folder; later writes are errors."""
        with self._guard:
            above = os.open("..", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=self._folder)
            try:
                remove_files(above, self.path.name)
            finally:
                os.close(above)
        # The last host of the cluster removes the folder of the cluster.
        with contextlib.suppress(OSError):
            self.path.parent.rmdir()
        self.close()

    def space(self) -> tuple[int, int]:
        """Returns the number of the file system, and the bytes that versions may take there."""
        with self._guard:
            return os.fstat(self._folder).st_dev, self._free_bytes() + self._used_bytes()

    # Files.

    def _write_file(self, key: VersionKey, copy: int, count: int, write: Callable[[int], None]) -> None:
        # Locked only while the folder is opened: `keep` may remove it during the write, which may be long.
        with self._guard:
            version = open_folder(Path(_name(key)), self._folder)
        name = f"copy{copy}.blocks"
        # Other threads may write, too.
        written = f"{name}.{threading.get_ident()}{_WRITTEN}"
        try:
            file = os.open(written, CREATE_FILE, 0o600, dir_fd=version)
            try:
                # Reserve the space, to fail before the copy starts. This precedes the wait of `write` for
                # arrays, so that steps wait for the copy alone.
                os.posix_fallocate(file, 0, max(count, 1))
                write(file)
                # `count` is an upper bound, and readers find the table from the end of the file.
                os.ftruncate(file, _position(file))
            except OSError as error:
                if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                    raise
                raise SnapshotError(
                    f"{self._named(key, copy)} needs {size(count)}, {size(self._free_bytes())} free on "
                    f"host{self._host} in {self.path}"
                ) from None
            finally:
                os.close(file)
            with self._guard:
                # An earlier controller may have used the number for a copy of other blocks.
                while name in (files := names_in(version)):
                    last = max(int(m[1]) for file in files if (m := _BLOCKS.fullmatch(file)))
                    name = f"copy{last + 1}.blocks"
                os.rename(written, name, src_dir_fd=version, dst_dir_fd=version)
        except FileNotFoundError:
            raise SnapshotError(f"{self._named(key, copy)} was dropped while it was written") from None
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(written, dir_fd=version)
            os.close(version)

    @contextlib.contextmanager
    def _open_version(self, key: VersionKey, copy: int | None) -> Iterator[int]:
        try:
            version = open_folder(Path(_name(key)), self._folder, create=False)
        except FileNotFoundError:
            raise SnapshotError(f"{self._named(key, copy)} does not exist") from None
        try:
            yield version
        finally:
            os.close(version)

    def _open_file(self, version: int, key: VersionKey, copy: int) -> int:
        name = f"copy{copy}.blocks"
        try:
            file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=version)
        except FileNotFoundError:
            raise SnapshotError(f"{self._named(key, copy)} does not exist") from None
        except OSError as error:
            reason = "is a link" if is_link(name, version) else f"cannot be read: {error.strerror}"
            raise SnapshotError(f"{self._named(key, copy)} {reason}") from None
        if (problem := exposure(os.fstat(file))) is not None:
            os.close(file)
            raise SnapshotError(f"{self._named(key, copy)} {problem}")
        return file

    def _named(self, key: VersionKey, copy: int | None) -> str:
        suffix = "" if copy is None else f", copy {copy},"
        return f"snapshot {_name(key)}{suffix} in {self.path}"

    def _version_folders(self) -> list[tuple[str, VersionKey]]:
        names = ((name, _VERSION.fullmatch(name)) for name in names_in(self._folder))
        return sorted((name, VersionKey(int(m[1]), int(m[2]))) for name, m in names if m is not None)

    def _remove_unfinished(self) -> None:
        """Removes the incomplete files of the previous process with this folder."""
        for file in names_in(self._folder):
            if file.endswith(_WRITTEN):
                os.unlink(file, dir_fd=self._folder)
        for name, _ in self._version_folders():
            version = open_folder(Path(name), self._folder, create=False)
            try:
                files = names_in(version)
                for file in files:
                    if file.endswith(_WRITTEN):
                        os.unlink(file, dir_fd=version)
                is_empty = not any(_BLOCKS.fullmatch(file) for file in files)
            finally:
                os.close(version)
            if is_empty:
                remove_files(self._folder, name)

    def _free_bytes(self) -> int:
        status = os.fstatvfs(self._folder)
        return status.f_bavail * status.f_frsize

    def _used_bytes(self) -> int:
        return sum(status.st_size for status in files_below(self._folder))


def open_folder(path: Path, within: int | None = None, *, create: bool = True) -> int:
    """Opens a private folder, see `open_private_folder`.

    Raises:
      SnapshotError: the folder is a link, other users have access, or it cannot be created.
      FileNotFoundError: the folder is missing and `create` is false.
    """
    try:
        return open_private_folder(path, within, create=create)
    except NotPrivateError as error:
        raise SnapshotError(f"snapshot folder {path} {error}; choose another one") from None
    except FileNotFoundError:
        if not create:
            raise
        raise SnapshotError(f"snapshot folder {path}: {path.parent} does not exist") from None
    except OSError as error:
        raise SnapshotError(f"snapshot folder {path}: {error.strerror}") from None


def _open_locked(name: Path, within: int, path: Path) -> tuple[int, int]:
    """Opens and locks the folder of a host; returns both file descriptors.

    Raises:
      SnapshotError: another process has the lock.
    """
    while True:
        folder = open_folder(name, within)
        lock = os.open(LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=folder)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Removal of a leftover also locks it, and may just have removed this folder.
            if os.stat(name, dir_fd=within).st_ino == os.fstat(folder).st_ino:
                return folder, lock
        except BlockingIOError:
            os.close(folder)
            os.close(lock)
            raise SnapshotInUseError(
                f"snapshot folder {path} is in use by another process; two clusters need two names"
            ) from None
        except FileNotFoundError:
            pass
        os.close(folder)
        os.close(lock)


def _position(file: int) -> int:
    return os.lseek(file, 0, os.SEEK_CUR)


def _name(key: VersionKey) -> str:
    return f"{key.step}.{key.attempt}"
