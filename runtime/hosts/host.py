"""Workers, as the controller sees them: each, and as the gang of an island, started and lost together."""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pathways.runtime.hosts.garbage import Unused
from pathways.runtime.hosts.launching import WorkerProcess
from pathways.runtime.hosts.messages import DeviceLayout, Ready, Report
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
      gang: the workers of its island.
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
        self.gang: Gang
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
            self.error or self.gang.leaving,
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


@dataclasses.dataclass(frozen=True)
class ReplicaPart:
    """What a replica has of arrays that replicas share.

    Attributes:
      number: which block.
      count: into how many blocks they are cut; 1 where all is there.
      dim: the dimension that is cut.
    """

    number: int
    count: int
    dim: int

    def of(self, value: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """It, of an array."""
        if self.count == 1:
            return value
        size = value.shape[self.dim] // self.count
        block = slice(self.number * size, (self.number + 1) * size)
        return value[(*(slice(None),) * self.dim, block)]

    def shape(self, whole: Sequence[int]) -> tuple[int, ...]:
        """Its shape, of an array of some shape."""
        return tuple(n // self.count if d == self.dim else n for d, n in enumerate(whole))


WHOLE = ReplicaPart(0, 1, 0)
"""All of an array."""


class Gang:
    """The workers of an island, from their start to their end.

    When one of several is lost, or fails at what the others do with it, nobody can say what the others have
    computed: so all of them are.

    Args:
      number: the number of the island.
      hosts: the workers, in the order of their devices.
      restarts: how often the island was started anew before, each time without having done a step.

    Attributes:
      name: the name of the island.
      is_several: whether it has more than one host.
      error: why it is lost; None while it is not.
      leaving: why it takes nothing more though it is not lost; None while it does.
      may_end: whether it was told that its processes may end.
      fate: why it is not started anew; None while it may be.
      unused: the numbers of the arrays that nobody holds.
    """

    def __init__(self, number: int, hosts: Sequence[HostProcess], restarts: int = 0) -> None:
        self.number = number
        self.hosts = tuple(hosts)
        self.restarts = restarts
        self.name = hosts[0].island
        self.is_several = len(hosts) > 1
        self.error: str | None = None
        self.leaving: str | None = None
        self.may_end = False
        self.fate: str | None = None
        self.unused: Unused[int] = Unused()
        self._locations: dict[tuple[DeviceLayout, ReplicaPart], Location] = {}
        self._began = time.monotonic()
        for host in hosts:
            host.gang = self

    def check(self) -> None:
        """Checks that it, and with it what it has, is there.

        Raises:
          HostError: it is lost.
        """
        if self.error is not None:
            raise HostError(self.error if self.fate is None else f"{self.error}; {self.fate}")

    def check_open(self) -> None:
        """Checks that it takes what is new.

        Raises:
          HostError: it is lost, or leaves.
        """
        self.check()
        if self.leaving is not None:
            raise HostError(self.leaving)

    def lose(self, host: HostProcess, how: str) -> None:
        """Notes that one of its hosts is gone, and how, as in `is lost: ...`; so are all."""
        self.error = f"{host} {how}"
        for other in self.hosts:
            other.error = self.error

    def location(self, placement: DeviceLayout, part: ReplicaPart = WHOLE) -> Location:
        """Where arrays lie on it, or a part of each."""
        key = (placement, part)
        return self._locations.setdefault(key, Location(self, *key))

    def has_done_something(self) -> bool:
        """Whether any of its hosts was done with a step."""
        return any(host.progressed > self._began for host in self.hosts)


@dataclasses.dataclass(frozen=True, eq=False)
class Location:
    """Where arrays lie. A gang has one object for each, so that comparing them takes no time.

    Attributes:
      gang: the workers.
      placement: how they lie there.
      part: what of them is there.
    """

    gang: Gang
    placement: DeviceLayout
    part: ReplicaPart = WHOLE

    @functools.cached_property
    def holders(self) -> Mapping[HostProcess, tuple[int, ...]]:
        """The hosts that have a part of them, each with the positions of its devices in the placement."""
        positions = {
            host: tuple(n for n, device in enumerate(self.placement.devices) if device in host.ready.devices)
            for host in self.gang.hosts
        }
        return {host: own for host, own in positions.items() if own}


def last_words(lines: Sequence[str]) -> str:
    """What a worker has written last, as the end of a message; nothing when it wrote nothing."""
    return "".join(f"\n  | {line}" for line in lines)
