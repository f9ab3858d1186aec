"""Workers, as the controller sees them: each, and as the gang of an island, started and lost together."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

from pathways.runtime.control.gang import GangView, HostActivity
from pathways.runtime.control.records.reports import HostReport
from pathways.runtime.hosts.cluster.round_trips import HostRoundTrip
from pathways.runtime.hosts.launch.launcher import WorkerProcess
from pathways.runtime.hosts.protocol.messages import DeviceLayout, Ready
from pathways.runtime.hosts.protocol.programs import WHOLE, ReplicaBlock
from pathways.runtime.hosts.protocol.wire import Connection
from pathways.runtime.resources.status import HostStatus


class WorkerHandle:
    """A worker.

    Args:
      index: its number.
      island: the name of its island.
      process: its process.
      connections: to it, by the names of `messages.CHANNELS`.
      ready: what it said of itself.

    Attributes:
      gang: the workers of its island.
      pulse: when it was heard of.
      round_trip: how long a question to it and the answer take.
    """

    gang: HostGang
    pulse: HostActivity

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
        self.round_trip = HostRoundTrip()

    def __str__(self) -> str:
        return f"host {self.index} ({self.island})"

    def join(self, gang: HostGang) -> None:
        """Makes it one of the workers of an island."""
        self.gang = gang
        self.pulse = gang.life.pulses[self.index]

    @property
    def data_address(self) -> str:
        """Where others pull arrays, as in `10.0.0.5:7001#host0.2`: ports of lost workers are used again."""
        return f"{self.ready.data_address}#host{self.index}.{self.gang.life.key.start}"

    @property
    def error(self) -> str | None:
        """Why it is gone; None while it is not."""
        failure = self.gang.life.failure
        return None if failure is None else failure.text

    def status(self, report: HostReport | None) -> HostStatus:
        """How it is; `report` is what it says of itself, None when it does not."""
        problem = self.gang.life.problem
        return HostStatus(
            self.index,
            self.island,
            self.process.pid,
            self.ready.platform,
            len(self.ready.devices),
            None if report is None else report.arrays,
            None if report is None else report.bytes,
            () if report is None else report.programs,
            None if problem is None else problem.text,
            self.round_trip.seconds,
        )

    def leave(self) -> None:
        """Forgets the connections, which another process goes on with."""
        for connection in (self.steps, self.arrays, self.watch):
            connection.detach()

    def close(self) -> None:
        """Ends the connections; whoever waits on one gets `ConnectionEnded`."""
        for connection in (self.steps, self.arrays, self.watch):
            connection.close()

    def describe_exit(self, seconds: float = 1.0) -> str | None:
        """That its process has ended, and how, if it has after so many seconds; None if it runs."""
        how = self.process.exit_status(seconds)
        return (
            None if how is None else f"its process has ended ({how}){stderr_tail(self.process.last_lines())}"
        )


"""All of an array."""


class HostGang:
    """The processes of a gang.

    Args:
      life: what becomes of them.
      hosts: the workers, in the order of their devices.

    Attributes:
      number: the number of the island.
      name: its name.
    """

    def __init__(self, life: GangView, hosts: Sequence[WorkerHandle]) -> None:
        self.life = life
        self.number = life.key.island
        self.name = life.name
        self.hosts = tuple(hosts)
        self._locations: dict[tuple[DeviceLayout, ReplicaBlock], Location] = {}
        for host in hosts:
            host.join(self)

    def is_lost(self) -> bool:
        """Whether it, and with it what it has, is gone."""
        return self.life.failure is not None

    def location(self, placement: DeviceLayout, block: ReplicaBlock = WHOLE) -> Location:
        """Where arrays lie on it, or a part of each."""
        key = (placement, block)
        return self._locations.setdefault(key, Location(self, *key))


@dataclasses.dataclass(frozen=True, eq=False)
class Location:
    """Where arrays lie. A gang has one object for each, so that comparing them takes no time.

    Attributes:
      gang: the workers.
      placement: how they lie there.
      part: what of them is there.
    """

    gang: HostGang
    placement: DeviceLayout
    block: ReplicaBlock = WHOLE

    def block_of(self, whole: Sequence[int]) -> tuple[tuple[int, ...], list[int]]:
        """The shape of what is there of an array of some shape, and its first element in each dimension."""
        shape = self.block.shape(whole)
        first = [0] * len(shape)
        if self.block.count > 1:
            first[self.block.dim] = self.block.number * shape[self.block.dim]
        return shape, first

    @functools.cached_property
    def holders(self) -> Mapping[WorkerHandle, tuple[int, ...]]:
        """The hosts that have a part of them, each with the positions of its devices in the placement."""
        positions = {
            host: tuple(n for n, device in enumerate(self.placement.devices) if device in host.ready.devices)
            for host in self.gang.hosts
        }
        return {host: own for host, own in positions.items() if own}


def stderr_tail(lines: Sequence[str]) -> str:
    """What a worker has written last, as the end of a message; nothing when it wrote nothing."""
    return "".join(f"\n  | {line}" for line in lines)
