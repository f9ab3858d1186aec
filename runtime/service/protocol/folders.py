"""Folders of clusters that many clients share, through which clients find and call the service.

The folder of a cluster has the `address` of its service and the `token` that authenticates clients, the list
of `revoked` tokens, its `log`, the `accounts.jsonl` of clients, and the `pid` of its process, which holds a
`lock` as long as it lives: the lock shows whether the service is up or was killed.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import secrets
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from pathways.runtime.control.records.errors import HostError, HostStartError
from pathways.runtime.hosts.launch.launcher_records import LAUNCHERS
from pathways.runtime.hosts.launch.sockets import Address, connect_to
from pathways.runtime.hosts.protocol.acceptor import NotAuthenticatedError, open_connection
from pathways.runtime.hosts.protocol.messages import MessageError, Purpose
from pathways.runtime.hosts.protocol.wire import Connection, ConnectionEnded
from pathways.runtime.resources.folders import exposure, replace_file
from pathways.runtime.resources.paths import path_in_environment
from pathways.runtime.service.protocol.tokens import Credentials, credentials_of

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,63}", re.ASCII)
_TCP = re.compile(r"([A-Za-z0-9._-]+):(\d{1,5})", re.ASCII)

_PATIENCE = 0.5
"""Seconds to retry a lock, which other processes hold for a moment while they check it."""

_HEARTBEAT = 10.0


def check_name(name: str, kind: str) -> str:
    """Checks the name of a cluster or a client, and returns it.

    Args:
      kind: the kind of thing that has the name, for the message.

    Raises:
      ValueError: the name is not valid.
    """
    if not isinstance(name, str) or _NAME.fullmatch(name) is None:
        raise ValueError(
            f"{name!r} is not a name of {kind}: expected letters, digits, '_', '.' and '-', at most 64, "
            "and a letter, a digit or '_' first"
        )
    return name


def address_of(text: str) -> tuple[str, int] | None:
    """Returns the address and port of a text such as `10.0.0.5:7070`; None for another text."""
    parts = _TCP.fullmatch(text)
    return (parts[1], int(parts[2])) if parts is not None and int(parts[2]) < 1 << 16 else None


def shown(address: Address) -> str:
    """Returns an address as users write it."""
    return address if isinstance(address, str) else f"{address[0]}:{address[1]}"


class ClusterFolder:
    """Folder of a cluster.

    Attributes:
      token: the file with the secret of the cluster.
      revoked: the file that lists the revoked tokens of clients, see `tokens.ClientTokens`.
      accounts: the file of the use of islands by clients, see `account_log`.
      log: the log file of the service.
      socket: the socket of the service, unless it listens on an address and a port.

    Raises:
      ValueError: the name is not valid.
      HostError: this user has no home, and `PW_CLUSTERS` is not set.
    """

    def __init__(self, name: str) -> None:
        if name in LAUNCHERS:
            raise ValueError(f"{name!r} is a launcher, and not a name of a cluster; choose another name")
        self.name = check_name(name, "a cluster")
        self.path = clusters_folder() / name
        self.token = self.path / "token"
        self.revoked = self.path / "revoked"
        self.accounts = self.path / "accounts.jsonl"
        self.log = self.path / "log"
        self.socket = self.path / "socket"
        self._address = self.path / "address"
        self._pid = self.path / "pid"
        self._lock = self.path / "lock"

    def __str__(self) -> str:
        return f"cluster {self.name!r}"

    def check(self) -> None:
        """Checks that only this user may enter the folder.

        Raises:
          HostError: other users may enter it, it belongs to another user, or it does not exist.
        """
        with self._os_errors():
            problem = exposure(self.path.stat())
        if problem is not None:
            raise HostError(f"{self.path}, the folder of {self}, {problem}: chmod 700 {self.path}")

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Locks the folder for this process, the service, and removes the files of an earlier one.

        Raises:
          HostError: another process has locked it, or it cannot be created.
        """
        with self._os_errors():
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.path.mkdir(mode=0o700, exist_ok=True)
        self.check()
        with self._os_errors():
            lock = os.open(self._lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            if not _locked(lock, fcntl.LOCK_EX, _PATIENCE):
                state = "is starting already" if self.address() is None else "is up already"
                raise HostStartError(f"{self} {state} (process {self.pid()})")
            with self._os_errors():
                self._remove_left()
                replace_file(self._pid, f"{os.getpid()}\n".encode())
            try:
                yield
            finally:
                self._remove_left()
        finally:
            os.close(lock)

    def is_held(self) -> bool:
        """Returns whether a running service has locked the folder."""
        try:
            lock = os.open(self._lock, os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            return not _locked(lock, fcntl.LOCK_SH, 0.0)
        finally:
            os.close(lock)

    def pid(self) -> int | None:
        """Returns the process id of the service, or of one that was killed; None if there is neither."""
        text = _read(self._pid)
        return int(text) if text is not None and text.isdecimal() else None

    def address(self) -> Address | None:
        """Returns the address where the service listens; None until it is ready."""
        text = _read(self._address)
        return None if not text else address_of(text) or text

    def publish(self, address: Address) -> None:
        """Writes the address where the service listens, which shows that it is ready.

        Raises:
          HostError: the file cannot be written.
        """
        with self._os_errors():
            replace_file(self._address, f"{shown(address)}\n".encode())

    def secret(self, token: Path | None = None) -> bytes:
        """Returns the secret of the cluster, from a file; by default from the token file, which is created.

        Raises:
          HostError: the token file cannot be written.
          OSError: the file cannot be read.
          ValueError: other users may read the file, it is too short, or it has the token of a client.
        """
        if token is None:
            token = self.token
            if not token.exists():
                with self._os_errors():
                    replace_file(token, f"{secrets.token_hex(32)}\n".encode())
        credentials = credentials_of(str(token))
        if credentials.name:
            raise ValueError(f"{token} is a token of client {credentials.name!r}: expected that of a cluster")
        return credentials.secret

    def _remove_left(self) -> None:
        for file in (self._address, self.socket, self._pid):
            file.unlink(missing_ok=True)

    @contextlib.contextmanager
    def _os_errors(self) -> Iterator[None]:
        """Raises operating system errors as `HostError`."""
        try:
            yield
        except OSError as error:
            raise HostError(f"{self}: {error.filename or self.path}: {error.strerror}") from None


def clusters_folder() -> Path:
    """Returns the folder of all cluster folders: `PW_CLUSTERS`, or by default one in the user's state folder.

    Raises:
      HostError: this user has no home, and `PW_CLUSTERS` is not set.
    """
    if folder := path_in_environment("PW_CLUSTERS"):
        return Path(folder)
    state = Path(os.environ.get("XDG_STATE_HOME", ""))
    try:
        state = state if state.is_absolute() else Path.home() / ".local" / "state"
    except RuntimeError:
        raise HostError("this user has no home directory: set PW_CLUSTERS to a folder for clusters") from None
    return state / "pathways" / "clusters"


def clusters() -> list[ClusterFolder]:
    """Returns the clusters that are up or starting."""
    folder = clusters_folder()
    try:
        names = sorted(path.name for path in folder.iterdir() if _NAME.fullmatch(path.name))
    except OSError:
        return []
    return [cluster for cluster in map(ClusterFolder, names) if cluster.is_held()]


def find_service(cluster: str, token: str | None = None) -> tuple[Address, Credentials]:
    """Returns the address where a service listens, and the credentials of a token.

    Args:
      cluster: the name of a cluster of this user on this machine; or an address and a port, as in
        `10.0.0.5:7070`, or the path of a socket.
      token: the path of a token, or of a copy; by default the one in the folder of the cluster.

    Raises:
      HostError: no such cluster is up, or other users may enter its folder.
      OSError: the token cannot be read.
      ValueError: other users may read the token, it is too short, or the name is not valid.
    """
    place = cluster if "/" in cluster else address_of(cluster)
    if place is not None:
        if token is None:
            raise ValueError(f"{cluster}: expected token=, the path of a copy of the token of that cluster")
        return place, credentials_of(token)
    folder = ClusterFolder(cluster)
    if not folder.is_held():
        raise HostError(_why_not_up(folder))
    folder.check()
    address = folder.address()
    if address is None:
        raise HostError(f"{folder} is starting (process {folder.pid()}) and not ready yet; try again")
    return address, credentials_of(str(folder.token) if token is None else token)


def call_service(
    address: Address, secret: bytes, purpose: Purpose, decode: Callable[[bytearray], Any]
) -> Connection[Any]:
    """Connects to a service, and authenticates both sides.

    Args:
      address: where it listens.
      purpose: the purpose of the connection.
      decode: decodes messages of the service.

    Raises:
      HostError: it does not answer, has another secret, or is not a service.
    """
    service = f"the service at {shown(address)}"
    try:
        sock = connect_to(address, _HEARTBEAT)
    except OSError as error:
        raise HostError(f"{service} does not answer: {error.strerror or error}") from None
    try:
        return open_connection(sock, secret, purpose, decode)
    except NotAuthenticatedError:
        raise HostError(
            f"{service} rejects this token: it belongs to another cluster, or was revoked"
        ) from None
    except ConnectionEnded as error:
        raise HostError(
            f"{service} did not complete the handshake: {error}; is it stopped, or another version of "
            "pathways?"
        ) from None
    except MessageError as error:
        raise HostError(f"{service} is not the expected service: {error}") from None


def _why_not_up(folder: ClusterFolder) -> str:
    names = [cluster.name for cluster in clusters()]
    running = f"running clusters: {', '.join(names)}" if names else "no cluster is up"
    if not folder.path.is_dir():
        return f"no {folder} is up: there is no folder {folder.path}; {running}"
    if (pid := folder.pid()) is None:
        return f"no {folder} is up; {running}"
    return f"{folder} is not up any more: its service (process {pid}) was killed; see {folder.log}; {running}"


def _locked(lock: int, kind: int, seconds: float) -> bool:
    """Tries to lock a file for some seconds; returns whether it succeeded."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            fcntl.flock(lock, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                return False
            time.sleep(0.02)
        else:
            return True


def _read(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except (OSError, UnicodeDecodeError):
        return None
