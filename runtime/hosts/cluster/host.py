"""Workers as the controller sees them, and gangs: the workers of an island, started and lost together."""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Mapping, Sequence
from typing import Any

from pathways.runtime.control.gang import GangView, HostActivity
from pathways.runtime.control.records.pending_frees import PendingFrees
from pathways.runtime.control.records.reports import HostReport
from pathways.runtime.hosts.cluster.round_trips import HostRoundTrip
from pathways.runtime.hosts.launch.launcher import WorkerProcess
from pathways.runtime.hosts.protocol.messages import DeviceLayout, Ready
from pathways.runtime.hosts.protocol.programs import WHOLE_ARRAY, ReplicaBlock
from pathways.runtime.hosts.protocol.wire import Connection
from pathways.runtime.resources.status import HostStatus


class WorkerHandle:
    """A worker.

    Args:
      index: its number.
      connections: the connections to it, by the names of `messages.CHANNELS`.
      ready: its devices and addresses.

    Attributes:
      gang: the workers of its island.
      pulse: the time of its last message.
      since: the time when it was ready, in seconds since the epoch.
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
        self.since = time.time()
        self.round_trip = HostRoundTrip()

    def __str__(self) -> str:
        return f"host {self.index} ({self.island})"

    def join(self, gang: HostGang) -> None:
        """Makes it one of the workers of an island."""
        self.gang = gang
        self.pulse = gang.life.pulses[self.index]

    @property
    def data_address(self) -> str:
        """Address from which other workers pull arrays, such as `10.0.0.5:7001#host0.2`.

        The suffix tells it from a lost worker whose port is reused.
        """
        return f"{self.ready.data_address}#host{self.index}.{self.gang.life.key.start}"

    @property
    def error(self) -> str | None:
        """Reason of its loss; None while it is not lost."""
        failure = self.gang.life.failure
        return None if failure is None else failure.text

    def status(self, report: HostReport | None) -> HostStatus:
        """Returns its status; `report` is None if it sent none in time."""
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
        """Releases the connections in a forked process, since the parent process continues to use them."""
        for connection in (self.steps, self.arrays, self.watch):
            connection.detach()

    def close(self) -> None:
        """Closes the connections; threads that wait on one get `ConnectionEnded`."""
        for connection in (self.steps, self.arrays, self.watch):
            connection.close()

    def describe_exit(self, timeout: float = 1.0) -> str | None:
        """Returns how its process exited, and the end of its log; None if it still runs after the timeout."""
        status = self.process.exit_status(timeout)
        return (
            None
            if status is None
            else f"its process has ended ({status}){stderr_tail(self.process.last_lines())}"
        )


class HostGang:
    """Workers of an island.

    Args:
      life: the state of the gang in the core.
      hosts: the workers, in the order of their devices.
      slices: the number of slices as which unmodified JAX programs see them.

    Attributes:
      unused: the arrays that are no longer held, and that only some of its hosts know of, by these hosts.
    """

    def __init__(self, life: GangView, hosts: Sequence[WorkerHandle], slices: int = 1) -> None:
        self.life = life
        self.slices = slices
        self.number = life.key.island
        self.name = life.name
        self.hosts = tuple(hosts)
        self.unused: dict[tuple[WorkerHandle, ...], PendingFrees[int]] = {}
        self._locations: dict[tuple[DeviceLayout, ReplicaBlock, bool], Location] = {}
        for host in hosts:
            host.join(self)

    @property
    def round_trip(self) -> float | None:
        """The longest round trip to one of its hosts, in seconds; None if unknown."""
        trips = [trip for host in self.hosts if (trip := host.round_trip.seconds) is not None]
        return max(trips, default=None)

    def is_lost(self) -> bool:
        """Returns whether its workers, and all arrays on them, are lost."""
        return self.life.failure is not None

    def location(
        self, placement: DeviceLayout, block: ReplicaBlock = WHOLE_ARRAY, *, is_private: bool = False
    ) -> Location:
        """Returns the location of arrays, or of a block of each, with a layout over its devices."""
        key = (placement, block, is_private)
        return self._locations.setdefault(key, Location(self, *key))


@dataclasses.dataclass(frozen=True, eq=False)
class Location:
    """Gang and layout of arrays. A gang has one object for each layout, so that identity compares them.

    Attributes:
      gang: the workers.
      placement: the devices and the sharding over them.
      block: the block of each array that the gang holds.
      is_private: whether the hosts without shards know nothing of the arrays.
    """

    gang: HostGang
    placement: DeviceLayout
    block: ReplicaBlock = WHOLE_ARRAY
    is_private: bool = False

    @functools.cached_property
    def receivers(self) -> tuple[WorkerHandle, ...]:
        """Hosts that know of the arrays."""
        return tuple(self.holders) if self.is_private else self.gang.hosts

    @functools.cached_property
    def unused(self) -> PendingFrees[int]:
        """The arrays that are no longer held, until these hosts are notified."""
        if self.receivers == self.gang.hosts:
            return self.gang.life.unused
        return self.gang.unused.setdefault(self.receivers, PendingFrees())

    def block_of(self, array_shape: Sequence[int]) -> tuple[tuple[int, ...], list[int]]:
        """Returns the shape of the block of an array, and the index of its first element.

        Args:
          array_shape: the shape of the array.
        """
        shape = self.block.shape(array_shape)
        first = [0] * len(shape)
        if self.block.count > 1:
            first[self.block.dim] = self.block.number * shape[self.block.dim]
        return shape, first

    @functools.cached_property
    def holders(self) -> Mapping[WorkerHandle, tuple[int, ...]]:
        """Hosts that have shards, each with the positions of its devices in the placement."""
        positions = {
            host: tuple(n for n, device in enumerate(self.placement.devices) if device in host.ready.devices)
            for host in self.gang.hosts
        }
        return {host: shards for host, shards in positions.items() if shards}


def stderr_tail(lines: Sequence[str]) -> str:
    """Returns the last lines that a worker wrote, as the end of a message; empty if it wrote none."""
    return "".join(f"\n  | {line}" for line in lines)
