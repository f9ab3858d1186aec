"""Agent of a machine: joins a controller, runs the workers that it orders, and reports why each one ended.

When its worker is lost, the agent also runs the replacement. It ends with the controller, or when the
controller cannot be reached for some time.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import sys
import time
from typing import Any

import msgspec

from pathways.runtime.control.records.errors import HostStartError
from pathways.runtime.hosts.launch.child_launcher import Child
from pathways.runtime.hosts.launch.sockets import connect_to
from pathways.runtime.hosts.protocol.acceptor import open_connection
from pathways.runtime.hosts.protocol.join_messages import (
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


class Agent:
    """Agent of this machine. It writes a line to standard error when it joins, loses a worker and leaves.

    Args:
      address: where the controller listens for agents.
      host: the number of the host that it requests; `ANY_HOST` for any.
      wait: seconds for which the controller may be out of reach.
    """

    def __init__(self, address: tuple[str, int], secret: bytes, host: int, wait: float) -> None:
        self._address = address
        self._shown = ":".join(map(str, address))
        self._secret = secret
        self._host = host
        self._wait = wait
        self._child: Child | None = None
        self._leaves = False
        self._has_lost = False

    def leave(self, number: int, frame: object) -> None:
        """Forwards a signal to the worker, which exits with its island; this process exits after it."""
        self._leaves = True
        if self._child is None:
            os._exit(128 + number)
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._child.pid, number)

    def serve(self) -> str | None:
        """Runs workers, one after the other; returns None, or the error that ended it."""
        while not self._leaves:
            try:
                connection = self._connect()
            except (OSError, MessageError) as error:
                return f"cannot join {self._shown}: {error}"
            _print(f"joined {self._shown}")
            try:
                while (message := connection.receive()) is not None:
                    match message:
                        case StartWorker():
                            self._start(connection, message)
                        case KillWorker():
                            self._kill()
                        case Dismissed():
                            _print(f"left {self._shown}")
                            return message.error
            except (ConnectionEnded, MessageError):
                _print(f"left {self._shown}" if self._leaves else f"lost {self._shown}")
            finally:
                connection.close()
                self._kill()
        return None

    def _connect(self) -> Connection[Any]:
        """Connects to the controller.

        Raises:
          OSError: it is not reached in time.
          MessageError: it does not know the secret.
        """
        deadline = time.monotonic() + self._wait
        purpose = Purpose(JOIN, "worker", self._host, secrets.randbelow(1 << 31), "controller")
        has_warned = False
        while True:
            try:
                sock = connect_to(self._address, _HEARTBEAT)
                return open_connection(sock, self._secret, purpose, decode_for_joined)
            except (OSError, MessageError) as error:
                if time.monotonic() > deadline:
                    raise
                if not has_warned:
                    has_warned = True
                    _print(f"cannot join {self._shown} yet, retrying for {self._wait:.0f} seconds: {error}")
                    if isinstance(error, ConnectionEnded):
                        _print("does the secret match the controller's?")
                time.sleep(_AGAIN_SECONDS)

    def _start(self, connection: Connection[Any], message: StartWorker) -> None:
        config = msgspec.structs.replace(message.config, secret=self._secret.hex())
        connection.keep_alive(config.heartbeat)
        # From now on this agent joins as the same host, to replace its worker.
        self._host = config.host
        try:
            self._child = child = Child(config)
        except HostStartError as error:
            connection.send(WorkerStarted(None, str(error)))
            return
        connection.send(WorkerStarted(child.pid))
        state = "replaces it" if self._has_lost else "runs"
        _print(f"host {self._host}: worker {child.pid} {state}")
        start_thread(lambda: self._watch(connection, child), "worker")

    def _watch(self, connection: Connection[Any], child: Child) -> None:
        while (status := child.exit_status(60.0)) is None:
            pass
        self._has_lost = not self._leaves
        _print(f"host {self._host}: worker {child.pid} {'left' if self._leaves else 'is lost'}: {status}")
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
