"""Workers as children of this process, or of commands that it runs."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence

import msgspec

from pathways.runtime.control.records.errors import HostStartError
from pathways.runtime.hosts.launch.commands import StartCommand, worker_command
from pathways.runtime.hosts.launch.cores import CoreShares
from pathways.runtime.hosts.launch.exit_monitor import end_all
from pathways.runtime.hosts.protocol.join_messages import WorkerConfig
from pathways.runtime.resources.child_process import ChildProcess

_END_SECONDS = 2.0
"""How long a worker may take to end that was killed."""


def worker_environment() -> dict[str, str]:
    """Returns the environment of a worker that starts now."""
    # The controller writes what its workers record.
    return {name: value for name, value in os.environ.items() if name != "PW_TRACE"}


class Child(ChildProcess):
    """A worker that is a child of this process; what it writes to standard error is passed on.

    On this machine it is killed when this process exits.

    Args:
      config: what it has to know; None for a spare worker, which gets it later, by `configure`.
      start: the command that gets it to run on its machine; None for this machine.

    Attributes:
      output: of a spare worker its standard output: a line when it is ready, and its end when it has its
        configuration, or has exited. None of others.

    Raises:
      HostStartError: there is no such command.
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
                # A worker waits for SIGTERM, and begins with that; until then it is not to end of it, nor of
                # Ctrl-C, which is for the controller. A command is.
                blocked={signal.SIGTERM, signal.SIGINT} if start is None else (),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE if config is None else subprocess.DEVNULL,
                env=worker_environment(),
                # Other commands would end of Ctrl-C.
                start_new_session=start is not None,
            )
        except OSError as error:
            what = "a spare worker" if config is None else str(config)
            raise HostStartError(f"{what} did not start: cannot run {command[0]!r}: {error}") from None
        self.output = self._process.stdout
        if config is not None:
            self.configure(config)

    def configure(self, config: WorkerConfig) -> None:
        """Sends the worker what it has to know: not on the command line, which everyone may read."""
        assert self._process.stdin is not None
        # It may have ended already.
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(config.to_json().encode() + b"\n")
            self._process.stdin.flush()

    def ending(self, seconds: float) -> str | None:
        """See `WorkerProcess.ending`."""
        code = self.exit_code(seconds)
        if code is None:
            return None
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        return f"killed by signal {-code}" if code < 0 else f"exit code {code}"

    def _pass_on(self, line: str) -> None:
        # Its reader may be gone.
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.write(self._prefix + line)


class Spawner:
    """Starts workers as children of this process.

    Args:
      start: the command that gets each to run on its machine; None for this machine.
      take_spare: makes a spare worker that of a configuration; returns None if there is none.
    """

    def __init__(
        self,
        start: StartCommand | None = None,
        take_spare: Callable[[WorkerConfig], Child | None] = lambda config: None,
    ) -> None:
        self._start = start
        self._take_spare = take_spare
        self._cores = CoreShares()

    def launch(
        self, configs: Sequence[WorkerConfig], seconds: float, stop: threading.Event
    ) -> Sequence[Child]:
        """See `Launcher.launch`."""
        started: list[Child] = []
        try:
            for config in configs:
                if config.cores is not None:
                    first = self._cores.take(config.machine or "", config.host, config.cores)
                    config = msgspec.structs.replace(config, first_core=first)
                started.append(self._take_spare(config) or Child(config, self._start))
        except BaseException:
            end_all(started, _END_SECONDS)
            raise
        return started

    def close(self) -> None:
        """There is nothing to give back."""
