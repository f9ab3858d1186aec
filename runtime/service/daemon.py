"""Process of a service: its start and exit, its acceptor, and the requests of `pw-cluster`.

`pw-cluster up` starts it, and reads its progress, that it is ready, or an error from its standard output, as
lines of JSON. Until the process is detached (`STAY`), it exits when its caller does.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import logging
import os
import queue
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import msgspec

from pathways.dialect.errors import PathwaysError
from pathways.runtime.control.records.errors import HostError, HostStartError
from pathways.runtime.hosts.launch.join_launcher import secret_of
from pathways.runtime.hosts.launch.launcher_choice import start_description
from pathways.runtime.hosts.launch.launcher_records import Join
from pathways.runtime.hosts.launch.settings import Settings
from pathways.runtime.hosts.launch.sockets import Address
from pathways.runtime.hosts.protocol.acceptor import Acceptor
from pathways.runtime.hosts.protocol.messages import MessageError, Purpose
from pathways.runtime.hosts.protocol.wire import Connection, ConnectionEnded
from pathways.runtime.metrics.feed import MetricsFeed
from pathways.runtime.metrics.snapshots import Snapshot
from pathways.runtime.resources.accounts import AccountRecord
from pathways.runtime.resources.status import ServiceStatus
from pathways.runtime.resources.threads import start_thread
from pathways.runtime.service.configuration import Configuration, read
from pathways.runtime.service.protocol.account_log import AccountLog
from pathways.runtime.service.protocol.admin import (
    ADMIN_PURPOSE,
    AccountsReply,
    AccountsRequest,
    AddReply,
    AddRequest,
    AdminDenied,
    ChangeReply,
    ChangeRequest,
    DisconnectReply,
    DisconnectRequest,
    DrainReply,
    DrainRequest,
    ReturnReply,
    ReturnRequest,
    ShutdownReply,
    ShutdownRequest,
    StatusReply,
    StatusRequest,
    TokenReply,
    TokenRequest,
    decode_from_admin,
    decode_handshake,
)
from pathways.runtime.service.protocol.folders import ClusterFolder, check_name, shown
from pathways.runtime.service.protocol.tokens import ClientTokens, ServiceHandshake
from pathways.runtime.service.sharing.rules import SharingRules

STAY = b"stay\n"
"""Line on standard input that detaches the process, so that it may outlive its caller."""

_POLL_SECONDS = 0.2
_MAX_SOCKET_PATH = 100
_BACKLOG = 128

log = logging.getLogger("pathways")


class SharedService(Protocol):
    """Interface of a service to its process; see `service.Service`."""

    def admits(self, purpose: Purpose) -> bool: ...
    def accept(self, connection: Connection[Any], handshake: ServiceHandshake) -> None: ...
    def serve(self) -> None: ...
    def status(self) -> ServiceStatus: ...
    def accounts(self) -> tuple[AccountRecord, ...] | None: ...
    def take_account_changes(self) -> tuple[AccountRecord, ...]: ...
    def disconnect_client(self, name: str) -> bool: ...
    def revoke(self, name: str) -> None: ...
    def change_client(self, request: ChangeRequest) -> str | None: ...
    def drain(self, request: DrainRequest) -> Iterator[DrainReply]: ...
    def return_island(self, name: str) -> None: ...
    def add_island(self, request: AddRequest, stop: threading.Event) -> str: ...
    def close(self) -> None: ...


class ServiceFactory(Protocol):
    """Factory of a service, which starts its workers and waits until all are ready."""

    def __call__(self, settings: Settings, *, rules: SharingRules) -> SharedService: ...


class _ExitRequested(BaseException):
    """Request to exit while the service starts."""


class _ExitSignals:
    """Handlers of signals to exit: the first closes the service, the second exits the process at once."""

    def __init__(self) -> None:
        self.service: SharedService | None = None
        self._is_exiting = False
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, _: object) -> None:
        if self._is_exiting:
            # Workers exit when their connections to this process are closed.
            os._exit(128 + number)
        self._is_exiting = True
        log.info("shutting down: %s", signal.Signals(number).name)
        if self.service is None:
            raise _ExitRequested
        # In a thread: closing it needs locks, which the interrupted code may hold.
        start_thread(self.service.close, "close")


class _Caller:
    """Process that started this one, which gets its progress as JSON; in the foreground only the log does."""

    def __init__(self, is_foreground: bool) -> None:
        self._output: int | None = None
        self._is_done = False
        if is_foreground:
            return
        # Libraries print to standard output, too, which is not for the caller.
        self._output, requests = os.dup(1), os.dup(0)
        nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        for descriptor in (0, 1):
            os.dup2(nothing, descriptor)
        os.close(nothing)
        start_thread(functools.partial(self._listen, requests), "caller")

    def report(self, **fields: str) -> None:
        """Reports `doing`, `ready` or `error`, with its text."""
        self._is_done |= "error" in fields
        for kind, text in fields.items():
            log.log(logging.ERROR if kind == "error" else logging.INFO, "%s", text)
        if self._output is None:
            return
        # The caller may have exited.
        with contextlib.suppress(OSError):
            os.write(self._output, f"{json.dumps(fields)}\n".encode())
        if "doing" not in fields:
            os.close(self._output)
            self._output = None

    def _listen(self, requests: int) -> None:
        """Ends the process when its caller exits, unless the caller has detached it."""
        with os.fdopen(requests, "rb") as caller:
            # Nothing is read when the caller has exited.
            if caller.readline() != STAY and not self._is_done:
                os.kill(os.getpid(), signal.SIGTERM)


def main(arguments: Sequence[str], make: ServiceFactory) -> int:
    """Runs a service until it is shut down; returns the exit code of the process.

    Args:
      arguments: the arguments of the command line.
      make: creates the service.
    """
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file")
    parser.add_argument("--name")
    parser.add_argument("--foreground", action="store_true")
    options = parser.parse_args(arguments)
    # The caller reports errors that occur before there is a log.
    _log_to(logging.StreamHandler(sys.stderr) if options.foreground else logging.NullHandler())
    signals, caller = _ExitSignals(), _Caller(options.foreground)
    try:
        configuration = read(options.file)
        folder = ClusterFolder(options.name or Path(options.file).stem)
        with folder.held():
            _begin_log(folder, options.foreground)
            _run(configuration, folder, make, signals, caller)
    except _ExitRequested:
        caller.report(error="the service was ended before it was ready")
        return 0
    except (HostError, OSError, ValueError) as error:
        caller.report(error=str(error))
        if signals.service is not None:
            log.exception("the service failed")
        return 1
    except Exception as error:
        log.exception("this is a bug in pathways")
        caller.report(error=f"{type(error).__name__}: {error}; see the log")
        return 1
    log.info("shut down")
    return 0


def _run(
    configuration: Configuration,
    folder: ClusterFolder,
    make: ServiceFactory,
    signals: _ExitSignals,
    caller: _Caller,
) -> None:
    tokens = ClientTokens(folder.secret(configuration.token), folder.revoked)
    if isinstance(launcher := configuration.settings.launcher, Join):
        # Before the address to join is announced.
        secret_of(launcher.secret_file)
    # Bound before workers start, so that an address in use is reported at once; clients cannot connect until
    # `listen`, when all are ready.
    with contextlib.ExitStack() as stack:
        server, address = stack.enter_context(_bound_socket(folder, configuration.listen))
        feed = None
        if configuration.metrics is not None:
            feed = MetricsFeed(configuration.metrics, lambda: snapshot_of(folder.name, service))
        caller.report(doing=f"{folder}: {start_description(configuration.settings)}")
        service = make(configuration.settings, rules=configuration.rules)
        signals.service = service
        try:
            server.listen(_BACKLOG)
            make_handshake = functools.partial(ServiceHandshake, tokens, _admits(service))
            Acceptor(server, make_handshake, decode_handshake, _connection_handler(service, tokens))
            folder.publish(address)
            caller.report(ready=_ready_message(configuration, folder, address))
            with AccountLog(folder.accounts, service.take_account_changes), feed or contextlib.nullcontext():
                service.serve()
        finally:
            # Closing a socket does not wake a thread in accept(2); shutting it down does.
            with contextlib.suppress(OSError):
                server.shutdown(socket.SHUT_RDWR)
            service.close()


def snapshot_of(cluster: str, service: SharedService) -> Snapshot | None:
    """Returns a snapshot of a service; None if it does not answer in time."""
    accounts = service.accounts()
    return None if accounts is None else Snapshot(cluster, service.status(), accounts)


def _ready_message(configuration: Configuration, folder: ClusterFolder, address: Address) -> str:
    islands, hosts = len(configuration.settings.islands), configuration.settings.hosts
    page = "" if configuration.metrics is None else "; page http://{}:{}/".format(*configuration.metrics)
    remote = "" if isinstance(address, str) else f', or connect("{shown(address)}", token=PATH) elsewhere'
    return (
        f"{folder} is up: {islands} islands, {hosts} hosts, process {os.getpid()}; "
        f'pathways.connect("{folder.name}"){remote}{page}'
    )


@contextlib.contextmanager
def _bound_socket(
    folder: ClusterFolder, listen: tuple[str, int] | None
) -> Iterator[tuple[socket.socket, Address]]:
    """Yields a bound socket, which accepts no connections yet, and its address.

    Raises:
      HostStartError: the socket cannot be bound.
    """
    address = str(folder.socket) if listen is None else listen
    if isinstance(address, str) and len(os.fsencode(address)) > _MAX_SOCKET_PATH:
        raise HostStartError(
            f"{address} is too long for the path of a socket ({_MAX_SOCKET_PATH} bytes at most): set"
            " PW_CLUSTERS to a shorter one, or listen to an address and a port"
        )
    with socket.socket(socket.AF_UNIX if isinstance(address, str) else socket.AF_INET) as server:
        try:
            if listen is not None:
                server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            server.bind(address)
        except OSError as error:
            raise HostStartError(f"cannot listen at {shown(address)}: {error.strerror or error}") from None
        if listen is not None:
            host, port = server.getsockname()
            # The address for clients on this machine; remote ones know by which address they reach it.
            address = ("127.0.0.1" if host == "0.0.0.0" else listen[0], port)
        yield server, address


def _admits(service: SharedService) -> Callable[[Purpose], bool]:
    return lambda purpose: _is_admin(purpose) or service.admits(purpose)


def _is_admin(purpose: Purpose | None) -> bool:
    return purpose is not None and msgspec.structs.replace(purpose, name="") == ADMIN_PURPOSE


def _connection_handler(
    service: SharedService, tokens: ClientTokens
) -> Callable[[Connection[Any], ServiceHandshake], None]:
    def handle(connection: Connection[Any], handshake: ServiceHandshake) -> None:
        if not _is_admin(handshake.purpose):
            service.accept(connection, handshake)
            return
        connection.decode = decode_from_admin
        try:
            while True:
                _handle_request(service, tokens, handshake, connection, connection.receive())
        except ConnectionEnded:
            pass
        except (HostError, MessageError) as error:
            log.warning("pw-cluster: %s", error)
        finally:
            connection.close()

    return handle


def _handle_request(
    service: SharedService,
    tokens: ClientTokens,
    handshake: ServiceHandshake,
    connection: Connection[Any],
    request: object,
) -> None:
    """Handles a request of `pw-cluster`.

    Raises:
      ConnectionEnded: the connection was closed.
      MessageError: the message is not a request.
    """
    if (why := _why_denied(request, handshake)) is not None:
        connection.send(AdminDenied(why))
        return
    match request:
        case StatusRequest():
            connection.send(StatusReply(service.status()))
        case AccountsRequest():
            accounts = service.accounts()
            late = AdminDenied("the service does not answer in time")
            connection.send(late if accounts is None else AccountsReply(accounts))
        case DisconnectRequest():
            connection.send(DisconnectReply(service.disconnect_client(request.name)))
        case ShutdownRequest():
            log.info("shutting down: requested by pw-cluster down")
            connection.send(ShutdownReply())
            service.close()
        case ChangeRequest():
            why = service.change_client(request)
            connection.send(ChangeReply() if why is None else AdminDenied(why))
        case DrainRequest():
            try:
                for reply in service.drain(request):
                    connection.send(reply)
            except PathwaysError as error:
                connection.send(AdminDenied(str(error)))
        case ReturnRequest():
            try:
                service.return_island(request.island)
                connection.send(ReturnReply())
            except PathwaysError as error:
                connection.send(AdminDenied(str(error)))
        case AddRequest():
            connection.send(_add_island(service, connection, request))
        case TokenRequest():
            connection.send(_issue_token(service, tokens, request))
        case _:
            raise MessageError(f"unexpected message {type(request).__name__}")


def _why_denied(request: object, handshake: ServiceHandshake) -> str | None:
    """Returns why the token of a peer does not allow a request; None if it does.

    The token of the cluster allows all requests, the token of a client only the requests listed here.
    """
    name = handshake.token_of
    if name is None:
        return None
    if handshake.is_revoked():
        return f"this token of client {name!r} was revoked"
    match request:
        case StatusRequest():
            return None
        case DisconnectRequest() if request.name == name:
            return None
        case DisconnectRequest():
            action = f"ending client {request.name!r}"
        case _:
            action = "the request"
    return f"{action} needs the token of the cluster, and this one is of client {name!r}"


def _add_island(
    service: SharedService, connection: Connection[Any], request: AddRequest
) -> AddReply | AdminDenied:
    """Adds an island; the end of the connection cancels its start."""
    stop = threading.Event()
    replies: queue.SimpleQueue[AddReply | AdminDenied] = queue.SimpleQueue()

    def add() -> None:
        try:
            replies.put(AddReply(service.add_island(request, stop)))
        except (HostError, OSError, ValueError) as error:
            replies.put(AdminDenied(str(error)))
        except Exception as error:
            log.exception("this is a bug in pathways")
            replies.put(AdminDenied(f"{type(error).__name__}: {error}; see the log"))

    start_thread(add, "add")
    while True:
        try:
            return replies.get(timeout=_POLL_SECONDS)
        except queue.Empty:
            if connection.has_ended():
                stop.set()


def _issue_token(
    service: SharedService, tokens: ClientTokens, request: TokenRequest
) -> TokenReply | AdminDenied:
    """Returns a token of a client, after all earlier ones were revoked if this is requested."""
    try:
        name = check_name(request.name, "a client")
        if request.revoke:
            tokens.revoke(name)
    except (OSError, ValueError) as error:
        return AdminDenied(str(error))
    if request.revoke:
        log.info("the tokens of client %r were revoked", name)
        service.revoke(name)
    return TokenReply(tokens.token_of(name))


def _begin_log(folder: ClusterFolder, is_foreground: bool) -> None:
    """Renames the previous log, and starts one in the folder of the cluster unless in the foreground."""
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
