"""What a user says of workers."""

from __future__ import annotations

import dataclasses
import ipaddress
from collections.abc import Sequence


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
            _check_count(name, getattr(self, name))
        if self.cores is not None:
            _check_count("cores", self.cores)


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
        if self.ports is not None:
            first, last = self.ports
            if not 0 < first <= last < 1 << 16:
                raise ValueError(f"ports={self.ports!r}: expected a first and a last port")


@dataclasses.dataclass(frozen=True)
class Settings:
    """How workers are started and watched.

    Attributes:
      islands: the islands.
      ahead: how many steps may be issued and not done: so many steps' worth of arrays hosts have room for.
      stall_report: seconds without progress after which a step is reported, and again whenever they have
        doubled; None for never.
      step_deadline: seconds without progress after which a step is ended; None for never.
      heartbeat: seconds that a worker may say nothing; then it is killed, and what it had is lost.
      grace: seconds that an island goes on for when a worker of it was asked to end.
      endpoints: where controller and workers listen.
      launcher: who starts workers: `ray`, or None for this process.
      address: that of the cluster of the launcher; None for one of its own.

    Raises:
      ValueError: one of them cannot be.
    """

    islands: tuple[Island, ...]
    ahead: int = 4
    stall_report: float | None = 60.0
    step_deadline: float | None = None
    heartbeat: float = 10.0
    grace: float = 20.0
    endpoints: Endpoints = Endpoints()
    launcher: str | None = None
    address: str | None = None

    def __post_init__(self) -> None:
        if not self.islands:
            raise ValueError("islands=[]: expected at least one island")
        _check_count("ahead", self.ahead)
        for name in ("stall_report", "step_deadline"):
            seconds = getattr(self, name)
            if seconds is not None and (not isinstance(seconds, int | float) or not seconds > 0):
                raise ValueError(f"{name}={seconds!r}: expected seconds, or None for never")
        if not isinstance(self.heartbeat, int | float) or not self.heartbeat >= 1:
            raise ValueError(f"heartbeat={self.heartbeat!r}: expected at least one second")
        if not isinstance(self.grace, int | float) or not self.grace >= 0:
            raise ValueError(f"grace={self.grace!r}: expected seconds, 0 for none")

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
        _check_count("hosts", hosts)
        return (Island(1, devices_per_host),) * hosts
    if not isinstance(islands, Sequence) or not all(isinstance(island, Island) for island in islands):
        raise TypeError(f"islands={islands!r}: expected a list of pathways.Island")
    return tuple(islands)


def _check_count(name: str, number: object) -> None:
    if not isinstance(number, int) or isinstance(number, bool) or number < 1:
        raise ValueError(f"{name}={number!r}: expected at least 1")
