"""Machine that joins a controller and runs a worker of it: for launchers that start all machines at once.

  pw-worker --join 10.0.0.5:7000 --secret-file F [--host N] [--wait SECONDS]

The controller calls `pathways.connect("join", hosts=..., bind="10.0.0.5", secret_file="F", options=...)`,
with 7000 the first of its `ports`. It may start later: this command retries for `--wait` seconds. When the
worker is lost, this command also runs its replacement. It exits with the controller, or when the controller
cannot be reached for that long.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import secrets
import signal
import sys
import time
from typing import Any

import msgspec

from pathways.runtime.control.records.errors import HostStartError
from pathways.runtime.hosts.launch.child_launcher import Child
from pathways.runtime.hosts.launch.join_launcher import secret_of
from pathways.runtime.hosts.launch.sockets import connect_to
from pathways.runtime.hosts.protocol.acceptor import open_connection
from pathways.runtime.hosts.protocol.join_messages import (
    ANY_HOST,
    JOIN,
    Dismissed,
    KillWorker,
    StartWorker,
    WorkerEnded,
    WorkerStarted,
    decode_for_joined,
)
from pathways.runtime.hosts.protocol.messages import MessageError, Purpose
from pathways.runtime.hosts.protocol.wire import Connection, ConnectionEnded
from pathways.runtime.resources.threads import start_thread

_AGAIN_SECONDS = 1.0
_HEARTBEAT = 10.0


class JoinedMachine:
    """Machine that joins a controller.

    Args:
      host: the number of the host that the machine wants to be; `ANY_HOST` for any.
      wait: seconds for which the controller may be out of reach.
    """

    def __init__(self, address: tuple[str, int], secret: bytes, host: int, wait: float) -> None:
        self._address = address
        self._secret = secret
        self._host = host
        self._wait = wait
        self._child: Child | None = None
        self._leaves = False

    def leave(self, number: int, frame: object) -> None:
        """Forwards a signal to the worker, which exits with its island; this process exits after it."""
        self._leaves = True
        if self._child is None:
            os._exit(128 + number)
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._child.pid, number)

    def serve(self) -> int:
        """Runs workers, one after the other; returns an exit code."""
        while not self._leaves:
            connection = self._connect()
            if connection is None:
                return 1
            try:
                while (message := connection.receive()) is not None:
                    match message:
                        case StartWorker():
                            self._start(connection, message)
                        case KillWorker():
                            self._kill()
                        case Dismissed(error=error):
                            if error is not None:
                                _print(error)
                            return 0 if error is None else 1
            except (ConnectionEnded, MessageError):
                pass
            finally:
                connection.close()
                self._kill()
        return 0

    def _connect(self) -> Connection[Any] | None:
        """Connects to the controller; returns None if it is not reached in time."""
        deadline = time.monotonic() + self._wait
        purpose = Purpose(JOIN, "worker", self._host, secrets.randbelow(1 << 31), "controller")
        has_warned = False
        while True:
            try:
                sock = connect_to(self._address, _HEARTBEAT)
                return open_connection(sock, self._secret, purpose, decode_for_joined)
            except (OSError, MessageError) as error:
                where = ":".join(map(str, self._address))
                if time.monotonic() > deadline:
                    _print(f"cannot join {where}: {error}")
                    return None
                if not has_warned:
                    has_warned = True
                    _print(f"cannot join {where} yet, retrying for {self._wait:.0f} seconds: {error}")
                    if isinstance(error, ConnectionEnded):
                        _print("does the secret match the controller's?")
                time.sleep(_AGAIN_SECONDS)

    def _start(self, connection: Connection[Any], message: StartWorker) -> None:
        config = msgspec.structs.replace(message.config, secret=self._secret.hex())
        connection.keep_alive(config.heartbeat)
        # From now on this machine joins as the same host, to replace its worker.
        self._host = config.host
        try:
            self._child = child = Child(config)
        except HostStartError as error:
            connection.send(WorkerStarted(None, str(error)))
            return
        connection.send(WorkerStarted(child.pid))
        start_thread(lambda: self._watch(connection, child), "worker")

    def _watch(self, connection: Connection[Any], child: Child) -> None:
        while (status := child.exit_status(60.0)) is None:
            pass
        with contextlib.suppress(ConnectionEnded):
            connection.send(WorkerEnded(status, tuple(child.last_lines())))
        if self._leaves:
            # Wakes `serve`, which waits for the next message.
            connection.close()

    def _kill(self) -> None:
        if self._child is not None:
            self._child.kill()
            self._child.exit_status(_HEARTBEAT)
            self._child = None


def _print(text: str) -> None:
    print(f"pw-worker: {text}", file=sys.stderr, flush=True)


def _address(text: str) -> tuple[str, int]:
    name, _, port = text.rpartition(":")
    if not name or not port.isdecimal() or not 0 < int(port) < 1 << 16:
        raise argparse.ArgumentTypeError(f"{text!r}: expected an address and a port, as in 10.0.0.5:7000")
    return name, int(port)


def main() -> int:
    """Runs the command; see the docstring of the module."""
    parser = argparse.ArgumentParser(
        prog="pw-worker", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--join", type=_address, required=True, metavar="ADDRESS", help="address of the controller"
    )
    parser.add_argument(
        "--secret-file", required=True, metavar="F", help="secret file of the controller, or a copy"
    )
    parser.add_argument(
        "--host", type=int, default=ANY_HOST, metavar="N", help="number of the host to join as"
    )
    parser.add_argument("--wait", type=float, default=300.0, metavar="SECONDS", help="time to retry (300)")
    options = parser.parse_args()
    try:
        secret = secret_of(options.secret_file)
    except (OSError, ValueError) as error:
        _print(str(error))
        return 2
    joined = JoinedMachine(options.join, secret, options.host, options.wait)
    signal.signal(signal.SIGTERM, joined.leave)
    return joined.serve()


if __name__ == "__main__":
    sys.exit(main())
