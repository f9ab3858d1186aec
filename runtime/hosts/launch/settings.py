"""Settings of islands and their workers."""

from __future__ import annotations

import dataclasses
import ipaddress
from collections.abc import Sequence

from pathways.runtime.hosts.launch.commands import StartCommand
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
class Endpoints:
    """Addresses and ports on which controller and workers listen.

    Attributes:
      bind: the address on which the controller listens for workers. None for a socket in a folder of this
        machine.
      advertise: the address at which workers find the controller; by default `bind`.
      ports: the first and the last port that controller and workers may listen on; None for any.

    Raises:
      ValueError: a setting is not valid, or misses another.
    """

    bind: str | None = None
    advertise: str | None = None
    ports: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        if self.bind is not None:
            try:
                address = ipaddress.IPv4Address(self.bind)
            except ValueError:
                raise ValueError(f"bind={self.bind!r}: expected an IPv4 address of this machine") from None
            if address.is_unspecified and self.advertise is None:
                raise ValueError(
                    f"bind={self.bind!r} is every address; pass advertise= with the one for workers"
                )
        elif self.advertise is not None or self.ports is not None:
            raise ValueError("advertise= and ports= need bind=, the address that the controller listens on")

    @property
    def join_address(self) -> str:
        """Address and port at which machines join the controller: the first of its ports."""
        assert self.ports is not None
        return f"{self.advertise or self.bind}:{self.ports[0]}"


@dataclasses.dataclass(frozen=True)
class Settings:
    """Settings of all workers of a cluster.

    Attributes:
      options: see `HostOptions`.
      bind: see `Endpoints`.
      start: the command that starts a worker on its machine; None where machines have no names.
      platform: the JAX platform of the workers.
      launcher: `ray`, `join` for machines that join, or None for this process.
      address: the address of the Ray cluster; None to start one.
      secret_file: the path of the file with the secret for machines that join.

    Raises:
      ValueError: a setting is not valid, or cannot be combined with another.
    """

    islands: tuple[Island, ...]
    options: HostOptions = dataclasses.field(default_factory=HostOptions)
    bind: str | None = None
    start: StartCommand | None = None
    platform: str = "cpu"
    launcher: str | None = None
    address: str | None = None
    secret_file: str | None = None

    def __post_init__(self) -> None:
        if not self.islands:
            raise ValueError("islands=[]: expected at least one island")
        Endpoints(self.bind, self.options.advertise, self.options.ports)
        named = [machine for island in self.islands for machine in island.machines if machine is not None]
        if named and len(named) < self.hosts:
            raise ValueError("islands=: expected names of machines in all of them, or in none")
        if named:
            machines_of(named)
        if named and self.launcher is not None:
            raise ValueError(f"hosts={named}: connect({self.launcher!r}) finds the machines itself")
        if named and self.bind is None:
            raise ValueError(
                f"hosts={named}: expected bind=, the address of this machine that workers on others reach"
            )
        if self.start is not None and not named:
            raise ValueError("start= and python= are for named machines, as in hosts=['a', 'b']")
        if self.spares and (named or self.launcher is not None):
            raise ValueError(
                f"spares={self.spares}: spare workers are children of this process; expected hosts=2 or "
                "islands=[pathways.Island(hosts=2)], without names of machines and without a launcher"
            )
        if (self.launcher == "join") != (self.secret_file is not None):
            raise ValueError("connect('join') and secret_file= go together")
        ports = self.options.ports
        if self.launcher == "join" and (self.bind is None or ports is None or ports[0] == ports[1]):
            raise ValueError(
                "connect('join'): expected bind= and options=pathways.HostOptions(ports=(first, last)): "
                "workers join at the first of some ports"
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
    def endpoints(self) -> Endpoints:
        """Addresses and ports on which controller and workers listen."""
        return Endpoints(self.bind, self.options.advertise, self.options.ports)

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


def islands_of(
    islands: object, hosts: int | Sequence[str] | None, devices_per_host: int
) -> tuple[Island, ...]:
    """Returns the islands that a user requests: a list of them, or an island for each of some hosts.

    Raises:
      TypeError: an element of the list is no island.
      ValueError: a number is below one, or a name is not valid.
    """
    if hosts is not None and not isinstance(hosts, int):
        return tuple(Island([machine], devices_per_host) for machine in machines_of(hosts))
    if hosts is not None:
        check_count("hosts", hosts)
        return (Island(1, devices_per_host),) * hosts
    if not isinstance(islands, Sequence) or not all(isinstance(island, Island) for island in islands):
        raise TypeError(f"islands={islands!r}: expected a list of pathways.Island")
    return tuple(islands)


def machines_of(names: Sequence[str]) -> tuple[str, ...]:
    """Checks names of machines, and returns them.

    Raises:
      ValueError: there is none, or a name is not valid or occurs twice.
    """
    if not isinstance(names, Sequence) or isinstance(names, str) or not names:
        raise ValueError(f"hosts={names!r}: expected a number, or a list of names of machines")
    for name in names:
        # The command that starts workers would read a name with a leading dash as an option.
        if not isinstance(name, str) or len(name.split()) != 1 or name != name.strip() or name[0] == "-":
            raise ValueError(f"hosts: {name!r} is not the name of a machine")
        if names.count(name) > 1:
            raise ValueError(f"hosts: {name!r} is named more than once; expected one host on each machine")
    return tuple(names)
