"""Launcher for agents that join the controller: `pw-worker` on machines started all at once, Ray's actors.

An agent (`agent.py`) keeps one connection, on which the controller orders it to start or kill a worker. It
reports how the worker exited, and may then have to start a replacement.
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
from pathways.runtime.hosts.launch.launcher_records import Endpoints
from pathways.runtime.hosts.launch.sockets import server_socket
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
from pathways.runtime.resources.threads import Condition, start_thread

_MIN_SECRET_BYTES = 16
_PATIENCE = 10.0
"""Seconds that a joined machine may take to start a process, or to answer at all."""


def secret_of(path: str, setting: str = "secret_file") -> bytes:
    """Returns the secret in a file, without surrounding white space.

    Args:
      setting: the name of the setting, for messages.

    Raises:
      ValueError: other users may read the file, it is too short, or the path is not valid.
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
    if len(secret) < _MIN_SECRET_BYTES:
        raise ValueError(
            f"{setting}={path!r} has {len(secret)} bytes; expected at least {_MIN_SECRET_BYTES} random ones"
        )
    return secret


@dataclasses.dataclass(eq=False)
class _IdleMachine:
    """Joined machine without a worker; `host` is the number that it requests."""

    connection: Connection[Any]
    host: int


class JoinedWorker:
    """`WorkerProcess` of a worker on a joined machine.

    Args:
      pid: the process id of the worker, on its machine.
      on_idle: is called when the machine has no worker any more.
    """

    def __init__(self, connection: Connection[Any], pid: int, on_idle: Callable[[], None]) -> None:
        self.pid = pid
        self._on_idle = on_idle
        self._connection = connection
        self._status = "the process that started it disconnected"
        self._lines: tuple[str, ...] = ()
        self._ended = threading.Event()
        start_thread(self._listen, "joined worker")

    def exit_status(self, timeout: float) -> str | None:
        """See `WorkerProcess.exit_status`."""
        return self._status if self._ended.wait(timeout) else None

    def kill(self) -> None:
        """See `WorkerProcess.kill`. While the network is cut, the worker exits when its connections fail."""
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
            self._status, self._lines = message.status, message.lines
            # Before its exit is known: a replacement may start then.
            self._on_idle()
        else:
            self._connection.close()
        self._ended.set()


class JoinLauncher:
    """`Launcher` that waits for agents to join.

    Args:
      name: the name of the launcher, for messages.
      ports: the first and the last port to listen on; None for any.
      secret: the secret of agents and workers.
      hosts: number of hosts.

    Attributes:
      address: the address at which agents find it.
      secret: see above.

    Raises:
      HostStartError: the ports are taken.
    """

    def __init__(
        self, name: str, endpoints: Endpoints, ports: tuple[int, int] | None, secret: bytes, hosts: int
    ) -> None:
        assert endpoints.bind is not None
        self.secret = secret
        self._hosts = hosts
        self._changed = Condition()
        self._idle: list[_IdleMachine] = []
        # The connections to all joined machines, with a worker or without.
        self._connections: set[Connection[Any]] = set()
        self._error: str | None = None
        self._is_closed = False
        try:
            self._server = server_socket(endpoints.bind, ports)
        except OSError as error:
            raise HostStartError(f"{name}: cannot listen for agents: {error}") from None
        self.address = endpoints.advertise or endpoints.bind, self._server.getsockname()[1]
        make_handshake = functools.partial(ServerHandshake, secret, self._admits)
        Acceptor(self._server, make_handshake, decode_from_joined, self._accept, hosts)

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
                    worker = self._start(config, self._wait_for_machine(config, seconds, deadline, stop))
                started.append(worker)
        except BaseException:
            for worker in started:
                worker.kill()
            raise
        return started

    def set_hosts(self, count: int) -> None:
        """See `Launcher.set_hosts`; agents may join with the numbers of the new hosts."""
        with self._changed:
            self._hosts = count
            # An agent may have joined with the number of a new host too early.
            self._error = None

    def close(self) -> None:
        """See `Launcher.close`; dismisses all machines."""
        with contextlib.suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        with self._changed:
            self._is_closed = True
            for connection in self._connections:
                _dismiss(connection, None)
            self._connections.clear()
            self._idle.clear()

    def has_idle(self, host: int) -> bool:
        """Returns whether an agent without a worker is connected that joined as this host."""
        with self._changed:
            return any(agent.host == host and not agent.connection.has_ended() for agent in self._idle)

    def _start(self, config: WorkerConfig, connection: Connection[Any]) -> JoinedWorker | None:
        """Starts a worker on a joined machine; returns None if the machine has disconnected.

        Raises:
          HostStartError: the machine cannot start it.
        """
        try:
            connection.keep_alive(config.heartbeat)
            connection.set_timeout(_PATIENCE)
            connection.send(StartWorker(msgspec.structs.replace(config, secret="")))
            reply = connection.receive()
            connection.set_timeout(None)
        except (ConnectionEnded, MessageError):
            connection.close()
            return None
        if isinstance(reply, WorkerStarted) and reply.pid is not None:
            on_idle = functools.partial(self._add, _IdleMachine(connection, config.host))
            return JoinedWorker(connection, reply.pid, on_idle)
        connection.close()
        why = reply.error if isinstance(reply, WorkerStarted) else f"unexpected reply {type(reply).__name__}"
        raise HostStartError(f"{config} did not start: {why}")

    def _wait_for_machine(
        self, config: WorkerConfig, seconds: float, deadline: float, stop: threading.Event
    ) -> Connection[Any]:
        """Waits for a machine that joins as a host, or as any.

        Raises:
          HostStartError: no machine joins in time, or one that joined has other versions or a wrong number.
        """
        with self._changed:
            while True:
                if self._error is not None:
                    raise HostStartError(self._error)
                self._idle = [machine for machine in self._idle if not machine.connection.has_ended()]
                for host in (config.host, ANY_HOST):
                    for machine in self._idle:
                        if machine.host == host:
                            self._idle.remove(machine)
                            return machine.connection
                if time.monotonic() > deadline or stop.is_set():
                    shown = ":".join(map(str, self.address))
                    raise HostStartError(
                        f"{config} did not start: no worker joined at {shown} in {seconds:.0f} seconds"
                    )
                self._changed.wait(0.2)

    def _admits(self, purpose: Purpose) -> bool:
        return (purpose.channel, purpose.role, purpose.to) == (JOIN, "worker", "controller")

    def _accept(self, connection: Connection[Any], handshake: ServerHandshake) -> None:
        assert handshake.purpose is not None
        host = handshake.purpose.host
        error = None
        if handshake.versions != versions():
            pathways, jaxlib, python = handshake.versions
            error = (
                f"a worker joined with pathways {pathways}, jaxlib {jaxlib} and Python {python}, but the "
                f"controller has {', '.join(versions())}"
            )
        elif not ANY_HOST <= host < self._hosts:
            error = f"a worker joined as host {host}, but there are {self._hosts} hosts, from 0 on"
        if error is None:
            self._add(_IdleMachine(connection, host))
            return
        _dismiss(connection, error)
        with self._changed:
            self._error = error
            self._changed.notify_all()

    def _add(self, machine: _IdleMachine) -> None:
        with self._changed:
            if self._is_closed:
                _dismiss(machine.connection, None)
                return
            self._idle.append(machine)
            self._connections = {each for each in self._connections if not each.has_ended()}
            self._connections.add(machine.connection)
            self._changed.notify_all()


def _dismiss(connection: Connection[Any], error: str | None) -> None:
    with contextlib.suppress(ConnectionEnded):
        connection.send(Dismissed(error))
    connection.close()
