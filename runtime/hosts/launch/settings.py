"""What a user says of workers."""

from __future__ import annotations

import dataclasses
import ipaddress
from collections.abc import Sequence

from pathways.runtime.hosts.launch.options import HostOptions, check_count


@dataclasses.dataclass(frozen=True)
class Island:
    """An island of hosts that `pathways.connect` is to start.

    Attributes:
      hosts: how many.
      devices_per_host: CPU devices of each.
      cores: how many cores of its machine each host has for itself: no other host of the cluster gets them.
        None for all that it may use, together with others.

    Raises:
      ValueError: one of them cannot be.
    """

    __module__ = "pathways"

    hosts: int = 1
    devices_per_host: int = 1
    cores: int | None = None

    def __post_init__(self) -> None:
        for name in ("hosts", "devices_per_host"):
            check_count(name, getattr(self, name))
        if self.cores is not None:
            check_count("cores", self.cores)


@dataclasses.dataclass(frozen=True)
class Endpoints:
    """Where controller and workers listen.

    Attributes:
      bind: the address on which the controller listens for workers. None for a socket in a folder of this
        machine.
      advertise: the address at which workers find it; by default `bind`.
      ports: the first and the last port of those that it and its workers may listen on; None for any.

    Raises:
      ValueError: one of them cannot be.
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
                    f"bind={self.bind!r} is every address; say with advertise= which one workers shall use"
                )
        elif self.advertise is not None or self.ports is not None:
            raise ValueError(
                "advertise= and ports= go with bind=, the address that the controller listens on"
            )


@dataclasses.dataclass(frozen=True)
class Settings:
    """How workers are started and watched.

    Attributes:
      islands: the islands.
      options: how they are watched.
      bind: see `Endpoints`.
      launcher: who starts workers: `ray`, or None for this process.
      address: that of the cluster of the launcher; None for one of its own.

    Raises:
      ValueError: one of them cannot be.
    """

    islands: tuple[Island, ...]
    options: HostOptions = dataclasses.field(default_factory=HostOptions)
    bind: str | None = None
    launcher: str | None = None
    address: str | None = None

    def __post_init__(self) -> None:
        if not self.islands:
            raise ValueError("islands=[]: expected at least one island")
        Endpoints(self.bind, self.options.advertise, self.options.ports)

    @property
    def endpoints(self) -> Endpoints:
        """Where controller and workers listen."""
        return Endpoints(self.bind, self.options.advertise, self.options.ports)

    @property
    def hosts(self) -> int:
        """The number of hosts of all islands."""
        return sum(island.hosts for island in self.islands)

    @property
    def cores(self) -> int:
        """The number of cores that they take of machines; one for each host that does not say."""
        return sum(island.hosts * (island.cores or 1) for island in self.islands)


def islands_of(islands: object, hosts: int | None, devices_per_host: int) -> tuple[Island, ...]:
    """The islands that a user asks for: a list of them, or a number of hosts that are one each.

    Raises:
      TypeError: something in the list is no island.
      ValueError: a number below one.
    """
    if hosts is not None:
        check_count("hosts", hosts)
        return (Island(1, devices_per_host),) * hosts
    if not isinstance(islands, Sequence) or not all(isinstance(island, Island) for island in islands):
        raise TypeError(f"islands={islands!r}: expected a list of pathways.Island")
    return tuple(islands)
