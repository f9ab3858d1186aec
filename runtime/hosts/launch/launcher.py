"""How workers get to run, apart from how they are spoken to."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Protocol

from pathways.runtime.hosts.protocol.join_messages import WorkerConfig


class WorkerProcess(Protocol):
    """The process of a worker, wherever it runs. Nothing here takes longer than some seconds.

    Attributes:
      pid: its number on its machine.
    """

    pid: int

    def ending(self, seconds: float) -> str | None:
        """How it ended, as in `killed by signal 9`; None if it still runs after so many seconds."""

    def kill(self) -> None:
        """Ends it at once, also when it is stopped."""

    def last_lines(self) -> Sequence[str]:
        """Returns the last lines that it wrote to standard error, at most `child_process.LINES`."""


class Launcher(Protocol):
    """Starts workers."""

    def launch(
        self, configs: Sequence[WorkerConfig], seconds: float, stop: threading.Event
    ) -> Sequence[WorkerProcess]:
        """Starts the workers of an island, all of them or none.

        Args:
          configs: what they have to know.
          seconds: how long it may take to find places for them.
          stop: is set when they are not wanted any more.

        Raises:
          HostError: there is no place for them.
        """

    def close(self) -> None:
        """Gives back what it holds; all workers have ended."""
