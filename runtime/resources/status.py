"""Status of clusters, and of services that many clients share: records and tables. Plain data."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Protocol

from pathways.runtime.resources.tables import age, duration, html_table, ranges, size, table


@dataclasses.dataclass(frozen=True)
class HostStatus:
    """Status of a host.

    Attributes:
      host: its number.
      island: the name of its island, or of all islands of this process.
      pid: its process.
      arrays: the number of arrays that it holds for programs and their callers; None if it did not report.
      bytes: the bytes of these arrays, all shards together; None if it did not report.
      programs: the names of the programs that are loaded on it.
      error: the reason why it is lost or about to leave; None for a healthy host.
      round_trip: the seconds that a request to it and the reply take; None if unknown.
    """

    host: int
    island: str
    pid: int
    platform: str
    devices: int
    arrays: int | None
    bytes: int | None
    programs: tuple[str, ...]
    error: str | None = None
    round_trip: float | None = None


@dataclasses.dataclass(frozen=True)
class SliceStatus:
    """Status of a slice.

    Attributes:
      devices: the positions of its devices in the cluster.
      program: the program that was the first to use it.
    """

    name: str
    island: str
    devices: tuple[int, ...]
    program: str


@dataclasses.dataclass(frozen=True)
class StepStatus:
    """Status of a pending step.

    Attributes:
      seconds: the time since it was issued.
      hosts: the hosts that have not finished it.
    """

    program: str
    number: int
    seconds: float
    hosts: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class SpareStatus:
    """Status of spare workers, which replace lost ones.

    Attributes:
      ready: the number of spare workers that are ready.
      count: the required number.
      problem: the reason why no more can start; None if there is none.
    """

    ready: int
    count: int
    problem: str | None = None

    def __str__(self) -> str:
        problem = "" if self.problem is None else f"; {self.problem}"
        return f"spare workers: {self.ready} of {self.count} ready{problem}"


@dataclasses.dataclass(frozen=True)
class TrainingStatus:
    """Status of a run; `print` shows it in a few lines.

    Attributes:
      step: how many steps were issued.
      version: the step of the last committed version in memory; None where there is none.
      age: the seconds since it was committed; None where an earlier process has committed it.
      islands: the bytes of all versions in the memory of each island, by its name.
      disk: the step of the last version on disk; None where there is none.
      losses: how many losses of islands were survived.
      replicas: the number of replicas that run; None where it cannot change.
      protected: whether any one island may be lost with its memory.
    """

    step: int
    version: int | None
    age: float | None
    islands: Mapping[str, int]
    disk: int | None
    losses: int
    replicas: int | None
    protected: bool

    def __str__(self) -> str:
        age = "" if self.age is None else f", {self.age:.1f} s old"
        version = "no version in memory" if self.version is None else f"version {self.version}{age}"
        disk = "none" if self.disk is None else f"version {self.disk}"
        protected = "protected" if self.protected else "not protected"
        memory = ", ".join(f"{name} {size(count)}" for name, count in self.islands.items())
        replicas = "" if self.replicas is None else f"; replicas: {self.replicas}"
        return (
            f"step {self.step}: {version}, {protected}{replicas}; losses survived: {self.losses}\n"
            f"  memory: {memory}\n  disk: {disk}"
        )


class TrainingRun(Protocol):
    """Run of training that continues by itself, as a status of the cluster shows it."""

    def status(self) -> TrainingStatus:
        """Returns its status."""


open_runs: list[TrainingRun] = []
"""The runs of this process that have begun and not ended."""

_OF_SERVER = "devices of a server (pw-proxy): hosts, arrays and steps are those of all its clients"


@dataclasses.dataclass(frozen=True)
class Status:
    """Status of a cluster; `print` shows it.

    Attributes:
      backend: `local` for devices of this process, `hosts` for devices of workers, `server` for devices of a
        server, whose hosts and steps are of all its clients.
      slices: the slices that have devices.
      steps: the pending steps. Steps of this process are not counted.
      waits_for_network: whether recent steps waited for the longest round trip to a host, rather than for
        their computations. More steps in flight (`ahead`) would hide it.
      spares: the spare workers; None if there are to be none.
      training: the open runs of `pw.resilient`.
    """

    backend: str
    hosts: tuple[HostStatus, ...]
    slices: tuple[SliceStatus, ...]
    steps: tuple[StepStatus, ...] = ()
    waits_for_network: bool = False
    spares: SpareStatus | None = None
    training: tuple[TrainingStatus, ...] = ()

    @property
    def longest_round_trip(self) -> tuple[int, float] | None:
        """The host with the longest round trip, and its seconds; None if unknown."""
        round_trips = [(host.host, host.round_trip) for host in self.hosts if host.round_trip is not None]
        return max(round_trips, key=lambda entry: entry[1], default=None)

    def _network(self) -> str:
        if (longest := self.longest_round_trip) is None:
            return ""
        host, seconds = longest
        waits = "steps wait for it; more steps in flight (ahead=) would hide it"
        return (
            f"longest round trip: {seconds * 1e3:.3g} ms, to host {host}; "
            f"{waits if self.waits_for_network else 'steps do not wait for it'}"
        )

    def _head(self) -> list[str]:
        """Returns the lines before the tables."""
        return [_OF_SERVER] if self.backend == "server" else []

    def _lines(self) -> list[str]:
        """Returns the lines after the tables."""
        spares = [] if self.spares is None else [str(self.spares)]
        return [*filter(None, [self._network()]), *spares, *(f"training, {run}" for run in self.training)]

    def _tables(self) -> dict[str, list[tuple[str, ...]]]:
        hosts = [
            (
                str(host.host),
                host.island,
                str(host.pid),
                f"{host.devices} {host.platform}",
                "?" if host.arrays is None else str(host.arrays),
                "?" if host.bytes is None else size(host.bytes),
                _counted(host.programs) or "-",
                host.error or "alive",
            )
            for host in self.hosts
        ]
        slices = [(s.name, s.island, " ".join(map(str, s.devices)), s.program) for s in self.slices]
        steps = [
            (s.program, str(s.number), f"{s.seconds:.1f} s", " ".join(map(str, s.hosts))) for s in self.steps
        ]
        shown: dict[str, list[tuple[str, ...]]] = {
            "hosts": [
                ("host", "island", "process", "devices", "arrays", "bytes", "programs", "state"),
                *hosts,
            ],
            "slices": [("slice", "island", "devices", "first program"), *slices],
            "steps": [("program", "step", "since", "hosts not done"), *steps],
        }
        return {name: rows for name, rows in shown.items() if len(rows) > 1}

    def __str__(self) -> str:
        tables = [f"{name}\n{table(rows)}" for name, rows in self._tables().items()]
        return "\n".join([*self._head(), *tables, *self._lines()])

    def _repr_html_(self) -> str:
        """Returns the tables, for a notebook."""
        tables = "".join(f"<h4>{name}</h4>{html_table(rows)}" for name, rows in self._tables().items())
        head, lines = ([f"<p>{line}</p>" for line in lines] for lines in (self._head(), self._lines()))
        return "".join([*head, tables, *lines])


@dataclasses.dataclass(frozen=True)
class SharedHostStatus:
    """Status of a host of a service.

    Attributes:
      host: its number.
      pid: its process.
      arrays: the number of arrays of all clients that it holds; None if it did not report.
      bytes: the bytes of these arrays, all shards together; None if it did not report.
      machine: the name of its machine.
      address: the address at which other hosts reach it.
      since: the time when it was ready, in seconds since the epoch.
    """

    host: int
    pid: int
    arrays: int | None
    bytes: int | None
    machine: str = ""
    address: str = ""
    since: float = 0.0


@dataclasses.dataclass(frozen=True)
class IslandStatus:
    """Status of an island of a service.

    Attributes:
      state: `running`; `draining` while clients move off it; `leaving` when it accepts nothing more;
        `drained` until an operator has it return; `restarting` until its lost workers are replaced; `lost` if
        they will not be.
      devices: the number of its devices.
      free_memory: the bytes of memory of a device that no array occupies, on the host with the least, where
        each device has an equal share of the bytes of its host; None if unknown.
      losses: the number of times that its workers were lost, or left.
      problem: the reason why it accepts nothing new; None while it does.
    """

    name: str
    state: str
    hosts: tuple[SharedHostStatus, ...]
    devices: int = 0
    free_memory: int | None = None
    losses: int = 0
    problem: str | None = None


@dataclasses.dataclass(frozen=True)
class ClientStatus:
    """Status of a client of a service.

    Attributes:
      weight: its weight: a client's share of a busy device is its weight over the sum of all weights.
      steps_done: the number of its finished steps.
      queued: the number of its steps that wait for their islands.
      device_seconds: the total time that it has used islands.
      arrays: the number of arrays that it owns.
      bytes: the bytes of these arrays, all shards together.
      user: the name of its user, as the client reports it; None until it does.
      machine: the name of its machine, as the client reports it; None until it does.
      process: its process id there, as the client reports it; None until it does.
      address: the address from which it is connected; `this machine` for the socket in the cluster's folder.
      since: the time when it was admitted, in seconds since the epoch.
      islands: the names of the islands of its slices.
      slices: its slices that have devices.
      priority: its steps come before all steps of clients with a lower one.
      quota: the bytes that its arrays may have on each device; None if it shares a quota, or there is none.
      is_suspended: whether nothing of it is dispatched.
      held: the bytes that count for its quota on the device where it has most; None if memory is not limited.
    """

    name: str
    weight: float
    steps_done: int
    queued: int
    device_seconds: float
    arrays: int
    bytes: int
    user: str | None = None
    machine: str | None = None
    process: int | None = None
    address: str = ""
    since: float = 0.0
    islands: tuple[str, ...] = ()
    slices: tuple[SliceStatus, ...] = ()
    priority: int = 0
    quota: int | None = None
    is_suspended: bool = False
    held: int | None = None

    @property
    def share(self) -> str:
        """The weight, the priority and the suspension of the client, for tables."""
        priority = f", priority {self.priority}" if self.priority else ""
        return f"{self.weight:g}{priority}{', suspended' if self.is_suspended else ''}"


@dataclasses.dataclass(frozen=True)
class ServiceStatus:
    """Status of a service; `print` shows it.

    Attributes:
      pid: its process.
      spares: the spare workers; None if there are to be none.
      since: the time when it was ready, in seconds since the epoch.
      time: the time of this status by the clock of the service, in seconds since the epoch.
    """

    pid: int
    islands: tuple[IslandStatus, ...]
    clients: tuple[ClientStatus, ...]
    spares: SpareStatus | None = None
    since: float = 0.0
    time: float = 0.0

    def _tables(self) -> dict[str, list[tuple[str, ...]]]:
        islands = [
            (
                island.name,
                island.state,
                str(island.devices),
                "-" if island.free_memory is None else size(island.free_memory),
                str(island.losses),
            )
            for island in self.islands
        ]
        hosts = [
            (
                str(host.host),
                island.name,
                host.machine or "-",
                host.address or "-",
                str(host.pid),
                self._age(host.since),
                "?" if host.arrays is None else str(host.arrays),
                "?" if host.bytes is None else size(host.bytes),
            )
            for island in self.islands
            for host in island.hosts
        ]
        clients = [
            (
                client.name,
                client.share,
                str(client.steps_done),
                str(client.queued),
                duration(client.device_seconds, "s"),
                str(client.arrays),
                size(client.bytes),
                self._age(client.since),
                "-" if client.process is None else f"{client.user}@{client.machine}, {client.process}",
            )
            for client in self.clients
        ]
        slices = [
            (client.name, slice.name, slice.island, ranges(slice.devices))
            for client in self.clients
            for slice in client.slices
        ]
        shown: dict[str, list[tuple[str, ...]]] = {
            "islands": [("island", "state", "devices", "free memory", "losses"), *islands],
            "hosts": [
                ("host", "island", "machine", "address", "process", "since", "arrays", "bytes"),
                *hosts,
            ],
            # The longest cells come last.
            "clients": [
                (
                    *("client", "weight", "steps done", "queued", "device time", "arrays", "bytes", "since"),
                    "from",
                ),
                *clients,
            ],
            "slices": [("client", "slice", "island", "devices"), *slices],
        }
        return {name: rows for name, rows in shown.items() if len(rows) > 1}

    def __str__(self) -> str:
        lines = [
            f"service: process {self.pid}, for {self._age(self.since)}",
            *(f"{name}\n{table(rows)}" for name, rows in self._tables().items()),
            *(f"{island.name}: {island.problem}" for island in self.islands if island.problem is not None),
            *([] if self.spares is None else [str(self.spares)]),
            *([] if self.clients else ["no clients"]),
        ]
        return "\n".join(lines)

    def _age(self, since: float) -> str:
        """Returns the time between an event and this status, as text."""
        return age(self.time - since)


def _counted(names: Sequence[str]) -> str:
    """Returns each distinct name once, with its count."""
    counts = collections.Counter(names)
    return " ".join(name if count == 1 else f"{name} ({count})" for name, count in counts.items())
