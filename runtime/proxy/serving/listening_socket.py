"""Listening sockets of the proxy server: UNIX sockets that only this user reaches, or an address and port."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import socket
import stat
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from pathways.dialect.errors import PathwaysError
from pathways.runtime.resources.folders import exposure

Address = tuple[str, int]
"""Host and port; 0 for any port."""

_BACKLOG = 64
_MAX_PATH_BYTES = 103 if sys.platform == "darwin" else 107
"""Longest path of a UNIX socket that the system allows."""

_OF_ADDRESSES = re.compile(r"[a-zA-Z0-9/._~:@-]*")
"""Pattern of paths that gRPC's client does not escape."""

_PROBE_TIMEOUT_S = 5.0
_UNSAFE_MODE = 0o033
"""Mode bits by which other users may enter a folder or write to it."""


class ServerError(PathwaysError):
    """Error of a server that cannot listen."""


class ListeningSocket:
    """Socket that accepts connections.

    Args:
      endpoint: the path of a UNIX socket, in a folder that only this user may enter, and which is created if
        its parent exists; an address; or None for a socket in a new folder. A stale socket is replaced.

    Raises:
      ServerError: another server uses it, or it cannot be created, or its folder is not safe.

    Attributes:
      path: the path of a UNIX socket; None for one with an address.
      target: the value of `JAX_BACKEND_TARGET` for clients.
    """

    def __init__(self, endpoint: Path | Address | None) -> None:
        self._temporary = None
        if endpoint is None:
            self._temporary = _new_folder()
            endpoint = Path(self._temporary.name) / "jax"
        if isinstance(endpoint, Path):
            self.path: Path | None = endpoint
            self._socket = _listen_at_path(endpoint)
            self._inode = endpoint.stat().st_ino
            name = endpoint
            if not _OF_ADDRESSES.fullmatch(os.fspath(endpoint)):
                # gRPC's client would look for a path with escapes, such as %20 for a space.
                self._temporary = _new_folder()
                name = Path(self._temporary.name) / "jax"
                name.symlink_to(endpoint)
            self.target = f"grpc://unix:{name}"
        else:
            self.path = None
            self._socket = _listen_at_address(endpoint)
            self.target = f"grpc://{_reachable(endpoint[0])}:{self._socket.getsockname()[1]}"

    def accept(self) -> socket.socket:
        """Waits for the next connection.

        Raises:
          OSError: the socket is closed.
        """
        connection, _ = self._socket.accept()
        if self.path is None:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection

    def close(self) -> None:
        """Stops listening, and removes the file of the socket if it is still this one."""
        # Closing alone does not wake a thread in `accept`.
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


def _new_folder() -> tempfile.TemporaryDirectory[str]:
    # Not in TMPDIR, which may be deep: the system limits the length of the path of a socket.
    return tempfile.TemporaryDirectory(prefix="pw-proxy-", dir="/tmp")


def _reachable(host: str) -> str:
    """Returns the host name for clients: for a wildcard address, the name of this machine."""
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
    _prepare_folder(path)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with _locked(path.parent):
            _remove_stale(path)
            listener.bind(os.fspath(path))
            # Before `listen`: until then no client can connect.
            path.chmod(0o600)
            listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise ServerError(f"socket {path}: {error.strerror or error}") from None
    except ServerError:
        listener.close()
        raise
    return listener


def _prepare_folder(path: Path) -> None:
    """Creates the folder of a socket if its parent exists.

    Raises:
      ServerError: other users could reach the folder; clients of the server can run code as this user.
    """
    folder = path.parent
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        status = folder.stat()
    except FileNotFoundError:
        raise ServerError(f"folder {folder.parent} does not exist; create it first") from None
    except OSError as error:
        raise ServerError(f"folder {folder}: {error.strerror}") from None
    if (problem := exposure(status, _UNSAFE_MODE)) is not None:
        raise ServerError(
            f"folder {folder} {problem}, and clients of a socket there can run code; use a new folder, such "
            f"as that of {folder / 'private' / path.name}, which is created"
        )


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Holds the lock of a folder: without it, a socket that is bound but not listening yet looks stale."""
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
        probe.settimeout(_PROBE_TIMEOUT_S)
        try:
            probe.connect(os.fspath(path))
        except ConnectionRefusedError:
            path.unlink(missing_ok=True)
            return
        except TimeoutError:
            pass  # The server there is suspended, not gone.
    raise ServerError(f"socket {path}: another server uses it")
