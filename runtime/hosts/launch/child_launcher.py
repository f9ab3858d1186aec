"""Launcher of workers as children of this process, or of commands that it runs."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence

import msgspec

from pathways.runtime.control.records.errors import HostStartError
from pathways.runtime.hosts.launch.commands import StartCommand, worker_command
from pathways.runtime.hosts.launch.cores import CoreShares
from pathways.runtime.hosts.launch.exit_monitor import kill_all
from pathways.runtime.hosts.launch.launcher import SpareWorkers, WorkerProcess
from pathways.runtime.hosts.protocol.join_messages import WorkerConfig
from pathways.runtime.resources.child_process import ChildProcess

_EXIT_TIMEOUT_S = 2.0
"""Seconds that a killed worker may take to exit."""


def worker_environment() -> dict[str, str]:
    """Returns the environment of a worker that starts now."""
    # The controller writes the traces of its workers.
    return {name: value for name, value in os.environ.items() if name != "PW_TRACE"}


class Child(ChildProcess):
    """Worker that is a child of this process; its standard error is passed on.

    On this machine it is killed when this process exits.

    Args:
      config: its configuration; None for a spare worker, which gets one later, by `configure`.
      start: the command that starts it on its machine; None for this machine.

    Attributes:
      output: the standard output of a spare worker: a line when it is ready, and the end of the file when it
        has been configured or has exited. None for other workers.

    Raises:
      HostStartError: the command does not exist.
    """

    def __init__(self, config: WorkerConfig | None, start: StartCommand | None = None) -> None:
        self._prefix = ""
        if config is None or start is None:
            command = [*worker_command(sys.executable), str(os.getpid())]
        else:
            assert config.machine is not None
            command, self._prefix = start.of(config.machine), f"{config.machine}: "
        try:
            super().__init__(
                command,
                on_line=self._pass_on,
                # A worker handles SIGTERM once it runs; until then neither that nor Ctrl-C, which is for the
                # controller, may kill it. Other commands keep their handlers.
                blocked={signal.SIGTERM, signal.SIGINT} if start is None else (),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE if config is None else subprocess.DEVNULL,
                env=worker_environment(),
                # Ctrl-C would kill other commands, in the process group of this process.
                start_new_session=start is not None,
            )
        except OSError as error:
            name = "a spare worker" if config is None else str(config)
            raise HostStartError(f"{name} did not start: cannot run {command[0]!r}: {error}") from None
        self.output = self._process.stdout
        if config is not None:
            self.configure(config)

    def configure(self, config: WorkerConfig) -> None:
        """Sends the worker its configuration: not on the command line, which any user may read."""
        assert self._process.stdin is not None
        # It may have exited already.
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(config.to_json().encode() + b"\n")
            self._process.stdin.flush()

    def exit_status(self, timeout: float) -> str | None:
        """See `WorkerProcess.exit_status`."""
        code = self.exit_code(timeout)
        if code is None:
            return None
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        return f"killed by signal {-code}" if code < 0 else f"exit code {code}"

    def _pass_on(self, line: str) -> None:
        # Standard error of this process may be closed.
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.write(self._prefix + line)


class Spawner:
    """`Launcher` of workers as children of this process.

    Args:
      start: the command that starts each on its machine; None for this machine.
      spares: the spare workers, which are used first.
    """

    def __init__(
        self,
        start: StartCommand | None = None,
        spares: SpareWorkers | None = None,
    ) -> None:
        self._start = start
        self._spares = spares or SpareWorkers()
        self._cores = CoreShares()

    def launch(
        self, configs: Sequence[WorkerConfig], seconds: float, stop: threading.Event
    ) -> Sequence[WorkerProcess]:
        """See `Launcher.launch`."""
        started: list[WorkerProcess] = []
        try:
            for config in configs:
                if config.cores is not None:
                    first = self._cores.assign(config.machine or "", config.host, config.cores)
                    config = msgspec.structs.replace(config, first_core=first)
                started.append(self._spares.take(config) or Child(config, self._start))
        except BaseException:
            kill_all(started, _EXIT_TIMEOUT_S)
            raise
        return started

    def set_hosts(self, count: int) -> None:
        """See `Launcher.set_hosts`; cores of hosts that do not exist are free again."""
        self._cores.release_from(count)

    def close(self) -> None:
        """See `Launcher.close`: there are no resources to release."""
