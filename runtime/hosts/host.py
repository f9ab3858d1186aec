"""A worker, as the controller sees it."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Mapping
from typing import Any

from pathways.runtime.hosts.messages import Hello, Report
from pathways.runtime.hosts.wire import Connection
from pathways.runtime.resources.status import HostStatus


class HostError(RuntimeError):
    """A host is gone, or failed to do what it was asked; names the host."""

    __module__ = "pathways"


class HostProcess:
    """A worker.

    Args:
      index: its number.
      process: its process.
      connections: to it, by the names of `messages.CHANNELS`.
      hello: what it said of itself.

    Attributes:
      island: the name of its island.
      error: why it is gone; None while it is not.
      heard: when it said something last, by `time.monotonic`.
      progressed: when it was done with a step last.
    """

    def __init__(
        self,
        index: int,
        process: subprocess.Popen[bytes],
        connections: Mapping[str, Connection[Any]],
        hello: Hello,
    ) -> None:
        self.index = index
        self.process = process
        self.steps = connections["steps"]
        self.arrays = connections["arrays"]
        self.watch = connections["watch"]
        self.hello = hello
        self.island = f"island{index}"
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
            self.hello.platform,
            len(self.hello.devices),
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

    def ending(self) -> str:
        """How its process ended, as the end of a sentence."""
        return ending(self.process)


def ending(process: subprocess.Popen[bytes]) -> str:
    """How a process ended, as the end of a sentence."""
    try:
        code = process.wait(timeout=1)
    except subprocess.TimeoutExpired:
        return ""
    return f" (killed by signal {-code})" if code < 0 else f" (exit code {code})"
