"""The process of a service: how it begins and ends, its door, and what it does for `pw-cluster`.

`pw-cluster up` starts it, and reads on its standard output, as lines of JSON, what it is doing, that it is
ready, or why it cannot be. Until it has been told to stay, it ends with whoever started it.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from pathways.runtime.control.records.errors import HostError, HostStartError
from pathways.runtime.control.sharing.scheduler import Policy
from pathways.runtime.hosts.launch.folders import ClusterFolder, shown
from pathways.runtime.hosts.launch.launcher_choice import start_description
from pathways.runtime.hosts.launch.settings import Settings
from pathways.runtime.hosts.launch.sockets import Address
from pathways.runtime.hosts.protocol.acceptor import Acceptor
from pathways.runtime.hosts.protocol.admin import (
    ADMIN_PURPOSE,
    DisconnectReply,
    DisconnectRequest,
    ShutdownReply,
    ShutdownRequest,
    StatusReply,
    StatusRequest,
    decode_from_admin,
    decode_handshake,
)
from pathways.runtime.hosts.protocol.handshake import ServerHandshake
from pathways.runtime.hosts.protocol.messages import MessageError, Purpose
from pathways.runtime.hosts.protocol.wire import Connection, ConnectionEnded
from pathways.runtime.hosts.service.configuration import Configuration, read
from pathways.runtime.resources.status import ServiceStatus
from pathways.runtime.resources.threads import start_thread

STAY = b"stay\n"
"""What tells the process that it may outlive whoever started it."""

_LONGEST_SOCKET = 100
_BACKLOG = 128

log = logging.getLogger("pathways")


class SharedService(Protocol):
    """What the process needs of a service; see `service.Service`."""

    def admits(self, purpose: Purpose) -> bool: ...
    def greet(self, connection: Connection[Any], keeper: ServerHandshake) -> None: ...
    def serve(self) -> None: ...
    def status(self) -> ServiceStatus: ...
    def end_client(self, name: str) -> bool: ...
    def close(self) -> None: ...


class ServiceFactory(Protocol):
    """Starts workers, and returns their service when all are ready."""

    def __call__(
        self, settings: Settings, *, weights: Mapping[str, float], policy: Policy
    ) -> SharedService: ...


class _ExitRequested(BaseException):
    """The process is to end, and is not ready yet."""


class _ExitSignals:
    """What signals to end do: at first they end what is there, and the second ends the process at once."""

    def __init__(self) -> None:
        self.service: SharedService | None = None
        self._was_asked = False
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, _: object) -> None:
        if self._was_asked:
            # What workers wait for ends with this process, and they end with that.
            os._exit(128 + number)
        self._was_asked = True
        log.info("ends: %s", signal.Signals(number).name)
        if self.service is None:
            raise _ExitRequested
        # Not here: it takes locks, which what was interrupted may hold.
        start_thread(self.service.close, "close")


class _Caller:
    """Whoever started the process, and hears how it goes; the log does where it stays in the foreground."""

    def __init__(self, is_foreground: bool) -> None:
        self._answers: int | None = None
        self._is_done = False
        if is_foreground:
            return
        # What libraries print is not for the caller.
        self._answers, asked = os.dup(1), os.dup(0)
        nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        for descriptor in (0, 1):
            os.dup2(nothing, descriptor)
        os.close(nothing)
        start_thread(functools.partial(self._listen, asked), "caller")

    def tell(self, **what: str) -> None:
        """Says `doing`, `ready` or `error`."""
        self._is_done |= "error" in what
        for kind, text in what.items():
            log.log(logging.ERROR if kind == "error" else logging.INFO, "%s", text)
        if self._answers is None:
            return
        # It may be gone.
        with contextlib.suppress(OSError):
            os.write(self._answers, f"{json.dumps(what)}\n".encode())
        if "doing" not in what:
            os.close(self._answers)
            self._answers = None

    def _listen(self, asked: int) -> None:
        """Ends the process with its caller, unless that says that it may stay."""
        with os.fdopen(asked, "rb") as caller:
            if caller.readline() != STAY and not self._is_done:
                os.kill(os.getpid(), signal.SIGTERM)


def main(arguments: Sequence[str], make: ServiceFactory) -> int:
    """Runs a service until it is ended; returns the exit code of the process.

    Args:
      arguments: those of the command line.
      make: makes the service.
    """
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file")
    parser.add_argument("--name")
    parser.add_argument("--foreground", action="store_true")
    asked = parser.parse_args(arguments)
    # What is wrong before there is a log, the caller says.
    _log_to(logging.StreamHandler(sys.stderr) if asked.foreground else logging.NullHandler())
    signals, caller = _ExitSignals(), _Caller(asked.foreground)
    try:
        configuration = read(asked.file)
        folder = ClusterFolder(asked.name or Path(asked.file).stem)
        with folder.held():
            _begin_log(folder, asked.foreground)
            _run(configuration, folder, make, signals, caller)
    except _ExitRequested:
        caller.tell(error="the service was ended before it was ready")
        return 0
    except (HostError, OSError, ValueError) as error:
        caller.tell(error=str(error))
        if signals.service is not None:
            log.exception("while clients were served")
        return 1
    except Exception as error:
        log.exception("this is a bug in pathways")
        caller.tell(error=f"{type(error).__name__}: {error}; see the log")
        return 1
    log.info("has ended")
    return 0


def _run(
    configuration: Configuration,
    folder: ClusterFolder,
    make: ServiceFactory,
    signals: _ExitSignals,
    caller: _Caller,
) -> None:
    secret = folder.secret(configuration.token)
    with _listening(folder, configuration.listen) as (server, address):
        caller.tell(doing=f"{folder}: {start_description(configuration.settings)}")
        service = make(configuration.settings, weights=configuration.weights, policy=configuration.policy)
        signals.service = service
        try:
            server.listen(_BACKLOG)
            Acceptor(server, secret, _admits(service), decode_handshake, _greets(service))
            folder.publish(address)
            caller.tell(ready=_ready(configuration, folder, address))
            service.serve()
        finally:
            # Closing it does not wake who accepts.
            with contextlib.suppress(OSError):
                server.shutdown(socket.SHUT_RDWR)
            service.close()


def _ready(configuration: Configuration, folder: ClusterFolder, address: Address) -> str:
    islands, hosts = len(configuration.settings.islands), configuration.settings.hosts
    remote = "" if isinstance(address, str) else f', or attach="{shown(address)}", token=PATH elsewhere'
    return (
        f"{folder} is up: {islands} islands, {hosts} hosts, process {os.getpid()}; "
        f'pathways.connect(attach="{folder.name}"){remote}'
    )


@contextlib.contextmanager
def _listening(
    folder: ClusterFolder, listen: tuple[str, int] | None
) -> Iterator[tuple[socket.socket, Address]]:
    """A socket that nobody can connect to yet, and its address.

    Raises:
      HostStartError: there can be none.
    """
    where = str(folder.socket) if listen is None else listen
    if isinstance(where, str) and len(os.fsencode(where)) > _LONGEST_SOCKET:
        raise HostStartError(
            f"{where} is too long for the path of a socket ({_LONGEST_SOCKET} bytes at most): set PW_CLUSTERS"
            " to a shorter one, or listen to an address and a port"
        )
    with socket.socket(socket.AF_UNIX if isinstance(where, str) else socket.AF_INET) as server:
        try:
            if listen is not None:
                server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            server.bind(where)
        except OSError as error:
            raise HostStartError(f"cannot listen at {shown(where)}: {error.strerror or error}") from None
        if listen is not None:
            address, port = server.getsockname()
            # Those who call from here; others know which address of this machine they reach.
            where = ("127.0.0.1" if address == "0.0.0.0" else listen[0], port)
        yield server, where


def _admits(service: SharedService) -> Callable[[Purpose], bool]:
    return lambda purpose: purpose == ADMIN_PURPOSE or service.admits(purpose)


def _greets(service: SharedService) -> Callable[[Connection[Any], ServerHandshake], None]:
    def greet(connection: Connection[Any], keeper: ServerHandshake) -> None:
        if keeper.purpose != ADMIN_PURPOSE:
            service.greet(connection, keeper)
            return
        connection.decode = decode_from_admin
        try:
            while True:
                _answer(service, connection, connection.receive())
        except ConnectionEnded:
            pass
        except (HostError, MessageError) as error:
            log.warning("pw-cluster: %s", error)
        finally:
            connection.close()

    return greet


def _answer(service: SharedService, connection: Connection[Any], asked: object) -> None:
    """Does what `pw-cluster` asks for.

    Raises:
      ConnectionEnded: it is gone.
      MessageError: it says something that it never asks.
    """
    match asked:
        case StatusRequest():
            connection.send(StatusReply(service.status()))
        case DisconnectRequest():
            connection.send(DisconnectReply(service.end_client(asked.name)))
        case ShutdownRequest():
            log.info("ends: pw-cluster down")
            connection.send(ShutdownReply())
            service.close()
        case _:
            raise MessageError(f"it says {type(asked).__name__}")


def _begin_log(folder: ClusterFolder, is_foreground: bool) -> None:
    """Keeps the log of the service before, and begins one in the folder, unless it is to stay in sight."""
    if folder.log.exists():
        folder.log.replace(folder.path / "log.old")
    if is_foreground:
        return
    file = os.open(folder.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    for descriptor in (1, 2):
        os.dup2(file, descriptor)
    os.close(file)
    _log_to(logging.StreamHandler(sys.stderr))


def _log_to(handler: logging.Handler) -> None:
    logging.basicConfig(handlers=[handler], format="%(asctime)s %(levelname)s %(message)s", force=True)
    log.setLevel(logging.INFO)
