"""What a service is at whose islands many clients share, as data and as tables. Plain data."""

from __future__ import annotations

import dataclasses

from pathways.runtime.resources.status import SpareStatus
from pathways.runtime.timelines.tables import duration, size, table


@dataclasses.dataclass(frozen=True)
class SharedHostStatus:
    """How a host of a service is.

    Attributes:
      host: its number.
      pid: its process.
      arrays: how many arrays it holds, of all clients; None when it does not say.
      bytes: the bytes of these arrays, all shards together; None when it does not say.
    """

    host: int
    pid: int
    arrays: int | None
    bytes: int | None


@dataclasses.dataclass(frozen=True)
class IslandStatus:
    """How an island of a service is.

    Attributes:
      name: its name.
      state: `running`, or why it does not.
      hosts: its hosts.
    """

    name: str
    state: str
    hosts: tuple[SharedHostStatus, ...]


@dataclasses.dataclass(frozen=True)
class ClientStatus:
    """What a client of a service has, and had.

    Attributes:
      name: its name.
      weight: its share of a device that others want, too, is this over the sum of theirs.
      steps_done: how many of its steps are done.
      queued: how many of its steps wait for a place on their islands.
      device_seconds: for how long it had devices of islands, added up.
      arrays: how many arrays it owns.
      bytes: the bytes of these arrays, all shards together.
    """

    name: str
    weight: float
    steps_done: int
    queued: int
    device_seconds: float
    arrays: int
    bytes: int


@dataclasses.dataclass(frozen=True)
class ServiceStatus:
    """What a service is at; `print` shows it.

    Attributes:
      pid: its process.
      islands: its islands.
      clients: who is connected.
      spares: spare workers; None where there shall be none.
    """

    pid: int
    islands: tuple[IslandStatus, ...]
    clients: tuple[ClientStatus, ...]
    spares: SpareStatus | None = None

    def __str__(self) -> str:
        islands = [
            (
                island.name,
                str(host.host),
                str(host.pid),
                "?" if host.arrays is None else str(host.arrays),
                "?" if host.bytes is None else size(host.bytes),
                island.state,
            )
            for island in self.islands
            for host in island.hosts
        ]
        clients = [
            (
                client.name,
                f"{client.weight:g}",
                str(client.steps_done),
                str(client.queued),
                duration(client.device_seconds, "s"),
                str(client.arrays),
                size(client.bytes),
            )
            for client in self.clients
        ]
        shown = [
            f"service: process {self.pid}",
            "islands",
            table([("island", "host", "process", "arrays", "bytes", "state"), *islands]),
            *([] if self.spares is None else [str(self.spares)]),
        ]
        if not clients:
            return "\n".join([*shown, "no clients"])
        heads = ("client", "weight", "steps done", "queued", "device time", "arrays", "bytes")
        return "\n".join([*shown, "clients", table([heads, *clients])])
