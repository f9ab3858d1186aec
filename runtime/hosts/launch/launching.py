"""How workers get to run, apart from how they are spoken to."""

from __future__ import annotations

import dataclasses
import json
import threading
from collections.abc import Sequence
from typing import Protocol

LINES = 20
"""How many of the last lines that a worker has written are kept."""


@dataclasses.dataclass(frozen=True)
class WorkerConfig:
    """What a worker has to know.

    Attributes:
      controller: where the controller listens: the path of a socket, or address and port.
      secret: what all workers of the cluster know, in hexadecimal digits.
      host: its number.
      epoch: how often workers were started before: tells it from an earlier worker of the same number.
      rank: its place among the hosts of its island.
      size: how many hosts its island has.
      cpu_devices: how many CPU devices it has.
      heartbeat: seconds that another worker may say nothing.
      grace: seconds that its island may take to end when a worker of it was asked to.
      ports: the first and the last port that it may listen on; None for any.
      cores: how many cores it has for itself; None for any, together with others.
      first_core: the position of the first of them among those that it may use; its launcher knows.
      platform: the JAX platform of its devices.
      machine: the name of the machine where it is to run; None where none is named.
    """

    controller: str | tuple[str, int]
    secret: str
    host: int
    epoch: int
    rank: int
    size: int
    cpu_devices: int
    heartbeat: float
    grace: float
    ports: tuple[int, int] | None = None
    cores: int | None = None
    first_core: int = 0
    platform: str = "cpu"
    machine: str | None = None

    def __str__(self) -> str:
        return f"host {self.host}" if self.machine is None else f"host {self.host} ({self.machine})"

    def to_json(self) -> str:
        """One line of JSON."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, line: str) -> WorkerConfig:
        """The reverse of `to_json`."""
        fields = json.loads(line)
        for name in ("controller", "ports"):
            if isinstance(fields[name], list):
                fields[name] = tuple(fields[name])
        return cls(**fields)


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
        """What it wrote to standard error last, at most `LINES` lines."""


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
