"""Workers without JAX: threads of this process that connect, report that they are ready, and reply to steps.

Only the controller and the connections of workers take time.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Sequence

from pathways.runtime.hosts.launch.sockets import connect_to
from pathways.runtime.hosts.protocol.acceptor import open_connection
from pathways.runtime.hosts.protocol.frames import decode_for_worker
from pathways.runtime.hosts.protocol.join_messages import WorkerConfig
from pathways.runtime.hosts.protocol.messages import (
    CHANNELS,
    Done,
    Load,
    LoadDone,
    Ping,
    Pong,
    Purpose,
    Ready,
    Run,
)
from pathways.runtime.hosts.protocol.wire import Connection, ConnectionEnded


class ThreadWorker:
    """`WorkerProcess` that is a thread.

    Args:
      config: the configuration of the worker.
      seconds: the duration of its liveness check.
      fails: whether it exits instead of connecting.
      is_silent: whether it neither exits nor connects.

    Attributes:
      checks: the number of its liveness checks.
      waited: the seconds that its exit was waited for, before it was killed.
    """

    pid = 0

    def __init__(
        self, config: WorkerConfig, seconds: float, fails: bool = False, is_silent: bool = False
    ) -> None:
        self._config = config
        self._seconds = seconds
        self._connections: dict[str, Connection] = {}
        self._connecting = threading.Lock()
        self._ended = threading.Event()
        self.checks = 0
        self.waited = 0.0
        if fails:
            self._ended.set()
        elif not is_silent:
            threading.Thread(target=self._start, daemon=True).start()

    def exit_status(self, timeout: float) -> str | None:
        """See `WorkerProcess.exit_status`; a late reply is about the present."""
        self.checks += 1
        time.sleep(self._seconds)
        if not self._ended.is_set():
            self.waited += timeout
        return "exit code 1" if self._ended.wait(timeout) else None

    def kill(self) -> None:
        """See `WorkerProcess.kill`."""
        with self._connecting:
            self._ended.set()
            for connection in self._connections.values():
                connection.close()

    def last_lines(self) -> Sequence[str]:
        """See `WorkerProcess.last_lines`."""
        return ("it has no JAX",)

    def _start(self) -> None:
        config = self._config
        with contextlib.suppress(ConnectionEnded, OSError):
            for channel in CHANNELS:
                purpose = Purpose(channel, "worker", config.host, config.epoch, "controller")
                sock = connect_to(config.controller, config.heartbeat)
                secret = bytes.fromhex(config.secret)
                connection = open_connection(sock, secret, purpose, decode_for_worker)
                with self._connecting:
                    self._connections[channel] = connection
                    if self._ended.is_set():
                        connection.close()
                        return
            self._connections["watch"].send(Ready("cpu", (0,), (None,), "127.0.0.1:1", "127.0.0.1:2"))
            for channel in ("steps", "arrays"):
                threading.Thread(target=self._answer, args=(channel,), daemon=True).start()
            self._answer("watch")

    def _answer(self, channel: str) -> None:
        connection = self._connections[channel]
        with contextlib.suppress(ConnectionEnded, OSError):
            while True:
                match connection.receive():
                    case Ping(number):
                        connection.send(Pong(number))
                    case Run() as run:
                        connection.send(Done(run.run, None, {}, 0.0))
                    case Load() as load:
                        # The message arrives among arrays.
                        self._connections["steps"].send(LoadDone(load.request, None))
                    case _:
                        pass
        self._ended.set()


class ThreadLauncher:
    """`Launcher` of such threads.

    Args:
      seconds: the time of each liveness check, as over a network.
      fails: the number of the worker that exits at once, if one does.
      silent: the number of the worker that neither exits nor connects, if one does not.

    Attributes:
      workers: the workers that it has started.
    """

    def __init__(self, seconds: float = 0.0, fails: int | None = None, silent: int | None = None) -> None:
        self._seconds = seconds
        self._fails = fails
        self._silent = silent
        self.workers: list[ThreadWorker] = []

    def launch(
        self, configs: Sequence[WorkerConfig], seconds: float, stop: threading.Event
    ) -> Sequence[ThreadWorker]:
        """See `Launcher.launch`."""
        started = [
            ThreadWorker(config, self._seconds, config.host == self._fails, config.host == self._silent)
            for config in configs
        ]
        self.workers += started
        return started

    def set_hosts(self, count: int) -> None:
        """No-op: it has a place for each host."""

    def close(self) -> None:
        """No-op: it has no resources."""
