"""Settings of islands and their workers."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from pathways.runtime.hosts.launch.launcher_records import Children, Ssh, WorkerLauncher, machines_of
from pathways.runtime.hosts.launch.options import HostOptions, check_count


@dataclasses.dataclass(frozen=True)
class Island:
    """Island of hosts that `pathways.connect` starts.

    Attributes:
      hosts: the number of hosts; or the names of the machines where they run, one host on each.
      devices_per_host: number of CPU devices of each; on other platforms a host has all devices of its
        machine.
      cores: number of cores of its machine that each host has for itself: no other host of the cluster uses
        them. None for all cores that it may use, shared with other hosts.
      spares: number of spare workers that this island adds, see `HostOptions.spares`; any island may use
        them.
      slices: number of equal slices (`slice_index`) as which unmodified JAX programs see its hosts. To
        everything else it is one island, which starts and is lost as a whole.

    Raises:
      ValueError: a setting is not valid.
    """

    __module__ = "pathways"

    hosts: int | Sequence[str] = 1
    devices_per_host: int = 1
    cores: int | None = None
    spares: int = 0
    slices: int = 1

    def __post_init__(self) -> None:
        if isinstance(self.hosts, int) or not isinstance(self.hosts, Sequence):
            check_count("hosts", self.hosts)
        else:
            object.__setattr__(self, "hosts", machines_of(self.hosts))
        check_count("devices_per_host", self.devices_per_host)
        if self.cores is not None:
            check_count("cores", self.cores)
        check_count("spares", self.spares, at_least=0)
        check_count("slices", self.slices)
        if len(self.machines) % self.slices:
            raise ValueError(f"slices={self.slices}: {len(self.machines)} hosts cannot form equal slices")

    @property
    def machines(self) -> tuple[str | None, ...]:
        """Names of the machines of its hosts; None for each host without one."""
        return (None,) * self.hosts if isinstance(self.hosts, int) else tuple(self.hosts)


@dataclasses.dataclass(frozen=True)
class Settings:
    """Settings of all workers of a cluster.

    Attributes:
      options: see `HostOptions`.
      launcher: the launcher of the workers, with the addresses on which controller and workers listen.
      platform: the JAX platform of the workers.

    Raises:
      ValueError: a setting is not valid, or cannot be combined with another.
    """

    islands: tuple[Island, ...]
    options: HostOptions = dataclasses.field(default_factory=HostOptions)
    launcher: WorkerLauncher = dataclasses.field(default_factory=Children)
    platform: str = "cpu"

    def __post_init__(self) -> None:
        if not self.islands:
            raise ValueError("islands=[]: expected at least one island")
        named = [machine for island in self.islands for machine in island.machines if machine is not None]
        if named and len(named) < self.hosts:
            raise ValueError("islands=: expected names of machines in all of them, or in none")
        if named:
            machines_of(named)
        if isinstance(self.launcher, Ssh):
            if not named:
                raise ValueError("islands=: expected names of machines for ssh, as in Island(['a', 'b'])")
        elif named and isinstance(self.launcher, Children):
            raise ValueError(
                f"hosts={named}: expected pathways.Ssh(bind=), which starts workers on machines with names"
            )
        elif named:
            raise ValueError(f"hosts={named}: {type(self.launcher).__name__} finds the machines itself")
        if self.spares and not isinstance(self.launcher, Children):
            raise ValueError(
                f"spares={self.spares}: spare workers are children of this process; expected hosts=2 or "
                "islands=[pathways.Island(hosts=2)], without names of machines and without a launcher"
            )
        for island in self.islands if self.platform != "cpu" else ():
            if island.devices_per_host != 1:
                raise ValueError(
                    f"devices_per_host={island.devices_per_host} is a number of CPU devices; with "
                    f"platform={self.platform!r} a host has all that JAX finds"
                )

    def with_island(self, island: Island) -> Settings:
        """Returns settings that have one more island.

        Raises:
          ValueError: the island cannot be combined with the others.
        """
        if (None in island.machines) != (None in self.islands[0].machines):
            expected = "a number of hosts" if None in self.islands[0].machines else "names of machines"
            raise ValueError(f"hosts={island.hosts!r}: expected {expected}, as the other islands have")
        return dataclasses.replace(self, islands=(*self.islands, island))

    @property
    def hosts(self) -> int:
        """Number of hosts of all islands."""
        return sum(len(island.machines) for island in self.islands)

    @property
    def spares(self) -> int:
        """Number of spare workers."""
        return self.options.spares + sum(island.spares for island in self.islands)

    @property
    def cores(self) -> int:
        """Number of cores of all hosts; one for each host without `cores`."""
        return sum(len(island.machines) * (island.cores or 1) for island in self.islands)


def islands_of(islands: object, hosts: int | None, devices_per_host: int) -> tuple[Island, ...]:
    """Returns the islands that a user requests: a list of them, or an island for each of some hosts.

    Raises:
      TypeError: an element of the list is not an island.
      ValueError: a number is below one.
    """
    if isinstance(hosts, Sequence):
        raise ValueError(f"hosts={hosts!r}: expected a number; for machines pathways.Ssh({hosts!r}, bind=)")
    if hosts is not None:
        check_count("hosts", hosts)
        return (Island(1, devices_per_host),) * hosts
    if not isinstance(islands, Sequence) or not all(isinstance(island, Island) for island in islands):
        raise TypeError(f"islands={islands!r}: expected a list of pathways.Island")
    return tuple(islands)
