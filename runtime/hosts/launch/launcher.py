"""Interfaces of launchers, of the worker processes that they start, and of spare ones."""

from __future__ import annotations

import contextlib
import re
import signal
import threading
from collections.abc import Sequence
from typing import Protocol

from pathways.runtime.hosts.protocol.join_messages import WorkerConfig
from pathways.runtime.resources.status import SpareStatus

_OUTSIDE_SIGNALS = {signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP}
"""Signals of users, of the kernel without memory, and of machines that shut down."""

_CONNECTION_LOST = 255
"""Exit code of ssh when its connection is lost."""


class WorkerProcess(Protocol):
    """Process of a worker, on this machine or another. No method takes longer than some seconds.

    Attributes:
      pid: the process id on its machine.
    """

    pid: int

    def exit_status(self, timeout: float) -> str | None:
        """Waits for the exit; returns how it exited, as in `killed by signal 9`, or None after the timeout.

        Args:
          timeout: seconds to wait; 0 to poll.
        """

    def kill(self) -> None:
        """Kills it at once, also when it is stopped."""

    def last_lines(self) -> Sequence[str]:
        """Returns the last lines that it wrote to standard error, at most `child_process.LINES`."""


class Launcher(Protocol):
    """Service that starts workers."""

    def launch(
        self, configs: Sequence[WorkerConfig], seconds: float, stop: threading.Event
    ) -> Sequence[WorkerProcess]:
        """Starts the workers of an island, all of them or none.

        Args:
          configs: the configuration of each.
          seconds: how long it may take to find machines for them.
          stop: is set when they are not needed any more.

        Raises:
          HostError: there are no machines for them, or a worker cannot be started.
        """

    def set_hosts(self, count: int) -> None:
        """Handles that the number of hosts has changed: an island was added, or its workers did not start.

        Raises:
          HostError: it has no place for further hosts.
        """

    def close(self) -> None:
        """Releases its resources; all workers must have exited."""


class SpareWorkers:
    """Processes that take the places of lost workers; here there are none, see `resilience.spares`."""

    def status(self) -> SpareStatus | None:
        """Returns how many spares are ready; None if there shall be none."""
        return None

    def no_refill(self) -> contextlib.AbstractContextManager[None]:
        """Starts no spares while the context is entered, in which workers of an island start."""
        return contextlib.nullcontext()

    def take(self, config: WorkerConfig) -> WorkerProcess | None:
        """Makes a spare the worker of a configuration; returns None if no spare can be it."""
        return None

    def close(self) -> None:
        """Kills all spares; the workers that were spares before have ended."""


def is_crash(status: str, *, is_first: bool = True) -> bool:
    """Returns whether a status of `WorkerProcess.exit_status` means that the process crashed by itself.

    Args:
      is_first: whether it is the first host of its island: JAX aborts the other ones when they lose it.
    """
    match = re.fullmatch(r"(killed by signal|exit code) (\d+)", status)
    if match is None:
        return False
    number = int(match[2])
    if match[1] == "exit code":
        if number in (0, _CONNECTION_LOST):
            return False
        # Shells, and the commands that start workers elsewhere, exit with 128 plus the number of the signal.
        number -= 128
    return number not in _OUTSIDE_SIGNALS and (is_first or number != signal.SIGABRT)
