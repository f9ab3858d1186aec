"""Sockets on which the server listens: UNIX sockets that only this user reaches, or an address and port."""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import stat
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from pathways.dialect.errors import PathwaysError

Address = tuple[str, int]
"""Host and port; 0 for any port."""

_BACKLOG = 64
_MAX_PATH_BYTES = 103 if sys.platform == "darwin" else 107
"""Longest path of a UNIX socket."""

_PROBE_SECONDS = 5.0
_OTHERS_ENTER_OR_WRITE = 0o033


class ServerError(PathwaysError):
    """The server cannot listen where it should."""


class ListeningSocket:
    """A socket that listens.

    Args:
      where: the path of a UNIX socket, in a folder that only this user may enter, which is made if its parent
        exists; an address; or None for a socket in a new folder. A stale socket is replaced.

    Raises:
      ServerError: another server has it, or it cannot be made, or its folder is not safe.

    Attributes:
      path: the path of a UNIX socket; None for one with an address.
      target: the value of `JAX_BACKEND_TARGET` for clients.
    """

    def __init__(self, where: Path | Address | None) -> None:
        self._temporary = None
        if where is None:
            # Not in the user's folder for temporary files, which may be deep: paths of sockets are short.
            self._temporary = tempfile.TemporaryDirectory(prefix="pw-proxy-", dir="/tmp")
            where = Path(self._temporary.name) / "jax"
        if isinstance(where, Path):
            self.path: Path | None = where
            self.target = f"grpc://unix:{where}"
            self._socket = _listen_at_path(where)
            self._inode = where.stat().st_ino
        else:
            self.path = None
            self._socket = _listen_at_address(where)
            self.target = f"grpc://{_reachable(where[0])}:{self._socket.getsockname()[1]}"

    def accept(self) -> socket.socket:
        """Waits for the next connection.

        Raises:
          OSError: the listener is closed.
        """
        connection, _ = self._socket.accept()
        if self.path is None:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection

    def close(self) -> None:
        """Stops listening, and removes the socket if it is still this one."""
        # Closing alone does not wake a thread that accepts.
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        if self.path is not None:
            with contextlib.suppress(OSError):
                if self.path.stat().st_ino == self._inode:
                    self.path.unlink()
        if self._temporary is not None:
            self._temporary.cleanup()


def _listen_at_address(address: Address) -> socket.socket:
    host, port = address
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=_BACKLOG)
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ServerError(f"cannot listen at {host}:{port}: {reason}") from None


def _reachable(host: str) -> str:
    """Returns the name by which clients reach a host; that of this machine for all of its addresses."""
    if host in ("", "0.0.0.0", "::"):
        return socket.gethostname()
    return f"[{host}]" if ":" in host else host


def _listen_at_path(path: Path) -> socket.socket:
    size = len(os.fsencode(path))
    if size > _MAX_PATH_BYTES:
        raise ServerError(
            f"socket {path}: its path has {size} bytes, and the system allows {_MAX_PATH_BYTES}; use a "
            "shorter one"
        )
    _prepare_folder(path.parent)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with _locked(path.parent):
            _remove_stale(path)
            listener.bind(os.fspath(path))
            path.chmod(0o600)
            listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise ServerError(f"socket {path}: {error.strerror or error}") from None
    except ServerError:
        listener.close()
        raise
    return listener


def _prepare_folder(folder: Path) -> None:
    """Makes a folder if its parent exists.

    Raises:
      ServerError: it is not this user's alone: whoever connects runs code.
    """
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        facts = folder.stat()
    except FileNotFoundError:
        raise ServerError(f"folder {folder.parent} does not exist; create it first") from None
    except OSError as error:
        raise ServerError(f"folder {folder}: {error.strerror}") from None
    if facts.st_uid != os.getuid():
        raise ServerError(
            f"folder {folder} belongs to another user, and whoever connects to a socket there runs code; use "
            "a folder of your own"
        )
    if facts.st_mode & _OTHERS_ENTER_OR_WRITE:
        raise ServerError(
            f"folder {folder} can be entered or written to by other users, and whoever connects to a socket "
            f"there runs code; 'chmod 700 {folder}', or use another folder"
        )


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Holds a folder's lock: a socket that is bound, and does not listen yet, is not stale."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _remove_stale(path: Path) -> None:
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise ServerError(f"socket {path}: a file of that name exists")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(_PROBE_SECONDS)
        try:
            probe.connect(os.fspath(path))
        except ConnectionRefusedError:
            path.unlink(missing_ok=True)
            return
        except TimeoutError:
            pass  # The server there is stopped.
    raise ServerError(f"socket {path}: another server has it")
