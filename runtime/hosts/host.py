"""Workers, as the controller sees them."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from pathways.runtime.hosts.launching import WorkerProcess
from pathways.runtime.hosts.messages import Ready, Report
from pathways.runtime.hosts.wire import Connection
from pathways.runtime.resources.status import HostStatus


class HostError(RuntimeError):
    """A host is gone, or failed to do what it was asked; names the host."""

    __module__ = "pathways"


class HostProcess:
    """A worker.

    Args:
      index: its number.
      island: the name of its island.
      process: its process.
      connections: to it, by the names of `messages.CHANNELS`.
      ready: what it said of itself.

    Attributes:
      error: why it is gone; None while it is not.
      heard: when it said something last, by `time.monotonic`.
      progressed: when it was done with a step last.
    """

    def __init__(
        self,
        index: int,
        island: str,
        process: WorkerProcess,
        connections: Mapping[str, Connection[Any]],
        ready: Ready,
    ) -> None:
        self.index = index
        self.island = island
        self.process = process
        self.steps = connections["steps"]
        self.arrays = connections["arrays"]
        self.watch = connections["watch"]
        self.ready = ready
        self.error: str | None = None
        self.heard = self.progressed = time.monotonic()

    def __str__(self) -> str:
        return f"host {self.index} ({self.island})"

    def status(self, report: Report | None) -> HostStatus:
        """How it is; `report` is what it says of itself, None when it does not."""
        return HostStatus(
            self.index,
            self.island,
            self.process.pid,
            self.ready.platform,
            len(self.ready.devices),
            None if report is None else report.arrays,
            None if report is None else report.bytes,
            () if report is None else report.programs,
            self.error,
        )

    def leave(self) -> None:
        """Forgets the connections, which another process goes on with."""
        for connection in (self.steps, self.arrays, self.watch):
            connection.leave()

    def close(self) -> None:
        """Ends the connections; whoever waits on one gets `ConnectionEnded`."""
        for connection in (self.steps, self.arrays, self.watch):
            connection.close()

    def ending(self, seconds: float = 1.0) -> str | None:
        """That its process has ended, and how, if it has after so many seconds; None if it runs."""
        how = self.process.ending(seconds)
        return (
            None if how is None else f"its process has ended ({how}){last_words(self.process.last_lines())}"
        )


def last_words(lines: Sequence[str]) -> str:
    """What a worker has written last, as the end of a message; nothing when it wrote nothing."""
    return "".join(f"\n  | {line}" for line in lines)
