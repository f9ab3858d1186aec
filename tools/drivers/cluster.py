"""Start, status and end of clusters, for `pw-cluster`."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from pathways.dialect.plain_data import read_record
from pathways.runtime.control.records.errors import HostError
from pathways.runtime.hosts.protocol.messages import Message
from pathways.runtime.hosts.protocol.wire import Connection, ConnectionEnded
from pathways.runtime.resources.accounts import KEYS, account_table, summed
from pathways.runtime.resources.folders import exposure, replace_file
from pathways.runtime.resources.status import ServiceStatus
from pathways.runtime.resources.tables import bytes_of, table
from pathways.runtime.service.daemon import STAY
from pathways.runtime.service.protocol import admin, folders
from pathways.tools.common.errors import UserError

PROCESS = "pathways.runtime.clusters.service_process"
"""The module that runs as the process of a service."""

_RULES = ("weight", "priority", "memory")
"""The rules of a client that `pw-cluster set` changes."""

_ANSWER_SECONDS = 30.0
_END_SECONDS = 60.0
_START_SECONDS = 600.0
_PROGRESS_INTERVAL_S = 10.0
_WATCH_SECONDS = 1.0
_FOLLOW_SECONDS = 0.2
_CLEAR = "\x1b[H\x1b[2J"


def run(options: argparse.Namespace) -> int:
    """Runs the tool for its flags; returns the exit code."""
    commands = {
        "up": _up,
        "add": _add,
        "list": _list,
        "status": _status,
        "accounts": _accounts,
        "token": _token,
        "set": _set,
        "suspend": _suspend,
        "resume": _resume,
        "drain": _drain,
        "undrain": _undrain,
        "end": _end,
        "down": _down,
        "logs": _logs,
    }
    try:
        commands[options.command](options)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise UserError(f"{error.filename}: {error.strerror}" if error.filename else str(error)) from None
    except (HostError, ValueError) as error:
        raise UserError(str(error)) from None
    return 0


def _up(options: argparse.Namespace) -> None:
    name = [] if options.name is None else [f"--name={options.name}"]
    command = [sys.executable, "-P", "-m", PROCESS, *name, "--", options.target]
    if options.foreground:
        sys.stdout.flush()
        sys.stderr.flush()
        os.execv(sys.executable, [*command[:4], "--foreground", *command[4:]])
    service = subprocess.Popen(
        command,
        # A buffered line would not reach a process that waits for the pipe.
        bufsize=0,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    assert service.stdin is not None
    assert service.stdout is not None
    with service.stdin, service.stdout:
        try:
            ready = _ready(service)
        except BaseException:
            # It exits when the pipe from this process closes.
            service.stdin.close()
            try:
                service.wait(0.8)
            except subprocess.TimeoutExpired:
                # Nothing waits for it any longer.
                service.returncode = 0
            raise
        service.stdin.write(STAY)
        service.stdin.flush()
    print(ready, flush=True)
    # It keeps running, and nothing waits for its exit.
    service.returncode = 0


def _ready(service: subprocess.Popen[bytes]) -> str:
    """Prints the progress of a service until it is ready; returns its message; UserError: it cannot start."""
    assert service.stdout is not None
    doing = "starting"
    began = time.monotonic()
    while True:
        if not select.select([service.stdout], [], [], _PROGRESS_INTERVAL_S)[0]:
            print(f"pw-cluster: {doing}, for {time.monotonic() - began:.0f} s ...", file=sys.stderr)
            continue
        line = service.stdout.readline()
        if not line:
            raise UserError(f"the service exited without a message (exit code {service.wait()})")
        answer = json.loads(line)
        if "error" in answer:
            raise UserError(answer["error"])
        if "ready" in answer:
            return str(answer["ready"])
        doing = answer["doing"]
        print(f"pw-cluster: {doing} ...", file=sys.stderr)


def _print_progress(service: Connection[Any], doing: str) -> None:
    """Prints progress until a service sends something."""
    began = time.monotonic()
    print(f"pw-cluster: {doing} ...", file=sys.stderr)
    while not service.wait(_PROGRESS_INTERVAL_S):
        print(f"pw-cluster: {doing}, for {time.monotonic() - began:.0f} s ...", file=sys.stderr)


def _list(_: argparse.Namespace) -> None:
    rows = [("cluster", "process", "address")]
    for cluster in folders.clusters():
        address = cluster.address()
        rows.append(
            (cluster.name, str(cluster.pid()), "starts" if address is None else folders.shown(address))
        )
    print(table(rows) if len(rows) > 1 else "no cluster is up")


def _status(options: argparse.Namespace) -> None:
    with _called(options) as service:
        while True:
            answer = _request(service, admin.StatusRequest())
            assert isinstance(answer, admin.StatusReply)
            _show(options, answer.status)
            if not options.watch:
                return
            time.sleep(_WATCH_SECONDS)


def _show(options: argparse.Namespace, status: ServiceStatus) -> None:
    if options.json:
        # A reader of `--watch` reads line by line.
        print(json.dumps(dataclasses.asdict(status), indent=None if options.watch else 2), flush=True)
        return
    clear = _CLEAR if options.watch and sys.stdout.isatty() else ""
    print(f"{clear}{status}", flush=True)


def _accounts(options: argparse.Namespace) -> None:
    if unknown := set(options.by) - set(KEYS):
        raise UserError(f"--by {','.join(options.by)}: {min(unknown)!r} is none of {', '.join(KEYS)}")
    with _called(options) as service:
        answer = _request(service, admin.AccountsRequest())
    assert isinstance(answer, admin.AccountsReply)
    if options.json:
        print(msgspec.json.format(msgspec.json.encode(summed(answer.accounts, options.by))).decode())
    else:
        print(account_table(answer.accounts, options.by))


def _add(options: argparse.Namespace) -> None:
    hosts = options.hosts
    values = {"hosts": hosts, "devices_per_host": options.devices_per_host, "cores": options.cores}
    for name, text in (("memory", options.device_memory), ("pool", options.pool)):
        values[name] = None if text is None else bytes_of(text)
    request = read_record(values, admin.AddRequest)
    count = hosts if isinstance(hosts, int) else len(hosts)
    with _called(options) as service:
        doing = f"{options.target}: adding an island of {count} {'host' if count == 1 else 'hosts'}"
        reply = _request(service, request, doing)
    assert isinstance(reply, admin.AddReply)
    print(reply.island)


def _set(options: argparse.Namespace) -> None:
    rules: dict[str, Any] = {}
    for text in options.rules:
        name, equals, value = text.partition("=")
        if not equals or name not in _RULES:
            raise UserError(f"{text}: expected one of {', '.join(f'{rule}=VALUE' for rule in _RULES)}")
        rules[name] = value
    try:
        if "memory" in rules:
            rules["memory"] = bytes_of(rules["memory"])
        change = msgspec.convert({"name": options.client, **rules}, admin.ChangeRequest, strict=False)
    except (ValueError, msgspec.ValidationError) as error:
        raise UserError(f"{' '.join(options.rules)}: {error}") from None
    _change(options, change)


def _suspend(options: argparse.Namespace) -> None:
    _change(options, admin.ChangeRequest(options.client, is_suspended=True))


def _resume(options: argparse.Namespace) -> None:
    _change(options, admin.ChangeRequest(options.client, is_suspended=False))


def _change(options: argparse.Namespace, change: admin.ChangeRequest) -> None:
    with _called(options) as service:
        reply = _request(service, change)
    assert isinstance(reply, admin.ChangeReply)


def _drain(options: argparse.Namespace) -> None:
    island = options.island
    with _called(options) as service:
        reply = _request(service, admin.DrainRequest(island, options.grace, options.force))
        shown: tuple[str, ...] = ()
        while isinstance(reply, admin.DrainReply) and not reply.is_over:
            if reply.clients != shown:
                shown = reply.clients
                for client in shown:
                    print(f"pw-cluster: {island} still has {client}", file=sys.stderr)
            reply = _receive(service)
    assert isinstance(reply, admin.DrainReply)
    if reply.clients:
        lost = "; ".join(reply.clients)
        raise UserError(f"{island} has left after {options.grace:g} s, and lost all of {lost}")
    print(f"{island} is drained; pw-cluster undrain has it return", file=sys.stderr)


def _undrain(options: argparse.Namespace) -> None:
    with _called(options) as service:
        service.send(admin.ReturnRequest(options.island))
        service.set_timeout(_START_SECONDS)
        reply = _receive(service)
    assert isinstance(reply, admin.ReturnReply)


def _token(options: argparse.Namespace) -> None:
    name = folders.check_name(options.client, "a client")
    file = Path(options.output)
    if options.output != "-":
        # Before anything is revoked.
        _check_output(file)
    with _called(options) as service:
        reply = _request(service, admin.TokenRequest(name, options.revoke))
    assert isinstance(reply, admin.TokenReply)
    if options.output == "-":
        print(reply.token)
    else:
        replace_file(file, f"{reply.token}\n".encode())


def _check_output(file: Path) -> None:
    """Checks that a token may be written to a file; UserError: it may not."""
    if not os.access(file.parent, os.W_OK | os.X_OK):
        raise UserError(f"{file}: no file can be created in {file.parent}")
    if not os.path.lexists(file):
        return
    if not file.is_file() or file.is_symlink():
        raise UserError(f"{file} is not a regular file")
    if problem := exposure(file.stat()):
        raise UserError(f"{file} {problem}: remove it, or choose another file")


def _end(options: argparse.Namespace) -> None:
    with _called(options) as service:
        answer = _request(service, admin.DisconnectRequest(options.client))
        assert isinstance(answer, admin.DisconnectReply)
        if answer.was_connected:
            return
        status = _request(service, admin.StatusRequest())
        assert isinstance(status, admin.StatusReply)
        names = ", ".join(client.name for client in status.status.clients) or "none"
        raise UserError(f"{options.target}: there is no client '{options.client}'; there are: {names}")


def _down(options: argparse.Namespace) -> None:
    if folders.address_of(options.target) is None and "/" not in options.target:
        cluster = folders.ClusterFolder(options.target)
        # A service that is still starting listens nowhere, so that only a signal reaches it.
        if cluster.is_held() and cluster.address() is None and (pid := cluster.pid()) is not None:
            with _waiting_for_exit(cluster):
                os.kill(pid, signal.SIGTERM)
            return
        with _called(options) as service, _waiting_for_exit(cluster):
            _request(service, admin.ShutdownRequest())
        return
    with _called(options) as service:
        _request(service, admin.ShutdownRequest())
        service.set_timeout(_END_SECONDS)
        with contextlib.suppress(ConnectionEnded):
            service.receive()


@contextlib.contextmanager
def _waiting_for_exit(cluster: folders.ClusterFolder) -> Iterator[None]:
    """Waits, once the block has ended a service, until its process exits; UserError: too late."""
    pid = cluster.pid()
    with contextlib.ExitStack() as stack:
        # Opened before the block: afterwards another process may have the number.
        exits: list[int] = []
        # Without such descriptors, and in another namespace, only the lock tells that it has exited.
        if pid is not None and hasattr(os, "pidfd_open"):
            with contextlib.suppress(OSError):
                exits.append(os.pidfd_open(pid))
                stack.callback(os.close, exits[0])
        yield
        deadline = time.monotonic() + _END_SECONDS
        while cluster.is_held() or (exits and not select.select(exits, [], [], 0)[0]):
            if time.monotonic() > deadline:
                raise UserError(
                    f"{cluster} has not ended in {_END_SECONDS:.0f} seconds; "
                    f"kill -9 {pid} ends it, and its workers with it"
                )
            time.sleep(0.02)


def _logs(options: argparse.Namespace) -> None:
    cluster = folders.ClusterFolder(options.target)
    if not cluster.log.exists():
        if cluster.is_held():
            raise UserError(f"{cluster} runs in the foreground: its log is its standard error")
        raise UserError(f"{cluster} has no log: there is no file {cluster.log}")
    with cluster.log.open(errors="replace") as log:
        is_up = True
        while is_up:
            is_up = options.follow and cluster.is_held()
            # After the check, so that the last output is read, too.
            while text := log.read(1 << 16):
                sys.stdout.write(text)
            sys.stdout.flush()
            if is_up:
                time.sleep(_FOLLOW_SECONDS)


@contextlib.contextmanager
def _called(options: argparse.Namespace) -> Iterator[Connection[Any]]:
    """Yields a connection to the service of a cluster."""
    address, credentials = folders.find_service(options.target, options.token)
    purpose = msgspec.structs.replace(admin.ADMIN_PURPOSE, name=credentials.name)
    connection = folders.call_service(address, credentials.secret, purpose, admin.decode_for_admin)
    try:
        yield connection
    finally:
        connection.close()


def _request(service: Connection[Any], request: Message, doing: str = "") -> object:
    """Returns the reply of a service to a request; raises UserError if there is none, or it is denied.

    Args:
      doing: the progress to print until the service replies, however long it takes; empty to print none.
    """
    service.set_timeout(_ANSWER_SECONDS)
    try:
        service.send(request)
    except ConnectionEnded as error:
        raise UserError(f"the service does not answer: {error}") from None
    return _receive(service, doing)


def _receive(service: Connection[Any], doing: str = "") -> object:
    """Returns the next reply of a service; raises UserError if there is none, or the request is denied."""
    try:
        if doing:
            _print_progress(service, doing)
        reply = service.receive()
    except ConnectionEnded as error:
        raise UserError(f"the service does not answer: {error}") from None
    if isinstance(reply, admin.AdminDenied):
        raise UserError(reply.why)
    return reply
