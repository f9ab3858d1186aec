"""Workers of launchers that start all at once, such as mpirun: those join the controller, and not it them.

Whoever joins (`join.py`) keeps one connection, on which it is told to start a worker and to end it, says how
that one has ended, and is told to start the one that takes its place.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import socket
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from pathways.runtime.control.records.errors import HostStartError
from pathways.runtime.hosts.launch.settings import Endpoints
from pathways.runtime.hosts.protocol.acceptor import Acceptor
from pathways.runtime.hosts.protocol.handshake import ServerHandshake
from pathways.runtime.hosts.protocol.join_messages import (
    ANY_HOST,
    JOIN,
    Dismissed,
    KillWorker,
    StartWorker,
    WorkerConfig,
    WorkerEnded,
    WorkerStarted,
    decode_from_joined,
)
from pathways.runtime.hosts.protocol.messages import MessageError, Purpose, versions
from pathways.runtime.hosts.protocol.wire import Connection, ConnectionEnded
from pathways.runtime.resources.threads import start_thread

_LEAST_BYTES = 16
_PATIENCE = 10.0
"""Seconds that one who has joined may take to start a process, or that its machine may not answer."""


def secret_of(path: str, setting: str = "secret_file") -> bytes:
    """The secret in a file, without white space round it.

    Args:
      path: the file.
      setting: what users call it.

    Raises:
      ValueError: others may read the file, it is too short, or there can be no such path.
      OSError: it cannot be read.
    """
    file = Path(path)
    try:
        mode = file.stat().st_mode & 0o777
    except OSError as error:
        raise type(error)(error.errno, f"{setting}: {error.strerror}", path) from None
    except ValueError as error:
        raise ValueError(f"{setting}={path!r}: {error}") from None
    if mode & 0o077:
        raise ValueError(f"{setting}={path!r} can be read by others (mode {mode:04o}): chmod 600 {path}")
    secret = file.read_bytes().strip()
    if len(secret) < _LEAST_BYTES:
        raise ValueError(
            f"{setting}={path!r} has {len(secret)} bytes; expected at least {_LEAST_BYTES} random ones"
        )
    return secret


@dataclasses.dataclass(eq=False)
class _PendingPeer:
    """One who has joined; `host` is the number that it asks for."""

    connection: Connection[Any]
    host: int


class JoinedWorker:
    """A `WorkerProcess` of one who has joined.

    Args:
      connection: to that.
      pid: the process of the worker, on its machine.
      idle: is called when that has no worker any more.
    """

    def __init__(self, connection: Connection[Any], pid: int, idle: Callable[[], None]) -> None:
        self.pid = pid
        self._idle = idle
        self._connection = connection
        self._how = "the process that started it is gone"
        self._lines: tuple[str, ...] = ()
        self._ended = threading.Event()
        start_thread(self._listen, "joined worker")

    def ending(self, seconds: float) -> str | None:
        """See `WorkerProcess.ending`."""
        return self._how if self._ended.wait(seconds) else None

    def kill(self) -> None:
        """See `WorkerProcess.kill`. Where the network is cut, it ends when its connections do."""
        with contextlib.suppress(ConnectionEnded):
            self._connection.send(KillWorker())

    def last_lines(self) -> Sequence[str]:
        """See `WorkerProcess.last_lines`."""
        return self._lines

    def _listen(self) -> None:
        message: object = None
        with contextlib.suppress(ConnectionEnded, MessageError):
            message = self._connection.receive()
        if isinstance(message, WorkerEnded):
            self._how, self._lines = message.how, message.lines
        else:
            self._connection.close()
        self._ended.set()
        if isinstance(message, WorkerEnded):
            self._idle()


class JoinLauncher:
    """A `Launcher` that waits for those who join.

    Args:
      endpoints: where it listens: on the first of its ports.
      secret: what they know.
      hosts: how many hosts there are.

    Attributes:
      address: where it listens.
      secret: see above.

    Raises:
      HostStartError: the port is taken.
    """

    def __init__(self, endpoints: Endpoints, secret: bytes, hosts: int) -> None:
        assert endpoints.bind is not None
        assert endpoints.ports is not None
        self.secret = secret
        self._hosts = hosts
        self.address = endpoints.join_address
        self._changed = threading.Condition()
        # Those who have no worker, and all.
        self._guests: list[_PendingPeer] = []
        self._connections: set[Connection[Any]] = set()
        self._wrong: str | None = None
        self._is_closed = False
        try:
            self._server = socket.create_server((endpoints.bind, endpoints.ports[0]))
        except OSError as error:
            raise HostStartError(f"connect('join'): cannot listen at {self.address}: {error}") from None
        Acceptor(self._server, secret, self._admits, decode_from_joined, self._take, hosts)

    def launch(
        self, configs: Sequence[WorkerConfig], seconds: float, stop: threading.Event
    ) -> Sequence[JoinedWorker]:
        """See `Launcher.launch`."""
        started: list[JoinedWorker] = []
        deadline = time.monotonic() + seconds
        try:
            for config in configs:
                worker = None
                while worker is None:
                    worker = self._start(config, self._guest(config, seconds, deadline, stop))
                started.append(worker)
        except BaseException:
            for worker in started:
                worker.kill()
            raise
        return started

    def close(self) -> None:
        """See `Launcher.close`: whoever has joined may go."""
        with contextlib.suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        with self._changed:
            self._is_closed = True
            for connection in self._connections:
                _dismiss(connection, None)
            self._connections.clear()
            self._guests.clear()

    def _start(self, config: WorkerConfig, connection: Connection[Any]) -> JoinedWorker | None:
        """Has somebody start a worker; None when he is gone.

        Raises:
          HostStartError: he cannot.
        """
        try:
            connection.keep_alive(config.heartbeat)
            connection.limit(_PATIENCE)
            connection.send(StartWorker(msgspec.structs.replace(config, secret="")))
            answer = connection.receive()
            connection.limit(None)
        except (ConnectionEnded, MessageError):
            connection.close()
            return None
        if isinstance(answer, WorkerStarted) and answer.pid is not None:
            idle = functools.partial(self._add, _PendingPeer(connection, config.host))
            return JoinedWorker(connection, answer.pid, idle)
        connection.close()
        why = answer.error if isinstance(answer, WorkerStarted) else f"it said {type(answer).__name__}"
        raise HostStartError(f"{config} did not start: {why}")

    def _guest(
        self, config: WorkerConfig, seconds: float, deadline: float, stop: threading.Event
    ) -> Connection[Any]:
        """Somebody who has joined for a host, or for any.

        Raises:
          HostStartError: none joins in time.
        """
        with self._changed:
            while True:
                if self._wrong is not None:
                    raise HostStartError(self._wrong)
                self._guests = [guest for guest in self._guests if not guest.connection.has_ended()]
                for wanted in (config.host, ANY_HOST):
                    for guest in self._guests:
                        if guest.host == wanted:
                            self._guests.remove(guest)
                            return guest.connection
                if time.monotonic() > deadline or stop.is_set():
                    raise HostStartError(
                        f"{config} did not start: no worker joined at {self.address} in {seconds:.0f} seconds"
                    )
                self._changed.wait(0.2)

    def _admits(self, purpose: Purpose) -> bool:
        return (purpose.channel, purpose.role, purpose.to) == (JOIN, "worker", "controller")

    def _take(self, connection: Connection[Any], keeper: ServerHandshake) -> None:
        assert keeper.purpose is not None
        host = keeper.purpose.host
        wrong = None
        if keeper.versions != versions():
            pathways, jaxlib, python = keeper.versions
            wrong = (
                f"a worker joined with pathways {pathways}, jaxlib {jaxlib} and Python {python}, but the "
                f"controller has {', '.join(versions())}"
            )
        elif not ANY_HOST <= host < self._hosts:
            wrong = f"a worker joined as host {host}, but there are {self._hosts} hosts, from 0 on"
        if wrong is None:
            self._add(_PendingPeer(connection, host))
            return
        _dismiss(connection, wrong)
        with self._changed:
            self._wrong = wrong
            self._changed.notify_all()

    def _add(self, guest: _PendingPeer) -> None:
        with self._changed:
            if self._is_closed:
                _dismiss(guest.connection, None)
                return
            self._guests.append(guest)
            self._connections = {one for one in self._connections if not one.has_ended()} | {guest.connection}
            self._changed.notify_all()


def _dismiss(connection: Connection[Any], error: str | None) -> None:
    with contextlib.suppress(ConnectionEnded):
        connection.send(Dismissed(error))
    connection.close()
